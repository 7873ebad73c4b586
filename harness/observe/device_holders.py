"""Record which pods of others hold the devices that pods of a launch wait for.

The scheduler only says "Insufficient nvidia.com/gpu". Who holds them is known while the pods wait, and not
afterwards.
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
"""Pods that one bundle names, those with most devices first."""
_INSUFFICIENT = re.compile(r"Insufficient ([\w.-]+/[\w.-]*\w)")


def record(kube: Kube, pods: Iterable[Object], namespace: str, writer: BundleWriter) -> None:
    """Record the holders where a pod of the launch waits for devices. `namespace` is that of the launch.

    Nothing is recorded where these credentials may not list pods of others.
    """
    waiting = [pod for pod in pods if _waits(pod)]
    messages = [str(condition(pod, "PodScheduled").get("message")) for pod in waiting]
    wanted = {name for message in messages for name in _INSUFFICIENT.findall(message)}
    if not wanted:
        return
    try:
        nodes, others = kube.objects("v1", "Node"), kube.objects("v1", "Pod")
    except ApiException:
        return
    # Devices of a node that its labels or taints keep these pods off are of no use to them.
    nodes = [node for node in nodes if any(accepts(pod, node) for pod in waiting)]
    found = holders(nodes, [pod for pod in others if pod["metadata"].get("namespace") != namespace], wanted)
    for holder in found[:MAX_HOLDERS]:
        writer.device_holder(holder)


def holders(nodes: Iterable[Object], pods: Iterable[Object], wanted: set[str]) -> list[DeviceHolder]:
    """Return the pods that have a node and have not ended, with each wanted device that they request."""
    has = {str(node["metadata"]["name"]): mapping(node, "status", "allocatable") for node in nodes}
    made = []
    for pod in pods:
        node = str(mapping(pod, "spec").get("nodeName") or "")
        if node not in has or mapping(pod, "status").get("phase") in ("Succeeded", "Failed"):
            continue
        for resource, amount in requests(pod).items():
            if resource in wanted and amount > 0:
                made.append(
                    DeviceHolder(
                        at=now(),
                        node=node,
                        resource=resource,
                        namespace=str(pod["metadata"].get("namespace")),
                        pod=str(pod["metadata"]["name"]),
                        owner=_owner(pod),
                        amount=int(amount),
                        allocatable=int(quantity(has[node].get(resource, 0))),
                    )
                )
    return sorted(made, key=lambda one: (-one.amount, one.node, one.namespace, one.pod))


def _waits(pod: Object) -> bool:
    return (
        not mapping(pod, "spec").get("nodeName") and condition(pod, "PodScheduled").get("status") == "False"
    )


def _owner(pod: Object) -> str:
    owners = [each for each in items(pod, "metadata", "ownerReferences") if each.get("controller")]
    return f"{owners[0].get('kind')} {owners[0].get('name')}" if owners else ""
