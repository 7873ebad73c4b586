"""Compare nodes of one kind with each other: figures, checks that some lack, versions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

from harness.judge.acceptance.cells import Cell, Figure, Kind, worst

if TYPE_CHECKING:
    from harness.judge.acceptance.cells import NodeResult

FROM_NODES = 4
"""Below it nothing is relative: of two or three nodes nobody can say which one is right."""
SLOW = 0.75
"""A figure below this share of the fleet's median is slower than the fleet."""
VERSIONS = "fleet.versions"
SLOWER = "fleet.slower"
ADVICE = {
    SLOWER: (
        "The node is slower than the others of its kind, and above its limit: compare its clocks, its power "
        "limit and its load with theirs."
    )
}
"""Causes that only a comparison of nodes can name, and what to do."""
Place = tuple[str, int | None]


def beside(nodes: Sequence[NodeResult]) -> tuple[list[NodeResult], list[Figure]]:
    """Return the nodes with what comparing them adds, and the medians."""
    figures = _figures(nodes)
    wanted = _wanted(nodes)
    made = []
    for node in nodes:
        by_id = {figure.id: figure for figure in figures if figure.kind == node.kind}
        cells = [_compared(cell, by_id.get(cell.id)) for cell in node.cells]
        made.append(_with(node, [*cells, *_not_reported(node, wanted)]))
    return made, figures


def _with(node: NodeResult, cells: Iterable[Cell]) -> NodeResult:
    """Return a node with these cells, and the verdicts that follow from them."""
    made = tuple(sorted(cells, key=Cell.rank))
    gpus = tuple(
        replace(gpu, verdict=worst(cell.verdict for cell in made if cell.gpu == gpu.index))
        for gpu in node.gpus
    )
    return replace(node, cells=made, gpus=gpus, verdict=worst(cell.verdict for cell in made))


def _figures(nodes: Sequence[NodeResult]) -> list[Figure]:
    """Return the medians of figures that are better the greater they are, from FROM_NODES nodes on.

    A node's own figure is the median of its GPUs. A node of which nobody knows the kind may be of any.
    """
    homeless = sum(node.kind is None for node in nodes)
    found: list[Figure] = []
    for kind in dict.fromkeys(node.kind for node in nodes if node.kind is not None):
        alike = [node for node in nodes if node.kind == kind]
        total = len(alike) + homeless
        if total < FROM_NODES:
            continue
        given: dict[tuple[str, str], list[float]] = defaultdict(list)
        for node in alike:
            own: dict[tuple[str, str], list[float]] = defaultdict(list)
            for cell in node.cells:
                if _comparable(cell) and cell.measured is not None:
                    own[cell.id, cell.unit].append(cell.measured)
            for name, values in own.items():
                given[name].append(median(values))
        found += [
            Figure(id_, kind, unit, _highest(values, total), len(values), total - len(values))
            for (id_, unit), values in sorted(given.items())
        ]
    return found


def _comparable(cell: Cell) -> bool:
    """Return whether it is a figure of the node itself, the greater the better."""
    return cell.measured is not None and cell.relation == ">=" and not cell.ranks


def _highest(values: Sequence[float], total: int) -> float | None:
    """Return the highest median that `total` nodes can have of which these gave their figures."""
    ordered = [*sorted(values), *[float("inf")] * (total - len(values))]
    found = median(ordered)
    return None if found == float("inf") else found


def _compared(cell: Cell, figure: Figure | None) -> Cell:
    """Return a cell beside the fleet's median. Only a cell that passed can become worse by it."""
    if figure is None or cell.measured is None or not _comparable(cell) or figure.unit != cell.unit:
        return cell
    if figure.median is None:
        if cell.verdict == "FAIL":
            return cell
        text = f"{cell.text}; only {figure.nodes} of {figure.nodes + figure.missing} nodes gave this figure"
        return replace(cell, verdict="UNKNOWN", text=text)
    beside_ = replace(cell, median=figure.median)
    if cell.verdict == "PASS" and cell.measured < SLOW * figure.median:
        text = f"{cell.text}; slower than the fleet: {cell.measured / figure.median:.2f} of its median"
        return replace(beside_, verdict="WARN", text=text, cause=SLOWER)
    return beside_


def _wanted(nodes: Sequence[NodeResult]) -> dict[Kind | None, set[Place]]:
    """Return what each kind of node should report: whatever passed on one of them.

    A check that some node has only because it failed there is none that the others lack. What a node of an
    unknown kind has, all kinds should have: it may be of any.
    """
    found: dict[Kind | None, set[Place]] = defaultdict(set)
    for node in nodes:
        found[node.kind] |= {
            (cell.id, cell.gpu)
            for cell in node.cells
            if cell.verdict in ("PASS", "WARN") and not cell.ranks and not cell.id.startswith("fleet.")
        }
    return found


def _not_reported(node: NodeResult, wanted: dict[Kind | None, set[Place]]) -> list[Cell]:
    """Return a cell for each check that others of its kind have and this node lacks."""
    if node.kind is None:
        return []
    has = {(cell.id, cell.gpu) for cell in node.cells}
    lacks = (wanted.get(node.kind, set()) | wanted.get(None, set())) - has
    return [
        Cell(id_, "UNKNOWN", "not reported, and other nodes of its kind did", gpu=gpu)
        for id_, gpu in sorted(lacks, key=lambda place: (place[0], -1 if place[1] is None else place[1]))
    ]


def versions(nodes: Sequence[NodeResult]) -> Cell:
    """Return whether all nodes run the same versions.

    WARN names the nodes that differ from most, or all of them where there is no majority.
    """
    told = [node for node in nodes if node.versions]
    names = sorted({name for node in told for name in node.versions})
    apart = [text for name in names for text in _apart(name, told)]
    if silent := [node.node for node in nodes if not node.versions]:
        text = f"{len(silent)} of {len(nodes)} nodes told no versions: {', '.join(silent[:8])}"
        return Cell(VERSIONS, "UNKNOWN", "; ".join([text, *apart]))
    if apart:
        return Cell(VERSIONS, "WARN", "; ".join(apart), cause="versions.differ")
    return Cell(VERSIONS, "PASS", f"all {len(nodes)} nodes have the same versions")


def _apart(name: str, nodes: Sequence[NodeResult]) -> list[str]:
    """Return one sentence where a version differs, with the nodes that differ."""
    by_node = {node.node: node.versions.get(name, "none") for node in nodes}
    count = Counter(by_node.values())
    if len(count) < 2:
        return []
    common, number = count.most_common(1)[0]
    if 2 * number > len(nodes):
        odd = [f"{node} has {version}" for node, version in by_node.items() if version != common]
        more = f" and {len(odd) - 8} more" if len(odd) > 8 else ""
        return [f"{name}: {', '.join(odd[:8])}{more}; the others have {common}"]
    return [f"{name}: " + ", ".join(f"{node} has {version}" for node, version in list(by_node.items())[:8])]
