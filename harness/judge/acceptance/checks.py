"""Judge what the acceptance tests said in the pods: did every node answer, and is all right that they tested?

A report is believed only as far as its own checks carry it: its verdict is made again here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from harness.core.causes import CauseId
from harness.core.clock import seconds
from harness.evidence.kubernetes.objects import mapping
from harness.evidence.schema.acceptance import AcceptanceCheck, AcceptanceReport
from harness.judge.case import Case, names
from harness.judge.catalogue import CAUSES, REGISTRY
from harness.judge.cluster.starting import device_holders
from harness.judge.finding import Finding, counted, found, passed, unknown
from harness.workers.acceptance.check import TAGS

NO_CUDA: CauseId = "image.no_cuda"
_NODE_TAGS = {"ENV", "COMPUTE", "TRAIN", "DDP"}
"""What a whole report of a node has checks of."""


@dataclass(frozen=True)
class Answer:
    """What one pod said: its report, and each check as it was made."""

    index: int
    node: str
    """The Kubernetes node, as the API server says."""
    checks: tuple[tuple[str, AcceptanceCheck], ...]
    """Checks and where they are in the bundle: those of the report, or those made when there is none."""
    report: AcceptanceReport | None
    ref: str
    at: str = ""
    """When the first check was said that failed."""

    @property
    def about(self) -> str:
        return f"node {self.node}"


def answers(case: Case) -> dict[int, Answer]:
    """Map the index of each pod to what its last pod said."""
    found_: dict[int, Answer] = {}
    records = case.bundle.accepted()
    for index, pod in case.pods.items():
        own = [(f"acceptance.jsonl:{line}", one) for line, one in records if one.pod == pod.name]
        reports = [(ref, one.report) for ref, one in own if one.report is not None]
        ref, report = reports[-1] if reports else ("", None)
        failed = [one.at for _, one in own if one.check is not None and one.check.verdict == "FAIL"]
        made = tuple((at, one.check) for at, one in own if one.check is not None)
        checks = tuple((ref, check) for check in report.checks) if report else made
        found_[index] = Answer(index, pod.node or "", checks, report, ref, (failed or [""])[0])
    return found_


def reports(case: Case) -> Finding:
    """Check `reports`: every node that must answer gave a whole report; of the collectives, one pod did."""
    there = answers(case)
    if _without_cuda(there):
        return unknown("reports", "the image has no CUDA, and so no node was tested")
    if case.launch.acceptance == "ddp":
        return _one_report(case, there)
    wanted = case.expected.node_names
    if not wanted:
        return unknown("reports", "which nodes must answer was not recorded")
    by_node = {one.node: one for one in there.values() if one.report is not None}
    silent = [name for name in wanted if name not in by_node]
    refs = [by_node[name].ref for name in wanted if name in by_node]
    if not silent:
        return passed("reports", f"all {counted(len(wanted), 'node')} gave a whole report", refs)
    of = {one.node: index for index, one in there.items()}
    held = [(ref, one) for ref, one in device_holders(case) if one.node in silent and one.node not in of]
    told = [f"{name}: {_state(case, of.get(name))}" for name in silent]
    if held and {one.node for _, one in held} == set(silent):
        return found(
            "reports",
            "scheduling.devices_held",
            f"{counted(len(silent), 'node')} of {len(wanted)} could not be tested: others hold the devices",
            details=[one.sentence for _, one in held],
            evidence=[ref for ref, _ in held],
        )
    if held:
        told = [*(one.sentence for _, one in held), *told]
    return found(
        "reports",
        "node.not_answered",
        f"{counted(len(silent), 'node')} of {len(wanted)} gave no report",
        details=told,
        ranks=case.ranks_of(*[of[name] for name in silent if name in of]),
        evidence=refs,
    )


def _one_report(case: Case, there: dict[int, Answer]) -> Finding:
    whole = [one for one in there.values() if one.report is not None and one.report.kind == "ddp"]
    if not whole:
        told = [f"{case.place(index)}: {_state(case, index)}" for index in there]
        return found("reports", "node.not_answered", "no pod gave a report of the collectives", details=told)
    report = whole[-1].report
    assert report is not None
    launched = (case.expected.num_nodes, case.expected.ranks)
    if (report.nodes, report.ranks) != launched:
        of = "{} pods with {} ranks in all"
        text = f"the report is about {of.format(report.nodes, report.ranks)}, and {of.format(*launched)} ran"
        return found("reports", "node.not_answered", text, evidence=[whole[-1].ref])
    text = f"{names(case.ranks_of(whole[-1].index))} reported for all {counted(report.ranks, 'rank')}"
    return passed("reports", text, [whole[-1].ref])


def accepted(case: Case) -> Finding:
    """Check `acceptance`: every test that was made passed, and none that must be made is missing."""
    there = answers(case)
    all_ = [(one, ref, check) for one in there.values() for ref, check in one.checks]
    if image := _without_cuda(there):
        _, ref, check = image[0]
        where = f"{counted(len(image), 'pod')} said so, and no node is judged"
        # It was so before any test began, so it comes before the exit codes that follow from it.
        start = REGISTRY["image"].at
        return found("acceptance", NO_CUDA, check.text, why=[where], evidence=[ref], phase=start)
    if bad := [each for each in all_ if each[2].verdict == "FAIL"]:
        return _failed(case, bad)
    doubts = list(_doubts(case, there))
    if doubts or not all_:
        ranks = case.ranks_of(*[one.index for one, _ in doubts])
        told = [f"{one.about}: {text}" for one, text in doubts]
        return unknown("acceptance", "not everything was proved", details=told, ranks=ranks)
    warnings = Counter(check.id for _, _, check in all_ if check.verdict == "WARN")
    warned = [f"{id_} on {counted(count, 'pod')}" for id_, count in warnings.items()]
    nodes = {one.node for one in there.values()}
    text = f"{counted(len(all_), 'check')} on {counted(len(nodes), 'node')} passed"
    if warned:
        text += f", {warnings.total()} of them with a warning"
    if case.expected.device != "cuda":
        text += "; no GPU was tested, so no GPU is accepted"
    return passed("acceptance", text, [one.ref for one in there.values() if one.ref], details=warned)


def _without_cuda(there: dict[int, Answer]) -> list[tuple[Answer, str, AcceptanceCheck]]:
    """Return the checks of pods whose image can use no GPU."""
    all_ = [(one, ref, check) for one in there.values() for ref, check in one.checks]
    return [each for each in all_ if each[2].cause == NO_CUDA]


def _failed(case: Case, bad: list[tuple[Answer, str, AcceptanceCheck]]) -> Finding:
    """Return what failed: what a node has first, then what it computes, then what all do together."""
    bad = sorted(bad, key=lambda each: (TAGS.index(each[2].tag), each[0].index))
    shared = _shared(case, bad)
    cause = shared[0] if shared else _cause(bad[0][2])
    same = [each for each in bad if _cause(each[2]) == cause]
    others = [
        f"also, {one.about}: {check.id}: {check.text}" for one, _, check in bad if _cause(check) != cause
    ]
    ranks = {rank for one, _, check in same for rank in _accused(case, one, check)}
    told = list(dict.fromkeys(f"{one.about}: {check.id}: {check.text}" for one, _, check in same))
    if case.launch.acceptance == "ddp":
        told = list(dict.fromkeys(check.text for _, _, check in same))
    if shared:
        told = [f"{shared[1]}: look at what they share, such as the image, the driver or the request", *told]
    refs = list(dict.fromkeys(ref for _, ref, _ in same))
    times = [at for one, _, _ in same if (at := seconds(one.at)) is not None]
    return found(
        "acceptance",
        cause,
        told[0],
        details=told[1:],
        why=others[:3],
        ranks=ranks,
        evidence=refs,
        at=min(times, default=None),
    )


def _shared(case: Case, bad: list[tuple[Answer, str, AcceptanceCheck]]) -> tuple[CauseId, str] | None:
    """Return the cause that more than half of the nodes have, at least two, and the sentence; else None."""
    if case.launch.acceptance != "nodes":
        return None
    nodes: dict[CauseId, set[int]] = {}
    for one, _, check in bad:
        nodes.setdefault(_cause(check), set()).add(one.index)
    cause, having = max(nodes.items(), key=lambda each: len(each[1]))
    every = len([one for one in answers(case).values() if one.checks])
    if len(having) < 2 or 2 * len(having) <= every:
        return None
    return cause, f"{len(having)} of {counted(every, 'node')} fail in the same way, {cause}"


def _cause(check: AcceptanceCheck) -> CauseId:
    """Return the cause of a check that failed, of the catalogue: the tests may be of another version."""
    return CAUSES[check.cause].id if check.cause in CAUSES else "acceptance.failed"


def _accused(case: Case, answer: Answer, check: AcceptanceCheck) -> list[int]:
    """Return the ranks that a check accuses. One about its own node means all ranks there."""
    if case.launch.acceptance == "ddp":
        return [rank for rank in check.ranks if rank in case.ranks]
    return case.ranks_of(answer.index)


def _doubts(case: Case, there: dict[int, Answer]) -> Iterable[tuple[Answer, str]]:
    """Yield what is not proved although nothing failed: not measured, not judged, or not reported."""
    every = {check.id for one in there.values() for _, check in one.checks}
    for one in there.values():
        if case.launch.acceptance == "nodes" or one.report is not None:
            yield from ((one, text) for text in _doubts_of(case, one, every))


def _doubts_of(case: Case, one: Answer, every: set[str]) -> Iterable[str]:
    report = one.report
    if report is None:
        yield "it gave no whole report"
        return
    if report.device != case.expected.device:
        yield f"it tested a {report.device}, and {case.expected.device} was to be tested"
    own = {check.id for check in report.checks}
    if case.launch.acceptance == "nodes":
        tags = {check.tag for check in report.checks}
        yield from (f"it reported nothing of {tag}" for tag in sorted(_NODE_TAGS - tags))
        yield from (f"{id_} was not reported, and other nodes have it" for id_ in sorted(every - own))
    for check in report.checks:
        if check.verdict == "UNKNOWN":
            yield f"{check.id}: {check.text}"
        elif check.verdict == "PASS" and not _holds(check):
            figures = f"{check.measured} {check.relation} {check.limit}"
            yield f"{check.id} says {check.verdict}, and {figures} is not so"


def _holds(check: AcceptanceCheck) -> bool:
    """Return whether a figure that passed is on the right side of its own limit."""
    if check.limit is None:
        return True
    if check.measured is None:
        return False
    return {
        ">=": check.measured >= check.limit,
        "<=": check.measured <= check.limit,
        "==": check.measured == check.limit,
    }[check.relation]


def _state(case: Case, index: int | None) -> str:
    """Return what is known of the pod of a node that gave no report."""
    pod = case.pods.get(index) if index is not None else None
    if pod is None:
        return "no pod started there"
    phase = mapping(pod.last.object, "status").get("phase", "unknown")
    return f"its pod is {phase}" + ("" if case.started(pod.index) else ", and its container never started")
