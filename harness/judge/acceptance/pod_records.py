"""Read a pod's acceptance records: the last result of each check, and whether the records are complete.

A pod prints each check as it finishes, and again in the report at the end. If records are lost, a check is
missing from the report, or a container has more starts than reports.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from harness.evidence.kubernetes.gpu_nodes import Parts
from harness.evidence.schema.acceptance import AcceptanceCheck, AcceptanceRecord, AcceptanceReport

Key = tuple[str, int | None, tuple[int, ...]]


@dataclass(frozen=True)
class Member:
    """A node that should report, and the cluster's information about its pod.

    `pod` is the node's last pod, or "" if it is unknown. `ranks` are the node's ranks in the world that spans
    all nodes, or () if each node tests only itself.
    """

    node: str
    pod: str = ""
    restarts: int = 0
    ranks: tuple[int, ...] = ()
    shared: Parts | None = None
    """The way in which the node's GPUs are shared or split, according to its labels. None means whole
    GPUs."""


@dataclass
class PodRecords:
    """The records of one pod.

    `line` is the line number of the first record, or 0 if the records were not read from a file.
    """

    pod: str
    line: int = 0
    reports: list[AcceptanceReport] = field(default_factory=list)
    loose: list[AcceptanceCheck] = field(default_factory=list)
    """Printed checks that no later report contains."""
    contradicted: list[str] = field(default_factory=list)
    """Ids of printed checks whose verdict differs in a later report."""

    def take(self, record: AcceptanceRecord) -> None:
        """Add the next record of this pod."""
        if record.check is not None:
            self.loose.append(record.check)
        if record.report is not None:
            self.reports.append(record.report)
            verdicts = {(key(check), check.verdict) for check in record.report.checks}
            ids = {check.id for check in record.report.checks}
            self.contradicted += [
                one.id for one in self.loose if one.id in ids and (key(one), one.verdict) not in verdicts
            ]
            self.loose = [one for one in self.loose if one.id not in ids]

    @property
    def of_itself(self) -> bool:
        """Return whether the pod has results of tests of its own node, not only of multinode tests."""
        return any(not of_group(one) for one in self.reports) or any(one.tag != "DDP" for one in self.loose)

    @property
    def starts(self) -> int:
        """Return the number of container starts that the reports prove.

        Each start reports each check once, so this is the number of reports that contain the most frequent
        check.
        """
        count = Counter(
            (report.kind, id_) for report in self.reports for id_ in {check.id for check in report.checks}
        )
        return max(count.values(), default=0)

    def last(self) -> list[tuple[AcceptanceReport, list[AcceptanceCheck]]]:
        """Return (report, checks) pairs, oldest first. `checks` are those that no later report repeats.

        Reports without such checks are omitted, except the last report. A check in `loose` is newer than all
        reports, so it replaces the check with the same id in a report.
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
        """Return the reason why the records are incomplete, or None if they are complete."""
        if not self.reports:
            return "there is no report: the tests were cut off"
        if self.loose:
            ids = sorted({check.id for check in self.loose})
            return f"its report was cut off: it lacks {', '.join(ids[:3])}{' …' if len(ids) > 3 else ''}"
        if self.contradicted:
            return f"the report and the log disagree on {', '.join(sorted(set(self.contradicted))[:3])}"
        if self.starts <= restarts:
            reports = f"{self.starts} report{'' if self.starts == 1 else 's'}"
            return f"its container started {restarts + 1} times, but it sent only {reports}"
        return None


def key(check: AcceptanceCheck) -> Key:
    """Return the key that identifies a check within a report."""
    return (check.id, check.index, tuple(check.ranks))


def by_pod(records: Iterable[tuple[int, AcceptanceRecord]]) -> dict[str, PodRecords]:
    """Map each pod to its records. Pods are ordered by their last records."""
    pods: dict[str, PodRecords] = {}
    for line, record in records:
        pod = pods.pop(record.pod, None) or PodRecords(record.pod, line)
        pod.take(record)
        pods[record.pod] = pod
    return pods


def of_group(report: AcceptanceReport) -> bool:
    """Return whether the report is about multinode tests."""
    return report.kind == "ddp" and len(set(report.hosts.values())) > 1


def placed(
    pods: dict[str, PodRecords], members: Sequence[Member]
) -> tuple[dict[str, PodRecords], list[PodRecords]]:
    """Map each node to its last pod's records. Also return the records of pods whose node is unknown.

    The node that the API server shows for a pod takes precedence over the node in the pod's own report.
    Records of a pod that was replaced on its node are ignored.
    """
    node_of = {member.pod: member.node for member in members if member.pod}
    decided = set(node_of.values())
    nodes: dict[str, PodRecords] = {}
    unplaced = []
    for name, pod in pods.items():
        node = node_of.get(name)
        if node is None:
            if not pod.reports:
                unplaced += [pod] if any(not member.pod for member in members) else []
                continue
            node = pod.reports[-1].node
            if node in decided:
                continue
        nodes[node] = pod
    return nodes, unplaced
