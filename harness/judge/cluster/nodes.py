"""Judge whether the job's nodes stayed Ready while ranks ran on them."""

from __future__ import annotations

from harness.core.clock import seconds
from harness.evidence.kubernetes.objects import ObjectState, items
from harness.judge.case import Case, condition, names
from harness.judge.finding import Finding, not_passed, passed, unknown
from harness.judge.pod_end import End

SILENT_SECONDS = 50.0
"""Time, in seconds, from a node's last heartbeat until its Ready condition becomes Unknown
(node-monitor-grace-period)."""


def _not_ready(case: Case, node: str, until: float) -> ObjectState | None:
    """Return the first state, no later than `until`, in which the node was deleted or not Ready, or None."""
    for states in case.bundle.objects("node").values():
        for state in states:
            ready = condition(state, "Ready")
            is_away = state.type == "DELETED" or ready.get("status", "True") != "True"
            if state.name == node and is_away and (seconds(state.received_at) or 0.0) <= until:
                return state
    return None


def checks(case: Case, ends: dict[int, End]) -> Finding:
    """Run the `nodes` check: every node stayed Ready while ranks ran on it, or the job completed anyway."""
    if case.terminal == "Completed":
        return passed("nodes", "the job completed on its nodes")
    not_ready: dict[str, tuple[ObjectState, list[int]]] = {}
    for index, pod in case.pods.items():
        end = ends.get(index)
        until = end.at if end is not None and end.state in {"succeeded", "failed"} else float("inf")
        limit = case.stopped_at or float("inf")
        has_run = pod.node and (case.started(index) or not case.launch.attached)
        not_ready_state = (
            _not_ready(case, str(pod.node), min(until + SILENT_SECONDS, limit)) if has_run else None
        )
        if not_ready_state is not None and pod.node and _since(not_ready_state) <= until:
            not_ready.setdefault(pod.node, (not_ready_state, []))[1].extend(case.ranks_of(index))
    if not not_ready:
        recorded = {state.name for state in case.bundle.history("node")}
        missing = [str(pod.node) for pod in case.pods.values() if pod.node and pod.node not in recorded]
        if missing or not case.pods:
            return unknown("nodes", f"no state of {missing[0] if missing else 'the nodes'} was recorded")
        return passed("nodes", "every node of the job was Ready while the harness watched")
    node, (not_ready_state, ranks) = min(not_ready.items(), key=lambda entry: _since(entry[1][0]))
    other_losses = [f"node {n} with {names(r)} was lost too" for n, (_, r) in not_ready.items() if n != node]
    return not_passed(
        "nodes",
        "cluster.node_lost",
        f"node {node} was lost while {names(ranks)} ran on it: {_reason(not_ready_state)}",
        why=other_losses,
        ranks=[rank for _, node_ranks in not_ready.values() for rank in node_ranks],
        evidence=[state.ref for state, _ in not_ready.values()],
        at=_since(not_ready_state),
    )


def _since(state: ObjectState) -> float:
    """Return the time at which the node was last known to be Ready, in seconds since the epoch."""
    ready = condition(state, "Ready")
    moment = seconds(ready.get("lastTransitionTime")) or seconds(state.received_at) or 0.0
    return moment - SILENT_SECONDS if ready.get("status") == "Unknown" else moment


def _reason(state: ObjectState) -> str:
    ready = condition(state, "Ready")
    if state.type == "DELETED" and ready.get("status", "True") == "True":
        return "it was deleted from the cluster"
    since = ready.get("lastTransitionTime", "an unknown time")
    reason = f"{ready.get('reason')}: {ready.get('message')}"
    text = f"Ready has been {ready.get('status')} since {since}, {reason}"
    taints = [
        str(t.get("key")) for t in items(state.object, "spec", "taints") if t.get("effect") == "NoExecute"
    ]
    return text + (f" (taints {', '.join(taints)})" if taints else "")
