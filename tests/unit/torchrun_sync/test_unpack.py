"""An archive of a workspace: everything that it may contain arrives, and nothing leaves the folder."""

from __future__ import annotations

import gzip
import io
import os
import random
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.torchrun_sync.pod import unpack
from harness.torchrun_sync.pod.unpack import Workspace
from harness.workers.training.object_store import Failed

Member = tuple[str, bytes, str]
"""Name, type of the tar member, and content or target."""
FILE, LINK, HARD, FOLDER = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A workspace beside a file that no archive may read or replace."""
    (tmp_path / "outside").write_text("theirs")
    (tmp_path / "workspace").mkdir()
    return tmp_path / "workspace"


def tar(path: Path, *members: Member, mode: str = "w") -> str:
    with tarfile.open(path, mode) as packed:  # type: ignore[call-overload]
        for name, kind, text in members:
            info = tarfile.TarInfo(name)
            info.type, info.mode = kind, 0o755 if kind == FOLDER else 0o4777
            if kind == FILE:
                info.size = len(text.encode())
                packed.addfile(info, io.BytesIO(text.encode()))
            else:
                info.linkname = text
                packed.addfile(info)
    return str(path)


@pytest.mark.parametrize(("end", "mode"), [(".tar", "w"), (".tgz", "w:gz"), (".tar.bz2", "w:bz2")])
def test_files_folders_and_links_arrive(root: Path, tmp_path: Path, end: str, mode: str) -> None:
    members = [
        ("./", FOLDER, ""),
        ("./pkg/a.py", FILE, "print(1)"),
        ("empty", FOLDER, ""),
        ("pkg/link.py", LINK, "a.py"),
        ("up", LINK, "pkg/../pkg"),
        ("copy.py", HARD, "pkg/a.py"),
    ]
    unpack.unpack(tar(tmp_path / f"a{end}", *members, mode=mode), Workspace(str(root)))
    assert (root / "up/link.py").read_text() == (root / "copy.py").read_text() == "print(1)"
    assert (root / "empty").is_dir()
    assert stat.S_IMODE((root / "pkg/a.py").stat().st_mode) == 0o755, "no setuid, not writable for others"
    assert (root / "copy.py").stat().st_nlink == 1


@pytest.mark.parametrize(
    "members",
    [
        [("../outside", FILE, "mine")],
        [("a/../../outside", FILE, "mine")],
        [("/{outside}", FILE, "mine")],
        [("l", LINK, "../outside"), ("l", FILE, "mine")],
        [("l", LINK, "{outside}")],
        [("l", LINK, "..")],
        [("d", LINK, ".."), ("d/outside", FILE, "mine")],
        # A link through a link: each by itself stays inside.
        [("p/q/r", LINK, "../.."), ("m", LINK, "p/q/r/../outside")],
        [("a", LINK, "b"), ("b", LINK, "a"), ("c", LINK, "a/x")],
        [("n" * 2000, FILE, "mine")],
        [("hard", HARD, "../outside")],
        [("hard", HARD, "{outside}")],
        # CVE-2025-4517: realpath gives up on a path that is too long, and takes the rest as it is.
        [
            *(((f"{'d' * 247}/" * depth + letter), LINK, "d" * 247) for depth, letter in enumerate("abcdef")),
            ("escape", LINK, "a/b/c/d/e/f/../../../../../../../outside"),
        ],
        # python/cpython#151558: a hard link to a link is extracted as that link, at another depth.
        [("a/b/s", LINK, "../../x"), ("s", HARD, "a/b/s"), ("s", FILE, "mine")],
        [(".torchrun/ready", FILE, "mine")],
        [("./.torchrun", LINK, "x")],
        [("fifo", tarfile.FIFOTYPE, "")],
        [("device", tarfile.BLKTYPE, "")],
        [("nul\0", FILE, "mine"), ("../outside", FILE, "mine")],
    ],
)
def test_nothing_leaves_the_workspace(root: Path, tmp_path: Path, members: list[Member]) -> None:
    outside = tmp_path / "outside"
    named = [(name.replace("{outside}", str(outside)), kind, text) for name, kind, text in members]
    named = [(name, kind, text.replace("{outside}", str(outside))) for name, kind, text in named]
    archive = tar(tmp_path / "evil.tar", *named)
    with pytest.raises((Failed, OSError)):
        unpack.unpack(archive, Workspace(str(root)))
    assert outside.read_text() == "theirs"
    assert outside.stat().st_nlink == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evil.tar", "outside", "workspace"]
    assert not [path for path in root.rglob("*") if path.is_symlink()], "links come last, all or none"


def test_any_links_of_an_archive_stay_inside(root: Path, tmp_path: Path) -> None:
    """Property: whatever links an archive has, either it is refused, or each of them ends inside."""
    chosen = random.Random(45)
    parts = ["a", "b", "..", "c", "."]
    refused = 0
    for number in range(400):
        place = root / str(number)
        place.mkdir()
        links = {
            "/".join(chosen.choices("abc", k=chosen.randint(1, 3))): "/".join(
                chosen.choices(parts, k=chosen.randint(1, 5))
            )
            for _ in range(4)
        }
        members = [(name, LINK, target) for name, target in links.items()]
        try:
            unpack.unpack(tar(tmp_path / "some.tar", *members), Workspace(str(place)))
        except (Failed, OSError):
            refused += 1
            continue
        for link in (path for path in place.rglob("*") if path.is_symlink()):
            assert Path(os.path.realpath(link)).is_relative_to(place), (link, links)
    assert 0 < refused < 400


def test_a_link_that_was_there_is_not_followed(root: Path, tmp_path: Path) -> None:
    (root / "d").symlink_to(tmp_path)
    (root / "f").symlink_to(tmp_path / "outside")
    with pytest.raises(Failed, match="leads through the link 'd'"):
        unpack.unpack(tar(tmp_path / "a.tar", ("d/outside", FILE, "mine")), Workspace(str(root)))
    unpack.unpack(tar(tmp_path / "b.tar", ("f", FILE, "mine")), Workspace(str(root)))
    assert ((root / "f").read_text(), (tmp_path / "outside").read_text()) == ("mine", "theirs")


def _zip(path: Path, entries: dict[str, bytes], attributes: int = 0) -> str:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, text in entries.items():
            info = zipfile.ZipInfo(name)
            info.external_attr, info.compress_type = attributes << 16, zipfile.ZIP_DEFLATED
            packed.writestr(info, text)
    return str(path)


def test_a_zip_is_unpacked_by_the_same_rules(root: Path, tmp_path: Path) -> None:
    unpack.unpack(_zip(tmp_path / "a.zip", {"x/run.sh": b"1", "e/": b""}, 0o755), Workspace(str(root)))
    assert (root / "x/run.sh").stat().st_mode & 0o111
    assert (root / "e").is_dir()
    for entries, attributes in (({"../outside": b"mine"}, 0), ({"l": b"../outside"}, stat.S_IFLNK | 0o777)):
        with pytest.raises(Failed):
            unpack.unpack(_zip(tmp_path / "b.zip", entries, attributes), Workspace(str(root)))
    assert (tmp_path / "outside").read_text() == "theirs"


def bomb_of_zeros(path: Path) -> str:
    with tarfile.open(path, "w:gz") as packed:
        info = tarfile.TarInfo("zeros")
        info.size = 3 << 20
        packed.addfile(info, io.BytesIO(bytes(info.size)))
    return str(path)


def bomb_of_a_hole(path: Path) -> str:
    """A sparse file has no bytes in the archive."""
    info = tarfile.TarInfo("hole")
    info.pax_headers = {"GNU.sparse.major": "0", "GNU.sparse.size": str(3 << 20), "GNU.sparse.map": "0,0"}
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as packed:
        packed.addfile(info)
    return str(path)


def bomb_of_a_header(path: Path) -> str:
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as packed:
        info = tarfile.TarInfo("x")
        info.pax_headers = {"comment": "x" * (17 << 20)}
        packed.addfile(info)
    return str(path)


def bomb_of_headers(path: Path) -> str:
    """Two headers of one member, each of which is small enough."""
    comment = {"comment": "x" * (9 << 20)}
    header = tarfile.TarInfo._create_pax_generic_header(comment, tarfile.XHDTYPE, "utf-8")  # type: ignore[attr-defined]
    with gzip.open(path, "wb", compresslevel=1) as packed:
        packed.write(header * 2 + tarfile.TarInfo("x").tobuf())
    return str(path)


def bomb_of_files(path: Path) -> str:
    return tar(path, *((f"f{number}", FILE, "") for number in range(101)))


def bomb_of_copies(path: Path) -> str:
    copies = [(f"copy{number}", HARD, "file") for number in range(30)]
    return tar(path, ("file", FILE, "x" * (100 << 10)), *copies)


@pytest.mark.parametrize(
    ("end", "bomb"),
    [
        (".tgz", bomb_of_zeros),
        (".tar", bomb_of_a_hole),
        (".tgz", bomb_of_a_header),
        (".tgz", bomb_of_headers),
        (".tar", bomb_of_files),
        (".tar", bomb_of_copies),
        (".zip", lambda path: _zip(path, {"zeros": bytes(3 << 20)})),
    ],
)
def test_a_small_archive_of_a_large_workspace_is_refused(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, bomb: Callable[[Path], str]
) -> None:
    """Contract: what is written is limited, not what a header says."""
    monkeypatch.setattr(unpack, "MAX_BYTES", 2 << 20)
    monkeypatch.setattr(unpack, "MAX_FILES", 100)
    with pytest.raises(Failed, match="expected"):
        unpack.unpack(bomb(tmp_path / f"bomb{end}"), Workspace(str(root)))
    assert sum(path.stat().st_size for path in root.rglob("*")) <= 2 << 20


@pytest.mark.parametrize("end", unpack.ARCHIVES)
def test_a_damaged_archive_has_a_message(root: Path, tmp_path: Path, end: str) -> None:
    """Contract: no module's own error gets out, whatever the bytes are."""
    for text in (b"", b"no archive", b"PK\x03\x04" * 99, b"\x1f\x8b\x08" + bytes(99), b"BZh9" + bytes(99)):
        (tmp_path / f"a{end}").write_bytes(text)
        with pytest.raises((Failed, OSError)):
            unpack.unpack(str(tmp_path / f"a{end}"), Workspace(str(root)))


def test_backslashes_in_a_zip_of_windows_are_separators(root: Path, tmp_path: Path) -> None:
    """Contract: the code would arrive as one file `src\\a.py`. Elsewhere, a backslash is part of a name."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as packed:
        for name, system in (("src\\", 0), ("src\\sub\\a.py", 0), ("b\\c.py", 3)):
            info = zipfile.ZipInfo(name)
            info.create_system = system
            packed.writestr(info, "")
    unpack.unpack(str(tmp_path / "a.zip"), Workspace(str(root)))
    found = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    assert {"src/sub/a.py", "b\\c.py"} <= found
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as packed:
        info = zipfile.ZipInfo("..\\out")
        info.create_system = 0
        packed.writestr(info, "")
    with pytest.raises(Failed, match="expected a path inside the workspace"):
        unpack.unpack(str(tmp_path / "b.zip"), Workspace(str(root)))


@pytest.mark.parametrize("end", [".tar.gz", ".tar.bz2", ".tar.xz", ".zip", ".tar"])
def test_an_archive_in_another_format_has_a_message(root: Path, tmp_path: Path, end: str) -> None:
    """Contract: such as the page of an error in place of the archive."""
    path = tmp_path / f"a{end}"
    path.write_text("<html>\n")
    with pytest.raises(Failed, match="the archive cannot be unpacked: "):
        unpack.unpack(str(path), Workspace(str(root)))
