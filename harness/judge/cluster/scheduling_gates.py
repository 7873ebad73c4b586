"""Judge pods with a scheduling gate, which schedulers ignore until a controller removes the gate."""

from __future__ import annotations

from dataclasses import replace

from harness.evidence.kubernetes.objects import items
from harness.judge.case import Case, gated, names
from harness.judge.cluster import controllers
from harness.judge.finding import Finding, listed, not_passed

_OF_KUEUE = "kueue.x-k8s.io/"
_ADVICE = (
    "find out which controller or webhook adds this gate and whether it is running, or remove the gate from "
    "the pod template"
)


def not_removed(case: Case) -> Finding | None:
    """Return the finding for pods whose scheduling gates were not removed, or None if no pod has a gate.

    Kueue removes only its own gates. Other gates remain even if Kueue has admitted the job.
    """
    pods = {index: pods[-1].last for index, pods in case.pod_attempts.items() if gated(pods[-1].last)}
    if not pods:
        return None
    all_gates = [gate for pod in pods.values() for gate in items(pod.object, "spec", "schedulingGates")]
    gates = list(dict.fromkeys(str(gate.get("name")) for gate in all_gates))
    ranks, refs = case.ranks_of(*pods), [pod.ref for pod in pods.values()]
    subject = f"{names(ranks)} {'is' if len(ranks) == 1 else 'are'} held behind a scheduling gate"
    if of_kueue := [gate for gate in gates if gate.startswith(_OF_KUEUE)]:
        text = f"{subject} that Kueue has not removed: {listed(of_kueue)}"
        return replace(controllers.not_followed(case, "rank-pods", "kueue", text, refs), ranks=ranks)
    text = f"{subject} that its controller has not removed: {listed(gates)}"
    return not_passed(
        "rank-pods", "scheduling.unschedulable", text, ranks=ranks, evidence=refs, advice=_ADVICE
    )
