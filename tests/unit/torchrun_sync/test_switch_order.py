"""A container that waits for its code ends as soon as it is told of it, and the receiver in it with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.torchrun_sync.pod.frames import Frames
from harness.torchrun_sync.pod.receiver import Receiver
from harness.torchrun_sync.pod.store import Store
from harness.torchrun_sync.tree import Tree, Walker


class Ended(Exception):
    """The container ended."""


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    (tmp_path / "here" / "folder").mkdir(parents=True)
    return Walker(tmp_path / "here").scan()


@pytest.fixture
def pod(tmp_path: Path) -> Path:
    (tmp_path / "pod").mkdir()
    return tmp_path / "pod"


def receiver(pod: Path) -> Receiver:
    return Receiver(str(pod / "mount/.torchrun"), str(pod / "control"), "session")


def staged(pod: Path, tree: Tree) -> Receiver:
    found = receiver(pod)
    found.handle("entries", tree.packed())
    found.handle("manifest", b'{"seconds": 5}')
    found.handle("stage", b"{}")
    return found


def asked(tree: Tree) -> bytes:
    return json.dumps({"tree": tree.digest, "generation": 1, "patience": 0, "ready": "text"}).encode()


def started(pod: Path) -> int:
    """Return the generation that another receiver says this pod was told to run."""
    frames = Frames()
    frames.feed(receiver(pod).handle("hello", b'{"session": "session"}'))
    frame = frames.next_frame()
    assert frame is not None
    return int(json.loads(frame[1])["started"])


@pytest.mark.parametrize("is_written", [True, False])
def test_all_is_done_before_the_container_may_end(
    pod: Path, tree: Tree, monkeypatch: pytest.MonkeyPatch, is_written: bool
) -> None:
    """Contract: a receiver that dies as it tells of the code leaves a pod that was switched whole, or one
    that is switched again: the next sync stops no command that runs the right code."""
    write_ready = Store.write_ready

    def ends(store: Store, text: str) -> None:
        if is_written:
            write_ready(store, text)
        raise Ended

    monkeypatch.setattr(Store, "write_ready", ends)
    with pytest.raises(Ended):
        staged(pod, tree).handle("switch", asked(tree))
    assert started(pod) == (1 if is_written else 0)
    assert receiver(pod).control.wanted()["generation"] == 1
    monkeypatch.undo()
    staged(pod, tree).handle("switch", asked(tree))
    assert (started(pod), (pod / "mount/.torchrun/ready").read_text()) == (1, "text")
