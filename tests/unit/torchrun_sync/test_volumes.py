"""Volumes that are full or unsuitable, and what a later sync finds on them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from harness.torchrun_sync.pod.entries import Entry
from harness.torchrun_sync.pod.files import volume_problem
from harness.torchrun_sync.pod.store import Store
from harness.torchrun_sync.tree import Tree, Walker


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "mount/.torchrun"


def folder(top: Path, **sizes: int) -> Tree:
    """Return the tree of a folder with files of these sizes."""
    top.mkdir()
    for name, size in sizes.items():
        (top / name).write_bytes(os.urandom(size))
    return Walker(top).scan()


def receive(store: Store, tree: Tree, files: list[Entry], share: float = 1) -> None:
    """Receive this share of the content of the files."""
    for entry in files:
        content = store.content(entry["sha256"], entry["size"], 0)
        data = (tree.top / entry["path"]).read_bytes()
        content.write(data[: int(len(data) * share)])
        if share == 1:
            content.finish()


def used(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize("end", ["during a file", "after the files", "during the copy", "after the copy"])
def test_a_sync_that_failed_leaves_room_for_the_next(tmp_path: Path, root: Path, end: str) -> None:
    """okteto/okteto#1126, #1165, #2285: the volume was full, and remained so with fewer files.

    Contract: what a failed sync left is removed before new content arrives, unless the new tree needs it.
    """
    large, small = folder(tmp_path / "large", data=1 << 20, train=9), folder(tmp_path / "small", train=9)
    store = Store(str(root))
    store.expect(large.entries)
    receive(store, large, list(large.entries), 0.5 if end == "during a file" else 1)
    if end == "during the copy":
        data = next(entry for entry in large.entries if entry["path"] == "data")
        os.unlink(root / "incoming" / data["sha256"])  # As if the process ended before the second file.
        with pytest.raises(KeyError):
            store.stage()
    if end == "after the copy":
        store.stage()
    assert used(root) >= 1 << 19 or end == "during the copy"

    again = Store(str(root))
    assert len(again.expect(small.entries)) == 1
    assert used(root) < 1000
    assert os.listdir(root / "trees") == []
    receive(again, small, list(small.entries))
    assert again.stage() == small.digest


def test_a_failed_sync_of_same_code_is_continued(tmp_path: Path, root: Path) -> None:
    """Contract: only other code is removed. The running tree stays."""
    old, new = folder(tmp_path / "old", train=9), folder(tmp_path / "new", data=1 << 20, train=10)
    store = Store(str(root))
    store.lock("a", 5)
    store.expect(old.entries)
    receive(store, old, list(old.entries))
    store.stage()
    store.switch(old.digest, 1)
    store.expect(new.entries)
    receive(store, new, list(new.entries), 0.5)
    again = Store(str(root))
    assert {offset for _, offset in again.expect(new.entries)} == {1 << 19, 5}
    assert (root / "current/train").read_bytes() == (old.top / "train").read_bytes()
    assert again.intact()
    receive(again, new, list(new.entries))
    again.stage()
    assert Store(str(root)).expect(new.entries) == []


def test_full_volume_has_advice(tmp_path: Path) -> None:
    """okteto/okteto#3000: "no space left on device" did not say where, nor what to do.

    Contract: another error is not taken for it.
    """
    for code in (errno.ENOSPC, errno.EDQUOT):
        message = volume_problem(OSError(code, os.strerror(code)), str(tmp_path))
        assert f"the volume of {tmp_path} is full, with " in message
        assert ".torchrunignore, or use a larger volume" in message
    assert (
        volume_problem(OSError(errno.EACCES, "x"), str(tmp_path))
        == volume_problem(ValueError("x"), str(tmp_path))
        == ""
    )


def test_volume_without_links_or_permissions_has_advice(tmp_path: Path) -> None:
    """eclipse-che/che#18350, rstudio/helm#327, Azure/azure-storage-fuse#516: code could not be written to
    shares of Azure, and the error named only a system call.

    Contract: the message names the volume, and what to use instead. A missing file is another error.
    """
    for code in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
        message = volume_problem(OSError(code, os.strerror(code), "trees/x/train.py"), str(tmp_path))
        assert f"the volume of {tmp_path} does not permit symbolic links or permission bits" in message
        assert "trees/x/train.py" in message
        assert "instead of SMB" in message
    assert volume_problem(FileNotFoundError(errno.ENOENT, "x", "y"), str(tmp_path)) == ""
