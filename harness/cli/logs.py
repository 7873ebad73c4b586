"""Read the ranks' logs from a bundle, even while it is being written, without the ground-truth frames."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from harness.core.clock import CLOCK, Clock
from harness.core.errors import UsageError
from harness.core.user_files import open_regular
from harness.evidence.io.own_lines import is_own
from harness.evidence.io.reader import Bundle

LOOK_SECONDS = 0.2


def lines(bundle: Bundle, rank: int | None) -> Iterator[str]:
    """Yield each line as "node index | time | text", pod by pod. Raises UsageError if the rank has no pod."""
    for index, log in _logs(bundle.path, _pods(bundle, rank)):
        with open_regular(log) as file:
            for line in file.read().decode(errors="replace").splitlines():
                yield from _shown(index, line)


def follow(path: Path, rank: int | None, clock: Clock = CLOCK) -> Iterator[str]:
    """Yield lines in the format of `lines` as soon as they are written, until the launch has ended."""
    read: dict[Path, int] = {}
    version = None
    while True:
        # The version is read first, so that a change during the reading causes another read.
        if version != (version := _version(path)):
            bundle = Bundle.open(path)
            over = bundle.manifest is None or bundle.manifest.ended_at is not None
            pods = _pods(bundle, rank, expected=over)
        for index, log in _logs(path, pods):
            with open_regular(log) as file:
                file.seek(read.get(log, 0))
                new = file.read()
            whole = len(new) if over else new.rfind(b"\n") + 1
            read[log] = read.get(log, 0) + whole
            for line in new[:whole].decode(errors="replace").splitlines():
                yield from _shown(index, line)
        if over:
            return
        clock.sleep(LOOK_SECONDS)


def _version(path: Path) -> list[tuple[int, int, int]]:
    """Return a value that changes whenever manifest.json or objects/pod.jsonl changes.

    These files record the end of the launch and its pods.
    """
    files = [path / "manifest.json", path / "objects" / "pod.jsonl"]
    stats = [file.stat() for file in files if file.exists()]
    return [(stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats]


def _pods(bundle: Bundle, rank: int | None, expected: bool = True) -> list[tuple[int, str]]:
    """Return the node index and name of every pod, or only of the pod of `rank`.

    If the rank has no pod, return an empty list, or raise UsageError if `expected` is true.
    """
    ranks = bundle.ranks()
    if rank is None:
        return [(index, pod.name) for index, pod in bundle.pods().items()]
    if rank in ranks:
        return [(ranks[rank].index, ranks[rank].name)]
    if expected:
        hint = (
            f"ranks with a pod: {', '.join(map(str, ranks))}"
            if ranks
            else "`harness show` shows why no rank has a pod"
        )
        raise UsageError(f"the bundle has no pod of rank {rank}", hint=hint)
    return []


def _logs(path: Path, pods: list[tuple[int, str]]) -> Iterator[tuple[int, Path]]:
    for index, name in pods:
        for log in sorted((path / "logs").glob(f"{name}-*.log")):
            yield index, log


def _shown(index: int, line: str) -> Iterator[str]:
    stamp, _, text = line.partition(" ")
    if not is_own(text):
        yield f"{index} | {stamp[11:23]} | {text}"
