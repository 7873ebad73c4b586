"""List the launches on a cluster, with each launch's object, state, pods, and ranks per pod."""

from __future__ import annotations

from harness.cli.launch_status_text import LaunchStatus, PodStatus
from harness.core.kubernetes import NOT_SERVED, Kube, Object, condition
from harness.evidence.kubernetes.objects import ObjectState
from harness.evidence.kubernetes.workload_pods import members
from harness.evidence.schema.bundle import Launch
from harness.launch import namespaces
from harness.launch.labels import NONCE_LABEL, QUEUE_LABEL, RANKS_PER_POD


def launches(kube: Kube) -> list[LaunchStatus]:
    """Return the harness's launches, oldest first."""
    objects = [item for kind in namespaces.LAUNCHED for item in namespaces.launched(kube, kind)]
    workloads = _served(kube, "kueue.x-k8s.io/v1beta2", "Workload")
    pods = kube.objects("v1", "Pod", selector=NONCE_LABEL)
    return [
        of_namespace(namespace, *(_within(namespace, items) for items in (objects, workloads, pods)))
        for namespace in sorted(
            namespaces.of_launches(kube), key=lambda item: str(item["metadata"]["creationTimestamp"])
        )
    ]


def of_namespace(
    namespace: Object, objects: list[Object], workloads: list[Object], pods: list[Object]
) -> LaunchStatus:
    """Return the status of the launch in a namespace, given the launched objects, Workloads and pods in
    it."""
    name = str(namespace["metadata"]["name"])
    if not objects:
        # The namespace is created before the launched object. It remains if an object that restarts pods,
        # such as a StatefulSet, is deleted at the end of the launch.
        return LaunchStatus(namespace=name, state="not launched yet, or already deleted")
    item = objects[-1]
    per_pod = int((namespace["metadata"].get("annotations") or {}).get(RANKS_PER_POD, 1))
    return LaunchStatus(
        namespace=name,
        kind=item["kind"],
        name=item["metadata"]["name"],
        state=_state(item),
        queue=_admission(workloads) if QUEUE_LABEL in (item["metadata"].get("labels") or {}) else None,
        pods=_pods(item, pods, per_pod),
    )


def _served(kube: Kube, api_version: str, kind: str) -> list[Object]:
    try:
        return kube.objects(api_version, kind)
    except NOT_SERVED:
        return []


def _within(namespace: Object, items: list[Object]) -> list[Object]:
    return [item for item in items if item["metadata"]["namespace"] == namespace["metadata"]["name"]]


def _state(item: Object) -> str:
    """Return the state that a launched object reports in its status.

    A StatefulSet or DaemonSet never reports that it has ended.
    """
    status = item.get("status") or {}
    end_condition = next(
        (word for word in ("Complete", "Failed") if condition(item, word).get("status") == "True"), None
    )
    if state := status.get("terminalState") or end_condition:
        return str(state)
    if item["spec"].get("suspend"):
        return "suspended"
    if item["kind"] == "StatefulSet":
        return f"{status.get('readyReplicas', 0)} of {item['spec'].get('replicas', 1)} pods ready"
    if item["kind"] == "DaemonSet":
        return f"{status.get('numberReady', 0)} of {status.get('desiredNumberScheduled', 0)} pods ready"
    return "running"


def _admission(workloads: list[Object]) -> str:
    """Return the admission status that Kueue reports for a launched object, with the condition's message."""
    for workload in workloads:
        for kind in ("Finished", "Evicted", "Admitted", "QuotaReserved"):
            reported = condition(workload, kind)
            if reported and (reported["status"] == "True" or kind == "QuotaReserved"):
                message = reported.get("message") or reported.get("reason")
                return f"{kind}: {message}" if reported["status"] == "True" else f"not admitted: {message}"
    return "Kueue reports no condition"


def _pods(item: Object, pods: list[Object], per_pod: int) -> list[PodStatus]:
    """Return the pods of a launched object: first the pods with ranks, in the order of their ranks, then all
    other pods."""
    metadata = item["metadata"]
    launch = Launch(
        launcher="",
        namespace=metadata["namespace"],
        kind=item["kind"],
        object_name=metadata["name"],
        uid=metadata["uid"],
    )
    numbered = members(launch, [[ObjectState("", "ADDED", "", pod)] for pod in pods])
    first_ranks = {lives[-1].name: index * per_pod for index, lives in numbered.items()}
    rows = [
        PodStatus(
            name=(name := str(pod["metadata"]["name"])),
            ranks=list(range(first_ranks[name], first_ranks[name] + per_pod)) if name in first_ranks else [],
            state=_pod(pod),
        )
        for pod in pods
    ]
    return sorted(rows, key=lambda row: (not row.ranks, row.ranks, row.name))


def _pod(pod: Object) -> str:
    """Return a pod's phase and node, the reason if it is waiting, and its number of container restarts."""
    status, node = pod["status"], pod["spec"].get("nodeName", "no node")
    containers = status.get("containerStatuses") or []
    waiting = [
        f"{c['state']['waiting'].get('reason')}: {c['state']['waiting'].get('message', '')}".rstrip(": ")
        for c in containers
        if "waiting" in (c.get("state") or {})
    ]
    unscheduled = condition(pod, "PodScheduled")
    waiting += [str(unscheduled.get("message"))] if unscheduled.get("status") == "False" else []
    restarts = sum(c.get("restartCount", 0) for c in containers)
    waiting += [f"restarted {restarts}×"] if restarts else []
    return "; ".join([f"{status.get('phase')} on {node}", *waiting])
