"""The format in which the cluster stores a job's code, and the program that restores it in a new pod.

Small code is stored in Secrets, which a pod mounts as parts in a folder. Larger code is stored in a pod
(holder.py), which serves it as a whole.

    part    b"SHA-256 COUNT INDEX\n" and bytes: digest of the whole, number of parts, index of this part
    whole   zlib: b"LENGTH\n", a JSON head of LENGTH bytes, then each content once, sorted by SHA-256
    head    entries, tree, generation

Parts may be replaced while a pod reads them. Parts of different wholes are never combined.
"""

from __future__ import annotations

import hashlib
import http.client
import io
import json
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from harness.torchrun_sync.pod.control import Control
from harness.torchrun_sync.pod.entries import Entry, Refused
from harness.torchrun_sync.pod.store import Store

PIECE = 1 << 20
LOOK_SECONDS = 0.5
LOCK_SECONDS = 60.0
HOLDER_SECONDS = 30.0
"""The timeout for each read from the pod that stores the code."""
MAX_HEAD = 1 << 28
"""The maximum number of bytes of an unpacked head."""


def contents_of(entries: Sequence[Entry]) -> list[tuple[str, int]]:
    """Return (SHA-256, size in bytes) of each content, in the order of a whole."""
    return sorted({entry["sha256"]: entry["size"] for entry in entries if entry["kind"] == "file"}.items())


def split(whole: bytes, size: int) -> list[bytes]:
    """Return the parts of a whole, with at most `size` bytes of it in each part."""
    sha, count = hashlib.sha256(whole).hexdigest(), max(1, -(-len(whole) // size))
    pieces = (whole[index * size : (index + 1) * size] for index in range(count))
    return [f"{sha} {count} {index}\n".encode() + piece for index, piece in enumerate(pieces)]


def joined(folder: str) -> bytes | None:
    """Return the whole whose parts are in the folder, or None if a part is missing or of another whole."""
    first = _part(folder, 0)
    if first is None:
        return None
    (sha, count, _), pieces = first[0], [first[1]]
    for index in range(1, count):
        part = _part(folder, index)
        if part is None or part[0] != (sha, count, index):
            return None
        pieces.append(part[1])
    whole = b"".join(pieces)
    return whole if hashlib.sha256(whole).hexdigest() == sha else None


def _part(folder: str, index: int) -> tuple[tuple[str, int, int], bytes] | None:
    try:
        with open(os.path.join(folder, str(index)), "rb") as file:
            head, _, piece = file.read().partition(b"\n")
        sha, count, of = head.decode("ascii").split()
        return (sha, int(count), int(of)), piece
    except (OSError, ValueError):
        return None


class Whole:
    """A whole that is unpacked while it is read, so that it is never completely in memory.

    `read(n)` returns at most n packed bytes, or b"" at the end.
    """

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._unpacking, self._read, self._packed, self._here = zlib.decompressobj(), read, b"", b""
        line = b""
        while not line.endswith(b"\n") and len(line) < 20:
            line += b"".join(self._take(1))
        length = int(line)
        if length > MAX_HEAD:
            raise Refused(f"the head of the kept code has {length} bytes; expected at most {MAX_HEAD}")
        self.head: dict[str, Any] = json.loads(b"".join(self._take(length)))

    def contents(self) -> Iterator[tuple[str, int, Iterator[bytes]]]:
        """Yield SHA-256, size and pieces of each content. Unread pieces are skipped."""
        for sha, size in contents_of(self.head["entries"]):
            pieces = self._take(size)
            yield sha, size, pieces
            for _ in pieces:
                pass

    def _take(self, count: int) -> Iterator[bytes]:
        while count:
            if not self._here:
                self._packed = self._packed or self._read(PIECE)
                ended = self._unpacking.eof or not self._packed
                self._here = self._unpacking.decompress(self._packed, PIECE)
                self._packed = self._unpacking.unconsumed_tail
                if not self._here and ended:
                    raise Refused("the kept code ends before its last content")
            piece, self._here = self._here[:count], self._here[count:]
            count -= len(piece)
            yield piece


def restore(store: Store, whole: Whole, ready: str) -> None:
    """Switch the store to the tree of the whole. `ready` is the text that the pod waits for."""
    head = whole.head
    need = {sha for sha, _ in store.expect(head["entries"])}
    for sha, size, pieces in whole.contents():
        if sha in need:
            content = store.content(sha, size, 0)
            for piece in pieces:
                content.write(piece)
            content.finish()
    staged = store.stage()
    if staged != head["tree"]:
        raise Refused(f"expected the tree {head['tree'][:12]} of what is kept, and it makes {staged[:12]}")
    store.switch(head["tree"], head["generation"])
    store.say_ready(ready)


def main(arguments: Sequence[str]) -> int:
    """Wait until the code arrives: from the parts in a folder, from the pod that stores it, or by a sync.

    The arguments are FOLDER HOLDER ROOT CONTROL READY SECONDS, with HOLDER as HOST:PORT or empty. Return the
    exit code: 0, or 1 after SECONDS.
    """
    folder, holder, root, control, ready, seconds = arguments
    store, until, refused = Store(root), time.monotonic() + float(seconds), ""
    while True:
        try:
            if message := come(store, folder, ready, holder):
                print(message, flush=True)
                current = store.current()
                Control(control).start(current["generation"], current["tree"])
                return 0
        except (Refused, OSError, http.client.HTTPException, zlib.error) as error:
            refused = f"; {error}"
        if time.monotonic() > until:
            message = f"no code came within {seconds} s{refused}: `kubectl torchrun sync` brings it"
            print(message, file=sys.stderr)
            return 1
        time.sleep(LOOK_SECONDS)


def come(store: Store, folder: str, ready: str, holder: str = "") -> str:
    """Restore the stored code if it is newer than the store's.

    Return a message about the current code and its source, or "" until the code is ready.
    """
    parts = joined(folder)
    if parts is not None:
        _take_over(store, Whole(io.BytesIO(parts).read), ready)
        where = "from Secrets"
    elif holder and not _is_ready(store, ready):
        host, _, port = holder.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=HOLDER_SECONDS)
        try:
            connection.request("GET", f"/{ready}")
            answer = connection.getresponse()
            if answer.status == http.client.OK:
                _take_over(store, Whole(answer.read), ready)
        finally:
            connection.close()
        where = f"from {host}"
    else:
        where = "by a sync, or on the volume"
    if not _is_ready(store, ready):
        return ""
    current = store.current()
    return f"code {current['tree'][:12]}, generation {current['generation']}, {where}"


def _take_over(store: Store, whole: Whole, ready: str) -> None:
    if not _is_newer(store, whole):
        return
    store.lock(f"kept-{os.getpid()}", LOCK_SECONDS)
    try:
        if _is_newer(store, whole):
            restore(store, whole, ready)
    finally:
        store.unlock()


def _is_ready(store: Store, ready: str) -> bool:
    return _read(os.path.join(store.root, "ready")) == ready and bool(store.current())


def _is_newer(store: Store, whole: Whole) -> bool:
    return int(whole.head["generation"]) > int(store.current().get("generation", 0))


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def packed(head: dict[str, Any], contents: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the pieces of a whole. `contents` has the bytes of each content, in the order of contents_of."""
    text = json.dumps(head).encode()
    packing = zlib.compressobj(6)
    yield packing.compress(b"%d\n" % len(text) + text)
    for piece in contents:
        yield packing.compress(piece)
    yield packing.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
