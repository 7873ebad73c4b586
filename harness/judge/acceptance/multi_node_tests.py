"""Derive the results for individual nodes from acceptance tests that ran on several nodes together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from harness.evidence.schema.acceptance import AcceptanceCheck, PairRow
from harness.judge.acceptance.pod_records import PodRecords, of_group
from harness.judge.acceptance.results import Cell

TOGETHER = "fleet.together"


@dataclass(frozen=True)
class Group:
    """One pod's report on multinode tests.

    `hosts` maps each rank to its node. `lack` explains why the report is incomplete, or is None.
    """

    pod: str
    hosts: Mapping[int, str]
    checks: tuple[AcceptanceCheck, ...]
    pairs: tuple[PairRow, ...] = ()
    lack: str | None = None

    def node(self, number: int) -> str:
        """Return the name of node `number`. Nodes are numbered in the order of their lowest ranks."""
        return self._names[number] if 0 <= number < len(self._names) else f"node {number}"

    @cached_property
    def _names(self) -> list[str]:
        return list(dict.fromkeys(self.hosts[rank] for rank in sorted(self.hosts)))

    def cells(self, node: str) -> list[Cell]:
        """Return the results for one node.

        A check that names ranks counts only if one of these ranks runs on this node. A check that failed
        because of other nodes proves nothing about this node, so the result is UNKNOWN.
        """
        own = {rank for rank, name in self.hosts.items() if name == node}
        if not own:
            return []
        result: list[Cell] = []
        for id_ in dict.fromkeys(check.id for check in self.checks):
            result += self._of(id_, [check for check in self.checks if check.id == id_], own)
        if self.lack is not None:
            result.append(Cell(TOGETHER, "UNKNOWN", f"pod {self.pod}: {self.lack}"))
        return result

    def _of(self, id_: str, checks: Sequence[AcceptanceCheck], own: set[int]) -> list[Cell]:
        own_checks = [check for check in checks if own & set(check.ranks)]
        shared = [check for check in checks if not check.ranks]
        other_checks = [check for check in checks if check.ranks and not own & set(check.ranks)]
        cells = [Cell.of(check) for check in own_checks]
        # If a test failed for all nodes together, the failure proves neither that this node is faulty nor
        # that it is good. If one node runs all ranks, the failure belongs to that node.
        alone = len(set(self.hosts.values())) == 1
        cells += [
            replace(
                Cell.of(check), verdict="UNKNOWN" if check.verdict == "FAIL" and not alone else check.verdict
            )
            for check in shared
        ]
        if cells:
            return cells
        blamed = [check for check in other_checks if check.verdict in ("FAIL", "UNKNOWN")]
        if blamed:
            names = sorted({self.hosts.get(rank, f"rank {rank}") for one in blamed for rank in one.ranks})
            text = f"inconclusive because of the result on {', '.join(names[:4])}: {blamed[0].text}"
            return [Cell(id_, "UNKNOWN", text, ranks=tuple(sorted(own)))]
        return [
            replace(
                Cell.of(other_checks[0]), verdict="PASS", cause=None, text=f"others: {other_checks[0].text}"
            )
        ]


def groups(
    nodes: Mapping[str, PodRecords], restarts: Mapping[str, int], world: Mapping[int, str]
) -> list[Group]:
    """Return the pods' reports on multinode tests.

    `world` maps ranks to nodes if all nodes form one world.
    """
    result: list[Group] = []
    for node, records in nodes.items():
        reason = records.lacks(restarts.get(node, 0))
        for report, checks in records.last():
            if of_group(report):
                result.append(Group(records.pod, report.hosts, tuple(checks), tuple(report.pairs), reason))
        ddp_checks = tuple(check for check in records.loose if check.tag == "DDP")
        if ddp_checks and world:
            result.append(Group(records.pod, world, ddp_checks, lack=reason))
    return result


def covered(all_groups: Iterable[Group]) -> list[str]:
    """Return the names of all nodes that took part in multinode tests, without duplicates."""
    return list(dict.fromkeys(name for group in all_groups for name in group.hosts.values()))


def cells(all_groups: Iterable[Group], node: str) -> list[Cell]:
    """Return one node's results from all multinode tests in which it took part."""
    return [cell for group in all_groups for cell in group.cells(node)]


def own(all_groups: Sequence[Group], world: Mapping[int, str]) -> list[Cell]:
    """Return one result for each check in the multinode reports, without assigning it to a node.

    If all nodes should have run tests together but no pod reported a result, return one UNKNOWN result.
    """
    if world and not all_groups:
        return [Cell(TOGETHER, "UNKNOWN", "no pod reported results of the tests across all nodes")]
    result = [Cell.of(check) for group in all_groups for check in group.checks]
    return result + [
        Cell(TOGETHER, "UNKNOWN", f"pod {group.pod}: {group.lack}")
        for group in all_groups
        if group.lack is not None
    ]
