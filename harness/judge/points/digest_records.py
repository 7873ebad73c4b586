"""Read an injected recorder's lines from a pod's log (harness/workers/recorder/digest_lines.py).

    pod = read(log_lines, nonce=owner_uid, pod="train-0")

A record covers one process of a rank: one line per minute and, if the process finished, a summary.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from harness.judge.finding import counted
from harness.workers.recorder import digest_lines
from harness.workers.recorder.digest_lines import Line, Part


class Claim(msgspec.Struct, array_like=True, frozen=True):
    """A process's claim about the points it logged for one metric."""

    metric: str
    count: int
    first: int
    last: int
    began_ms: int
    ended_ms: int
    level: int
    digest: str
    """The digest of all points, or "" if it is unknown."""
    nodes: str


class Group(msgspec.Struct, array_like=True, frozen=True):
    """A process's claim about a group of metrics that did not fit into its summary."""

    group: int
    metrics: int
    count: int
    digest: str


class Run(msgspec.Struct, frozen=True):
    """Everything that a process logged to one run."""

    run: str
    uploads: bool
    merged: list[tuple[str, list[str]]]
    uncounted: int
    metrics: list[Claim]
    groups: list[Group]

    @property
    def count(self) -> int:
        grouped = sum(group.count for group in self.groups)
        return sum(claim.count for claim in self.metrics) + grouped + self.uncounted


class Sent(msgspec.Struct, frozen=True):
    """The result of sending reports about a process's blocks of steps to the tracker."""

    run: str
    reports: int
    head: str
    unsent: int
    dropped: int
    failures: int
    why: str


class Leaf(NamedTuple):
    """A metric's points in one block of steps.

    The times are those of the metric's first point and of its last point before the block was reported.
    """

    points: int
    digest: int
    began_ms: int
    ended_ms: int


@dataclass
class Blocks:
    """The blocks of steps that a process reported to the tracker, as far as its log confirms them."""

    run: str
    leaves: dict[str, dict[int, Leaf]] = field(default_factory=dict)
    """Maps each metric and block to the block's points, according to the last report."""


class ProcessGroup(msgspec.Struct, frozen=True):
    """The default process group of torch.distributed in a process."""

    backend: str
    store: str
    """The class of the process group's store, such as TCPStore."""
    rank: int
    size: int

    @property
    def met(self) -> bool:
        """Return whether the ranks of the group must have met.

        Rank 0's TCPStore waits for all ranks, and so does `mpirun`. With the test backend "fake", the ranks
        never connect.
        """
        return self.backend == "mpi" or (self.store == "TCPStore" and self.backend != "fake")


class Summary(msgspec.Struct, frozen=True):
    """A process's summary, written when it ends."""

    start: int
    end: int
    lines: int
    chain: str
    restart: int | None
    host: str
    pid: int
    parent: int | None
    fault: str
    handed: int
    logged: int
    left: int
    past: int
    unseen: str
    omitted: list[tuple[str, str, str, int, str, str]]
    runs: list[Run]
    sent: Sent | None = None
    world: int | None = None
    """The process's WORLD_SIZE."""
    group: ProcessGroup | None = None

    def of_run(self, run: str) -> Run | None:
        return next((each for each in self.runs if each.run == run), None)


@dataclass
class Record:
    """One process of a rank. `problem` explains why its summary is unreliable, or is ""."""

    attempt: str
    rank: int | None
    pod: str
    nonce: str
    lines: dict[int, Line] = field(default_factory=dict)
    parts: dict[int, dict[int, Part]] = field(default_factory=dict)
    """The parts of each summary, keyed by summary number and part number."""
    conflict: str = ""
    summary: Summary | None = None
    problem: str = ""
    trusted: bool = False
    """Whether the summary is complete and consistent with the lines and the blocks."""
    blocks: Blocks | None = None
    contradiction: str = ""
    """A description of how the digests in the tracker contradict the log, or ""."""
    running: bool = False
    """Whether the container was still running when the pod was read, so the client may send more points."""

    @property
    def last(self) -> Line | None:
        """Return the last per-minute line, or None."""
        return self.lines[max(self.lines)] if self.lines else None

    @property
    def is_child(self) -> bool:
        """Return whether the process is a logging child process of the rank, such as an evaluation script."""
        return self.summary is not None and self.summary.parent is not None

    def add(self, item: Line | Part) -> None:
        """Add a line, or a part of a summary, from the log.

        Duplicates are allowed, because logs are read more than once.
        """
        if isinstance(item, Line):
            existing: object = self.lines.setdefault(item.number, item)
        else:
            existing = self.parts.setdefault(item.number, {}).setdefault(item.part, item)
        if existing != item:
            self.conflict = "its log has two different lines with the same number, so one of them is forged"

    def close(self) -> None:
        """Read the summary, and compare it with the lines."""
        problem = ""
        if self.parts:
            parts = self.parts[max(self.parts)]
            count = max(part.parts for part in parts.values())
            if sorted(parts) != [*range(1, count + 1)]:
                problem = f"its summary is incomplete: the log has {len(parts)} of {counted(count, 'part')}"
            else:
                try:
                    body = digest_lines.decode_summary(parts[at].body for at in sorted(parts))
                    self.summary = msgspec.convert(body, Summary)
                except ValueError as error:
                    problem = f"its summary cannot be read: {str(error)[:200]}"
        problem = self.conflict or problem or self._broken() or self._torn()
        self.trusted = self.summary is not None and not problem
        self.problem = problem or self.without_summary() or self._summary_problem()

    def _broken(self) -> str:
        """Return a sentence that locates the break in the lines' hash chain, or "" if there is none."""
        previous = None
        for number in sorted(self.lines):
            line = self.lines[number]
            if previous is not None and number != previous.number + 1:
                first, last = previous.number + 1, number - 1
                missing = f"line {first}" if first == last else f"lines {first} to {last}"
                return f"the log lacks its {missing}"
            chain = previous.chain if previous is not None else "" if number == 0 else None
            if chain is not None and line.chain != digest_lines.chained(chain, line):
                return f"line {number} does not continue the lines before it, so one of them is forged"
            previous = line
        return ""

    def without_summary(self) -> str:
        """Return a sentence about the missing summary and the last line, or "" if there is a summary."""
        if self.summary is not None:
            return ""
        last = self.last
        if last is None:
            return "its summary and all its lines are missing from the log"
        at = datetime.fromtimestamp(last.time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return (
            f"it ended without a summary. Its last line is from {at}, after {counted(last.points, 'point')}; "
            "what it logged afterwards is not known"
        )

    def _torn(self) -> str:
        summary, last = self.summary, self.last
        if summary is None:
            return ""
        if last is not None and (summary.lines, summary.chain) == (last.number + 1, last.chain):
            return ""
        return "its summary does not continue its lines, so lines are missing or forged"

    def _summary_problem(self) -> str:
        summary = self.summary
        assert summary is not None
        if summary.fault:
            return f"its recorder failed: {summary.fault}"
        if summary.unseen:
            return summary.unseen
        if summary.handed != summary.logged + summary.left:
            counts = f"{summary.logged} logged and {summary.left} omitted"
            return f"run.log received {counted(summary.handed, 'value')}, but the recorder counted {counts}"
        return ""


@dataclass
class PodRecord:
    """The records in the log of one pod."""

    pod: str
    nonce: str
    records: list[Record]
    others: int = 0
    """The number of lines with a different nonce, which are from another job or forged."""
    whole: bool = True
    """Whether the log contains the container's output from the beginning."""
    lost: str = ""
    """The reason why an earlier process of the pod's ranks may be missing from all logs, or ""."""
    ranks: Collection[int] = ()
    """The ranks that the pod is expected to have."""
    absent: str = ""
    """The reason why the log contains no lines of a recorder, or "" if it contains some."""

    def of_rank(self, rank: int) -> list[Record]:
        return [record for record in self.records if record.rank == rank]


def read(
    lines: Iterable[str],
    nonce: str,
    *,
    pod: str = "",
    rank: int | None = None,
    whole: bool = True,
    running: bool = False,
) -> PodRecord:
    """Return the records in a pod's log.

    `nonce` is HARNESS_NONCE from the pod's spec, and equals the uid of the pod's owner. `rank` is used for
    processes that did not know their rank. `whole` is False if the beginning of the log was rotated away.
    `running` means that the container was running when the state of its pod was read.
    """
    by_attempt: dict[str, Record] = {}
    other_lines = 0
    for item in digest_lines.decode(nonce, lines):
        if item is None:
            other_lines += 1
            continue
        own = item.rank if item.rank is not None else rank
        record = by_attempt.setdefault(item.attempt, Record(item.attempt, own, pod, nonce, running=running))
        if record.rank != own:
            record.conflict = "its lines name two ranks, so some are forged"
            continue
        record.add(item)
    for record in by_attempt.values():
        record.close()
    return PodRecord(pod, nonce, list(by_attempt.values()), other_lines, whole)


def nonce_of(pod: Mapping[str, Any], container: str) -> str:
    """Return the nonce for a container's recorder, or "" if no recorder was injected into the container."""
    containers = pod["spec"]["containers"]
    env = next((each.get("env") or [] for each in containers if each["name"] == container), [])
    if not any(each.get("name") == "HARNESS_RECORDER_MODE" for each in env):
        return ""
    nonce: Mapping[str, Any] = next((each for each in env if each.get("name") == "HARNESS_NONCE"), {})
    return str(nonce.get("value") or pod["metadata"].get("uid") or "")
