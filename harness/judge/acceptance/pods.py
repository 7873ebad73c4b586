"""Read what one pod said of its acceptance tests: for each check the last report, and whether it is whole.

A pod prints each check as it is made, and again in a report at its end. So what got lost can be noticed: a
check that no report has, a container that started more often than it reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from harness.evidence.schema.acceptance import AcceptanceCheck, AcceptanceRecord, AcceptanceReport

Key = tuple[str, int | None, tuple[int, ...]]


@dataclass(frozen=True)
class Member:
    """A node that should answer, and what the cluster knows of its pod.

    `pod` is the node's last pod, "" where nobody knows. `ranks` are those of the world that all nodes make
    together, () where each node tests itself.
    """

    node: str
    pod: str = ""
    restarts: int = 0
    ranks: tuple[int, ...] = ()


@dataclass
class PodSaid:
    """What one pod said. `line` is that of its first record, 0 where there is no file."""

    pod: str
    line: int = 0
    reports: list[AcceptanceReport] = field(default_factory=list)
    loose: list[AcceptanceCheck] = field(default_factory=list)
    """Checks that no later report has."""
    contradicted: list[str] = field(default_factory=list)
    """Ids of checks of which a later report says something else."""

    def take(self, record: AcceptanceRecord) -> None:
        """Take the next record of this pod."""
        if record.check is not None:
            self.loose.append(record.check)
        if record.report is not None:
            self.reports.append(record.report)
            said = {(key(check), check.verdict) for check in record.report.checks}
            ids = {check.id for check in record.report.checks}
            self.contradicted += [
                one.id for one in self.loose if one.id in ids and (key(one), one.verdict) not in said
            ]
            self.loose = [one for one in self.loose if one.id not in ids]

    @property
    def of_itself(self) -> bool:
        """Return whether it said anything of its own node, and not only of several together."""
        return any(not of_group(one) for one in self.reports) or any(one.tag != "DDP" for one in self.loose)

    @property
    def starts(self) -> int:
        """Return how many starts of the container its reports prove: how many have the same check."""
        count = Counter(
            (report.kind, id_) for report in self.reports for id_ in {check.id for check in report.checks}
        )
        return max(count.values(), default=0)

    def last(self) -> list[tuple[AcceptanceReport, list[AcceptanceCheck]]]:
        """Return the reports that count, oldest first, each with those of its checks that no later one has.

        A loose check is later than every report, and so replaces what a report says of it.
        """
        later = {check.id for check in self.loose}
        counting: list[tuple[AcceptanceReport, list[AcceptanceCheck]]] = []
        for report in reversed(self.reports):
            checks = [check for check in report.checks if check.id not in later]
            later |= {check.id for check in report.checks}
            if checks or not counting:
                counting.append((report, checks))
        return counting[::-1]

    def lacks(self, restarts: int) -> str | None:
        """Return why what it said is not whole, or None."""
        if not self.reports:
            return "there is no report: the tests were cut off"
        if self.loose:
            ids = sorted({check.id for check in self.loose})
            return f"{', '.join(ids[:3])}{' …' if len(ids) > 3 else ''}: in no report, so it was cut off"
        if self.contradicted:
            return f"the report contradicts the log about {', '.join(sorted(set(self.contradicted))[:3])}"
        if self.starts <= restarts:
            return f"its container started {restarts + 1} times, and {self.starts} reports came"
        return None


def key(check: AcceptanceCheck) -> Key:
    """Return what tells two checks of one report apart."""
    return (check.id, check.index, tuple(check.ranks))


def by_pod(records: Iterable[tuple[int, AcceptanceRecord]]) -> dict[str, PodSaid]:
    """Map each pod to what it said, in the order of their last words."""
    found: dict[str, PodSaid] = {}
    for line, record in records:
        said = found.pop(record.pod, None) or PodSaid(record.pod, line)
        said.take(record)
        found[record.pod] = said
    return found


def of_group(report: AcceptanceReport) -> bool:
    """Return whether a report is about several nodes together."""
    return report.kind == "ddp" and len(set(report.hosts.values())) > 1


def placed(pods: dict[str, PodSaid], members: Sequence[Member]) -> tuple[dict[str, PodSaid], list[PodSaid]]:
    """Return node → what its last pod said, and the pods whose node nobody knows.

    The cluster's word counts before the pod's own. A pod that was replaced on its node no longer counts.
    """
    known = {member.pod: member.node for member in members if member.pod}
    decided = set(known.values())
    nodes: dict[str, PodSaid] = {}
    homeless = []
    for name, said in pods.items():
        node = known.get(name)
        if node is None:
            if not said.reports:
                homeless += [said] if any(not member.pod for member in members) else []
                continue
            node = said.reports[-1].node
            if node in decided:
                continue
        nodes[node] = said
    return nodes, homeless
