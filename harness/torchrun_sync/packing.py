"""A folder's code as one whole, for the cluster to keep: what pods that come later get without the client."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

from harness.torchrun_sync.pod.kept import contents_of, packed
from harness.torchrun_sync.sender import Changed
from harness.torchrun_sync.tree import Tree

PIECE = 1 << 20


def pack(tree: Tree, generation: int, limit: int) -> bytes | None:
    """Return the whole of a tree, or None where it has more than `limit` bytes.

    Raises Changed for a file that was written to since the tree was looked at.
    """
    head = {"entries": tree.entries, "tree": tree.digest, "generation": generation}
    pieces: list[bytes] = []
    came = 0
    for piece in packed(head, _contents(tree)):
        pieces.append(piece)
        came += len(piece)
        if came > limit:
            return None
    return b"".join(pieces)


def _contents(tree: Tree) -> Iterator[bytes]:
    entries = tree.by_digest()
    for digest, size in contents_of(tree.entries):
        path = entries[digest]["path"]
        found, read = sha256(), 0
        try:
            with (tree.top / path).open("rb") as file:
                while piece := file.read(PIECE):
                    found.update(piece)
                    read += len(piece)
                    yield piece
        except OSError:
            raise Changed(path) from None
        if (found.hexdigest(), read) != (digest, size):
            raise Changed(path)
