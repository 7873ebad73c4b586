"""Pack the code in a folder into one archive, which is stored in the cluster for pods that start later."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

from harness.torchrun_sync.pod.stored_archive import contents_of, packed
from harness.torchrun_sync.sender import Changed
from harness.torchrun_sync.tree import Tree

PIECE = 1 << 20


def pack(tree: Tree, generation: int, limit: int) -> bytes | None:
    """Return the tree as an archive in the format of pod/stored_archive.py.

    Returns None if the archive is larger than `limit` bytes. Raises Changed if a file was written to after
    the scan.
    """
    head = {"entries": tree.entries, "tree": tree.digest, "generation": generation}
    pieces: list[bytes] = []
    size = 0
    for piece in packed(head, _contents(tree)):
        pieces.append(piece)
        size += len(piece)
        if size > limit:
            return None
    return b"".join(pieces)


def _contents(tree: Tree) -> Iterator[bytes]:
    entries = tree.by_digest()
    for digest, size in contents_of(tree.entries):
        path = entries[digest]["path"]
        actual, read = sha256(), 0
        try:
            with (tree.top / path).open("rb") as file:
                while piece := file.read(PIECE):
                    actual.update(piece)
                    read += len(piece)
                    yield piece
        except OSError:
            raise Changed(path) from None
        if (actual.hexdigest(), read) != (digest, size):
            raise Changed(path)
