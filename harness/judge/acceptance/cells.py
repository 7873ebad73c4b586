"""Results of acceptance: of one check, beside its limit and the fleet, of one GPU, and of one node."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from harness.evidence.schema.acceptance import AcceptanceCheck, AcceptanceReport, Verdict
from harness.workers.acceptance import check as pod

ORDER: tuple[Verdict, ...] = ("FAIL", "UNKNOWN", "WARN", "PASS")
"""Worst first. UNKNOWN comes before WARN: what was not proved is worse than what is slow."""


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst verdict. No verdict at all is UNKNOWN."""
    return pod.worst(verdicts)


def natural(name: str) -> list[tuple[int, str]]:
    """Return what names are sorted by, so that node2 comes before node10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


@dataclass(frozen=True)
class Cell:
    """What one check says of one node or GPU. `median` is the fleet's figure, None where none is known."""

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
        """Return the cell of a check as its pod made it."""
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
        """Return what it is sorted by: the worst first, then the check, then the GPU."""
        return ORDER.index(self.verdict), self.id, -1 if self.gpu is None else self.gpu

    @property
    def name(self) -> str:
        """Return the check's id, with the number of the GPU that it is about."""
        return self.id if self.gpu is None else f"{self.id} GPU {self.gpu}"


@dataclass(frozen=True)
class Kind:
    """What makes nodes comparable: the device, the mode, and the models of their GPUs. Not their number."""

    device: str
    mode: str
    models: tuple[str, ...]

    @classmethod
    def of(cls, report: AcceptanceReport) -> Kind:
        """Return the kind of the node that a report is about."""
        return cls(report.device, report.mode, tuple(sorted({gpu.name for gpu in report.gpus})))

    def __str__(self) -> str:
        return f"{' and '.join(self.models) or self.device}, {self.mode}"


@dataclass(frozen=True)
class Figure:
    """The fleet's median of one check, over nodes of one kind.

    Of the nodes that gave no figure it is assumed that they are faster. So a missing node never makes a slow
    one look better. `median` is None where too few gave a figure.
    """

    id: str
    kind: Kind
    unit: str
    median: float | None
    nodes: int
    """Nodes that gave a figure."""
    missing: int


@dataclass(frozen=True)
class GpuResult:
    """The verdict of one GPU: the worst of the checks about it. Without any it is UNKNOWN."""

    index: int
    uuid: str
    name: str
    verdict: Verdict


@dataclass(frozen=True)
class NodeResult:
    """The verdict of one node: the worst of its cells, which are sorted worst first."""

    node: str
    pod: str
    verdict: Verdict
    answered: bool
    kind: Kind | None
    gpus: tuple[GpuResult, ...]
    cells: tuple[Cell, ...]
    versions: dict[str, str]
    line: int
    """Of acceptance.jsonl, where its pod begins to speak. 0: it said nothing."""

    @property
    def first(self) -> Cell | None:
        """Return what failed first: the worst cell, or None where all passed."""
        return self.cells[0] if self.cells and self.cells[0].verdict != "PASS" else None
