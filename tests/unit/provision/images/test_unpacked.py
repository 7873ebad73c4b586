"""Images that nodes link: names of layers, the image without its layers, and the script for a node."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from harness.core.errors import HarnessError
from harness.provision.images.containerd_import import LocalImage
from harness.provision.images.unpacked import chain_ids, layer_folders, linking, small, viewing

IMAGE = LocalImage("team/job:1", "sha256:" + "ab" * 32)
A, B = "sha256:" + "a" * 64, "sha256:" + "b" * 64
CTR = """#!/bin/sh
# A containerd's snapshots in a folder: names are files, and what was said is in `said`.
printf '%s\\n' "$*" >>said
case "$3 $4" in
"snapshots --snapshotter") shift 5 ;;
"images import") test ! -e broken; exit ;;
esac
case "$1" in
ls) ls known ;;
rm) rm -r "known/$2" "shots/$2" ;;
prepare)
  test ! -e "known/$3" || exit 1
  mkdir -p "known/$3" "shots/$3/fs"
  if test -n "$4"; then
    test -d "known/$4" || exit 1
    printf '[{"Source": "overlay",\\n"Options": [\\n"workdir=x",\\n"upperdir=%s"\\n]}]\\n' "$PWD/shots/$3/fs"
  else
    printf '[{"Type": "bind",\\n"Source": "%s",\\n"Options": ["rw"]}]\\n' "$PWD/shots/$3/fs"
  fi ;;
commit)
  test ! -e broken-commit || { rm broken-commit; exit 1; }
  mv "known/$3" "known/$2"; mv "shots/$3" "shots/$2" ;;
esac
"""


def test_layers_have_the_names_of_the_specification() -> None:
    """OCI: the lowest layer's ChainID is its DiffID, each other one's is of the ChainID below and its own."""
    second = "sha256:" + hashlib.sha256(f"{A} {B}".encode()).hexdigest()
    third = "sha256:" + hashlib.sha256(f"{second} {A}".encode()).hexdigest()
    assert chain_ids([A, B, A]) == [A, second, third]
    assert chain_ids([]) == []


def test_the_image_without_layers_is_whole_but_for_them() -> None:
    """Each blob lies under its own digest, and the index names the image as a node does."""
    configuration = json.dumps({"rootfs": {"diff_ids": [A]}})
    manifest = json.dumps({"mediaType": "application/vnd.oci.image.manifest.v1+json"})
    digest = "sha256:" + hashlib.sha256(manifest.encode()).hexdigest()
    with tarfile.open(
        fileobj=io.BytesIO(small("docker.io/team/job:1", manifest.encode(), configuration.encode()))
    ) as tar:
        files = {entry.name: tar.extractfile(entry).read() for entry in tar}  # type: ignore[union-attr]
    blobs = {name: content for name, content in files.items() if name.startswith("blobs/")}
    assert all(
        name == f"blobs/sha256/{hashlib.sha256(content).hexdigest()}" for name, content in blobs.items()
    )
    assert sorted(blobs.values()) == sorted([manifest.encode(), configuration.encode()])
    (named,) = json.loads(files["index.json"])["manifests"]
    assert named["digest"] == digest
    assert named["annotations"] == {"io.containerd.image.name": "docker.io/team/job:1"}


def linked(tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Run the script of an image of two layers, with a `ctr` that keeps snapshots in a folder."""
    program = tmp_path / "bin/ctr"
    if not program.exists():
        program.parent.mkdir()
        program.write_text(CTR)
        program.chmod(0o755)
        (tmp_path / "known").mkdir()
    text = linking([("sha256:one", "/shared/1/fs"), ("sha256:two", "/shared/2/fs")], IMAGE)
    return subprocess.run(
        ["sh", "-c", text],
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}/bin:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_layer_becomes_a_link(tmp_path: Path) -> None:
    done = linked(tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    folders = {path.name: path / "fs" for path in (tmp_path / "shots").iterdir()}
    assert {name: str(path.readlink()) for name, path in folders.items()} == {
        "sha256:one": "/shared/1/fs",
        "sha256:two": "/shared/2/fs",
    }
    assert (tmp_path / "said").read_text().splitlines()[-1].endswith(f"/images/{IMAGE.file}.tar")


def test_layers_that_are_there_are_left_alone(tmp_path: Path) -> None:
    linked(tmp_path)
    (tmp_path / "said").unlink()
    assert linked(tmp_path).returncode == 0
    assert [line.split()[-1].rpartition("/")[2] for line in (tmp_path / "said").read_text().splitlines()] == [
        "ls",
        f"{IMAGE.file}.tar",
    ]


def test_what_was_cut_off_is_done_again(tmp_path: Path) -> None:
    """A snapshot that was prepared and never committed stands in nobody's way."""
    linked(tmp_path)
    for name in ("known", "shots"):
        shutil.rmtree(tmp_path / name / "sha256:two")
    (tmp_path / "broken-commit").touch()
    assert linked(tmp_path).returncode == 0
    assert (tmp_path / "shots/sha256:two/fs").is_symlink()


def test_what_cannot_be_linked_says_so(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/ctr").write_text("#!/bin/sh\necho no containerd here >&2\nexit 1\n")
    (tmp_path / "bin/ctr").chmod(0o755)
    done = linked(tmp_path)
    assert done.returncode == 1
    assert "no containerd here" in done.stdout


def test_a_view_that_was_removed_first_is_no_failure(tmp_path: Path) -> None:
    """Contract: a view may be removed at any time, but a layer that is absent fails."""
    program = tmp_path / "ctr"
    program.write_text('#!/bin/sh\ncase "$4 $7" in\n"view one") echo "[$7]" ;;\n*) exit 1 ;;\nesac\n')
    program.chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}

    def done(chain: str) -> tuple[int, str]:
        ended = subprocess.run(
            ["sh", "-c", viewing(chain)], env=env, capture_output=True, text=True, check=False
        )
        return ended.returncode, ended.stdout

    assert done("one") == (0, "[one]\n")
    assert done("absent") == (1, "")


def test_folders_of_layers_are_those_of_one_mount() -> None:
    """Contract: lowest first, and only folders in the volume can be linked."""
    folder = "/harness-unpacked/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots"
    bind = [{"Type": "bind", "Source": f"{folder}/1/fs", "Options": ["ro", "rbind"]}]
    assert layer_folders(bind) == [f"{folder}/1/fs"]
    stacked = f"lowerdir={folder}/3/fs:{folder}/2/fs:{folder}/1/fs"
    overlay = [{"Type": "overlay", "Source": "overlay", "Options": ["index=off", stacked]}]
    assert layer_folders(overlay) == [f"{folder}/{number}/fs" for number in (1, 2, 3)]
    with pytest.raises(HarnessError, match="keeps a layer at /elsewhere"):
        layer_folders([{"Source": "/elsewhere", "Options": []}])
