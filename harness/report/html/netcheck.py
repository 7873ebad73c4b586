"""The netcheck matrix: which pod can reach which, for the terminal, the report page and Markdown."""

from __future__ import annotations

from dataclasses import dataclass

from harness.evidence.io.reader import Bundle
from harness.evidence.schema.netcheck import NetcheckCell, NetcheckStep
from harness.judge.case import Case
from harness.judge.cluster.netcheck import best, diagnoses, steps
from harness.report import markdown
from harness.workers.netcheck.bandwidth import megabytes
from harness.workers.netcheck.diagnosis_text import MOST, word


@dataclass(frozen=True)
class Square:
    """The result of connecting from one pod to another. `kind` is good, bad, idle (not known) or self."""

    text: str
    kind: str
    title: str = ""


@dataclass(frozen=True)
class Row:
    """The results for the connections from one pod to all pods.

    `place` names the pod and its node. If there is no result, `squares` is empty.
    """

    name: str
    place: str
    squares: list[Square]


@dataclass(frozen=True)
class Matrix:
    """The results for all pairs of pods, and the steps of the diagnosis with the most information."""

    rows: list[Row]
    steps: list[NetcheckStep]
    seconds: float


def matrix(bundle: Bundle) -> Matrix | None:
    """Return a bundle's matrix, or None if no pod logged a diagnosis.

    If no diagnosis covers all pairs, each row comes from its own pod's diagnosis.
    """
    manifest = bundle.manifest
    if manifest is None or manifest.launch is None or manifest.expected is None:
        return None
    case = Case(bundle, manifest, manifest.expected, manifest.launch)
    by_pod = diagnoses(case)
    first = best(by_pod.values())
    if first is None:
        return None
    rows = {sender: row for one in by_pod.values() for sender, row in one.diagnosis.rows.items()}
    rows |= first.diagnosis.rows
    nodes = range(min(case.expected.num_nodes, MOST))
    return Matrix(
        [Row(f"{index}", _place(case, index), _row(rows.get(index), index, nodes)) for index in nodes],
        steps(case, first.diagnosis),
        first.diagnosis.seconds,
    )


def _place(case: Case, index: int) -> str:
    pod = case.pods.get(index)
    return f"{pod.name} on {pod.node or 'no node'}" if pod else "no pod"


def _row(row: dict[int, NetcheckCell] | None, sender: int, nodes: range) -> list[Square]:
    if row is None:
        return []
    return [Square("–", "self") if other == sender else _square(row.get(other)) for other in nodes]


def _square(cell: NetcheckCell | None) -> Square:
    if cell is None or cell.outcome == "pending":
        return Square("?", "idle", cell.text if cell else "not tried")
    if cell.outcome == "ok":
        if cell.bandwidth:
            round_trips = f"round trips p50 {cell.p50 * 1000:.2f} ms, p99 {cell.p99 * 1000:.2f} ms"
            return Square(megabytes(cell.bandwidth), "good", f"{cell.address}: {round_trips}")
        rate = f", {cell.rate / 1e6:.0f} MB/s" if cell.rate else ""
        return Square("ok", "good", f"{cell.address}: {cell.rtt * 1000:.1f} ms{rate}")
    return Square(word(cell.outcome), "bad", f"{cell.outcome}: {cell.host}: {cell.text}")


def lines(diagnosis: Matrix) -> list[str]:
    """Return the matrix as a Markdown table with one row per sending pod."""
    count = len(diagnosis.rows)
    head = ["from \\ to", *(row.name for row in diagnosis.rows), "pod"]
    cells = [
        [row.name, *([s.text for s in row.squares] or ["not heard", *[""] * (count - 1)]), row.place]
        for row in diagnosis.rows
    ]
    return markdown.table(
        [markdown.text(one) for one in head], [[markdown.text(one) for one in row] for row in cells]
    )
