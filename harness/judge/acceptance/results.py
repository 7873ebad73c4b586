"""Acceptance test results for each check, GPU and node, with their limits and the medians across nodes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from harness.evidence.schema.acceptance import AcceptanceCheck, AcceptanceReport, Verdict
from harness.workers.acceptance import check as pod

ORDER: tuple[Verdict, ...] = ("FAIL", "UNKNOWN", "WARN", "PASS")
"""Verdicts, worst first. UNKNOWN precedes WARN, because a node that may be faulty is worse than a slow
node."""


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst verdict, or UNKNOWN if there are no verdicts."""
    return pod.worst(verdicts)


def natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key for names that puts node2 before node10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


@dataclass(frozen=True)
class Cell:
    """The result of one check on one node or GPU. `median` is the median across nodes of the same kind."""

    id: str
    verdict: Verdict
    text: str
    cause: str | None = None
    gpu: int | None = None
    ranks: tuple[int, ...] = ()
    measured: float | None = None
    unit: str = ""
    limit: float | None = None
    relation: str = ">="
    source: str | None = None
    seconds: float = 0.0
    median: float | None = None

    @classmethod
    def of(cls, check: AcceptanceCheck) -> Cell:
        """Return the check's result as reported by the pod."""
        return cls(
            id=check.id,
            verdict=check.verdict,
            text=check.text,
            cause=check.cause,
            gpu=check.index,
            ranks=tuple(check.ranks),
            measured=check.measured,
            unit=check.unit,
            limit=check.limit,
            relation=check.relation,
            source=check.limit_source,
            seconds=check.seconds,
        )

    def rank(self) -> tuple[int, str, int]:
        """Return the sort key: worst verdict first, then by check id, then by GPU."""
        return ORDER.index(self.verdict), self.id, -1 if self.gpu is None else self.gpu

    @property
    def name(self) -> str:
        """Return the check's id, followed by the GPU index if the result belongs to one GPU."""
        return self.id if self.gpu is None else f"{self.id} GPU {self.gpu}"


@dataclass(frozen=True)
class Kind:
    """A node's device, test mode and GPU models. Only nodes that are equal in all three are compared."""

    device: str
    mode: str
    models: tuple[str, ...]

    @classmethod
    def of(cls, report: AcceptanceReport) -> Kind:
        """Return the kind of the node that sent the report."""
        return cls(report.device, report.mode, tuple(sorted({gpu.name for gpu in report.gpus})))

    def __str__(self) -> str:
        return f"{' and '.join(self.models) or self.device}, {self.mode}"


@dataclass(frozen=True)
class Figure:
    """One check's median value across all nodes of one kind.

    A node without a value counts as the fastest node, so that a missing value never makes a slow node look
    better. `median` is None if too few nodes have a value.
    """

    id: str
    kind: Kind
    unit: str
    median: float | None
    nodes: int
    """Number of nodes with a measured value."""
    missing: int


@dataclass(frozen=True)
class GpuResult:
    """The verdict on one GPU: the worst result of its checks, or UNKNOWN if it has no checks."""

    index: int
    uuid: str
    name: str
    verdict: Verdict


@dataclass(frozen=True)
class NodeResult:
    """The verdict on one node: the worst result in `cells`, which is sorted worst first."""

    node: str
    pod: str
    verdict: Verdict
    answered: bool
    kind: Kind | None
    gpus: tuple[GpuResult, ...]
    cells: tuple[Cell, ...]
    versions: dict[str, str]
    line: int
    """Line number of the pod's first record in acceptance.jsonl, or 0 if there is none."""

    @property
    def first(self) -> Cell | None:
        """Return the worst result, or None if all checks passed."""
        return self.cells[0] if self.cells and self.cells[0].verdict != "PASS" else None
