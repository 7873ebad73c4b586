"""List changes made to the cluster during a launch, and their authors.

A change counts if it happened between the launch and the time when the harness stopped waiting, and if
neither the harness nor a known controller made it. The author of an edit is taken from
metadata.managedFields. Kubernetes does not record who deleted an object. Changes to objects that the bundle
does not contain are unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from harness.core.clock import seconds
from harness.evidence.kubernetes.objects import ObjectState, changed_by, items, mapping
from harness.evidence.schema.training import TRANSFER_SECRET
from harness.judge.case import Case
from harness.judge.change import STATUS, SYSTEM_PODS, Change, title, when
from harness.judge.cluster import pod_deletion
from harness.judge.disturbance.node_and_service_outages import outages
from harness.judge.finding import LATE
from harness.judge.points import elastic

_WRITTEN = (
    *("namespace", "jobset", "job", "statefulset", "daemonset", "pod", "service", "networkpolicy"),
    *("secret", "configmap", "workload", "localqueue", "clusterqueue", "node", "dns"),
    *("jobset-controller", "kueue-controller", "system-daemonset", "dns-service"),
    *("tracker-service", "tracker-deployment", "resourcequota", "limitrange"),
    *("admission-policy", "admission-binding", "validating-webhooks", "mutating-webhooks"),
)
"""Object kinds for which creation, edits and deletion by other clients are reported."""
_OF_THE_JOB = ("pod", "job", "jobset", "statefulset", "daemonset", "workload")
"""Kinds of the objects that the harness launches, and of the objects that these own."""
_WITH_STATUS = ("jobset", "job", "statefulset", "daemonset", "workload")
"""Object kinds whose status should be written only by their controllers."""
_OF_ADMISSION = ("admission-policy", "admission-binding", "validating-webhooks", "mutating-webhooks")
_CONTROLLERS = {
    *("kubelet", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kindnetd", "kubeadm"),
    *("jobset", "manager", "kueue", "coredns", "pluto-e2e-harness"),
}
"""Field managers used by Kubernetes, JobSet (`manager` in older versions), Kueue and the harness."""
_OF_KUEUE = "kueue-"
"""Prefix for Kueue's other field managers, such as kueue-admission and kueue-job-controller-PodsReady."""
_MAKERS = {"OpenAPI-Generator", "torchrun-controller"}
"""Field managers used by konduktor and the torchrun controller, which create a launch's objects."""


def changes(case: Case) -> list[Change]:
    """Return the changes that other clients made during the launch, earliest first."""
    begin, end = _window(case)
    candidates = [*_writes(case), *_deleted(case), *outages(case)]
    # When a watch reconnects, it can record the same event twice.
    once = {(change.at, change.text): change for change in candidates if begin <= change.at <= end}
    return [once[key] for key in sorted(once)]


def _window(case: Case) -> tuple[float, float]:
    """Return the time of the launch and the time when the harness stopped waiting.

    Later changes are ignored, because the harness itself then deletes the launch's objects.
    """
    end = case.waited_until
    return case.since or LATE, LATE if end is None else end


def _other_managers(managers: list[str]) -> list[str]:
    return [name for name in managers if name not in _CONTROLLERS and not name.startswith(_OF_KUEUE)]


def _writes(case: Case) -> Iterator[Change]:
    """Yield each creation or edit of an object by a field manager that is not a known controller."""
    for kind in _WRITTEN:
        for states in case.bundle.objects(kind).values():
            yield from _created(case, kind, states[0])
            for before, after in pairwise(states):
                if kind in _WITH_STATUS:
                    yield from _status_written(kind, before, after)
                managers, fields = (
                    _other_managers(changed_by(before, after)),
                    _differences(before.object, after.object),
                )
                removed = _removed(before.object, after.object)
                scaled = "spec.replicas" in fields and items(after.object, "metadata", "managedFields")
                if scaled and not changed_by(before, after):
                    # The author is unknown, because `kubectl scale` does not record a field manager.
                    managers = ["somebody"]
                if kind in _OF_ADMISSION and set(managers) <= set(_managers(before)):
                    continue  # A webhook's controller edits the configuration to renew a certificate.
                if kind in _OF_THE_JOB and removed and not changed_by(before, after):
                    # Kubernetes does not record a field manager for the removal of a field.
                    managers = ["somebody"]
                if after.type != "DELETED" and managers and fields:
                    edits = ", ".join(
                        [*fields, *(f"without {part}" for part in removed if kind in _OF_THE_JOB)]
                    )
                    text = f"{title(after)} was edited by {', '.join(managers)} ({edits})"
                    if fields == ("spec.replicas",) and (scaling_text := elastic.scaling(before, after)):
                        text = f"{title(after)} was {scaling_text}"
                    at = when(after)
                    yield Change(at, "edited", kind, after.name, text, after.ref, fields, removed=removed)


def _managers(state: ObjectState) -> list[str]:
    return [str(entry.get("manager")) for entry in items(state.object, "metadata", "managedFields")]


def _status_written(kind: str, before: ObjectState, after: ObjectState) -> Iterator[Change]:
    """Yield a change if a client other than a controller wrote to the status of an object of the job."""

    def writes(state: ObjectState) -> set[tuple[str, str]]:
        entries = items(state.object, "metadata", "managedFields")
        return {
            (str(e.get("manager")), str(e.get("time"))) for e in entries if e.get("subresource") == "status"
        }

    managers = _other_managers(sorted({manager for manager, _ in writes(after) - writes(before)} - _MAKERS))
    if managers and after.type != "DELETED":
        outcome = ended(after)
        text = f"the status of {title(after)} was edited by {', '.join(managers)}"
        text += f": it says {outcome}" if outcome and outcome != ended(before) else ""
        yield Change(when(after), "edited", kind, after.name, text, after.ref, (STATUS,))


def ended(state: ObjectState) -> str | None:
    """Return the terminal state or condition in an object's status, or None."""
    conditions = items(state.object, "status", "conditions")
    true = [c.get("type") for c in conditions if c.get("status") == "True"]
    word = next((w for w in ("Completed", "Complete", "Failed", "Finished") if w in true), None)
    return mapping(state.object, "status").get("terminalState") or word


def _removed(before: dict[str, Any], after: dict[str, Any]) -> tuple[str, ...]:
    """Return the labels and owner references that were removed between two states of an object."""
    old, new = mapping(before, "metadata"), mapping(after, "metadata")
    owners = {owner.get("uid") for owner in items(new, "ownerReferences")}
    removed = [owner for owner in items(old, "ownerReferences") if owner.get("uid") not in owners]
    return (
        *(f"label {name}" for name in mapping(old, "labels") if name not in mapping(new, "labels")),
        *(f"owner {owner.get('kind')} {owner.get('name')}" for owner in removed),
    )


def _created(case: Case, kind: str, first: ObjectState) -> Iterator[Change]:
    created_at = seconds(mapping(first.object, "metadata").get("creationTimestamp")) or 0.0
    managers = [name for name in _other_managers(_managers(first)) if name not in _MAKERS]
    if first.type == "ADDED" and managers and created_at >= (case.since or LATE) - 1:
        text = f"{title(first)} was created by {', '.join(dict.fromkeys(managers))}"
        yield Change(when(first), "created", kind, first.name, text, first.ref)


def _differences(before: dict[str, Any], after: dict[str, Any]) -> tuple[str, ...]:
    """Return the fields, other than status fields, in which two states of an object differ.

    The content of Secrets and ConfigMaps is not recorded. For these, the result shows only that the object
    was written.
    """
    if "spec" not in after and "status" not in after:
        return ("its content",)
    metadata = [
        f"metadata.{part}"
        for part in ("labels", "annotations", "ownerReferences")
        if (mapping(before, "metadata").get(part) or None) != (mapping(after, "metadata").get(part) or None)
    ]
    old, new = mapping(before, "spec"), mapping(after, "spec")
    keys = sorted({*old, *new})
    return (*metadata, *(f"spec.{key}" for key in keys if old.get(key) != new.get(key)))


def _deleted(case: Case) -> Iterator[Change]:
    """Yield each deletion that was not caused by another deletion, a restart or the end of the job."""
    deletions = [
        (kind, state)
        for kind in (*_WRITTEN, *SYSTEM_PODS)
        for states in case.bundle.objects(kind).values()
        if (state := next(filter(pod_deletion.leaving, states), None)) is not None
    ]
    namespace = min((s.version for kind, s in deletions if kind == "namespace"), default=None)
    versions = {state.uid: state.version for _, state in deletions}
    for kind, state in deletions:
        inside = mapping(state.object, "metadata").get("namespace") == case.launch.namespace
        if kind != "namespace" and inside and namespace is not None and namespace < state.version:
            continue
        owners = [str(o.get("uid")) for o in items(state.object, "metadata", "ownerReferences")]
        if any(versions.get(owner, state.version + 1) <= state.version for owner in owners):
            continue
        if kind == "jobset" and state.uid == case.launch.uid and pod_deletion.by_torchrun_controller(case):
            continue
        if kind == "secret" and state.name == TRANSFER_SECRET:
            continue
        if kind in {"pod", "job"} and not _by_somebody(case, kind, state):
            continue
        if kind == "pod" and elastic.scaled_away(case, state):
            continue
        text = f"{title(state)} was deleted"
        yield Change(when(state), "deleted", kind, state.name, text, state.ref)


def _by_somebody(case: Case, kind: str, state: ObjectState) -> bool:
    """Return whether another client must have deleted this pod or Job.

    This is the case if no controller had a reason to delete it.
    """
    if case.terminal is not None or (case.jobset and mapping(case.jobset.object, "status").get("restarts")):
        return False
    if kind == "job":
        return True
    if pod_deletion.at_the_deadline(case, state) is not None:
        return False
    pods = [pod for attempts in case.pod_attempts.values() for pod in attempts]
    own_pod = next((pod for pod in pods if pod.last.uid == state.uid), None)
    return own_pod is not None and pod_deletion.by_somebody(case, own_pod, state)
