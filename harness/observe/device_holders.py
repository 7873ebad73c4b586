"""Record pods outside a launch that use devices for which the launch's pods are waiting.

The scheduler only reports "Insufficient nvidia.com/gpu". The pods that use the devices must be listed while
the launch is waiting, because they might be gone afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kubernetes.client.exceptions import ApiException

from harness.core.clock import now
from harness.core.kubernetes import Kube, Object, condition
from harness.evidence.io.writer import BundleWriter
from harness.evidence.kubernetes.objects import items, mapping
from harness.evidence.kubernetes.unschedulable import accepts, quantity, requests
from harness.evidence.schema.bundle import DeviceHolder

MAX_HOLDERS = 1000
"""The maximum number of pods recorded in one bundle. The pods with the most devices come first."""
_INSUFFICIENT = re.compile(r"Insufficient ([\w.-]+/[\w.-]*\w)")


def record(kube: Kube, pods: Iterable[Object], namespace: str, writer: BundleWriter) -> None:
    """Record the pods outside `namespace` that use devices for which one of the launch's `pods` is waiting.

    Nothing is recorded if the credentials do not permit listing pods in other namespaces.
    """
    waiting = [pod for pod in pods if _waits(pod)]
    messages = [str(condition(pod, "PodScheduled").get("message")) for pod in waiting]
    resources = {name for message in messages for name in _INSUFFICIENT.findall(message)}
    if not resources:
        return
    try:
        nodes, all_pods = kube.objects("v1", "Node"), kube.objects("v1", "Pod")
    except ApiException:
        return
    # If a node's labels or taints exclude the waiting pods, its devices do not matter.
    nodes = [node for node in nodes if any(accepts(pod, node) for pod in waiting)]
    foreign = [pod for pod in all_pods if pod["metadata"].get("namespace") != namespace]
    for holder in holders(nodes, foreign, resources)[:MAX_HOLDERS]:
        writer.device_holder(holder)


def holders(nodes: Iterable[Object], pods: Iterable[Object], resources: set[str]) -> list[DeviceHolder]:
    """Return the pods on `nodes` that request `resources`, ordered by their number of devices, highest first.

    Pods that have ended are omitted.
    """
    allocatable = {str(node["metadata"]["name"]): mapping(node, "status", "allocatable") for node in nodes}
    records = []
    for pod in pods:
        node = str(mapping(pod, "spec").get("nodeName") or "")
        if node not in allocatable or mapping(pod, "status").get("phase") in ("Succeeded", "Failed"):
            continue
        for resource, amount in requests(pod).items():
            if resource in resources and amount > 0:
                records.append(
                    DeviceHolder(
                        at=now(),
                        node=node,
                        resource=resource,
                        namespace=str(pod["metadata"].get("namespace")),
                        pod=str(pod["metadata"]["name"]),
                        owner=_owner(pod),
                        amount=int(amount),
                        allocatable=int(quantity(allocatable[node].get(resource, 0))),
                    )
                )
    return sorted(records, key=lambda one: (-one.amount, one.node, one.namespace, one.pod))


def _waits(pod: Object) -> bool:
    return (
        not mapping(pod, "spec").get("nodeName") and condition(pod, "PodScheduled").get("status") == "False"
    )


def _owner(pod: Object) -> str:
    owners = [each for each in items(pod, "metadata", "ownerReferences") if each.get("controller")]
    return f"{owners[0].get('kind')} {owners[0].get('name')}" if owners else ""
