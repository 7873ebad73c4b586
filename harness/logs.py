"""The ranks' logs out of a bundle, also while it is written; ground-truth frames are left out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from harness.errors import UsageError
from harness.evidence.reader import Bundle
from harness.workers.truth_frames import MARK

LOOK_SECONDS = 0.2


def lines(bundle: Bundle, rank: int | None) -> Iterator[str]:
    """Each as "node index | time | text", pod after pod. Raises UsageError for a rank without a pod."""
    for index, files in _files(bundle, _wanted(bundle, rank)):
        for path in files:
            for line in path.read_text(errors="replace").splitlines():
                yield from _shown(index, line)


def follow(path: Path, rank: int | None) -> Iterator[str]:
    """The same as they are written, until the harness that writes the bundle has ended them."""
    read: dict[Path, int] = {}
    while True:
        bundle = Bundle.open(path)
        manifest = bundle.manifest
        over = manifest is None or manifest.ended_at is not None
        if over:
            _wanted(bundle, rank)
        for index, files in _files(bundle, _index(bundle, rank)):
            for file in files:
                with file.open("rb") as log:
                    log.seek(read.get(file, 0))
                    new = log.read()
                whole = len(new) if over else new.rfind(b"\n") + 1
                read[file] = read.get(file, 0) + whole
                for line in new[:whole].decode(errors="replace").splitlines():
                    yield from _shown(index, line)
        if over:
            return
        time.sleep(LOOK_SECONDS)


def _wanted(bundle: Bundle, rank: int | None) -> int | None:
    index = _index(bundle, rank)
    if index == -1:
        ranks = list(bundle.ranks())
        raise UsageError(f"the bundle has no pod of rank {rank}", hint=f"ranks with a pod: {ranks}")
    return index


def _index(bundle: Bundle, rank: int | None) -> int | None:
    """Of the rank's node; -1 while it has no pod, None for every node."""
    pod = bundle.ranks().get(rank) if rank is not None else None
    return None if rank is None else -1 if pod is None else pod.index


def _files(bundle: Bundle, index: int | None) -> Iterator[tuple[int, list[Path]]]:
    for each, pod in bundle.pods().items():
        if index in (None, each):
            yield each, sorted((bundle.path / "logs").glob(f"{pod.name}-*.log"))


def _shown(index: int, line: str) -> Iterator[str]:
    stamp, _, text = line.partition(" ")
    if MARK not in text:
        yield f"{index} | {stamp[11:23]} | {text}"
