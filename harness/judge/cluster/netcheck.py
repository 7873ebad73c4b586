"""Judge netcheck's results from inside the pods: which ranks cannot reach each other, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from harness.core.clock import seconds
from harness.evidence.kubernetes.objects import items
from harness.evidence.schema.netcheck import NetcheckDiagnosis, NetcheckRecord, NetcheckStep
from harness.judge.case import Case, names
from harness.judge.catalogue import CAUSES, RUNNING
from harness.judge.cluster import connections, headless_service, pod_network
from harness.judge.finding import LATE, Finding, counted, not_passed, passed, unknown
from harness.workers.netcheck.conclude import PLACED
from harness.workers.netcheck.proof import RECORD, YOUNG

ABSENT = "peer.never_came"
"""The cause that netcheck reports for a rank that contacted no other rank. The rank's pod may show why."""


@dataclass(frozen=True)
class PodDiagnosis:
    """The last netcheck diagnosis from one pod.

    `index` is the pod's actual node index. The index in `record` was reported by the pod itself and can be
    wrong.
    """

    index: int
    ref: str
    record: NetcheckRecord

    @property
    def diagnosis(self) -> NetcheckDiagnosis:
        return self.record.diagnosis


def diagnoses(case: Case) -> dict[int, PodDiagnosis]:
    """Map each node index to the last diagnosis from the node's last pod."""
    if case.launch.netcheck is None:  # If a rank itself started netcheck, the results are not judged.
        return {}
    index = {pod.name: node for node, pod in case.pods.items()}
    return {
        index[record.pod]: PodDiagnosis(index[record.pod], f"netcheck.jsonl:{line}", record)
        for line, record in case.bundle.netchecks()
        if record.pod in index
    }


def best(candidates: Iterable[PodDiagnosis]) -> PodDiagnosis | None:
    """Return the most informative diagnosis. Failures are preferred, then diagnoses that cover all pairs."""
    order = {"failed": 0, "unknown": 1, "ok": 2}
    ranked = sorted(
        candidates, key=lambda one: (order[one.diagnosis.verdict], not one.diagnosis.whole, one.index)
    )
    return ranked[0] if ranked else None


def check(case: Case) -> Finding:
    """Run the `netcheck` check: every pod's diagnosis covers all pairs of pods, and every pair passed."""
    pod_diagnoses = diagnoses(case)
    first = best(pod_diagnoses.values())
    if first is not None and first.diagnosis.cause == ABSENT:
        first = next(filter(_blames_itself, pod_diagnoses.values()), first)
    if first is not None and first.diagnosis.verdict == "failed":
        return _failed(case, first, pod_diagnoses)
    absent = [index for index in range(case.expected.num_nodes) if index not in pod_diagnoses]
    if absent or first is None:
        ranks = case.ranks_of(*absent)
        return unknown("netcheck", f"no netcheck report was recorded for {names(ranks)}", ranks=ranks)
    nodes, refs = case.expected.num_nodes, [one.ref for one in pod_diagnoses.values()]
    partial = [
        one.index for one in pod_diagnoses.values() if not one.diagnosis.whole or one.diagnosis.nodes != nodes
    ]
    has_unknown_names = any(s.step == "dns" and s.status == "unknown" for s in first.diagnosis.findings)
    if has_unknown_names and (service_problem := headless_service.problem(case)) is not None:
        # On a busy cluster, netcheck cannot distinguish a late DNS record from one that never appears.
        return not_passed(
            "netcheck",
            CAUSES[service_problem.cause].id,
            f"the ranks cannot reach each other: {service_problem.text}",
            ranks=case.ranks_of(*service_problem.nodes),
            evidence=[first.ref, *service_problem.evidence],
            at=seconds(first.record.at),
        )
    if first.diagnosis.verdict == "unknown" or partial:
        doubts = [f"{s.step}: {s.text}" for s in first.diagnosis.findings if s.status == "unknown"]
        text = "netcheck could not test everything"
        return unknown("netcheck", text, details=doubts, ranks=case.ranks_of(*partial), evidence=refs)
    pairs = counted(nodes * (nodes - 1), "pair")
    slowest = max(one.diagnosis.seconds for one in pod_diagnoses.values())
    text = f"from inside every pod, all {pairs} of {counted(nodes, 'pod')} were tested within {slowest:.1f} s"
    return passed("netcheck", text, refs, details=["names, connections, peer identities, full-size packets"])


def steps(case: Case, diagnosis: NetcheckDiagnosis) -> list[NetcheckStep]:
    """Return the diagnosis steps.

    If netcheck could not decide the `pods` or `service` step inside the pods, the API objects decide it.
    """
    corrected = {"pods": _pods(case), "service": _service(case, diagnosis.verdict == "ok")}
    return [
        corrected.get(step.step) or step if step.status == "unknown" else step for step in diagnosis.findings
    ]


def _pods(case: Case) -> NetcheckStep | None:
    unstarted = [index for index in range(case.expected.num_nodes) if not case.started(index)]
    if not unstarted:
        text = f"every pod's container started ({counted(case.expected.num_nodes, 'pod')})"
        return NetcheckStep(step="pods", status="ok", text=text)
    text = "; ".join(f"{names(case.ranks_of(index))}: the pod {_state(case, index)}" for index in unstarted)
    return NetcheckStep(step="pods", status="failed", text=text, ranks=unstarted)


def _service(case: Case, all_passed: bool) -> NetcheckStep | None:
    if not all_passed and (service_problem := headless_service.problem(case)) is not None:
        return NetcheckStep(
            step="service", status="failed", text=service_problem.text, cause=service_problem.cause
        )
    right = headless_service.healthy(case)
    return NetcheckStep(step="service", status="ok", text=right) if right else None


def _accused(first: PodDiagnosis, pod_diagnoses: Iterable[PodDiagnosis]) -> list[int]:
    """Return the nodes that `first` blames, and those whose own diagnoses blame them for the same cause."""
    own = {
        one.index
        for one in pod_diagnoses
        if one.diagnosis.cause == first.diagnosis.cause and one.index in one.diagnosis.ranks
    }
    return sorted({*first.diagnosis.ranks, *own})


def _failed(case: Case, first: PodDiagnosis, pod_diagnoses: Mapping[int, PodDiagnosis]) -> Finding:
    diagnosis, accused = first.diagnosis, _accused(first, pod_diagnoses.values())
    failed_steps = [step for step in diagnosis.findings if step.status == "failed"]
    if diagnosis.cause not in CAUSES or not failed_steps:
        text = f"netcheck failed with an unknown cause: {diagnosis.cause or 'none'}"
        return unknown("netcheck", text, evidence=[first.ref])
    nodes = [rank for rank in accused if rank < case.expected.num_nodes]
    source_note = "" if diagnosis.whole else f" (according to {names(case.ranks_of(first.index))} alone)"
    text, reasons = failed_steps[0].text, list[str]()
    if nodes and "rank" not in text:
        text = f"{names(case.ranks_of(*nodes))}: {text}"
    cause, refs = diagnosis.cause, [first.ref]
    of_all = {one.index: one.diagnosis for one in pod_diagnoses.values()}
    if (late := _late(case, first, pod_diagnoses)) is not None:
        cause, (nodes, text) = ABSENT, late
    elif (culprit := connections.culprit(case, cause, of_all)) is not None:
        if culprit.nodes != accused:
            text = f"{names(case.ranks_of(*culprit.nodes))}: {failed_steps[0].text}"
        nodes, reasons = culprit.nodes, [culprit.text] if culprit.text else []
        cause = culprit.instead if culprit.instead and cause == "tcp.filtered" else cause
    elif (policy := pod_network.dns_policy(case, _blind(of_all))) is not None and cause.startswith("dns."):
        refs = [*refs, *policy.evidence]
        if cause == "dns.search_path":  # The DNS server has the names, so dns.search_path remains the cause.
            nodes = sorted({*nodes, *(set(policy.nodes) & _with(cause, of_all))})
            reasons = [policy.text]
        else:
            cause, nodes, text, reasons = "dns.policy", policy.nodes, policy.text, [f"in the pods: {text}"]
    elif (
        cause in (*headless_service.NAMES, ABSENT)
        and (service_problem := headless_service.problem(case)) is not None
    ):
        cause, nodes, refs = service_problem.cause, service_problem.nodes, [*refs, *service_problem.evidence]
        text, reasons = service_problem.text, [f"in the pods: {text}"]
    elif cause == ABSENT and (delayed := _homeless(case, first, nodes)) is not None:
        cause, (text, ref) = "scheduling.unschedulable", delayed
        refs, reasons = [*refs, ref], [pod_network.host_ports(case, nodes)] if "free ports" in text else []
    elif cause == ABSENT and (unreached := _unreached(case, first, nodes)) is not None:
        cause, text = unreached
    elif cause == ABSENT:
        reasons += [f"{case.place(index)}: the pod {_state(case, index)}" for index in nodes]
    return not_passed(
        "netcheck",
        CAUSES[cause].id,
        f"the ranks cannot reach each other{source_note}: {text}",
        why=[*reasons, *[f"also: {s.text}" for s in failed_steps[1:3]]],
        ranks=case.ranks_of(*nodes),
        evidence=refs,
        # If a rank is absent, the phase and time come from the end or the failed start of its pod.
        # Any other network problem began before the failures that it caused.
        phase=RUNNING if cause == ABSENT else None,
        at=None if cause == ABSENT else seconds(first.record.at),
    )


def _with(outcome: str, diagnoses: Mapping[int, NetcheckDiagnosis]) -> set[int]:
    """Return the node indexes of the pods whose own results contain the outcome."""
    return {
        index
        for index, one in diagnoses.items()
        if any(cell.outcome == outcome for cell in one.rows.get(index, {}).values())
    }


def _blames_itself(one: PodDiagnosis) -> bool:
    """Return whether a pod without a verdict from rank 0 found a problem in its own settings, such as DNS.

    Such a problem explains why the other ranks did not hear from the pod.
    """
    diagnosis = one.diagnosis
    return (
        diagnosis.verdict == "failed"
        and not diagnosis.whole
        and diagnosis.ranks == [one.index]
        and diagnosis.cause not in (ABSENT, *PLACED)
    )


def _late(
    case: Case, first: PodDiagnosis, pod_diagnoses: Mapping[int, PodDiagnosis]
) -> tuple[list[int], str] | None:
    """Return (ranks that started too late, sentence) if the late start explains all failures, otherwise None.

    A pod in which netcheck has ended no longer responds, so a rank whose check starts later cannot connect to
    it.
    """
    if first.diagnosis.cause not in PLACED:
        return None
    pairs = {
        (sender, receiver)
        for sender, row in first.diagnosis.rows.items()
        for receiver, cell in row.items()
        if cell.outcome in PLACED
    }
    if not pairs or not all(_too_late(case, first, pod_diagnoses, *pair) for pair in pairs):
        return None
    late, early = ({pair[side] for pair in pairs} for side in (0, 1))
    late_ranks, early_ranks = names(case.ranks_of(*late)), names(case.ranks_of(*early))
    return sorted(late), f"{late_ranks} started when netcheck had already ended on {early_ranks}"


def _too_late(
    case: Case, first: PodDiagnosis, pod_diagnoses: Mapping[int, PodDiagnosis], sender: int, receiver: int
) -> bool:
    """Return whether the sender's check began when the receiver's check had ended, or was about to end."""
    cell, there = first.diagnosis.rows[sender][receiver], pod_diagnoses.get(receiver)
    if there is None or there.diagnosis.whole or not (cell.outcome == "tcp.filtered" or cell.sender):
        return False
    began = _check_began(case, sender, pod_diagnoses.get(sender))
    if (seconds(there.record.at) or LATE) - began < YOUNG:
        return True
    back = there.diagnosis.rows.get(receiver, {}).get(sender)
    is_exact = _knows_own_start(sender, pod_diagnoses.get(sender))
    # If the receiver's last connection to the sender was refused, the sender was not listening yet.
    return not is_exact and back is not None and "tcp.refused" in (back.outcome, back.withheld)


def _knows_own_start(index: int, one: PodDiagnosis | None) -> bool:
    """Return whether the diagnosis from this pod was made by the pod itself.

    Otherwise, rank 0 made it, and its duration is that of rank 0's check.
    """
    return one is not None and one.diagnosis.rank == index


def _check_began(case: Case, index: int, one: PodDiagnosis | None) -> float:
    """Return the start time of the check in a pod, in seconds since the epoch.

    If only rank 0's diagnosis is known, this is the start time of the container, which can be much earlier.
    """
    if one is not None and _knows_own_start(index, one):
        return (seconds(one.record.at) or LATE) - one.diagnosis.seconds
    return case.container_started(index) or 0.0


def _blind(diagnoses: Mapping[int, NetcheckDiagnosis]) -> set[int]:
    """Return the node indexes of the pods that could not resolve the name of another pod."""
    return {
        index
        for index, one in diagnoses.items()
        for other, cell in one.rows.get(index, {}).items()
        if other != index and cell.outcome.startswith("dns.") and cell.outcome != "dns.old_address"
    }


def _homeless(case: Case, first: PodDiagnosis, nodes: list[int]) -> tuple[str, str] | None:
    """Return (reason, reference) for pods that were scheduled too late, or None.

    When these pods were scheduled, the other pods had already stopped waiting for them. The `scheduling`
    check judges pods that were never scheduled.
    """
    until = seconds(first.record.at) or 0.0
    reasons = [reason for index in nodes if (reason := _unscheduled(case, index, until)) is not None]
    if not reasons or len(reasons) < len(nodes):
        return None
    rank_names = names(case.ranks_of(*nodes))
    return f"{rank_names} had no node while the others waited: {reasons[0][0]}", reasons[0][1]


def _unscheduled(case: Case, index: int, until: float) -> tuple[str, str] | None:
    """Return the scheduler's last message about a pod that was unscheduled at `until`, and its reference."""
    pod = case.pods.get(index)
    history = pod.history if pod is not None and pod.node is not None else ()
    states = [state for state in history if (seconds(state.received_at) or LATE) <= until]
    for condition in items(states[-1].object, "status", "conditions") if states else ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"{condition.get('reason')}: {condition.get('message')}", states[-1].ref
    return None


def _unreached(case: Case, first: PodDiagnosis, nodes: list[int]) -> tuple[str, str] | None:
    """Return (cause, sentence) if pods started in time but no other pod reached them, or None.

    Returns None if any of these pods has no diagnosis, or if the other pods ended soon after the start of
    these pods.
    """
    pod_diagnoses, until = diagnoses(case), seconds(first.record.at) or 0.0
    if not nodes or any(index not in pod_diagnoses for index in nodes):
        return None
    overlap = until - max(_check_began(case, index, pod_diagnoses[index]) for index in nodes)
    cells = [row[nodes[0]] for row in first.diagnosis.rows.values() if nodes[0] in row]
    failed_cells = [
        cell
        for cell in cells
        if cell.outcome in CAUSES and overlap >= (RECORD if cell.outcome.startswith("dns.") else YOUNG)
    ]
    rank_names = names(case.ranks_of(*nodes))
    return (
        (
            failed_cells[0].outcome,
            f"the other ranks could not reach {rank_names}, which had started: {failed_cells[0].text}",
        )
        if failed_cells
        else None
    )


def _state(case: Case, index: int) -> str:
    pod = case.pods.get(index)
    if pod is None:
        return "was not recorded"
    phase = (pod.last.object.get("status") or {}).get("phase", "unknown")
    return f"is {phase}" + ("" if case.started(index) else ", and its container never started")


def ended_by_it(case: Case) -> set[int]:
    """Return the nodes whose pods ended because netcheck failed there, before the rank's command started."""
    return {index for index, one in diagnoses(case).items() if one.diagnosis.verdict == "failed"}
