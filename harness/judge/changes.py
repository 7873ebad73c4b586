"""List what changed in the cluster under a launch, and who changed it.

A change counts when it came between the launch and the end of the wait, and neither the harness nor one of
the controllers made it. Field managers of an object say who wrote it (metadata.managedFields). Kubernetes
does not record who deleted an object. A bundle that lacks an object, or who wrote it, tells of no change of
it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Literal

from harness.evidence.objects import ObjectState, changed_by, items, mapping
from harness.judge import deletion
from harness.judge.case import LATE, OBSERVE_STAGE, Case, condition, seconds

Verb = Literal[
    "created", "edited", "deleted", "restarted", "rebooted", "kubelet", "not ready", "away", "clock"
]

_WRITTEN = (
    *("namespace", "jobset", "job", "statefulset", "daemonset", "pod", "service", "networkpolicy"),
    *("secret", "configmap", "workload", "localqueue", "clusterqueue", "node", "dns"),
    *("jobset-controller", "kueue-controller"),
)
"""Kinds of which others may create, edit or delete an object."""
_SYSTEM_PODS = ("tracker", "dns-pod", "control-plane", "jobset-pod", "kueue-pod")
"""Kinds of the pods that serve the launch."""
_CONTROLLERS = {
    *("kubelet", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kindnetd", "kubeadm"),
    *("manager", "kueue", "kueue-admission", "kueue-job-controller", "jobset", "coredns"),
    *("pluto-e2e-harness",),
}
"""Field managers of Kubernetes, JobSet (its own is `manager`), Kueue and the harness."""
_MAKERS = {"OpenAPI-Generator"}
"""Field managers of konduktor, which creates the objects of a launch and edits none of them."""
_WRITERS = {"kueue", "jobset"}
"""First words of the field managers that Kueue and JobSet have besides."""
CLOCK_SECONDS = 30.0
"""A lease that is off by more was written by a clock that is wrong. A late request is off by 10 s at most."""


@dataclass(frozen=True)
class Change:
    """One change. Times are in seconds since the epoch, `until` for what lasted."""

    at: float
    verb: Verb
    kind: str
    """The evidence file of the object."""
    name: str
    text: str
    ref: str
    fields: tuple[str, ...] = ()
    """What was edited, as dotted paths of two parts: spec.suspend, metadata.labels."""
    until: float = LATE

    @property
    def told(self) -> str:
        return f"{clock(self.at)} {self.text}"


def clock(at: float) -> str:
    """Return a time as the bundle writes it, to the second."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def changes(case: Case) -> list[Change]:
    """Return what others changed between the launch and the end of the wait, the earliest first."""
    begin, end = _window(case)
    found = [*_written(case), *_deleted(case), *_restarted(case), *_nodes(case), *_clocks(case), *_dns(case)]
    # A delivery may be recorded twice, when a watch began anew.
    once = {(change.at, change.text): change for change in found if begin <= change.at <= end}
    return [once[key] for key in sorted(once)]


def _window(case: Case) -> tuple[float, float]:
    """Return when the launch began and when the wait ended. After it the harness deletes its own objects."""
    waits = [stage for stage in case.manifest.stages if stage.name == OBSERVE_STAGE]
    began = seconds(waits[-1].started_at) if waits else None
    end = LATE if began is None else began + waits[-1].seconds
    return seconds(case.manifest.launched_at) or LATE, end


def _at(seen: ObjectState) -> float:
    return seconds(seen.received_at) or 0.0


def _title(seen: ObjectState) -> str:
    return f"{seen.object.get('kind') or 'object'} {seen.name}"


def _others(managers: list[str]) -> list[str]:
    return [
        name
        for name in managers
        if name not in _CONTROLLERS and name.split("-")[0].split(".")[0] not in _WRITERS
    ]


def _written(case: Case) -> Iterator[Change]:
    """Yield each creation and edit whose field manager is of none of the known controllers."""
    for kind in _WRITTEN:
        for states in case.bundle.objects(kind).values():
            yield from _created(case, kind, states[0])
            for before, after in pairwise(states):
                who, fields = _others(changed_by(before, after)), _differences(before.object, after.object)
                if after.type != "DELETED" and who and fields:
                    text = f"{_title(after)} was edited by {', '.join(who)} ({', '.join(fields)})"
                    yield Change(_at(after), "edited", kind, after.name, text, after.ref, fields)


def _created(case: Case, kind: str, first: ObjectState) -> Iterator[Change]:
    made = seconds(mapping(first.object, "metadata").get("creationTimestamp")) or 0.0
    managers = [str(entry.get("manager")) for entry in items(first.object, "metadata", "managedFields")]
    who = [name for name in _others(managers) if name not in _MAKERS]
    if first.type == "ADDED" and who and made >= (seconds(case.manifest.launched_at) or LATE) - 1:
        text = f"{_title(first)} was created by {', '.join(dict.fromkeys(who))}"
        yield Change(_at(first), "created", kind, first.name, text, first.ref)


def _differences(before: dict[str, Any], after: dict[str, Any]) -> tuple[str, ...]:
    """Return what of an object differs, without its status. Of a Secret only that it was written is known."""
    if "spec" not in after and "status" not in after:
        return ("its content",)
    found = [
        f"metadata.{part}"
        for part in ("labels", "annotations")
        if mapping(before, "metadata", part) != mapping(after, "metadata", part)
    ]
    old, new = mapping(before, "spec"), mapping(after, "spec")
    keys = sorted({*old, *new})
    return (*found, *(f"spec.{key}" for key in keys if old.get(key) != new.get(key)))


def _deleted(case: Case) -> Iterator[Change]:
    """Yield each deletion that did not follow from another one, from a restart or from the job's end."""
    gone = [
        (kind, state)
        for kind in (*_WRITTEN, *_SYSTEM_PODS)
        for states in case.bundle.objects(kind).values()
        if (state := next(filter(deletion.leaving, states), None)) is not None
    ]
    namespace = min((s.version for kind, s in gone if kind == "namespace"), default=None)
    first = {state.uid: state.version for _, state in gone}
    for kind, state in gone:
        inside = mapping(state.object, "metadata").get("namespace") == case.launch.namespace
        if kind != "namespace" and inside and namespace is not None and namespace < state.version:
            continue
        owners = [str(o.get("uid")) for o in items(state.object, "metadata", "ownerReferences")]
        if any(first.get(owner, state.version + 1) <= state.version for owner in owners):
            continue
        if kind in {"pod", "job"} and not _by_somebody(case, kind, state):
            continue
        text = f"{_title(state)} was deleted"
        yield Change(_at(state), "deleted", kind, state.name, text, state.ref)


def _by_somebody(case: Case, kind: str, state: ObjectState) -> bool:
    """Return whether no controller deletes a pod or Job at this time: nothing had ended or was to end."""
    if case.terminal is not None or (case.jobset and mapping(case.jobset.object, "status").get("restarts")):
        return False
    if kind == "job":
        return True
    pods = [pod for attempts in case.pod_attempts.values() for pod in attempts]
    mine = next((pod for pod in pods if pod.last.uid == state.uid), None)
    return mine is not None and deletion.by_somebody(case, mine, state)


def _restarted(case: Case) -> Iterator[Change]:
    """Yield each restart of a container of the pods that serve the launch."""
    for kind in _SYSTEM_PODS:
        for states in case.bundle.objects(kind).values():
            for before, after in pairwise(states):
                old = {s.get("name"): s.get("restartCount") for s in _containers(before)}
                for status in _containers(after):
                    count, earlier = status.get("restartCount"), old.get(status.get("name"))
                    if not isinstance(count, int) or not isinstance(earlier, int) or count <= earlier:
                        continue
                    ended = mapping(status, "lastState", "terminated")
                    code = f", it had ended with exit code {ended['exitCode']}" if "exitCode" in ended else ""
                    text = f"container {status.get('name')} of {_title(after)} was started again{code}"
                    yield Change(_at(after), "restarted", kind, after.name, text, after.ref)


def _containers(seen: ObjectState) -> list[dict[str, Any]]:
    return items(seen.object, "status", "containerStatuses")


def _nodes(case: Case) -> Iterator[Change]:
    """Yield what happened to nodes: a new boot, a kubelet that started again, a time without service."""
    for states in case.bundle.objects("node").values():
        for before, after in pairwise(states):
            name, old, new = after.name, _boot(before), _boot(after)
            if old and new and old != new:
                text = f"node {name} rebooted (boot id {old[:8]} before, {new[:8]} since)"
                alive = _last_sign(case, name, _at(after))
                yield Change(alive or _at(after), "rebooted", "node", name, text, after.ref)
            ready, was = condition(after, "Ready"), condition(before, "Ready")
            if was.get("status") == "True" and ready.get("status") in {"False", "Unknown"}:
                text = f"node {name} is not Ready: {ready.get('reason')}"
                yield Change(_at(after), "not ready", "node", name, text, after.ref)
    for event in case.bundle.history("node-event"):
        source = mapping(event.object, "source").get("component") or event.object.get("reportingComponent")
        about = mapping(event.object, "involvedObject")
        if source == "kubelet" and event.object.get("reason") == "Starting" and event.type == "ADDED":
            name = str(about.get("name"))
            text = f"the kubelet of node {name} was started again"
            yield Change(_at(event), "kubelet", "node", name, text, event.ref)


def _boot(seen: ObjectState) -> str:
    return str(mapping(seen.object, "status", "nodeInfo").get("bootID") or "")


def _last_sign(case: Case, node: str, before: float) -> float | None:
    """Return when the node last renewed its lease before a time."""
    signs = [_at(lease) for lease in case.bundle.history("node-lease") if lease.name == node]
    return max((at for at in signs if at < before - 1), default=None)


def _clocks(case: Case) -> Iterator[Change]:
    """Yield each time from which a node renewed its lease by a clock that differs from the API server's."""
    for states in case.bundle.objects("node-lease").values():
        wrong = 0.0
        for before, after in pairwise([None, *states]):
            assert after is not None
            off = _clock_error(after)
            if off is None:
                continue
            if abs(off - wrong) > CLOCK_SECONDS and before is not None:
                text = f"the clock of node {after.name} jumped by {off - wrong:+.0f} s"
                yield Change(_at(after), "clock", "node", after.name, text, after.ref)
            wrong = off if abs(off - wrong) > CLOCK_SECONDS else wrong


def _clock_error(lease: ObjectState) -> float | None:
    """Return the seconds by which the node's clock is ahead of the API server's when it wrote the lease."""
    written = [
        seconds(entry.get("time"))
        for entry in items(lease.object, "metadata", "managedFields")
        if entry.get("manager") == "kubelet"
    ]
    told, server = (
        seconds(mapping(lease.object, "spec").get("renewTime")),
        max(filter(None, written), default=None),
    )
    return None if told is None or server is None else told - server


def _dns(case: Case) -> Iterator[Change]:
    """Yield each time in which no pod of the cluster's DNS was ready."""
    ready: dict[str, bool] = {}
    since: ObjectState | None = None
    for seen in sorted(case.bundle.history("dns-pod"), key=lambda s: (s.version, s.type == "DELETED")):
        before = any(ready.values())
        ready[seen.uid] = seen.type != "DELETED" and condition(seen, "Ready").get("status") == "True"
        now = any(ready.values())
        if before and not now:
            since = seen
        elif now and since is not None:
            yield _away(since, _at(seen))
            since = None
    if since is not None:
        yield _away(since, LATE)


def _away(since: ObjectState, until: float) -> Change:
    lasted = "to the end" if until == LATE else f"until {clock(until)}"
    text = f"the cluster's DNS had no ready pod {lasted}"
    return Change(_at(since), "away", "dns-pod", since.name, text, since.ref, until=until)
