"""Read the ranks' logs from a bundle, even while it is being written, without the ground-truth frames."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path

from harness.core.clock import CLOCK, Clock
from harness.core.errors import UsageError
from harness.core.terminal_row import Row
from harness.core.terminal_text import Terminal, printable
from harness.evidence.io.files import names_inside, open_inside
from harness.evidence.io.harness_log_lines import split_time, without_own
from harness.evidence.io.reader import Bundle

POLL_SECONDS = 0.2
READ_BYTES = 1 << 20


def lines(bundle: Bundle, rank: int | None) -> Iterator[str]:
    """Yield each log line as "NODE INDEX | TIME | TEXT", pod by pod.

    Raises UsageError if the rank has no pod. TEXT is the line as a terminal would show it. Text that later
    output overwrote is counted or shown separately (harness.core.terminal_text).
    """
    for index, path in _logs(bundle.path, _pods(bundle, rank)):
        yield from _Log(index, bundle.path, path).read(over=True)


def follow(path: Path, rank: int | None, clock: Clock = CLOCK) -> Iterator[str]:
    """Yield log lines in the format of `lines` as soon as they are written, until the launch has ended.

    If later output changes a line, as nested progress bars do, the line is yielded again with its final text.
    """
    logs: dict[str, _Log] = {}
    version = None
    while True:
        # The version is read first. If the bundle changes during the read, the next pass reads it again.
        if version != (version := _version(path)):
            bundle = Bundle.open(path)
            over = bundle.manifest is None or bundle.manifest.ended_at is not None
            pods = _pods(bundle, rank, expected=over)
        for index, log in _logs(path, pods):
            yield from logs.setdefault(log, _Log(index, path, log, live=True)).read(over)
        if over:
            return
        clock.sleep(POLL_SECONDS)


class _Log:
    """Reads a container's log file incrementally, in parts of bounded size."""

    def __init__(self, index: int, bundle: Path, path: str, live: bool = False) -> None:
        self._index = index
        self._bundle = bundle
        self._path = path
        self._terminal = Terminal[str](live)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0
        self._rest = b""
        self._stamp: str | None = None
        """The timestamp of the current line, if only the beginning of the line has been read."""

    def read(self, over: bool) -> Iterator[str]:
        """Yield the log lines completed since the last call.

        If `over` is true, also yield the remaining text.
        """
        with open_inside(self._bundle, self._path) as file:
            file.seek(self._offset)
            while chunk := file.read(READ_BYTES):
                self._offset += len(chunk)
                *lines, self._rest = (self._rest + chunk).split(b"\n")
                for line in lines:
                    yield from self._piece(line, final=True)
                if len(self._rest) > READ_BYTES:
                    part, self._rest = self._rest, b""
                    yield from self._piece(part, final=False)
        if over:
            rest, self._rest = self._rest, b""
            if rest:
                yield from self._piece(rest, final=True)
            yield from map(self._shown, self._terminal.flush())

    def _piece(self, piece: bytes, final: bool) -> Iterator[str]:
        """Process a line of the form "TIME TEXT", or a part of such a line."""
        text = self._decoder.decode(piece, final=final)
        stamp = self._stamp
        if stamp is None:
            stamp, text = split_time(text)
        self._stamp = None if final else stamp
        users = without_own(text)
        if users is not None:
            end = "\n" if final and users is text else ""
            yield from map(self._shown, self._terminal.write(users + end, stamp))

    def _shown(self, row: Row[str]) -> str:
        return printable(f"{self._index} | {row.last[11:23]:12} | {row.described}")


def _version(path: Path) -> list[tuple[int, int, int]]:
    """Return a value that changes whenever manifest.json or objects/pod.jsonl changes.

    These files record the launch's pods, and when the launch ended.
    """
    files = [path / "manifest.json", path / "objects" / "pod.jsonl"]
    stats = [file.stat() for file in files if file.exists()]
    return [(stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats]


def _pods(bundle: Bundle, rank: int | None, expected: bool = True) -> list[tuple[int, str]]:
    """Return the node index and name of every pod, or only of the pod that runs `rank`.

    If the rank has no pod, UsageError is raised if `expected` is true, and otherwise an empty list is
    returned.
    """
    ranks = bundle.ranks()
    if rank is None:
        return [(index, pod.name) for index, pod in bundle.pods().items()]
    if rank in ranks:
        return [(ranks[rank].index, ranks[rank].name)]
    if expected:
        hint = (
            f"ranks that have a pod: {', '.join(map(str, ranks))}"
            if ranks
            else "`harness show` shows why no rank has a pod"
        )
        raise UsageError(f"the bundle has no pod for rank {rank}", hint=hint)
    return []


def _logs(path: Path, pods: list[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yield (node index, path in the bundle) for each log file of the pods."""
    logs = names_inside(path, "logs", ".log")
    for index, name in pods:
        for log in logs:
            if log.startswith(f"{name}-"):
                yield index, f"logs/{log}"
