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
from harness.judge.cluster.pod_start import device_holders
from harness.judge.finding import Finding, counted, not_passed, passed, unknown
from harness.workers.acceptance.check import TAGS

NO_CUDA: CauseId = "image.no_cuda"
_NODE_TAGS = {"ENV", "COMPUTE", "TRAIN", "DDP"}
"""Tags of the checks that a complete report on a node must contain."""


@dataclass(frozen=True)
class Answer:
    """The checks that one pod reported.

    If the pod sent no report, they are the checks that it printed individually.
    """

    index: int
    node: str
    """The name of the Kubernetes node, according to the API server."""
    checks: tuple[tuple[str, AcceptanceCheck], ...]
    """Pairs of (reference into the bundle, check), one for each of these checks."""
    report: AcceptanceReport | None
    ref: str
    at: str = ""
    """The timestamp of the first failed check that the pod printed, or "" if no check failed."""

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
    node_answers = answers(case)
    if _without_cuda(node_answers):
        return unknown("reports", "the image has no CUDA, so no node was tested")
    if case.launch.acceptance == "ddp":
        return _one_report(case, node_answers)
    expected = case.expected.node_names
    if not expected:
        return unknown("reports", "the bundle does not list the nodes that must report")
    by_node = {one.node: one for one in node_answers.values() if one.report is not None}
    missing_nodes = [name for name in expected if name not in by_node]
    refs = [by_node[name].ref for name in expected if name in by_node]
    if not missing_nodes:
        return passed(
            "reports", f"every node sent a complete report ({counted(len(expected), 'node')})", refs
        )
    return _silent(case, node_answers, missing_nodes, refs)


def _silent(
    case: Case, node_answers: dict[int, Answer], missing_nodes: list[str], refs: list[str]
) -> Finding:
    """Return the finding for nodes without a report, with the reason for each node."""
    expected = case.expected.node_names
    index_by_node = {
        one.node or gpu_supply.assigned_node(case.pods[index].last): index
        for index, one in node_answers.items()
    }
    rejected = gpu_supply.rejections(case)
    waiting = {
        name
        for name in missing_nodes
        if name not in index_by_node or case.pods[index_by_node[name]].node is None or name in rejected
    }
    supply = gpu_supply.of_nodes(case, waiting)
    shortages = supply.nodes if supply else {}
    holders = [
        (ref, one) for ref, one in device_holders(case) if one.node in waiting and one.node not in shortages
    ]
    held_nodes = {one.node for _, one in holders}
    details = [
        f"{name} {shortages[name].text}"
        if name in shortages
        else f"{name}: {_state(case, index_by_node.get(name))}"
        for name in missing_nodes
        if name not in held_nodes
    ]
    if (
        supply
        and len(shortages) >= len(held_nodes)
        and not set(missing_nodes) - shortages.keys() - held_nodes
    ):
        return not_passed(
            "reports",
            supply.cause,
            f"{len(missing_nodes)} of {counted(len(expected), 'node')} could not be tested: {supply.text}",
            details=[one.sentence for _, one in holders],
            evidence=[ref for ref, _ in holders] or ["objects/node.jsonl"],
            advice=gpu_supply.advice_on(case, supply),
        )
    if holders and held_nodes == set(missing_nodes) - shortages.keys():
        return not_passed(
            "reports",
            "scheduling.devices_held",
            f"{len(missing_nodes)} of {counted(len(expected), 'node')} could not be tested: "
            "other pods use the devices",
            details=[*(one.sentence for _, one in holders), *details],
            evidence=[ref for ref, _ in holders],
        )
    if holders:
        details = [*(one.sentence for _, one in holders), *details]
    return not_passed(
        "reports",
        "node.not_answered",
        f"{len(missing_nodes)} of {counted(len(expected), 'node')} sent no report",
        details=details,
        ranks=case.ranks_of(*[index_by_node[name] for name in missing_nodes if name in index_by_node]),
        evidence=refs,
    )


def _one_report(case: Case, node_answers: dict[int, Answer]) -> Finding:
    ddp_answers = [
        one for one in node_answers.values() if one.report is not None and one.report.kind == "ddp"
    ]
    if not ddp_answers:
        details = [f"{case.place(index)}: {_state(case, index)}" for index in node_answers]
        text = "no pod sent a report on the collectives"
        return not_passed("reports", "node.not_answered", text, details=details)
    report = ddp_answers[-1].report
    assert report is not None
    launched = (case.expected.num_nodes, case.expected.ranks)
    if (report.nodes, report.ranks) != launched:
        tested = f"{counted(report.ranks, 'rank')} in {counted(report.nodes, 'pod')}"
        expected = f"{counted(case.expected.ranks, 'rank')} in {counted(case.expected.num_nodes, 'pod')}"
        text = f"the report covers {tested}, but the launch has {expected}"
        return not_passed("reports", "node.not_answered", text, evidence=[ddp_answers[-1].ref])
    text = f"{names(case.ranks_of(ddp_answers[-1].index))} reported for all {counted(report.ranks, 'rank')}"
    return passed("reports", text, [ddp_answers[-1].ref])


def accepted(case: Case) -> Finding:
    """Run the `acceptance` check: every test passed, and no required test is missing."""
    node_answers = answers(case)
    shared = _shared_gpus(case, node_answers)
    results = [
        (one, ref, fair(check, shared.get(one.index)))
        for one in node_answers.values()
        for ref, check in one.checks
    ]
    if image := _without_cuda(node_answers):
        _, ref, check = image[0]
        note = f"{counted(len(image), 'pod')} reported this, so no node is judged"
        # The cause is the image, so the finding gets the phase of the `image` check.
        # The pods' exit codes, which belong to a later phase, are only consequences.
        start = REGISTRY["image"].at
        return not_passed("acceptance", NO_CUDA, check.text, why=[note], evidence=[ref], phase=start)
    if failures := [each for each in results if each[2].verdict == "FAIL"]:
        return _failed(case, failures)
    if shared:
        return _not_whole(case, node_answers, shared)
    doubts = list(_doubts(case, node_answers))
    if doubts or not results:
        ranks = case.ranks_of(*[one.index for one, _ in doubts])
        details = [f"{one.about}: {text}" for one, text in doubts]
        return unknown("acceptance", "not everything was proved", details=details, ranks=ranks)
    warnings = Counter(check.id for _, _, check in results if check.verdict == "WARN")
    warned = [f"{id_} on {counted(count, 'pod')}" for id_, count in warnings.items()]
    nodes = {one.node for one in node_answers.values()}
    text = f"{counted(len(results), 'check')} on {counted(len(nodes), 'node')} passed"
    if warned:
        text += f", {warnings.total()} of them with a warning"
    if case.expected.device != "cuda":
        text += "; no GPU was tested, so no GPU is accepted"
    return passed("acceptance", text, [one.ref for one in node_answers.values() if one.ref], details=warned)


def _shared_gpus(case: Case, node_answers: dict[int, Answer]) -> dict[int, Parts]:
    """Map the index of each pod with shared or split GPUs to a description of how they are shared or split.

    In collective tests, one such pod affects the results of all pods, so the map contains all of them.
    """
    labelled = gpu_supply.parts(case) if case.expected.device == "cuda" else {}
    parts_by_index = {
        index: parts
        for index, one in node_answers.items()
        if (parts := labelled.get(one.node) or proved_by([check for _, check in one.checks])) is not None
    }
    if parts_by_index and case.launch.acceptance == "ddp":
        first = next(iter(parts_by_index.values()))
        return {index: parts_by_index.get(index, first) for index in node_answers}
    return parts_by_index


def _not_whole(case: Case, node_answers: dict[int, Answer], shared: dict[int, Parts]) -> Finding:
    """Return the finding for GPUs that cannot be accepted because they are shared or split."""
    first = next(iter(shared.values()))
    texts = [f"{node_answers[index].about}: {parts.text}" for index, parts in shared.items()]
    count = counted(len(shared), "node")
    return not_passed(
        "acceptance",
        first.cause,
        f"the GPUs of {count} cannot be accepted: {WHOLE_ONLY}",
        details=texts,
        ranks=case.ranks_of(*shared),
        evidence=[node_answers[index].ref for index in shared if node_answers[index].ref]
        or ["objects/node.jsonl"],
    )


def _without_cuda(node_answers: dict[int, Answer]) -> list[tuple[Answer, str, AcceptanceCheck]]:
    """Return the failed checks from pods whose image cannot use a GPU."""
    results = [(one, ref, check) for one in node_answers.values() for ref, check in one.checks]
    return [each for each in results if each[2].cause == NO_CUDA]


def _failed(case: Case, failures: list[tuple[Answer, str, AcceptanceCheck]]) -> Finding:
    """Return the finding for failed checks.

    If most nodes share a cause, the finding has this cause. Otherwise, it has the cause of the first failed
    check in the order of TAGS.
    """
    failures = sorted(failures, key=lambda each: (TAGS.index(each[2].tag), each[0].index))
    shared = _shared(case, failures)
    cause = shared[0] if shared else _cause(failures[0][2])
    same_cause = [each for each in failures if _cause(each[2]) == cause]
    other_failures = [
        f"also, {one.about}: {check.id}: {check.text}" for one, _, check in failures if _cause(check) != cause
    ]
    ranks = {rank for one, _, check in same_cause for rank in _accused(case, one, check)}
    texts = list(dict.fromkeys(f"{one.about}: {check.id}: {check.text}" for one, _, check in same_cause))
    if case.launch.acceptance == "ddp":
        texts = list(dict.fromkeys(check.text for _, _, check in same_cause))
    if shared:
        texts = [
            f"{shared[1]}: look for a common reason, such as the image, driver or resource request",
            *texts,
        ]
    refs = list(dict.fromkeys(ref for _, ref, _ in same_cause))
    times = [at for one, _, _ in same_cause if (at := seconds(one.at)) is not None]
    return not_passed(
        "acceptance",
        cause,
        texts[0],
        details=texts[1:],
        why=other_failures[:3],
        ranks=ranks,
        evidence=refs,
        at=min(times, default=None),
    )


def _shared(case: Case, failures: list[tuple[Answer, str, AcceptanceCheck]]) -> tuple[CauseId, str] | None:
    """Return the (cause, description) shared by more than half of the nodes, and by at least two, or None."""
    if case.launch.acceptance != "nodes":
        return None
    nodes: dict[CauseId, set[int]] = {}
    for one, _, check in failures:
        nodes.setdefault(_cause(check), set()).add(one.index)
    cause, failed_nodes = max(nodes.items(), key=lambda each: len(each[1]))
    node_count = len([one for one in answers(case).values() if one.checks])
    if len(failed_nodes) < 2 or 2 * len(failed_nodes) <= node_count:
        return None
    return cause, f"{len(failed_nodes)} of {counted(node_count, 'node')} failed with the same cause ({cause})"


def _cause(check: AcceptanceCheck) -> CauseId:
    """Return the failed check's cause, or acceptance.failed if causes.toml does not contain that cause."""
    return CAUSES[check.cause].id if check.cause in CAUSES else "acceptance.failed"


def _accused(case: Case, answer: Answer, check: AcceptanceCheck) -> list[int]:
    """Return the ranks affected by a failed check. A node's check affects all ranks on that node."""
    if case.launch.acceptance == "ddp":
        return [rank for rank in check.ranks if rank in case.ranks]
    return case.ranks_of(answer.index)


def _doubts(case: Case, node_answers: dict[int, Answer]) -> Iterable[tuple[Answer, str]]:
    """Yield (the pod's Answer, description) for each doubtful result.

    A result is doubtful if it is missing, if it is UNKNOWN, or if it is PASS although the value violates its
    limit.
    """
    check_ids = {check.id for one in node_answers.values() for _, check in one.checks}
    for one in node_answers.values():
        if case.launch.acceptance == "nodes" or one.report is not None:
            yield from ((one, text) for text in _doubts_of(case, one, check_ids))


def _doubts_of(case: Case, one: Answer, check_ids: set[str]) -> Iterable[str]:
    report = one.report
    if report is None:
        yield "it sent no complete report"
        return
    if report.device != case.expected.device:
        yield f"it tested {report.device} instead of {case.expected.device}"
    own = {check.id for check in report.checks}
    if case.launch.acceptance == "nodes":
        tags = {check.tag for check in report.checks}
        yield from (f"it reported no {tag} check" for tag in sorted(_NODE_TAGS - tags))
        yield from (f"{id_} was not reported, but other nodes reported it" for id_ in sorted(check_ids - own))
    for check in report.checks:
        if check.verdict == "UNKNOWN":
            yield f"{check.id}: {check.text}"
        elif check.verdict == "PASS" and not _within_limit(check):
            figures = f"{check.measured} {check.relation} {check.limit}"
            yield f"{check.id} is reported as {check.verdict}, but {figures} is false"


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
    """Return a clause about the pod on a node without a report, such as "its pod is Pending"."""
    pod = case.pods.get(index) if index is not None else None
    if pod is None:
        return "no pod started there"
    status = mapping(pod.last.object, "status")
    state = f"its pod is {status.get('phase', 'unknown')}"
    scheduled = pod.condition("PodScheduled") if pod.node is None else None
    reported = scheduled[1] if scheduled else status
    reason = ": ".join(str(reported[key]) for key in ("reason", "message") if reported.get(key))
    if case.started(pod.index):
        return state
    return f"{state} ({reason})" if reason else f"{state}, and its container never started"
