"""One pod's sync, from the sender's side. Each phase has a limit and ends with the pod's answer, not EOF."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from harness.core.deadlines import Deadline
from harness.core.errors import HarnessError
from harness.torchrun_sync.channel import Channel, Cut, Open, PodRefused
from harness.torchrun_sync.pod.entries import Entry
from harness.torchrun_sync.pod.frames import BadFrame, Frames, pack
from harness.torchrun_sync.tree import Tree

PIECE = 256 << 10
WINDOW = 16 << 20
"""Bytes that may be on their way without the pod's word that they came: four of its acks."""
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class Limits:
    """Seconds of each phase, and how often a connection that was cut is made again in one phase."""

    connect: float = 30
    answer: float = 30
    lock: float = 15
    """Until another sync into the same folder has ended."""
    stall: float = 30
    """Between two signs that what is sent arrives."""
    stage: float = 180
    """A copy of the whole tree on the pod's disk."""
    hold: float = 60
    """Over the supervisor's own limit (pod/control.py), so that its text is what is shown."""
    tries: int = 4


@dataclass(frozen=True)
class State:
    """What a pod says of itself."""

    store: str
    tree: str
    generation: int
    started: int
    """The generation that its supervisor was told to run; 0: none."""
    intact: bool
    supervised: bool
    status: dict[str, Any]


class Changed(Exception):
    """A file was written to while it was read: the tree that was looked at is no more."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class Sender:
    """The conversation with one pod. A connection that is cut is made again, and what came is kept."""

    def __init__(self, name: str, open_channel: Open, limits: Limits) -> None:
        self.name, self._open, self._limits = name, open_channel, limits
        self._session = secrets.token_hex(8)
        self._channel: Channel | None = None
        self._frames = Frames()
        self.sent = 0
        """Bytes of file contents that were sent, those of cut connections included."""
        self.files = self.reconnects = 0

    def state(self) -> State:
        """Ask the pod what it has."""
        return self._tried(self._hello)

    def send(self, tree: Tree) -> str:
        """Bring the tree into the pod, beside the one that runs. Return the digest that the pod gives it.

        Raises Changed, Cut, PodRefused.
        """
        return self._tried(lambda: self._send(tree))

    def patience(self, seconds: float) -> dict[str, Any]:
        """Have a command that fails within `seconds` wait for new code. Return what the supervisor does."""
        said = self._tried(
            lambda: self._ask("patience", "patient", self._limits.answer, {"seconds": seconds})
        )
        return dict(said["status"])

    def hold(self) -> bool:
        """Stop the command. Return whether a supervisor did."""
        return bool(self._tried(lambda: self._ask("hold", "held", self._limits.hold))["supervised"])

    def switch(self, tree: str, generation: int, *, patience: float = 0, ready: str = "") -> None:
        """Switch the tree in, and have its command started. Raises PodRefused when the pod says another."""
        asked = {"tree": tree, "generation": generation, "patience": patience, "ready": ready}
        said = self._tried(lambda: self._ask("switch", "switched", self._limits.stage, asked))
        if (said["tree"], said["generation"]) != (tree, generation):
            raise PodRefused(f"{self.name}: expected {asked} to be switched in, and the pod says {said}")

    def release(self) -> None:
        """Have a command that was held go on."""
        self._tried(lambda: self._ask("release", "released", self._limits.answer))

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    # -- connections -----------------------------------------------------------------------------------
    def _tried(self, phase: Callable[[], _Answer]) -> _Answer:
        """Return what the phase returns. One whose connection is cut begins again with another connection."""
        for again in range(self._limits.tries, -1, -1):
            try:
                return phase()
            except Cut as cut:
                self.close()
                if not again:
                    raise Cut(
                        f"{self.name}: {cut.message}, {self._limits.tries + 1} times",
                        hint=cut.hint or "sync again: what came is kept",
                    ) from None
                self.reconnects += 1
            except HarnessError:
                self.close()
                raise
            except BadFrame as bad:
                self.close()
                raise PodRefused(
                    f"{self.name}: {bad}", hint="does the container's python3 print at its start?"
                ) from None
        raise AssertionError("unreachable")

    def _connected(self) -> Channel:
        if self._channel is None:
            self._frames = Frames()
            self._channel = self._open(self._session, Deadline.after(self._limits.connect))
        return self._channel

    def _hello(self) -> State:
        said = self._ask("hello", "state", self._limits.answer, {"session": self._session})
        if said.pop("session") != self._session:
            raise PodRefused(f"{self.name}: another session's receiver answered: {said}")
        return State(**said)

    def _ask(self, kind: str, awaited: str, seconds: float, asked: Any = None) -> dict[str, Any]:
        deadline = Deadline.after(seconds)
        self._connected().send(pack(kind, json.dumps(asked or {}).encode()), deadline)
        while True:
            seen, said = self._take(deadline, f"{awaited!r} after {kind!r}")
            if seen == awaited:
                return said
            if seen != "ack":
                raise PodRefused(f"{self.name}: expected {awaited!r} after {kind!r}, and {seen!r} came")

    def _take(self, deadline: Deadline, awaited: str) -> tuple[str, dict[str, Any]]:
        while (frame := self._frames.take()) is None:
            try:
                self._frames.feed(self._connected().receive(deadline))
            except Cut as cut:
                raise Cut(f"{cut.message}, waiting for {awaited}", hint=cut.hint) from None
        kind, payload = frame
        if kind == "dropped":
            raise Cut(payload.decode(errors="replace"))
        if kind == "error":
            raise PodRefused(f"{self.name}: {payload.decode(errors='replace')}")
        return kind, json.loads(payload)

    # -- a tree ----------------------------------------------------------------------------------------
    def _send(self, tree: Tree) -> str:
        packed = tree.packed()
        channel = self._connected()
        for start in range(0, len(packed), PIECE):
            channel.send(pack("entries", packed[start : start + PIECE]), Deadline.after(self._limits.stall))
        limit = self._limits.lock + self._limits.answer
        need = self._ask("manifest", "need", limit, {"seconds": self._limits.lock})["need"]
        entries = tree.by_digest()
        sent = came = 0
        for digest, offset in need:
            entry = entries[digest]
            self.files += 1
            for kind, payload in _content(tree.top, entry, offset):
                channel.send(pack(kind, payload), Deadline.after(self._limits.stall))
                if kind == "drop":
                    raise Changed(entry["path"])
                if kind == "data":
                    sent += len(payload)
                    self.sent += len(payload)
                while sent - came > WINDOW:
                    came = self._acked()
        return str(self._ask("stage", "staged", self._limits.stage)["tree"])

    def _acked(self) -> int:
        """Return how many bytes came, by the pod's own word."""
        kind, said = self._take(Deadline.after(self._limits.stall), "the pod's word of what came")
        if kind != "ack":
            raise PodRefused(f"{self.name}: expected 'ack', and {kind!r} came")
        return int(said["came"])


def _content(top: Path, entry: Entry, offset: int) -> Any:
    """Yield the frames of one file from `offset` on. The last one is `drop` for a file that has changed."""
    told = {name: entry[name] for name in ("sha256", "size")}
    yield "file", json.dumps({**told, "offset": offset}).encode()
    found, done, size = sha256(), 0, entry["size"]
    with contextlib.suppress(OSError), (top / entry["path"]).open("rb") as file:
        while done < size:
            piece = file.read(min(PIECE, offset - done) if done < offset else min(PIECE, size - done))
            found.update(piece)
            done += len(piece)
            if not piece or (done == size and found.hexdigest() != entry["sha256"]):
                break
            if done > offset:
                yield "data", piece
        else:
            return
    yield "drop", b"{}"
