"""Compare nodes of the same kind by their measured values, missing checks and software versions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

from harness.judge.acceptance.results import Cell, Figure, Kind, worst

if TYPE_CHECKING:
    from harness.judge.acceptance.results import NodeResult

FROM_NODES = 4
"""Minimum number of nodes for a comparison. With fewer, the faulty node cannot be identified."""
SLOW = 0.75
"""A value below this fraction of the median across nodes counts as slow."""
VERSIONS = "fleet.versions"
SLOWER = "fleet.slower"
ADVICE = {
    SLOWER: (
        "The node is slower than other nodes of its kind, although still within the limit: compare its "
        "clocks, power limit and load with theirs."
    )
}
"""Advice for the causes that only a comparison between nodes can find."""
Place = tuple[str, int | None]


def compare(nodes: Sequence[NodeResult]) -> tuple[list[NodeResult], list[Figure]]:
    """Compare nodes of the same kind with each other.

    Returns the nodes and the medians across nodes. The comparison changes some of the nodes' results and adds
    others.
    """
    figures = _figures(nodes)
    expected = _expected_checks(nodes)
    results = []
    for node in nodes:
        by_id = {figure.id: figure for figure in figures if figure.kind == node.kind}
        cells = [_compared(cell, by_id.get(cell.id)) for cell in node.cells]
        results.append(_with(node, [*cells, *_not_reported(node, expected)]))
    return results, figures


def _with(node: NodeResult, cells: Iterable[Cell]) -> NodeResult:
    """Return a copy of the node with the given results and the verdicts derived from them."""
    ordered = tuple(sorted(cells, key=Cell.rank))
    gpus = tuple(
        replace(gpu, verdict=worst(cell.verdict for cell in ordered if cell.gpu == gpu.index))
        for gpu in node.gpus
    )
    return replace(node, cells=ordered, gpus=gpus, verdict=worst(cell.verdict for cell in ordered))


def _figures(nodes: Sequence[NodeResult]) -> list[Figure]:
    """Return the medians of higher-is-better values for each node kind with at least FROM_NODES nodes.

    A node's value is the median across its GPUs. A node of unknown kind counts as a member of every kind.
    """
    unknown = sum(node.kind is None for node in nodes)
    figures: list[Figure] = []
    for kind in dict.fromkeys(node.kind for node in nodes if node.kind is not None):
        peers = [node for node in nodes if node.kind == kind]
        total = len(peers) + unknown
        if total < FROM_NODES:
            continue
        medians: dict[tuple[str, str], list[float]] = defaultdict(list)
        for node in peers:
            own: dict[tuple[str, str], list[float]] = defaultdict(list)
            for cell in node.cells:
                if _comparable(cell) and cell.measured is not None:
                    own[cell.id, cell.unit].append(cell.measured)
            for name, values in own.items():
                medians[name].append(median(values))
        figures += [
            Figure(id_, kind, unit, _highest(values, total), len(values), total - len(values))
            for (id_, unit), values in sorted(medians.items())
        ]
    return figures


def _comparable(cell: Cell) -> bool:
    """Return whether the result is a higher-is-better value that the node measured on its own."""
    return cell.measured is not None and cell.relation == ">=" and not cell.ranks


def _highest(values: Sequence[float], total: int) -> float | None:
    """Return the highest median that `total` nodes can have if only `values` are known.

    Returns None if too many values are missing to give an upper bound.
    """
    ordered = [*sorted(values), *[float("inf")] * (total - len(values))]
    middle = median(ordered)
    return None if middle == float("inf") else middle


def _compared(cell: Cell, figure: Figure | None) -> Cell:
    """Return the result with the median across nodes added.

    A result that passed becomes WARN if it is far below the median. A comparison never improves a verdict.
    """
    if figure is None or cell.measured is None or not _comparable(cell) or figure.unit != cell.unit:
        return cell
    if figure.median is None:
        if cell.verdict == "FAIL":
            return cell
        text = (
            f"{cell.text}; only {figure.nodes} of {figure.nodes + figure.missing} nodes reported this value"
        )
        return replace(cell, verdict="UNKNOWN", text=text)
    with_median = replace(cell, median=figure.median)
    if cell.verdict == "PASS" and cell.measured < SLOW * figure.median:
        text = f"{cell.text}; slower than the fleet: {cell.measured / figure.median:.2f} times its median"
        return replace(with_median, verdict="WARN", text=text, cause=SLOWER)
    return with_median


def _expected_checks(nodes: Sequence[NodeResult]) -> dict[Kind | None, set[Place]]:
    """Map each node kind to the checks that passed on any node of that kind.

    All nodes of the kind should report these checks. Failed checks do not count, because some checks are
    reported only if they fail. Checks from a node of unknown kind are expected from nodes of all kinds.
    """
    by_kind: dict[Kind | None, set[Place]] = defaultdict(set)
    for node in nodes:
        by_kind[node.kind] |= {
            (cell.id, cell.gpu)
            for cell in node.cells
            if cell.verdict in ("PASS", "WARN") and not cell.ranks and not cell.id.startswith("fleet.")
        }
    return by_kind


def _not_reported(node: NodeResult, expected: dict[Kind | None, set[Place]]) -> list[Cell]:
    """Return an UNKNOWN result for each check that this node lacks, but other nodes of its kind reported."""
    if node.kind is None:
        return []
    reported = {(cell.id, cell.gpu) for cell in node.cells}
    missing = (expected.get(node.kind, set()) | expected.get(None, set())) - reported
    return [
        Cell(id_, "UNKNOWN", "not reported, although other nodes of the same kind reported it", gpu=gpu)
        for id_, gpu in sorted(missing, key=lambda place: (place[0], -1 if place[1] is None else place[1]))
    ]


def versions(nodes: Sequence[NodeResult]) -> Cell:
    """Return the result of the check that all nodes run the same software versions.

    A WARN result lists the nodes that differ from the majority, or all nodes if there is no majority.
    """
    reporting = [node for node in nodes if node.versions]
    names = sorted({name for node in reporting for name in node.versions})
    apart = [text for name in names for text in _apart(name, reporting)]
    if unreported := [node.node for node in nodes if not node.versions]:
        text = f"{len(unreported)} of {len(nodes)} nodes reported no versions: {', '.join(unreported[:8])}"
        return Cell(VERSIONS, "UNKNOWN", "; ".join([text, *apart]))
    if apart:
        return Cell(VERSIONS, "WARN", "; ".join(apart), cause="versions.differ")
    return Cell(VERSIONS, "PASS", f"all {len(nodes)} nodes have the same versions")


def _apart(name: str, nodes: Sequence[NodeResult]) -> list[str]:
    """Return a one-item list that names the nodes whose version of `name` differs, or [] if none differs."""
    by_node = {node.node: node.versions.get(name, "none") for node in nodes}
    count = Counter(by_node.values())
    if len(count) < 2:
        return []
    common, number = count.most_common(1)[0]
    if 2 * number > len(nodes):
        deviations = [f"{node} has {version}" for node, version in by_node.items() if version != common]
        suffix = f" and {len(deviations) - 8} more" if len(deviations) > 8 else ""
        return [f"{name}: {', '.join(deviations[:8])}{suffix}; the others have {common}"]
    return [f"{name}: " + ", ".join(f"{node} has {version}" for node, version in list(by_node.items())[:8])]
