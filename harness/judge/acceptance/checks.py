"""Judge a launch's acceptance tests: every node must report, and every test must pass.

The verdict in a pod's report is not trusted. The judge recomputes it from the checks in the report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from harness.core.causes import CauseId
from harness.core.clock import seconds
from harness.evidence.kubernetes.gpu_nodes import Parts
from harness.evidence.kubernetes.objects import mapping
from harness.evidence.schema.acceptance import AcceptanceCheck, AcceptanceReport
from harness.judge.acceptance.shared_gpus import WHOLE_ONLY, fair, proved_by
from harness.judge.case import Case, names
from harness.judge.catalogue import CAUSES, REGISTRY
from harness.judge.cluster import gpu_supply
from harness.judge.cluster.starting import device_holders
from harness.judge.finding import Finding, counted, not_passed, passed, unknown
from harness.workers.acceptance.check import TAGS

NO_CUDA: CauseId = "image.no_cuda"
_NODE_TAGS = {"ENV", "COMPUTE", "TRAIN", "DDP"}
"""Tags of the checks that a node's complete report must contain."""


@dataclass(frozen=True)
class Answer:
    """One pod's report, or the individual checks that the pod printed if it sent no report."""

    index: int
    node: str
    """The name of the Kubernetes node, according to the API server."""
    checks: tuple[tuple[str, AcceptanceCheck], ...]
    """Pairs of (reference into the bundle, check). Without a report, these are the individually printed
    checks."""
    report: AcceptanceReport | None
    ref: str
    at: str = ""
    """When the pod printed the first failed check, as a timestamp, or "" if no check failed."""

    @property
    def about(self) -> str:
        return f"node {self.node}"


def answers(case: Case) -> dict[int, Answer]:
    """Map each node index to the results reported by the node's last pod."""
    by_index: dict[int, Answer] = {}
    records = case.bundle.accepted()
    for index, pod in case.pods.items():
        own = [(f"acceptance.jsonl:{line}", one) for line, one in records if one.pod == pod.name]
        reports = [(ref, one.report) for ref, one in own if one.report is not None]
        ref, report = reports[-1] if reports else ("", None)
        failed = [one.at for _, one in own if one.check is not None and one.check.verdict == "FAIL"]
        single = tuple((at, one.check) for at, one in own if one.check is not None)
        checks = tuple((ref, check) for check in report.checks) if report else single
        by_index[index] = Answer(index, pod.node or "", checks, report, ref, (failed or [""])[0])
    return by_index


def reports(case: Case) -> Finding:
    """Run the `reports` check: every expected node sent a complete report.

    In a launch that tests only collectives, one report covers all nodes.
    """
    there = answers(case)
    if _without_cuda(there):
        return unknown("reports", "the image has no CUDA, so no node was tested")
    if case.launch.acceptance == "ddp":
        return _one_report(case, there)
    wanted = case.expected.node_names
    if not wanted:
        return unknown("reports", "the nodes that must report were not recorded")
    by_node = {one.node: one for one in there.values() if one.report is not None}
    silent = [name for name in wanted if name not in by_node]
    refs = [by_node[name].ref for name in wanted if name in by_node]
    if not silent:
        return passed("reports", f"all {counted(len(wanted), 'node')} gave a complete report", refs)
    return _silent(case, there, silent, refs)


def _silent(case: Case, there: dict[int, Answer], silent: list[str], refs: list[str]) -> Finding:
    """Return the finding for nodes without a report, with the reason for each node."""
    wanted = case.expected.node_names
    of = {one.node or gpu_supply.assigned_node(case.pods[index].last): index for index, one in there.items()}
    rejected = gpu_supply.rejections(case)
    waiting = {
        name for name in silent if name not in of or case.pods[of[name]].node is None or name in rejected
    }
    supply = gpu_supply.of_nodes(case, waiting)
    short = supply.nodes if supply else {}
    holders = [
        (ref, one) for ref, one in device_holders(case) if one.node in waiting and one.node not in short
    ]
    held = {one.node for _, one in holders}
    details = [
        f"{name} {short[name].text}" if name in short else f"{name}: {_state(case, of.get(name))}"
        for name in silent
        if name not in held
    ]
    if supply and len(short) >= len(held) and not set(silent) - short.keys() - held:
        return not_passed(
            "reports",
            supply.cause,
            f"{counted(len(silent), 'node')} of {len(wanted)} could not be tested: {supply.text}",
            details=[one.sentence for _, one in holders],
            evidence=[ref for ref, _ in holders] or ["objects/node.jsonl"],
        )
    if holders and held == set(silent) - short.keys():
        return not_passed(
            "reports",
            "scheduling.devices_held",
            f"{counted(len(silent), 'node')} of {len(wanted)} could not be tested: others use the devices",
            details=[*(one.sentence for _, one in holders), *details],
            evidence=[ref for ref, _ in holders],
        )
    if holders:
        details = [*(one.sentence for _, one in holders), *details]
    return not_passed(
        "reports",
        "node.not_answered",
        f"{counted(len(silent), 'node')} of {len(wanted)} gave no report",
        details=details,
        ranks=case.ranks_of(*[of[name] for name in silent if name in of]),
        evidence=refs,
    )


def _one_report(case: Case, there: dict[int, Answer]) -> Finding:
    whole = [one for one in there.values() if one.report is not None and one.report.kind == "ddp"]
    if not whole:
        details = [f"{case.place(index)}: {_state(case, index)}" for index in there]
        text = "no pod sent a report on the collectives"
        return not_passed("reports", "node.not_answered", text, details=details)
    report = whole[-1].report
    assert report is not None
    launched = (case.expected.num_nodes, case.expected.ranks)
    if (report.nodes, report.ranks) != launched:
        of = "{} pods with {} ranks in all"
        text = f"the report is about {of.format(report.nodes, report.ranks)}, but {of.format(*launched)} ran"
        return not_passed("reports", "node.not_answered", text, evidence=[whole[-1].ref])
    text = f"{names(case.ranks_of(whole[-1].index))} reported for all {counted(report.ranks, 'rank')}"
    return passed("reports", text, [whole[-1].ref])


def accepted(case: Case) -> Finding:
    """Run the `acceptance` check: every test passed, and no required test is missing."""
    there = answers(case)
    shared = _shared_gpus(case, there)
    all_ = [
        (one, ref, fair(check, shared.get(one.index))) for one in there.values() for ref, check in one.checks
    ]
    if image := _without_cuda(there):
        _, ref, check = image[0]
        where = f"{counted(len(image), 'pod')} reported this, so no node is judged"
        # The cause is the image, so the finding gets the phase of the `image` check.
        # The pods' exit codes, which belong to a later phase, are only consequences.
        start = REGISTRY["image"].at
        return not_passed("acceptance", NO_CUDA, check.text, why=[where], evidence=[ref], phase=start)
    if bad := [each for each in all_ if each[2].verdict == "FAIL"]:
        return _failed(case, bad)
    if shared:
        return _not_whole(case, there, shared)
    doubts = list(_doubts(case, there))
    if doubts or not all_:
        ranks = case.ranks_of(*[one.index for one, _ in doubts])
        details = [f"{one.about}: {text}" for one, text in doubts]
        return unknown("acceptance", "not everything was proved", details=details, ranks=ranks)
    warnings = Counter(check.id for _, _, check in all_ if check.verdict == "WARN")
    warned = [f"{id_} on {counted(count, 'pod')}" for id_, count in warnings.items()]
    nodes = {one.node for one in there.values()}
    text = f"{counted(len(all_), 'check')} on {counted(len(nodes), 'node')} passed"
    if warned:
        text += f", {warnings.total()} of them with a warning"
    if case.expected.device != "cuda":
        text += "; no GPU was tested, so no GPU is accepted"
    return passed("acceptance", text, [one.ref for one in there.values() if one.ref], details=warned)


def _shared_gpus(case: Case, there: dict[int, Answer]) -> dict[int, Parts]:
    """Map the index of each pod with shared or split GPUs to a description of the sharing or splitting.

    In collective tests, the result is the same for all pods, because one such pod affects them all.
    """
    labelled = gpu_supply.parts(case) if case.expected.device == "cuda" else {}
    found = {
        index: why
        for index, one in there.items()
        if (why := labelled.get(one.node) or proved_by([check for _, check in one.checks])) is not None
    }
    if found and case.launch.acceptance == "ddp":
        first = next(iter(found.values()))
        return {index: found.get(index, first) for index in there}
    return found


def _not_whole(case: Case, there: dict[int, Answer], shared: dict[int, Parts]) -> Finding:
    """Return the finding for GPUs that cannot be accepted because they are shared or are parts of GPUs."""
    first = next(iter(shared.values()))
    texts = [f"{there[index].about}: {why.text}" for index, why in shared.items()]
    count = counted(len(shared), "node")
    return not_passed(
        "acceptance",
        first.cause,
        f"the GPUs of {count} cannot be accepted: {WHOLE_ONLY}",
        details=texts,
        ranks=case.ranks_of(*shared),
        evidence=[there[index].ref for index in shared if there[index].ref] or ["objects/node.jsonl"],
    )


def _without_cuda(there: dict[int, Answer]) -> list[tuple[Answer, str, AcceptanceCheck]]:
    """Return the failed checks from pods whose image cannot use a GPU."""
    all_ = [(one, ref, check) for one in there.values() for ref, check in one.checks]
    return [each for each in all_ if each[2].cause == NO_CUDA]


def _failed(case: Case, bad: list[tuple[Answer, str, AcceptanceCheck]]) -> Finding:
    """Return the finding for failed checks, ordered from environment checks to collectives."""
    bad = sorted(bad, key=lambda each: (TAGS.index(each[2].tag), each[0].index))
    shared = _shared(case, bad)
    cause = shared[0] if shared else _cause(bad[0][2])
    same = [each for each in bad if _cause(each[2]) == cause]
    others = [
        f"also, {one.about}: {check.id}: {check.text}" for one, _, check in bad if _cause(check) != cause
    ]
    ranks = {rank for one, _, check in same for rank in _accused(case, one, check)}
    texts = list(dict.fromkeys(f"{one.about}: {check.id}: {check.text}" for one, _, check in same))
    if case.launch.acceptance == "ddp":
        texts = list(dict.fromkeys(check.text for _, _, check in same))
    if shared:
        texts = [f"{shared[1]}: look at what they have in common, such as image, driver or request", *texts]
    refs = list(dict.fromkeys(ref for _, ref, _ in same))
    times = [at for one, _, _ in same if (at := seconds(one.at)) is not None]
    return not_passed(
        "acceptance",
        cause,
        texts[0],
        details=texts[1:],
        why=others[:3],
        ranks=ranks,
        evidence=refs,
        at=min(times, default=None),
    )


def _shared(case: Case, bad: list[tuple[Answer, str, AcceptanceCheck]]) -> tuple[CauseId, str] | None:
    """Return the cause shared by more than half of the nodes (at least two) and a description, or None."""
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
    """Return the failed check's cause, or acceptance.failed if causes.toml does not contain that cause."""
    return CAUSES[check.cause].id if check.cause in CAUSES else "acceptance.failed"


def _accused(case: Case, answer: Answer, check: AcceptanceCheck) -> list[int]:
    """Return the ranks affected by a failed check. A node's check affects all ranks on that node."""
    if case.launch.acceptance == "ddp":
        return [rank for rank in check.ranks if rank in case.ranks]
    return case.ranks_of(answer.index)


def _doubts(case: Case, there: dict[int, Answer]) -> Iterable[tuple[Answer, str]]:
    """Yield (pod's answer, sentence) for each doubtful result.

    A result is doubtful if it is missing, is UNKNOWN, or is a PASS outside its limit.
    """
    every = {check.id for one in there.values() for _, check in one.checks}
    for one in there.values():
        if case.launch.acceptance == "nodes" or one.report is not None:
            yield from ((one, text) for text in _doubts_of(case, one, every))


def _doubts_of(case: Case, one: Answer, every: set[str]) -> Iterable[str]:
    report = one.report
    if report is None:
        yield "it sent no complete report"
        return
    if report.device != case.expected.device:
        yield f"it tested {report.device} instead of {case.expected.device}"
    own = {check.id for check in report.checks}
    if case.launch.acceptance == "nodes":
        tags = {check.tag for check in report.checks}
        yield from (f"it reported nothing of {tag}" for tag in sorted(_NODE_TAGS - tags))
        yield from (f"{id_} was not reported, but other nodes have it" for id_ in sorted(every - own))
    for check in report.checks:
        if check.verdict == "UNKNOWN":
            yield f"{check.id}: {check.text}"
        elif check.verdict == "PASS" and not _within_limit(check):
            figures = f"{check.measured} {check.relation} {check.limit}"
            yield f"{check.id} is {check.verdict}, but {figures} is not true"


def _within_limit(check: AcceptanceCheck) -> bool:
    """Return whether the measured value of a check satisfies its limit."""
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
    """Return a clause that describes the pod's state on a node without a report."""
    pod = case.pods.get(index) if index is not None else None
    if pod is None:
        return "no pod started there"
    status = mapping(pod.last.object, "status")
    state = f"its pod is {status.get('phase', 'unknown')}"
    scheduled = pod.condition("PodScheduled") if pod.node is None else None
    reported = scheduled[1] if scheduled else status
    why = ": ".join(str(reported[key]) for key in ("reason", "message") if reported.get(key))
    if case.started(pod.index):
        return state
    return f"{state} ({why})" if why else f"{state}, and its container never started"
