"""List disruptions of nodes and services during a launch: reboots, clock jumps, outages and restarts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

from harness.core.clock import seconds, timestamp
from harness.evidence.kubernetes.objects import ObjectState, items, mapping
from harness.judge.case import Case, condition
from harness.judge.change import SYSTEM_PODS, Change, title, when
from harness.judge.finding import LATE

CONTROL_PLANE = {
    "kube-scheduler": "the scheduler (kube-scheduler)",
    "kube-controller-manager": "the controller manager (kube-controller-manager)",
}
"""The name of each control plane component in messages, keyed by the value of the pods' component label."""
CLOCK_SECONDS = 30.0
"""If the clock error in a node's lease changes by more than this many seconds, the clock is assumed to have
jumped. A delayed request alone can change it by 10 seconds."""


def outages(case: Case) -> Iterator[Change]:
    """Yield all recorded outages and restarts, in no particular order.

    This includes those after the harness stopped waiting.
    """
    yield from _restarts(case)
    yield from _nodes(case)
    yield from _clocks(case)
    yield from _away_for_a_time(case, "dns-pod", "the cluster's DNS", _dns_pods(case))
    for part, called in CONTROL_PLANE.items():
        yield from _away_for_a_time(case, "control-plane", called, _control_plane(case, part))
    for node in sorted({str(pod.node) for pod in case.pods.values() if pod.node}):
        called = f"the service proxy (kube-proxy) of node {node}"
        for change in _away_for_a_time(case, "service-proxy", called, _service_proxy(case, node)):
            yield replace(change, name=node)


def _restarts(case: Case) -> Iterator[Change]:
    """Yield each container restart in the system pods that the launch depends on."""
    for kind in SYSTEM_PODS:
        for states in case.bundle.objects(kind).values():
            for before, after in pairwise(states):
                old = {s.get("name"): s.get("restartCount") for s in _containers(before)}
                for status in _containers(after):
                    count, earlier = status.get("restartCount"), old.get(status.get("name"))
                    if not isinstance(count, int) or not isinstance(earlier, int) or count <= earlier:
                        continue
                    terminated = mapping(status, "lastState", "terminated")
                    code = f" after exit code {terminated['exitCode']}" if "exitCode" in terminated else ""
                    text = f"container {status.get('name')} of {title(after)} was restarted{code}"
                    yield Change(when(after), "restarted", kind, after.name, text, after.ref)


def _containers(state: ObjectState) -> list[dict[str, Any]]:
    return items(state.object, "status", "containerStatuses")


def _nodes(case: Case) -> Iterator[Change]:
    """Yield each node reboot, each kubelet restart, and each node that stopped being Ready."""
    for states in case.bundle.objects("node").values():
        for before, after in pairwise(states):
            name, old, new = after.name, _boot(before), _boot(after)
            if old and new and old != new:
                text = f"node {name} rebooted (boot id changed from {old[:8]} to {new[:8]})"
                alive = _last_sign(case, name, when(after))
                yield Change(alive or when(after), "rebooted", "node", name, text, after.ref)
            ready, previous = condition(after, "Ready"), condition(before, "Ready")
            if previous.get("status") == "True" and ready.get("status") in {"False", "Unknown"}:
                text = f"node {name} is not Ready: {ready.get('reason')}"
                yield Change(when(after), "not ready", "node", name, text, after.ref)
    for event in case.bundle.history("node-event"):
        source = mapping(event.object, "source").get("component") or event.object.get("reportingComponent")
        involved = mapping(event.object, "involvedObject")
        if source == "kubelet" and event.object.get("reason") == "Starting" and event.type == "ADDED":
            name = str(involved.get("name"))
            text = f"the kubelet of node {name} was started again"
            yield Change(when(event), "kubelet", "node", name, text, event.ref)


def _boot(state: ObjectState) -> str:
    return str(mapping(state.object, "status", "nodeInfo").get("bootID") or "")


def _last_sign(case: Case, node: str, before: float) -> float | None:
    """Return the time of the last lease renewal more than a second before the time `before`, or None."""
    signs = [when(lease) for lease in case.bundle.history("node-lease") if lease.name == node]
    return max((at for at in signs if at < before - 1), default=None)


def _clocks(case: Case) -> Iterator[Change]:
    """Yield each jump of a node's clock relative to the API server's clock, as shown by the node's lease."""
    for states in case.bundle.objects("node-lease").values():
        last_error = 0.0
        for before, after in pairwise([None, *states]):
            assert after is not None
            error = _clock_error(after)
            if error is None:
                continue
            if abs(error - last_error) > CLOCK_SECONDS and before is not None:
                text = f"the clock of node {after.name} jumped by {error - last_error:+.0f} s"
                yield Change(when(after), "clock", "node", after.name, text, after.ref)
            last_error = error if abs(error - last_error) > CLOCK_SECONDS else last_error


def _clock_error(lease: ObjectState) -> float | None:
    """Return the number of seconds by which the node's clock was ahead of the API server's clock, or None."""
    write_times = [
        seconds(entry.get("time"))
        for entry in items(lease.object, "metadata", "managedFields")
        if entry.get("manager") == "kubelet"
    ]
    renewed, server = (
        seconds(mapping(lease.object, "spec").get("renewTime")),
        max(filter(None, write_times), default=None),
    )
    return None if renewed is None or server is None else renewed - server


def _dns_pods(case: Case) -> list[ObjectState] | None:
    """Return the states of the DNS pods, or None if the cluster's DNS was not recorded."""
    states = case.bundle.history("dns-pod")
    return states if states or case.bundle.history("dns") else None


def _control_plane(case: Case, part: str) -> list[ObjectState] | None:
    """Return the states of a component's pods, or None if the control plane does not run as pods."""
    states = case.bundle.history("control-plane")
    labels = [mapping(state.object, "metadata", "labels").get("component") for state in states]
    if "kube-apiserver" not in labels:
        return None
    return [state for state, label in zip(states, labels, strict=True) if label == part]


def _service_proxy(case: Case, node: str) -> list[ObjectState] | None:
    """Return the states of the kube-proxy pods on a node, or None if the cluster does not use kube-proxy."""
    states = case.bundle.history("service-proxy")
    recorded = any(state.name == "kube-proxy" for state in case.bundle.history("system-daemonset"))
    if not states and not recorded:
        return None
    return [state for state in states if mapping(state.object, "spec").get("nodeName") == node]


def _away_for_a_time(
    case: Case, kind: str, called: str, states: list[ObjectState] | None
) -> Iterator[Change]:
    """Yield each period in which a service had no ready pod. A period can begin with the launch."""
    if states is None:
        return
    ready: dict[str, bool] = {}
    launched = case.since or LATE
    start = None if kind not in case.manifest.watched else launched
    ref = next((state.ref for state in [*states, *case.bundle.history(kind)]), f"objects/{kind}.jsonl")
    since: tuple[float, str] | None = (start, ref) if start is not None else None
    for state in sorted(states, key=lambda s: (s.version, s.type == "DELETED")):
        was_ready = any(ready.values())
        ready[state.uid] = state.type != "DELETED" and condition(state, "Ready").get("status") == "True"
        now = any(ready.values())
        if was_ready and not now:
            since = max(when(state), start or 0.0), state.ref
        elif now and since is not None:
            if when(state) > launched or start is None:
                yield _away(kind, called, since, when(state), launched)
            since = None
    if since is not None:
        yield _away(kind, called, since, LATE, launched)


def _away(kind: str, called: str, since: tuple[float, str], until: float, launched: float) -> Change:
    at, ref = since
    start_text = "from the start " if at <= launched else ""
    lasted = "until the end of the run" if until == LATE else f"until {timestamp(until)}"
    text = f"{called} had no ready pod {start_text}{lasted}"
    return Change(at, "away", kind, called, text, ref, until=until)
