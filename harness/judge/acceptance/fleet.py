"""Judge a whole cluster's acceptance tests: every check on every GPU of every node.

A node passes if its report is complete and every check in the report passed. The result is UNKNOWN if a node
did not report, if its report is incomplete, or if it lacks a check that other nodes reported. Pods print each
check twice, so that losing a single record never improves a verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from harness.evidence.kubernetes.gpu_nodes import Parts
from harness.evidence.schema.acceptance import AcceptanceRecord, AcceptanceReport, Verdict
from harness.judge.acceptance import multi_node_tests as fleet_group
from harness.judge.acceptance import node_comparison
from harness.judge.acceptance.pod_records import Member, PodRecords, by_pod, of_group, placed
from harness.judge.acceptance.results import ORDER, Cell, Figure, GpuResult, Kind, NodeResult, natural, worst
from harness.judge.acceptance.shared_gpus import fair_cells

ANSWERED = "fleet.nodes"
REPORT = "fleet.report"
GPUS = "fleet.gpus"


@dataclass(frozen=True)
class Pair:
    """The result of testing two nodes together."""

    a: str
    b: str
    busbw: float | None
    verdict: Verdict
    text: str


@dataclass(frozen=True)
class Fleet:
    """The verdict on a cluster. `nodes` lists nodes without a report first, then all others, worst first.

    `checks` contains the results for the whole cluster: missing reports, differing versions and collectives.
    """

    verdict: Verdict
    nodes: tuple[NodeResult, ...]
    checks: tuple[Cell, ...]
    pairs: tuple[Pair, ...]
    figures: tuple[Figure, ...]
    """The median of each measured value across all nodes of the same kind."""

    @property
    def text(self) -> str:
        """Return the verdict as one sentence."""
        count = {verdict: sum(node.verdict == verdict for node in self.nodes) for verdict in ORDER}
        parts = ", ".join(f"{node_count} {verdict}" for verdict, node_count in count.items() if node_count)
        number = len(self.nodes)
        return f"{number} node{'' if number == 1 else 's'}: {parts}" if number else "no node"

    def as_dict(self) -> dict[str, Any]:
        """Return the verdict as JSON-compatible data."""
        return asdict(self)


def fleet(
    records: Iterable[AcceptanceRecord | tuple[int, AcceptanceRecord]], expected: Iterable[Member | str]
) -> Fleet:
    """Return the verdict on a cluster from its pods' records.

    `records` are in log order, each optionally paired with its line number. `expected` lists the nodes that
    must report, as Members or as names.
    """
    members = [Member(one) if isinstance(one, str) else one for one in expected]
    pods = by_pod(one if isinstance(one, tuple) else (0, one) for one in records)
    nodes, unplaced = placed(pods, members)
    world = {rank: member.node for member in members for rank in member.ranks}
    if len(set(world.values())) < 2:
        world = {}  # If one node runs all ranks, the collective tests count as tests of this node alone.
    restarts = {member.node: member.restarts for member in members}
    parts = {member.node: member.shared for member in members}
    groups = fleet_group.groups(nodes, restarts, world)
    names = dict.fromkeys([*(member.node for member in members), *nodes, *fleet_group.covered(groups)])
    owing = any(pod.of_itself for pod in [*nodes.values(), *unplaced])
    results = []
    for name in names:
        shared = fleet_group.cells(groups, name)
        records_of = nodes.get(name)
        results.append(
            _node(name, records_of, restarts.get(name, 0), shared, bool(world), owing, parts.get(name))
        )
    results += [_node(f"pod {one.pod}", one, 0, [], bool(world), owing) for one in unplaced]
    results, figures = node_comparison.compare(results)
    versions = node_comparison.versions(results) if owing else None
    missing = [node.node for node in results if not node.answered]
    checks = [
        _nodes_reported(results, missing),
        *([versions] if versions else []),
        *fleet_group.own(groups, world),
    ]
    return Fleet(
        verdict=worst([*(node.verdict for node in results), *(cell.verdict for cell in checks)]),
        nodes=tuple(sorted(results, key=lambda n: (n.answered, ORDER.index(n.verdict), natural(n.node)))),
        checks=tuple(sorted(checks, key=Cell.rank)),
        pairs=tuple(_pairs(groups)),
        figures=tuple(figures),
    )


def _node(
    name: str,
    records: PodRecords | None,
    restarts: int,
    shared: Sequence[Cell],
    one_world: bool,
    owing: bool,
    parts: Parts | None = None,
) -> NodeResult:
    """Return a node's results from its own tests and from multinode tests, not yet compared with other nodes.

    `one_world` means that all ranks form one world. `owing` means that at least one node tested itself, so
    this node should have tested itself too. `parts` describes how the node's GPUs are shared or split.
    """
    cells, report, gpus = list(shared), None, list[GpuResult]()
    if records is not None:
        own = [(one, checks) for one, checks in records.last() if not of_group(one)]
        cells += [Cell.of(check) for _, checks in own for check in checks]
        cells += [Cell.of(check) for check in records.loose if not (one_world and check.tag == "DDP")]
        report = next((one for one, _ in reversed(own) if one.kind == "node"), own[-1][0] if own else None)
        if (reason := records.lacks(restarts)) is not None:
            cells.append(Cell(REPORT, "UNKNOWN", reason))
    cells = fair_cells(cells, parts)
    if report is not None:
        cells += _verdict_of(report)
        cells += _no_gpu(report, cells)
        cells += _untested(report, cells)
        gpus = _gpus(report, cells)
    answered = records is not None and records.of_itself if owing else records is not None or bool(shared)
    if not answered:
        text = (
            "no results of the node's single-node tests were reported"
            if records or shared
            else "the node did not report"
        )
        cells.append(Cell(REPORT, "UNKNOWN", text))
    elif not cells:
        cells.append(Cell(REPORT, "UNKNOWN", "it reported no check"))
    return NodeResult(
        node=name,
        pod=records.pod if records else "",
        verdict=worst(cell.verdict for cell in cells),
        answered=answered,
        kind=Kind.of(report) if report else None,
        gpus=tuple(gpus),
        cells=tuple(sorted(cells, key=Cell.rank)),
        versions=report.versions if report else {},
        line=records.line if records else 0,
    )


def _verdict_of(report: AcceptanceReport) -> list[Cell]:
    """Return one more result if the report has no checks, or has a worse verdict than all of its checks."""
    expected = worst(check.verdict for check in report.checks)
    if ORDER.index(report.verdict) < ORDER.index(expected):
        return [
            Cell(
                REPORT,
                report.verdict,
                f"the report's verdict is {report.verdict}, but the worst verdict of its checks is "
                f"{expected}",
            )
        ]
    return [] if report.checks else [Cell(REPORT, "UNKNOWN", "the report has no checks")]


def _no_gpu(report: AcceptanceReport, cells: Sequence[Cell]) -> list[Cell]:
    """Return an UNKNOWN result if no GPU of the node was tested and no failed check explains this."""
    if (report.device == "cuda" and report.gpus) or any(
        cell.verdict != "PASS" and (cell.cause or "").startswith("gpu.") for cell in cells
    ):
        return []
    gpus = f"{len(report.gpus)} GPU{'' if len(report.gpus) == 1 else 's'}"
    text = f"no GPU was tested: the tests ran on {report.device} and listed {gpus}"
    return [Cell(GPUS, "UNKNOWN", text, cause="gpu.not_tested")]


def _untested(report: AcceptanceReport, cells: Sequence[Cell]) -> list[Cell]:
    """Return an UNKNOWN result for each of the node's GPUs that no check covers."""
    tested = {cell.gpu for cell in cells}
    return [
        Cell(GPUS, "UNKNOWN", f"no check concerns {gpu.uuid}", gpu=gpu.index)
        for gpu in report.gpus
        if gpu.index not in tested
    ]


def _gpus(report: AcceptanceReport, cells: Sequence[Cell]) -> list[GpuResult]:
    reported = {gpu.index: (gpu.uuid, gpu.name) for gpu in report.gpus}
    tested = {cell.gpu for cell in cells if cell.gpu is not None}
    return [
        GpuResult(index, *reported.get(index, ("", "")), worst(c.verdict for c in cells if c.gpu == index))
        for index in sorted(reported.keys() | tested)
    ]


def _nodes_reported(results: Sequence[NodeResult], missing: Sequence[str]) -> Cell:
    count = len(results)
    if not count:
        return Cell(ANSWERED, "UNKNOWN", "no node was expected, and none reported")
    if missing:
        node_names = ", ".join(missing[:8]) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
        return Cell(ANSWERED, "UNKNOWN", f"{len(missing)} of {count} nodes did not report: {node_names}")
    return Cell(ANSWERED, "PASS", f"all {count} nodes reported")


def _pairs(groups: Sequence[fleet_group.Group]) -> Iterable[Pair]:
    for group in groups:
        for row in group.pairs:
            yield Pair(group.node(row.a), group.node(row.b), row.busbw, row.verdict, row.text)
