"""The client's side of a sync with one pod. Each phase has a timeout and ends with the pod's response."""

from __future__ import annotations

import contextlib
import json
import secrets
import zlib
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
"""The maximum number of bytes that are sent without an acknowledgement from the pod. The pod sends an ack
after each quarter of this number."""
CONTENT = ("data", "zdata")
"""The types of frames that contain an uncompressed and a compressed piece of a file."""
WORTH = 0.9
"""A piece is sent compressed if its compressed size is at most this fraction of its uncompressed size."""
PROBE = 4096
"""The number of bytes at the beginning of a piece that are compressed first, to find out whether compression
makes the piece smaller. Images and model weights, for example, do not become smaller."""
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Limits:
    """The timeouts of a sync's phases, in seconds, and the number of retries after a lost connection."""

    connect: float = 30
    response: float = 30
    lock: float = 15
    """The maximum time to wait for another sync into the same folder."""
    stall: float = 30
    """The maximum time between two acks."""
    stage: float = 180
    """The maximum time for building the tree in the pod, which may copy the whole tree on the pod's disk."""
    hold: float = 60
    """The maximum time for stopping the command. This timeout is longer than the receiver's own timeout
    (pod/control.py), so that the user sees the receiver's error message.
    """
    retries: int = 4


@dataclass(frozen=True)
class State:
    """The state of a pod, as reported by the pod's receiver."""

    store: str
    tree: str
    generation: int
    started: int
    """The generation that the supervisor must run, or 0 before the first sync."""
    intact: bool
    supervised: bool
    status: dict[str, Any]


class Changed(Exception):
    """Raised if a file was written to while it was read, so that the scanned tree is outdated."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


class Sender:
    """The client's side of the protocol with one pod.

    If the connection is lost, the sender reconnects and resumes.
    """

    def __init__(self, name: str, open_channel: Open, limits: Limits) -> None:
        self.name, self._open, self._limits = name, open_channel, limits
        self._session = secrets.token_hex(8)
        self._channel: Channel | None = None
        self._frames = Frames()
        self.sent = 0
        """The number of bytes of file content that were sent, including those on lost connections. For
        compressed content, the compressed size is counted."""
        self.files = self.reconnects = 0

    def state(self) -> State:
        """Return the pod's current state."""
        return self._retry(self._hello)

    def send(self, tree: Tree) -> str:
        """Stage the tree in the pod, next to the running tree.

        Return the digest that the pod computed. Raises Changed, Cut or PodRefused.
        """
        return self._retry(lambda: self._send(tree))

    def patience(self, seconds: float) -> dict[str, Any]:
        """Let a failed command wait for new code during the next `seconds` seconds.

        Return the supervisor's status.
        """
        response = self._retry(
            lambda: self._request("patience", "patient", self._limits.response, {"seconds": seconds})
        )
        return dict(response["status"])

    def hold(self) -> bool:
        """Make the pod's supervisor stop the command. Return whether the pod has a supervisor."""
        return bool(self._retry(lambda: self._request("hold", "held", self._limits.hold))["supervised"])

    def switch(self, tree: str, generation: int, *, patience: float = 0, ready: str = "") -> None:
        """Make the pod switch to the tree and start the command.

        Raises PodRefused if the pod reports another tree.
        """
        request = {"tree": tree, "generation": generation, "patience": patience, "ready": ready}
        response = self._retry(lambda: self._request("switch", "switched", self._limits.stage, request))
        if (response["tree"], response["generation"]) != (tree, generation):
            raise PodRefused(f"{self.name}: the pod was asked to run {request}, but it reports {response}")

    def release(self) -> None:
        """End a hold, so that the supervisor runs its command again."""
        self._retry(lambda: self._request("release", "released", self._limits.response))

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    # -- keep a connection to the pod ------------------------------------------------------------------
    def _retry(self, phase: Callable[[], _Result]) -> _Result:
        """Run a phase of the protocol and return its result.

        If the connection is lost, repeat the phase with a new connection.
        """
        for attempts_left in range(self._limits.retries, -1, -1):
            try:
                return phase()
            except Cut as cut:
                self.close()
                if not attempts_left:
                    raise Cut(
                        f"{self.name}: {cut.message}, {self._limits.retries + 1} times",
                        hint=cut.hint or "sync again; the pod keeps the received data",
                    ) from None
                self.reconnects += 1
            except HarnessError:
                self.close()
                raise
            except BadFrame as bad:
                self.close()
                raise PodRefused(
                    f"{self.name}: {bad}",
                    hint="check whether the container's python3 prints anything when it starts",
                ) from None
        raise AssertionError("unreachable")

    def _connected(self) -> Channel:
        if self._channel is None:
            self._frames = Frames()
            self._channel = self._open(self._session, Deadline.after(self._limits.connect))
        return self._channel

    def _hello(self) -> State:
        response = self._request("hello", "state", self._limits.response, {"session": self._session})
        if response.pop("session") != self._session:
            raise PodRefused(f"{self.name}: the receiver of another session responded: {response}")
        return State(**response)

    def _request(self, kind: str, awaited: str, seconds: float, message: Any = None) -> dict[str, Any]:
        deadline = Deadline.after(seconds)
        self._connected().send(pack(kind, json.dumps(message or {}).encode()), deadline)
        while True:
            received, response = self._next_response(deadline, f"{awaited!r} after {kind!r}")
            if received == awaited:
                return response
            if received != "ack":
                raise PodRefused(f"{self.name}: expected {awaited!r} after {kind!r}, but got {received!r}")

    def _next_response(self, deadline: Deadline, awaited: str) -> tuple[str, dict[str, Any]]:
        while (frame := self._frames.next_frame()) is None:
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

    # -- send a tree -----------------------------------------------------------------------------------
    def _send(self, tree: Tree) -> str:
        packed = tree.packed()
        channel = self._connected()
        for start in range(0, len(packed), PIECE):
            channel.send(pack("entries", packed[start : start + PIECE]), Deadline.after(self._limits.stall))
        limit = self._limits.lock + self._limits.response
        missing = self._request("manifest", "need", limit, {"seconds": self._limits.lock})["need"]
        entries = tree.by_digest()
        sent = acked = 0
        for digest, offset in missing:
            entry = entries[digest]
            self.files += 1
            for kind, payload in _content(tree.top, entry, offset):
                channel.send(pack(kind, payload), Deadline.after(self._limits.stall))
                if kind == "drop":
                    raise Changed(entry["path"])
                if kind in CONTENT:
                    sent += len(payload)
                    self.sent += len(payload)
                while sent - acked > WINDOW:
                    acked = self._acked()
        return str(self._request("stage", "staged", self._limits.stage)["tree"])

    def _acked(self) -> int:
        """Wait for an ack. Return the number of bytes that the pod has acknowledged."""
        kind, response = self._next_response(Deadline.after(self._limits.stall), "an ack")
        if kind != "ack":
            raise PodRefused(f"{self.name}: expected 'ack', but got {kind!r}")
        return int(response["came"])


def _content(top: Path, entry: Entry, offset: int) -> Any:
    """Yield the frames for a file's content from `offset` on.

    If the file has changed, the last frame is `drop`.
    """
    head = {name: entry[name] for name in ("sha256", "size")}
    yield "file", json.dumps({**head, "offset": offset}).encode()
    digest, position, size = sha256(), 0, entry["size"]
    with contextlib.suppress(OSError), (top / entry["path"]).open("rb") as file:
        while position < size:
            piece = file.read(
                min(PIECE, offset - position) if position < offset else min(PIECE, size - position)
            )
            digest.update(piece)
            position += len(piece)
            if not piece or (position == size and digest.hexdigest() != entry["sha256"]):
                break
            if position > offset:
                yield _piece(piece)
        else:
            return
    yield "drop", b"{}"


def _piece(piece: bytes) -> tuple[str, bytes]:
    """Return the frame for a piece of a file. The piece is compressed if its compressed size is at most WORTH
    times its size."""
    if len(zlib.compress(piece[:PROBE], 1)) > WORTH * min(len(piece), PROBE):
        return "data", piece
    compressed = zlib.compress(piece, 1)
    return ("zdata", compressed) if len(compressed) <= WORTH * len(piece) else ("data", piece)
