"""The archive format for storing a job's code in the cluster, and the command that restores it in a new pod.

A small archive is split into parts, one per Secret, which a pod mounts in a folder. A larger
archive is served by a pod (archive_server.py).

    part      b"SHA-256 COUNT INDEX\n" and bytes: the archive's digest, the number of parts, this part's index
    archive   zlib: b"LENGTH\n", a JSON head of LENGTH bytes, then each content once, sorted by SHA-256
    head      entries, tree, generation

Parts may be replaced while a pod reads them. Parts of different archives are never combined.
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
from harness.torchrun_sync.pod.files import volume_problem
from harness.torchrun_sync.pod.store import Store

PIECE = 1 << 20
POLL_SECONDS = 0.5
LOCK_SECONDS = 60.0
SERVER_SECONDS = 30.0
"""The timeout, in seconds, of each read from the pod that stores the code."""
SEND_IT = "send it with `kubectl torchrun sync`"
MAX_HEAD = 1 << 28
"""The maximum size of an archive's unpacked head in bytes."""


def contents_of(entries: Sequence[Entry]) -> list[tuple[str, int]]:
    """Return (SHA-256, size in bytes) of each distinct file content in a tree, in the order that archives
    use."""
    return sorted({entry["sha256"]: entry["size"] for entry in entries if entry["kind"] == "file"}.items())


def split(archive: bytes, size: int) -> list[bytes]:
    """Split an archive into parts.

    Each part contains at most `size` bytes of the archive, after its own head.
    """
    sha, count = hashlib.sha256(archive).hexdigest(), max(1, -(-len(archive) // size))
    pieces = (archive[index * size : (index + 1) * size] for index in range(count))
    return [f"{sha} {count} {index}\n".encode() + piece for index, piece in enumerate(pieces)]


def join_parts(folder: str) -> bytes | None:
    """Return the archive whose parts are mounted in a folder.

    Return None if a part is missing or belongs to a different archive.
    """
    first = _part(folder, 0)
    if first is None:
        return None
    (sha, count, _), pieces = first[0], [first[1]]
    for index in range(1, count):
        part = _part(folder, index)
        if part is None or part[0] != (sha, count, index):
            return None
        pieces.append(part[1])
    archive = b"".join(pieces)
    return archive if hashlib.sha256(archive).hexdigest() == sha else None


def _part(folder: str, index: int) -> tuple[tuple[str, int, int], bytes] | None:
    try:
        with open(os.path.join(folder, str(index)), "rb") as file:
            head, _, piece = file.read().partition(b"\n")
        sha, count, total = head.decode("ascii").split()
        return (sha, int(count), int(total)), piece
    except (OSError, ValueError):
        return None


class ArchiveReader:
    """An archive that is unpacked while it is being read, so that it is never completely in memory.

    `read(size)` returns at most `size` packed bytes, and b"" at the end.
    """

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._decompressor, self._read, self._packed, self._unpacked = zlib.decompressobj(), read, b"", b""
        line = b""
        while not line.endswith(b"\n") and len(line) < 20:
            line += b"".join(self._read_unpacked(1))
        length = int(line)
        if length > MAX_HEAD:
            raise Refused(f"the header of the stored code has {length} bytes; expected at most {MAX_HEAD}")
        self.head: dict[str, Any] = json.loads(b"".join(self._read_unpacked(length)))

    def contents(self) -> Iterator[tuple[str, int, Iterator[bytes]]]:
        """Yield (SHA-256, size, pieces) for the content of each file. Unread pieces are skipped."""
        for sha, size in contents_of(self.head["entries"]):
            pieces = self._read_unpacked(size)
            yield sha, size, pieces
            for _ in pieces:
                pass

    def _read_unpacked(self, count: int) -> Iterator[bytes]:
        while count:
            if not self._unpacked:
                self._packed = self._packed or self._read(PIECE)
                at_end = self._decompressor.eof or not self._packed
                self._unpacked = self._decompressor.decompress(self._packed, PIECE)
                self._packed = self._decompressor.unconsumed_tail
                if not self._unpacked and at_end:
                    raise Refused("the stored code ends before its last content")
            piece, self._unpacked = self._unpacked[:count], self._unpacked[count:]
            count -= len(piece)
            yield piece


def restore(store: Store, archive: ArchiveReader, ready: str) -> None:
    """Make the archive's tree the store's current tree. Then write `ready` to the file ROOT/ready.

    The pod starts its command when this file contains the expected string.
    """
    head = archive.head
    missing = {sha for sha, _ in store.expect(head["entries"])}
    for sha, size, pieces in archive.contents():
        if sha in missing:
            content = store.content(sha, size, 0)
            for piece in pieces:
                content.write(piece)
            content.finish()
    staged = store.stage()
    if staged != head["tree"]:
        raise Refused(f"expected the tree {head['tree'][:12]} in the stored archive, found {staged[:12]}")
    store.switch(head["tree"], head["generation"])
    store.write_ready(ready)


def main(arguments: Sequence[str]) -> int:
    """Wait for the code, which arrives from mounted Secrets, from the pod that stores the code, or from a
    sync.

    The arguments are FOLDER SERVER ROOT CONTROL READY SECONDS. SERVER is HOST:PORT or an empty string. Return
    the exit code: 0, or 1 if no code arrives within SECONDS.
    """
    folder, server, root, control, ready, seconds = arguments
    store, deadline, problem = Store(root), time.monotonic() + float(seconds), SEND_IT
    while True:
        try:
            if message := fetch_code(store, folder, ready, server):
                print(message, flush=True)
                current = store.current()
                Control(control).start(current["generation"], current["tree"])
                return 0
        except (Refused, OSError, http.client.HTTPException, zlib.error) as error:
            problem = volume_problem(error, os.path.dirname(root)) or f"{error}: {SEND_IT}"
        if time.monotonic() > deadline:
            print(f"no code arrived within {seconds} s: {problem}", file=sys.stderr)
            return 1
        time.sleep(POLL_SECONDS)


def fetch_code(store: Store, folder: str, ready: str, server: str = "") -> str:
    """Restore the code from Secrets or from the pod at `server`, if that code is newer than the code in
    `store`. Return a message with the current code and its source, or "" if no code is ready yet.
    """
    parts = join_parts(folder)
    if parts is not None:
        _restore_if_newer(store, ArchiveReader(io.BytesIO(parts).read), ready)
        source = "from Secrets"
    elif server and not _is_ready(store, ready):
        host, _, port = server.rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=SERVER_SECONDS)
        try:
            connection.request("GET", f"/{ready}")
            response = connection.getresponse()
            if response.status == http.client.OK:
                _restore_if_newer(store, ArchiveReader(response.read), ready)
        finally:
            connection.close()
        source = f"from {host}"
    else:
        source = "from a sync, or from the volume"
    if not _is_ready(store, ready):
        return ""
    current = store.current()
    return f"code {current['tree'][:12]}, generation {current['generation']}, {source}"


def _restore_if_newer(store: Store, archive: ArchiveReader, ready: str) -> None:
    if not _is_newer(store, archive):
        return
    store.lock(f"kept-{os.getpid()}", LOCK_SECONDS)
    try:
        if _is_newer(store, archive):
            restore(store, archive, ready)
    finally:
        store.unlock()


def _is_ready(store: Store, ready: str) -> bool:
    return _read(os.path.join(store.root, "ready")) == ready and bool(store.current())


def _is_newer(store: Store, archive: ArchiveReader) -> bool:
    return int(archive.head["generation"]) > int(store.current().get("generation", 0))


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def packed(head: dict[str, Any], contents: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the packed bytes of an archive in pieces.

    `contents` yields the bytes of the files in the order of contents_of().
    """
    text = json.dumps(head).encode()
    compressor = zlib.compressobj(6)
    yield compressor.compress(b"%d\n" % len(text) + text)
    for piece in contents:
        yield compressor.compress(piece)
    yield compressor.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
