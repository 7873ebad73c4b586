"""A job's code that is stored in the cluster, and the program that fetches it in new pods."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sync_processes import Pod, pod, seen
from test_torchrun_sync import NAMES, TREES, _write, fleet, here

from harness.torchrun_sync import pod_script
from harness.torchrun_sync.packing import pack
from harness.torchrun_sync.pod.store import Store
from harness.torchrun_sync.pod.stored_archive import ArchiveReader, fetch_code, join_parts, restore, split
from harness.torchrun_sync.sender import Changed
from harness.torchrun_sync.tree import Walker

__all__ = ["here"]
READY = "what-the-pods-wait-for"
LIMIT = 1 << 30


def keep(folder: Path, top: Path, generation: int = 1, size: int = 100_000) -> None:
    """Write the parts of a folder's code to the folder that pods mount."""
    whole = pack(Walker(top).scan(), generation, LIMIT)
    assert whole is not None
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for index, part in enumerate(split(whole, size)):
        (folder / str(index)).write_bytes(part)


def waiting(folder: Path, to: Pod, seconds: float = 20, holder: str = "") -> subprocess.Popen[str]:
    """Start the program of the controller's init container, which waits for the code in a pod."""
    command = pod_script.init_command(str(folder), holder, str(to.root), str(to.control), READY, seconds)
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    out, err = process.communicate(timeout=300)
    return process.returncode, out + err


@pytest.fixture
def to(tmp_path: Path) -> Pod:
    return pod(tmp_path / "pod")


def test_64_pods_cost_one_upload(here: Path, tmp_path: Path) -> None:
    """Contract: all pods read the parts that were stored once, and a sync of the same code sends no files."""
    (here / "big.bin").unlink()
    keep(tmp_path / "parts", here)
    pods = [pod(tmp_path / f"pod{index}") for index in range(64)]
    for each in pods:
        assert "from Secrets" in fetch_code(Store(str(each.root)), str(tmp_path / "parts"), READY)
    assert [seen(each.mount) for each in pods] == [seen(here)] * 64
    with fleet(pods[::16]) as job:
        done = job.sync(Walker(here))
    assert (done.pods, done.files, done.sent) == (4, 0, 0)
    for each in pods:
        each.end()


def test_a_new_pod_has_the_code_without_a_client(here: Path, to: Pod, tmp_path: Path) -> None:
    """Contract: every file, mode and link comes from the parts, and a sync of the same code changes
    nothing."""
    keep(tmp_path / "kept", here, generation=7)
    assert len(os.listdir(tmp_path / "kept")) > 20
    code, output = ended(waiting(tmp_path / "kept", to))
    assert code == 0, output
    assert seen(to.mount) == seen(here)
    assert Walker(here).scan().digest[:12] in output
    with fleet([to]) as job:
        done = job.sync(Walker(here))
    assert (done.files, done.generation, done.restarted) == (0, 7, 0)
    to.end()


def test_parts_that_come_late_and_one_by_one(here: Path, to: Pod, tmp_path: Path) -> None:
    """Contract: the pod waits until all parts of one archive exist, and does not mix them with parts of an
    older one."""
    old, new, folder = tmp_path / "old", tmp_path / "new", tmp_path / "kept"
    keep(old, here)
    (here / "train.py").write_text("print('two')\n")
    keep(new, here, generation=2)
    folder.mkdir()
    process = waiting(folder, to)
    shutil.copy(old / "0", folder / "0")
    time.sleep(1)
    for index in reversed(range(len(os.listdir(new)))):
        assert process.poll() is None
        shutil.copy(new / str(index), folder / "made")
        os.replace(folder / "made", folder / str(index))
    code, output = ended(process)
    assert code == 0, output
    assert seen(to.mount) == seen(here)


@pytest.mark.parametrize("damage", ["cut", "bit", "missing", "text"])
def test_a_part_that_is_not_whole_is_never_unpacked(here: Path, to: Pod, tmp_path: Path, damage: str) -> None:
    """Contract: nothing is unpacked in the pod, and the program exits with a message that explains what to
    do."""
    folder = tmp_path / "kept"
    keep(folder, here)
    path = folder / "3"
    part = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(part[:-1])
    elif damage == "bit":
        part[len(part) // 2] ^= 1
        path.write_bytes(part)
    elif damage == "missing":
        path.unlink()
    else:
        path.write_text("what is this?")
    code, output = ended(waiting(folder, to, seconds=2))
    assert code == 1
    assert "no code arrived within 2 s" in output
    assert "kubectl torchrun sync" in output
    assert os.listdir(to.mount) == [".torchrun"]
    assert not os.listdir(to.root / "trees")


def test_a_sync_comes_while_nothing_is_kept(here: Path, to: Pod, tmp_path: Path) -> None:
    process = waiting(tmp_path / "none", to)
    with fleet([to]) as job:
        job._ready = READY
        job.sync(Walker(here))
    code, output = ended(process)
    assert code == 0, output
    assert "from a sync" in output
    to.end()


def test_a_volume_keeps_what_is_newer(here: Path, to: Pod, tmp_path: Path) -> None:
    """Contract: the tree on a volume is kept if the stored code is older, and replaced if the stored code is
    newer."""
    folder = tmp_path / "kept"
    keep(folder, here, generation=3)
    assert ended(waiting(folder, to))[0] == 0
    (here / "train.py").write_text("print('another')\n")
    before = seen(to.mount)
    keep(folder, here, generation=2)
    assert ended(waiting(folder, to))[0] == 0
    assert seen(to.mount) == before
    keep(folder, here, generation=4)
    assert ended(waiting(folder, to))[0] == 0
    assert seen(to.mount) == seen(here) != before


def test_pods_of_one_volume_bring_it_once(here: Path, to: Pod, tmp_path: Path) -> None:
    """Contract: several pods that start at the same time on one volume all succeed, and the tree is
    complete."""
    keep(tmp_path / "kept", here)
    processes = [waiting(tmp_path / "kept", to) for _ in range(4)]
    for code, output in map(ended, processes):
        assert code == 0, output
    assert seen(to.mount) == seen(here)
    assert len([name for name in os.listdir(to.root / "trees") if not name.endswith(".json")]) == 1


def test_a_file_that_changes_is_noticed(here: Path) -> None:
    tree = Walker(here).scan()
    (here / "train.py").write_text("print('now')\n")
    with pytest.raises(Changed, match=r"train\.py|twin\.py"):
        pack(tree, 1, LIMIT)


def test_more_than_the_limit_is_no_whole(here: Path) -> None:
    assert pack(Walker(here).scan(), 1, 1 << 20) is None


@settings(max_examples=30)
@given(inside=st.dictionaries(NAMES, TREES, max_size=4), size=st.integers(1, 2000))
def test_any_tree_comes_as_it_is(inside: dict[str, tuple[object, ...]], size: int) -> None:
    """Property: whatever a folder contains, and however it is divided into parts, the restored tree is the
    same."""
    with tempfile.TemporaryDirectory() as folder:
        top, mount = Path(folder) / "here", Path(folder) / "there"
        _write(top, inside)
        tree = Walker(top).scan()
        whole = pack(tree, 1, LIMIT)
        assert whole is not None
        parts = Path(folder) / "kept"
        parts.mkdir()
        for index, part in enumerate(split(whole, max(size, len(whole) // 50))):
            (parts / str(index)).write_bytes(part)
        assert join_parts(str(parts)) == whole
        mount.mkdir()
        store = Store(str(mount / ".torchrun"))
        restore(store, ArchiveReader(io.BytesIO(whole).read), READY)
        assert store.current()["tree"] == tree.digest
        assert seen(mount) == seen(top)


def test_a_pod_that_holds_it_serves_it(here: Path, to: Pod, tmp_path: Path, unused_tcp_port: int) -> None:
    """Contract: code of any size is synced to the pod that stores it, and later pods receive all of it. A pod
    that requests the code too early waits, and a client that does not know the digest receives nothing.
    """
    holder = pod(tmp_path / "holder")
    command = pod_script.archive_server_command(
        str(tmp_path / "none"), str(holder.root), READY, unused_tcp_port
    )
    holding = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        words = pod_script.init_command(
            str(tmp_path / "none"), f"127.0.0.1:{unused_tcp_port}", str(to.root), str(to.control), READY, 30
        )
        early = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(1)
        assert early.poll() is None
        with fleet([holder]) as job:
            job._ready = READY
            done = job.sync(Walker(here))
        code, output = ended(early)
        assert code == 0, output
        assert f"code {done.tree[:12]}, generation 1, from 127.0.0.1" in output
        assert seen(to.mount) == seen(here)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{unused_tcp_port}/{'0' * 64}")
    finally:
        holding.terminate()
        out, _ = holding.communicate(timeout=300)
        holder.end()
    assert holding.returncode == 0
    assert f"code {done.tree[:12]} sent to 127.0.0.1" in out
