"""Sync with real receiver processes: the received files, the sent data, and interrupted connections."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sync_processes import Pod, pod, seen

from harness.core.deadlines import Deadline
from harness.core.errors import HarnessError, UsageError
from harness.torchrun_sync import pod_script
from harness.torchrun_sync.channel import Channel, Cut, PodRefused
from harness.torchrun_sync.job_sync import Fleet
from harness.torchrun_sync.pod.entries import Refused
from harness.torchrun_sync.pod.frames import Frames, pack
from harness.torchrun_sync.pod.receiver import Receiver
from harness.torchrun_sync.sender import Limits
from harness.torchrun_sync.tree import Walker

QUICK = Limits(connect=20, response=20, stall=20, stage=20, hold=20)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Return a workspace with every kind of file that a sync sends."""
    top = tmp_path / "here"
    (top / "pkg" / "empty").mkdir(parents=True)
    (top / "train.py").write_text("print('one')\n")
    (top / "run.sh").write_text("#!/bin/sh\n")
    (top / "run.sh").chmod(0o755)
    (top / ".hidden").write_text("dot\n")
    (top / "pkg" / "__init__.py").write_text("")
    (top / "pkg" / "twin.py").write_text("print('one')\n")
    (top / "pkg" / "link").symlink_to("../train.py")
    (top / "big.bin").write_bytes(os.urandom(3 << 20))
    return top


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[list[Pod]]:
    """Yield three pods, and end their receivers afterwards."""
    made = [pod(tmp_path / f"pod{index}") for index in range(3)]
    yield made
    for each in made:
        each.end()


def fleet(pods: list[Pod], limits: Limits = QUICK) -> Fleet:
    return Fleet({f"pod-{index}": each.open for index, each in enumerate(pods)}, limits)


def test_a_tree_comes_whole_into_every_pod(here: Path, pods: list[Pod]) -> None:
    """Contract: contents, modes, links, dotfiles and empty folders are the same in all pods."""
    with fleet(pods) as job:
        done = job.sync(Walker(here))
    assert [seen(each.mount) for each in pods] == [seen(here)] * 3
    assert (done.generation, done.pods, done.unsupervised, done.reconnects) == (1, 3, 3, 0)
    assert {(each.root / "ready").read_text() for each in pods} == {done.tree}
    assert [code for each in pods for code in each.end()] == [0, 0, 0]


def test_the_second_time_only_changes_travel(here: Path, pods: list[Pod]) -> None:
    """Contract: if one file was edited, only this file is sent to each pod. Files that were removed locally
    are removed in the pods."""
    walker = Walker(here)
    with fleet(pods) as job:
        first = job.sync(walker)
        (here / "train.py").write_text("print('two')\n")
        (here / "pkg" / "link").unlink()
        shutil.rmtree(here / "pkg" / "empty")
        (here / "run.sh").unlink()
        second = job.sync(walker)
        same = job.sync(walker)
    assert first.sent == 3 * (len("print('one')\n") + len("#!/bin/sh\n") + len("dot\n") + (3 << 20))
    assert (second.files, second.sent, second.generation) == (3, 3 * len("print('two')\n"), 2)
    assert (same.files, same.generation, same.restarted) == (0, 2, 0)
    assert [seen(each.mount) for each in pods] == [seen(here)] * 3


def test_what_the_command_wrote_beside_the_tree_stays(here: Path, pods: list[Pod]) -> None:
    """Contract: a checkpoint in the working folder is kept during a sync, because it is not part of the
    tree."""
    with fleet(pods[:1]) as job:
        job.sync(Walker(here))
        (pods[0].mount / "checkpoint.pt").write_text("step 7")
        (here / "train.py").write_text("print('two')\n")
        job.sync(Walker(here))
    assert (pods[0].mount / "checkpoint.pt").read_text() == "step 7"
    assert (pods[0].mount / "train.py").read_text() == "print('two')\n"


def test_a_file_that_is_in_the_way_is_named(here: Path, pods: list[Pod]) -> None:
    """Contract: a sync never overwrites files that it did not create."""
    (pods[0].mount / "train.py").write_text("of the image")
    with fleet(pods[:1]) as job, pytest.raises(PodRefused, match=r"train\.py conflicts with"):
        job.sync(Walker(here))
    assert (pods[0].mount / "train.py").read_text() == "of the image"


def test_a_file_that_the_pod_changed_comes_again(here: Path, pods: list[Pod]) -> None:
    """Contract: a file in the tree that a program in the pod changed does not count as already sent."""
    with fleet(pods[:1]) as job:
        job.sync(Walker(here))
        (pods[0].mount / ".hidden").write_text("bad\n")
        done = job.sync(Walker(here))
    assert (done.files, done.generation) == (1, 2)
    assert seen(pods[0].mount) == seen(here)


def test_trees_share_no_file(here: Path, pods: list[Pod]) -> None:
    """Contract: a process that is still running in the old tree cannot change the new one."""
    with fleet(pods[:1]) as job:
        job.sync(Walker(here))
        old = (pods[0].root / "current").resolve()
        (here / "pkg" / "new.py").write_text("x")
        job.sync(Walker(here))
    with (old / "big.bin").open("r+b") as file:
        file.write(b"written in the old tree")
    assert seen(pods[0].mount) == seen(here)


def test_old_trees_go_but_not_one_that_is_used(here: Path, pods: list[Pod]) -> None:
    """Contract: only the current tree, the previous one, and trees in which a process is running are kept."""
    kept = pods[0].root / "trees"
    with fleet(pods[:1]) as job:
        walker = Walker(here)
        job.sync(walker)
        first = (pods[0].root / "current").resolve()
        reader = subprocess.Popen([sys.executable, "-c", "input()"], cwd=first, stdin=subprocess.PIPE)
        try:
            for text in "abcd":
                (here / "train.py").write_text(text)
                job.sync(walker)
            assert len([each for each in kept.iterdir() if each.is_dir()]) == 3
            assert (first / "train.py").read_text() == "print('one')\n"
        finally:
            reader.communicate(b"\n")
        (here / "train.py").write_text("e")
        job.sync(walker)
    assert len([each for each in kept.iterdir() if each.is_dir()]) == 2
    assert list((pods[0].root / "incoming").iterdir()) == []


def test_pods_on_one_volume_get_it_once(here: Path, tmp_path: Path) -> None:
    """Contract: with a ReadWriteMany volume, one pod writes the tree, and all pods run the same
    generation."""
    shared = [pod(tmp_path / "a"), pod(tmp_path / "b")]
    shared[1] = replace(shared[1], mount=shared[0].mount)
    with fleet(shared) as job:
        done = job.sync(Walker(here))
        again = job.sync(Walker(here))
    assert done.files == len(("train.py and its twin", "run.sh", ".hidden", "__init__.py", "big.bin"))
    assert again.generation == done.generation == 1
    generations = [json.loads((each.control / "generation.json").read_text()) for each in shared]
    assert generations == [{"generation": 1, "tree": done.tree}] * 2
    for each in shared:
        each.end()


@pytest.mark.nightly
@settings(max_examples=20)
@given(cuts=st.lists(st.integers(0, 4 << 20), max_size=4), hidden=st.booleans())
def test_a_cut_connection_goes_on_where_it_was(cuts: list[int], hidden: bool) -> None:
    """Contract: wherever connections break, the tree arrives completely, and only data in transit is sent
    again. A receiver that did not notice the break does not block the sync."""
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder) / "here"
        top.mkdir()
        (top / "a.bin").write_bytes(random.Random(1).randbytes(2 << 20))
        (top / "b.bin").write_bytes(b"ba" * (1 << 20))
        to = pod(Path(folder) / "pod", list(cuts))
        to.leave_open = hidden
        with fleet([to]) as job:
            done = job.sync(Walker(top))
        assert seen(to.mount) == seen(top)
        assert done.reconnects <= len(cuts)
        assert done.sent <= (4 << 20) + done.reconnects * (1 << 20)
        assert done.generation == 1
        to.end()


def test_a_sync_resumes_after_too_many_cut_connections(here: Path, tmp_path: Path) -> None:
    """Contract: the sync fails with the reason and without switching any pod. The next sync sends only the
    rest."""
    to = pod(tmp_path / "pod", [2 << 20, 100, 100, 100, 100])
    with fleet([to]) as job, pytest.raises(Cut, match="5 times"):
        job.sync(Walker(here))
    assert not (to.root / "current").exists()
    with fleet([to]) as job:
        done = job.sync(Walker(here))
    assert done.sent < 2 << 20
    assert seen(to.mount) == seen(here)
    to.end()


class Silent:
    """A receiver that reads all data but never responds, like an exec on a frozen node."""

    def send(self, data: bytes, deadline: Deadline) -> None:
        del data, deadline

    def receive(self, deadline: Deadline) -> bytes:
        left, right = socket.socketpair()
        with left, right:
            left.settimeout(deadline.remaining)
            try:
                return left.recv(1)
            except TimeoutError:
                raise Cut("no data was transferred before the deadline") from None

    def close(self) -> None:
        pass


def test_a_receiver_that_never_answers_is_given_up(here: Path) -> None:
    """Contract: the sync ends at the time limit of the phase, and the error names the missing response."""
    limits = Limits(response=0.2, retries=1)
    began = time.monotonic()

    def start(session: str, deadline: Deadline) -> Channel:
        del session, deadline
        return Silent()

    with Fleet({"pod-0": start}, limits) as job, pytest.raises(Cut, match="waiting for 'state'"):
        job.sync(Walker(here))
    assert time.monotonic() - began < 15


def test_a_stopped_receiver_ends_the_sync_at_its_deadline(here: Path, tmp_path: Path) -> None:
    """Contract: bytes that are buffered in pipes, but not read by the receiver, do not count as progress."""
    to = pod(tmp_path / "pod")
    with fleet([to], Limits(response=20, stall=1, stage=1, retries=0)) as job:
        job.sync(Walker(here))
        (here / "huge.bin").write_bytes(os.urandom(1 << 20))
        os.kill(to.channels[0].process.pid, 19)
        job._senders["pod-0"]._limits = Limits(response=1, stall=1, retries=0)
        with pytest.raises(Cut, match="deadline"):
            job.sync(Walker(here))
        os.kill(to.channels[0].process.pid, 18)
    to.end()


def test_a_file_changed_during_reading_is_scanned_again(here: Path, pods: list[Pod]) -> None:
    """Contract: if the sent bytes would differ from the hashed ones, the tree is scanned again."""

    class Changing(Walker):
        looks = 0

        def scan(self):  # type: ignore[no-untyped-def]
            tree = super().scan()
            self.looks += 1
            if self.looks <= 2:
                (here / "big.bin").write_bytes(os.urandom((3 << 20) - self.looks))
            return tree

    walker = Changing(here)
    with fleet(pods) as job:
        job.sync(walker)
    assert walker.looks == 3
    assert [seen(each.mount) for each in pods] == [seen(here)] * 3


def test_a_file_that_always_changes_is_named(here: Path, pods: list[Pod]) -> None:
    """Contract: if a log changes continuously, the sync fails with the log's name, and no pod switches."""

    class Changing(Walker):
        def scan(self):  # type: ignore[no-untyped-def]
            tree = super().scan()
            (here / "big.bin").write_bytes(os.urandom(3 << 20))
            return tree

    with fleet(pods) as job, pytest.raises(HarnessError, match=r"big\.bin was written to"):
        job.sync(Changing(here))
    assert not any((each.root / "current").exists() for each in pods)


def test_no_pod_switches_when_one_cannot(here: Path, pods: list[Pod]) -> None:
    """Contract: either all pods run the new tree, or none does."""
    with fleet(pods) as job:
        job.sync(Walker(here))
    (here / "train.py").write_text("print('two')\n")
    (here / "new.py").write_text("")
    (pods[2].mount / "new.py").write_text("in the way")
    with fleet(pods) as job, pytest.raises(PodRefused, match=r"pod-2: .*new\.py conflicts with"):
        job.sync(Walker(here))
    assert {(each.mount / "train.py").read_text() for each in pods} == {"print('one')\n"}


def test_two_syncs_do_not_write_at_once(here: Path, pods: list[Pod]) -> None:
    """Contract: if two users sync to the same job, the second one gets an error."""
    with fleet(pods[:1]) as other, fleet(pods[:1], replace(QUICK, lock=0.2)) as job:
        sender = other._senders["pod-0"]
        sender.send(Walker(here).scan())
        with pytest.raises(PodRefused, match="another sync kept"):
            job.sync(Walker(here))


HOSTILE = (
    {"path": "../out", "kind": "dir", "mode": 0o755},
    {"path": "/etc/out", "kind": "dir", "mode": 0o755},
    {"path": "a/../../out", "kind": "dir", "mode": 0o755},
    {"path": ".torchrun/ready", "kind": "dir", "mode": 0o755},
    {"path": "a", "kind": "link", "target": "/etc"},
    {"path": "a", "kind": "link", "target": "../../out"},
    {"path": "a", "kind": "device", "mode": 0o755},
)


@pytest.mark.parametrize("entry", HOSTILE, ids=lambda each: f"{each['kind']}-{each['path']}")
def test_hostile_entries_are_refused(entry: dict[str, object], tmp_path: Path) -> None:
    """Contract: whatever a sender sends, nothing is written outside the pod's folders."""
    to = pod(tmp_path / "pod")
    before = sorted(path for path in tmp_path.rglob("*"))
    assert _refusal(to, [entry])
    after = [path for path in sorted(tmp_path.rglob("*")) if path not in before]
    assert all(path.is_relative_to(to.root) or path.is_relative_to(to.control) for path in after)
    assert list((to.root / "trees").iterdir()) == []


def test_a_file_below_a_link_is_refused(tmp_path: Path) -> None:
    """Contract: files are never written through a link in the tree."""
    through = [
        {"path": "a", "kind": "link", "target": "."},
        {"path": "a/b", "kind": "file", "mode": 0o644, "size": 0, "sha256": sha256(b"").hexdigest()},
    ]
    assert "not a folder of the tree" in _refusal(pod(tmp_path / "pod"), through)


def _refusal(to: Pod, entries: list[dict[str, object]]) -> str:
    """Return the error with which a receiver responds to these entries."""
    import zlib

    channel = to.open("session", Deadline.after(20))
    packed = pack("entries", zlib.compress(json.dumps(entries).encode()))
    channel.send(packed + pack("manifest", b'{"seconds": 5}'), Deadline.after(20))
    frames = Frames()
    while (frame := frames.next_frame()) is None:
        frames.feed(channel.receive(Deadline.after(20)))
    assert to.end() == [1]
    kind, text = frame
    assert kind == "error"
    return text.decode()


def test_text_travels_compressed(tmp_path: Path) -> None:
    """Contract: code is sent with less than half of its size, incompressible data with its own size, and
    names may contain any bytes.
    """
    top, to = tmp_path / "here", pod(tmp_path / "pod")
    top.mkdir()
    source = Path(__file__).read_bytes()
    (top / os.fsdecode(b"new\nline \xff.py")).write_bytes(source)
    (top / "long.py").write_bytes(source * 100)
    (top / "noise.bin").write_bytes(os.urandom(1 << 20))
    with fleet([to]) as job:
        done = job.sync(Walker(top))
    assert seen(to.mount) == seen(top)
    assert (1 << 20) < done.sent < (1 << 20) + len(source) * 101 / 2
    to.end()


@pytest.mark.parametrize(
    "payload",
    [b"x", zlib.compress(b"x" * 100)[:-1], zlib.compress(b"x" * ((1 << 20) + 1))],
    ids=["noise", "cut", "bomb"],
)
def test_a_piece_that_is_not_compressed_right_is_refused(tmp_path: Path, payload: bytes) -> None:
    """Contract: the receiver never writes more than the size of a piece, whatever it receives."""
    receiver = Receiver(str(tmp_path / "mount/.torchrun"), str(tmp_path / "control"), "session")
    with pytest.raises((Refused, zlib.error)):
        receiver.handle("zdata", payload)


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n\r\n", pack("nonsense"), pack("data", b"x")])
def test_what_is_no_conversation_ends_with_an_error(sent: bytes, tmp_path: Path) -> None:
    """Contract: the receiver responds to invalid bytes with an error frame, and exits."""
    to = pod(tmp_path / "pod")
    channel = to.open("session", Deadline.after(20))
    channel.send(sent, Deadline.after(20))
    assert b"error" in channel.receive(Deadline.after(20))
    assert to.end() == [1]


def test_a_program_that_was_cut_does_not_run(tmp_path: Path) -> None:
    """Contract: the receiver's own code is verified with a hash before it runs."""
    to = pod(tmp_path / "pod")
    command, program = pod_script.receiver("session", str(to.root), str(to.control))
    done = subprocess.run(command, input=program[:-1], capture_output=True, check=False)
    assert (done.returncode, b"bytes of the program" in done.stderr) == (1, True)
    done = subprocess.run(command, input=program[:-1] + b"!", capture_output=True, check=False)
    assert (done.returncode, b"does not match its SHA-256" in done.stderr) == (1, True)
    assert not to.root.exists()


def test_links_out_of_the_tree_are_refused_with_advice(here: Path) -> None:
    """Contract: the error names the link, and the file in which it can be ignored."""
    (here / "data").symlink_to("/mnt/data")
    with pytest.raises(UsageError, match="data → /mnt/data") as refused:
        Walker(here).scan()
    assert ".torchrunignore" in refused.value.hint


NAMES = st.sampled_from(["a", "b", "c.py", ".d", "é", "with space", "-x", "a\nb", "\udcff"])
CONTENTS = st.one_of(st.binary(max_size=40), st.sampled_from([0, 4, 300_000]).map(lambda n: b"x" * n))
TREES = st.recursive(
    st.one_of(
        st.tuples(st.just("file"), CONTENTS, st.sampled_from([0o644, 0o755, 0o600, 0o444])),
        st.tuples(st.just("link"), NAMES),
    ),
    lambda inner: st.tuples(st.just("dir"), st.dictionaries(NAMES, inner, max_size=4)),
    max_leaves=8,
)


def _write(top: Path, inside: dict[str, tuple[object, ...]]) -> None:
    top.mkdir()
    for name, (kind, *what) in inside.items():
        if kind == "dir":
            _write(top / name, what[0])  # type: ignore[arg-type]
        elif kind == "link":
            (top / name).symlink_to(str(what[0]))
        else:
            (top / name).write_bytes(what[0])  # type: ignore[arg-type]
            (top / name).chmod(int(str(what[1])))


@settings(max_examples=10)
@given(versions=st.lists(st.dictionaries(NAMES, TREES, max_size=4), min_size=2, max_size=3))
def test_any_tree_comes_as_it_is_after_any_other(versions: list[dict[str, tuple[object, ...]]]) -> None:
    """Property: after each sync, the pod has exactly the folder's files, whatever it had before. Contents
    that it already had are not sent."""
    with tempfile.TemporaryDirectory() as folder:
        to = pod(Path(folder) / "pod")
        had: set[str] = set()
        with fleet([to]) as job:
            for version in versions:
                top = Path(folder) / "here"
                shutil.rmtree(top, ignore_errors=True)
                _write(top, version)
                walker = Walker(top)
                contents = set(walker.scan().by_digest())
                done = job.sync(walker)
                assert seen(to.mount) == seen(top)
                assert done.files == len(contents - had)
                had = contents
        to.end()
