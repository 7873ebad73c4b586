"""The pod's side of a sync. It reads one sender's frames from stdin and writes the responses to stdout.

    hello → state     entries* manifest → need     (file data*)* → ack*     stage → staged
    patience → patient     hold → held     switch → switched     release → released
    anything else → error, and the receiver exits

A receiver exits after IDLE_SECONDS without a frame, because the end of an exec stream may be lost.
"""

from __future__ import annotations

import json
import os
import select
import sys
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from harness.torchrun_sync.pod.control import Control
from harness.torchrun_sync.pod.entries import Dropped, Refused
from harness.torchrun_sync.pod.files import volume_problem
from harness.torchrun_sync.pod.frames import Frames, pack
from harness.torchrun_sync.pod.incoming import Incoming
from harness.torchrun_sync.pod.store import Store

ACK_BYTES = 4 << 20
"""The receiver sends an ack each time it has received this number of bytes."""
IDLE_SECONDS = 90.0
MAX_PIECE = 1 << 20
"""The maximum uncompressed size, in bytes, of a piece of a file in one frame."""
MAX_ENTRIES = 1 << 30
"""The maximum uncompressed size of a tree's entries in bytes."""


class Receiver:
    """A session with one sender. Each response describes the state on the pod's disk."""

    def __init__(self, root: str, control: str, session: str) -> None:
        self.session = session
        self.control = Control(control)
        self.store = Store(root)
        self._packed = b""
        self._content: Incoming | None = None
        self._received = self._acknowledged = 0
        self._handlers: dict[str, Callable[[dict[str, Any]], bytes]] = {
            "hello": self._hello,
            "manifest": self._manifest,
            "file": self._file,
            "drop": self._drop,
            "stage": self._stage,
            "patience": self._patience,
            "hold": self._hold,
            "switch": self._switch,
            "release": self._release,
        }

    def handle(self, kind: str, payload: bytes) -> bytes:
        """Process a frame and return the response frame, or b"" if there is none.

        Raises Refused if the request cannot be fulfilled.
        """
        if kind == "data":
            return self._data(payload, len(payload))
        if kind == "zdata":
            return self._data(_inflated(payload), len(payload))
        if kind == "entries":
            self._packed += payload
            return b""
        if kind not in self._handlers:
            raise Refused(f"received a frame of unknown kind: {kind!r}")
        return self._handlers[kind](json.loads(payload))

    def _hello(self, message: dict[str, Any]) -> bytes:
        current = self.store.current()
        return _message(
            "state",
            session=message["session"],
            store=self.store.id,
            tree=current.get("tree", ""),
            generation=current.get("generation", 0),
            started=self.control.wanted().get("generation", 0) if self.store.ready() else 0,
            intact=self.store.intact(),
            supervised=self.control.supervised(),
            status=self.control.status(),
        )

    def _manifest(self, message: dict[str, Any]) -> bytes:
        self.store.lock(self.session, message["seconds"])
        unpacking = zlib.decompressobj()
        text = unpacking.decompress(self._packed, MAX_ENTRIES)
        self._packed = b""
        if not unpacking.eof:
            raise Refused("the entries of the tree are incomplete or too large")
        return _message("need", need=self.store.expect(json.loads(text)))

    def _file(self, message: dict[str, Any]) -> bytes:
        self._content = self.store.content(message["sha256"], message["size"], message["offset"])
        return self._data(b"", 0)

    def _data(self, piece: bytes, received: int) -> bytes:
        """Write a piece of the file that is being received.

        `received` is the size of the piece as it arrived, possibly compressed.
        """
        if self._content is None:
            raise Refused("received data that does not belong to a file")
        self._content.write(piece)
        self._received += received
        if self._content.received == self._content.size:
            self._content.finish()
            self._content = None
        if self._received - self._acknowledged < ACK_BYTES:
            return b""
        self._acknowledged = self._received
        return _message("ack", came=self._received)

    def _drop(self, message: dict[str, Any]) -> bytes:
        """Delete the partially received file.

        A sender requests this if the file changed while it was read.
        """
        del message
        if self._content is not None:
            self._content.drop()
            self._content = None
        return b""

    def _stage(self, message: dict[str, Any]) -> bytes:
        del message
        return _message("staged", tree=self.store.stage())

    def _patience(self, message: dict[str, Any]) -> bytes:
        self.control.be_patient(message["seconds"])
        return _message("patient", status=self.control.status())

    def _hold(self, message: dict[str, Any]) -> bytes:
        del message
        return _message("held", supervised=self.control.hold())

    def _switch(self, message: dict[str, Any]) -> bytes:
        now = self.store.switch(message["tree"], message["generation"])
        self.control.be_patient(message["patience"])
        self.control.start(message["generation"], message["tree"])
        # This must be the last step, because it ends a waiting init container, possibly before the response
        # is sent. The sender then retries, and the switch must already be complete.
        self.store.write_ready(message["ready"] or message["tree"])
        return _message("switched", tree=now["tree"], generation=now["generation"])

    def _release(self, message: dict[str, Any]) -> bytes:
        del message
        self.control.release()
        return _message("released")


def _inflated(payload: bytes) -> bytes:
    decompressor = zlib.decompressobj()
    piece = decompressor.decompress(payload, MAX_PIECE)
    if not decompressor.eof:
        raise Refused(f"expected a whole compressed piece of at most {MAX_PIECE} bytes")
    return piece


def _message(kind: str, **fields: Any) -> bytes:
    return pack(kind, json.dumps(fields).encode())


def _write(frame: bytes) -> None:
    remaining = memoryview(frame)
    while remaining:
        remaining = remaining[os.write(1, remaining) :]


def main(arguments: Sequence[str]) -> int:
    """Serve one sender. The arguments are SESSION ROOT CONTROL.

    Return the exit code: 0 if the sender closes the stream, 3 after IDLE_SECONDS without a frame, 1 after an
    error.
    """
    session, root, control = arguments
    frames = Frames()
    try:
        receiver = Receiver(root, control, session)
        while True:
            while (frame := frames.next_frame()) is None:
                if not select.select([0], [], [], IDLE_SECONDS)[0]:
                    return 3
                piece = os.read(0, 1 << 20)
                if not piece:
                    return 0
                frames.feed(piece)
            if response := receiver.handle(*frame):
                _write(response)
    except BrokenPipeError:
        return 0
    except Dropped as dropped:
        _write(pack("dropped", str(dropped).encode()))
    except Refused as refused:
        _write(pack("error", str(refused).encode("utf-8", "replace")))
    except Exception as error:
        text = volume_problem(error, os.path.dirname(root)) or f"{type(error).__name__}: {error}"
        _write(pack("error", text.encode("utf-8", "replace")))
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
