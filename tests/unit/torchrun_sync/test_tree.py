"""What of a folder outside of git travels, next to git's own answer; and when a file is read again."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness.core.errors import UsageError
from harness.torchrun_sync.pod.entries import check
from harness.torchrun_sync.tree import Walker

NAMES = ("a", "b.py", "c.log", "d")
PATTERNS = st.lists(
    st.sampled_from(
        [
            "a",
            "a/",
            "/a",
            "*.log",
            "!*.log",
            "d/*",
            "!d/b.py",
            "**/b.py",
            "a/**",
            "!a/",
            "# text",
            "",
            "d/a",
            "[ab]*",
        ]
    ),
    max_size=4,
)


def paths(top: Path) -> set[str]:
    return {entry["path"] for entry in Walker(top).scan().entries}


@settings(max_examples=40)
@given(outer=PATTERNS, inner=PATTERNS, deepest=PATTERNS)
@example(outer=[], inner=["a/**"], deepest=["!*.log"])
def test_gitignore_files_exclude_what_git_excludes(
    outer: list[str], inner: list[str], deepest: list[str]
) -> None:
    """Contract: .gitignore files mean what they mean to git, at each level, also where git is not asked: the
    repository lies elsewhere.
    """
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as elsewhere:
        top = Path(folder)
        for where, rules in (("", outer), ("d", inner), ("d/a", deepest)):
            (top / where / "a").mkdir(parents=True, exist_ok=True)
            (top / where / "d").mkdir(exist_ok=True)
            (top / where / ".gitignore").write_text("\n".join(rules) + "\n")
            for name in NAMES[1:3]:
                (top / where / name).write_text(name)
        subprocess.run(["git", "init", "-q", "--bare", elsewhere], check=True)
        asked = ["git", "-C", folder, f"--git-dir={elsewhere}", f"--work-tree={folder}", "ls-files"]
        listing = subprocess.run(
            [*asked, "-z", "--others", "--exclude-standard"],
            capture_output=True,
            check=True,
            env={**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"},
        ).stdout.decode()
        files = {entry["path"] for entry in Walker(top).scan().entries if entry["kind"] == "file"}
        assert files == set(filter(None, listing.split("\0")))


def test_torchrunignore_wins_over_gitignore(tmp_path: Path) -> None:
    """Contract: it leaves out more, and brings back what git leaves out and what nobody means to send."""
    for name in ("weights.bin", "notes.md", "lib.pyc"):
        (tmp_path / name).write_text(name)
    (tmp_path / ".gitignore").write_text("*.bin\n")
    assert paths(tmp_path) == {".gitignore", "notes.md"}
    (tmp_path / ".torchrunignore").write_text("!*.bin\n!*.pyc\n*.md\n.*ignore\n")
    assert paths(tmp_path) == {"weights.bin", "lib.pyc"}


REINCLUDED = {
    "a file": ("!/weights/tiny.bin\n", {"weights/tiny.bin"}),
    "a file, written without the first slash": ("!weights/tiny.bin\n", {"weights/tiny.bin"}),
    "a folder": ("!weights/v2/\n", {"weights/v2/a.bin", "weights/v2/b.txt"}),
    "a wildcard in the middle": ("!weights/*/a.bin\n", {"weights/v1/a.bin", "weights/v2/a.bin"}),
    "all but one": ("!weights/v2/\nweights/v2/b.txt\n", {"weights/v2/a.bin"}),
    "the content of .git": ("!.git/HEAD\n", {".git/HEAD"}),
    "nothing that exists": ("!weights/v3/a.bin\n", set()),
    "a name, in any folder that is not excluded": ("!tiny.bin\n", set()),
}


@pytest.mark.parametrize("name", REINCLUDED)
def test_path_below_an_excluded_folder_is_included_again(tmp_path: Path, name: str) -> None:
    """skypilot-org/skypilot#9515, ray-project/ray#18279, convox/rack#2253, moby/moby#30018: the file to
    include lay in an ignored folder, and was missing without a message.

    Contract: .torchrunignore is about what is sent, so its rule counts. The rest of the folder is not sent.
    """
    rules, sent = REINCLUDED[name]
    paths = (
        "train.py",
        "weights/tiny.bin",
        "weights/v1/a.bin",
        "weights/v2/a.bin",
        "weights/v2/b.txt",
        ".git/HEAD",
    )
    for path in paths:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("")
    (tmp_path / ".gitignore").write_text("weights/\n")
    (tmp_path / ".torchrunignore").write_text(rules)
    tree = Walker(tmp_path).scan()
    files = {entry["path"] for entry in tree.entries if entry["kind"] == "file"}
    assert files == sent | {"train.py", ".gitignore", ".torchrunignore"}
    check(tree.entries)
    if not sent:
        assert dict(tree.excluded)["weights/"] == "a .gitignore file excludes it"


@pytest.mark.parametrize("first", ["data/", "*", "data"])
def test_rule_that_an_earlier_rule_defeats_is_named(tmp_path: Path, first: str) -> None:
    """moby/moby#31630, docker/buildx#850, meta-pytorch/torchx#476: with the rule data/, git looks at no rule
    for a path in data.

    Contract: the user reads which rules to add. With them, the path is sent, and no other one.
    """
    (tmp_path / "data").mkdir()
    for name in ("keep.csv", "other.csv"):
        (tmp_path / "data" / name).write_text("")
    for added, sent in (("", set()), ("!data/\ndata/*\n", {"data/keep.csv"})):
        messages: list[str] = []
        (tmp_path / ".torchrunignore").write_text(f"{first}\n{added}!data/keep.csv\n")
        tree = Walker(tmp_path, messages.append).scan()
        assert {entry["path"] for entry in tree.entries if entry["path"].startswith("data/")} == sent
        notes = [line for line in messages if line.startswith("note: ")]
        assert notes == [] if added else "write the rules !data/ and data/* before" in notes[0]


def test_what_has_no_content_is_named_as_skipped(tmp_path: Path) -> None:
    """Contract: a socket and a pipe stay here, and the user is told."""
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        tree = Walker(tmp_path).scan()
    assert (tree.entries, tree.skipped) == ((), ("pipe", "socket"))


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    """Contract: expected, seen, and the option to use."""
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file"):
        Walker(tmp_path / "file")
    with pytest.raises(UsageError, match="does not exist"):
        Walker(tmp_path / "nothing")


def test_a_write_that_keeps_size_and_time_is_seen(tmp_path: Path) -> None:
    """Contract: a file that was written in the last two seconds is read again, whatever its stamp says."""
    walker = Walker(tmp_path)
    (tmp_path / "a").write_text("one")
    when = (tmp_path / "a").stat()
    first = walker.scan().digest
    (tmp_path / "a").write_text("two")
    os.utime(tmp_path / "a", ns=(when.st_atime_ns, when.st_mtime_ns))
    assert walker.scan().digest != first


def test_a_stamp_changes_with_anything_that_travels(tmp_path: Path) -> None:
    """Contract: `--watch` sees content, mode, a new name and a lost one, without reading a file."""
    walker = Walker(tmp_path)
    seen = [walker.stamps()]
    (tmp_path / "a").write_text("one")
    seen.append(walker.stamps())
    (tmp_path / "a").write_text("four")
    seen.append(walker.stamps())
    (tmp_path / "a").chmod(0o755)
    seen.append(walker.stamps())
    (tmp_path / "a").rename(tmp_path / "b")
    seen.append(walker.stamps())
    (tmp_path / "empty").mkdir()
    seen.append(walker.stamps())
    assert all(one != other for one, other in pairwise(seen))


def test_an_ignore_file_is_read_with_bounds(tmp_path: Path) -> None:
    """Contract: a pipe does not hold the walk up, and no file has more rules than can be compared in time."""
    os.mkfifo(tmp_path / ".gitignore")
    with pytest.raises(UsageError, match="is a pipe"):
        Walker(tmp_path).scan()
    (tmp_path / ".gitignore").unlink()
    (tmp_path / ".torchrunignore").symlink_to("/dev/zero")
    with pytest.raises(UsageError, match="is a pipe, a socket or a device"):
        Walker(tmp_path).scan()
    (tmp_path / ".torchrunignore").unlink()
    (tmp_path / ".torchrunignore").write_text("*.pyc\n" * 2001)
    with pytest.raises(UsageError, match="has 2001 lines; at most 2000 are supported"):
        Walker(tmp_path).scan()
