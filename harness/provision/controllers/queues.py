"""Create Kueue's queues: one ResourceFlavor and ClusterQueue per cluster, and one LocalQueue per launch.

The quotas are the free resources of the schedulable nodes. These are the nodes' allocatable resources, minus
the requests of the pods on them.
"""

from __future__ import annotations

from decimal import ROUND_DOWN, Decimal
from typing import Any

import yaml
from kubernetes.client.exceptions import ApiException
from kubernetes.utils.quantity import parse_quantity

from harness.core.errors import HarnessError
from harness.core.kubernetes import Kube, Object, condition
from harness.evidence.kubernetes.unschedulable import requests

API = "kueue.x-k8s.io/v1beta2"
FLAVOR = "default-flavor"
CLUSTER_QUEUE = "cluster-queue"
FRAMEWORKS = {"JobSet": "jobset.x-k8s.io/jobset", "Job": "batch/job", "StatefulSet": "statefulset"}
"""Maps a kind of workload to its name under integrations.frameworks in Kueue's configuration."""
MANAGED = {"app.kubernetes.io/managed-by": "pluto-e2e-harness"}


def quotas(nodes: list[Object], pods: list[Object]) -> dict[str, Decimal]:
    """Return the total free amount of each resource on all schedulable nodes.

    CPU is in cores; memory, ephemeral storage and huge pages are in bytes. The number of pods is omitted, and
    so are resources that no node has, except for CPU and memory.
    """
    names = {node["metadata"]["name"] for node in nodes if _schedulable(node)}
    total: dict[str, Decimal] = {"cpu": Decimal(0), "memory": Decimal(0)}
    for node in nodes:
        if node["metadata"]["name"] in names:
            for resource, text in node["status"]["allocatable"].items():
                amount = parse_quantity(text)
                if resource in total or (resource != "pods" and amount):
                    total[resource] = total.get(resource, Decimal(0)) + amount
    for pod in pods:
        if pod["spec"].get("nodeName") in names and pod["status"].get("phase") in ("Pending", "Running"):
            for resource, amount in requests(pod).items():
                if resource in total:
                    total[resource] -= amount
    return {resource: max(Decimal(0), amount) for resource, amount in total.items()}


def fitting_request(request: Decimal, pods: int, quota: Decimal, node: Decimal) -> Decimal | None:
    """Return the largest CPU request with which `pods` pods fit into a single node's quota.

    The request is rounded down to a multiple of 10 millicores. Returns None if the pods fit with their own
    `request`. Also returns None if `request` is larger than the node's CPUs, because such a job is supposed
    to fail.
    """
    share = (quota / pods).quantize(Decimal("0.01"), rounding=ROUND_DOWN)
    return share if request > share > 0 and request <= node else None


def single_node_request(kube: Kube, cpu_request: Decimal, pods: int) -> str | None:
    """Return the largest CPU request with which `pods` pods fit into a cluster with one schedulable node.

    Returns None if the request need not be reduced, or if the number of schedulable nodes is not one. On a
    single node, a job's pods share the machine with the control plane. Their CPU requests can then exceed the
    quota although the machine can handle their actual load.
    """
    nodes = [node for node in kube.objects("v1", "Node") if _schedulable(node)]
    queue = kube.get(API, "ClusterQueue", CLUSTER_QUEUE)
    if len(nodes) != 1 or queue is None:
        return None
    resources = queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"]
    quota = next(parse_quantity(r["nominalQuota"]) for r in resources if r["name"] == "cpu")
    request = fitting_request(
        cpu_request, pods, quota, parse_quantity(nodes[0]["status"]["allocatable"]["cpu"])
    )
    return None if request is None else _quantity("cpu", request)


def _schedulable(node: Object) -> bool:
    taints = node["spec"].get("taints") or []
    blocked = any(taint["effect"] in ("NoSchedule", "NoExecute") for taint in taints)
    return not blocked and not node["spec"].get("unschedulable")


def schedulable_nodes(kube: Kube) -> int:
    return sum(_schedulable(node) for node in kube.objects("v1", "Node"))


def install(kube: Kube, seconds: float = 60) -> dict[str, str]:
    """Create the ResourceFlavor and the ClusterQueue, wait until the ClusterQueue is Active, and return its
    quotas."""
    amounts = quotas(kube.objects("v1", "Node"), kube.objects("v1", "Pod"))
    texts = {resource: _quantity(resource, amount) for resource, amount in amounts.items()}
    resources = [{"name": resource, "nominalQuota": text} for resource, text in texts.items()]
    group = {"coveredResources": list(texts), "flavors": [{"name": FLAVOR, "resources": resources}]}
    kube.apply(
        {
            "apiVersion": API,
            "kind": "ResourceFlavor",
            "metadata": {"name": FLAVOR, "labels": MANAGED},
            "spec": {},
        }
    )
    kube.apply(
        {
            "apiVersion": API,
            "kind": "ClusterQueue",
            "metadata": {"name": CLUSTER_QUEUE, "labels": MANAGED},
            "spec": {"namespaceSelector": {}, "resourceGroups": [group]},
        }
    )
    kube.wait(
        "ClusterQueue Active",
        API,
        "ClusterQueue",
        _active(CLUSTER_QUEUE),
        seconds=seconds,
        cause="queue.inactive",
    )
    return texts


def local_queue(
    kube: Kube, namespace: str, name: str, cluster_queue: str = CLUSTER_QUEUE, seconds: float = 30
) -> None:
    """Create a LocalQueue in the launch's namespace, and wait until it is Active.

    Raises HarnessError (cause queue.*). If the ClusterQueue does not exist or admits nothing, the error is
    raised without waiting.
    """
    admits(kube, cluster_queue)
    metadata = {"name": name, "namespace": namespace, "labels": MANAGED}
    kube.apply(
        {
            "apiVersion": API,
            "kind": "LocalQueue",
            "metadata": metadata,
            "spec": {"clusterQueue": cluster_queue},
        }
    )
    kube.wait(
        f"LocalQueue {name} Active",
        API,
        "LocalQueue",
        _active(name),
        seconds=seconds,
        namespace=namespace,
        cause="queue.inactive",
    )


def covered(kube: Kube, name: str) -> set[str]:
    """Return the resources for which a ClusterQueue has a quota."""
    queue = kube.get(API, "ClusterQueue", name) or {"spec": {}}
    groups = queue["spec"].get("resourceGroups") or []
    return {resource for group in groups for resource in group["coveredResources"]}


def admits(kube: Kube, name: str) -> None:
    """Raise HarnessError (cause queue.*) if a ClusterQueue does not exist or admits nothing."""
    queue = kube.get(API, "ClusterQueue", name)
    if queue is None:
        raise HarnessError(
            f"ClusterQueue {name} does not exist",
            hint="run `harness down`; the next run then creates a cluster with this ClusterQueue",
            cause="queue.cluster_queue_missing",
        )
    active, policy = condition(queue, "Active"), queue["spec"].get("stopPolicy") or "None"
    if active.get("status") == "False" or policy != "None":
        reason = f"{active['reason']}: {active['message']}" if active.get("status") == "False" else "stopped"
        raise HarnessError(
            f"ClusterQueue {name} does not admit workloads: {reason} (stopPolicy {policy})",
            hint=f"run `kubectl describe clusterqueue {name}` for details",
            cause="queue.inactive",
        )


def manages(kube: Kube, kind: str) -> None:
    """Raise HarnessError (cause queue.kind_not_managed) if Kueue's configuration does not enable this kind of
    workload.

    No error is raised if the configuration cannot be read or does not exist under the usual name. A launch
    then fails later if Kueue does not create a Workload.
    """
    try:
        config_map = kube.get("v1", "ConfigMap", "kueue-manager-config", "kueue-system")
    except ApiException as error:
        if error.status not in (401, 403):
            raise
        return
    if config_map is not None:
        check_configuration(config_map, kind)


def check_configuration(config_map: Object, kind: str) -> None:
    """Check whether Kueue's ConfigMap enables this kind of workload. Raises the same errors as `manages`."""
    text = (config_map.get("data") or {}).get("controller_manager_config.yaml")
    if text is None:
        return
    configuration = yaml.safe_load(text) or {}
    # By default, Kueue manages only batch/job (apis/config/v1beta2/defaults.go).
    enabled = (configuration.get("integrations") or {}).get("frameworks") or ["batch/job"]
    if FRAMEWORKS[kind] not in enabled:
        raise HarnessError(
            f"Kueue on this cluster does not manage a {kind}: its enabled integrations are "
            f"{', '.join(enabled)}",
            hint=f"add {FRAMEWORKS[kind]} to integrations.frameworks in ConfigMap kueue-manager-config and "
            "restart Kueue, or remove the queue name",
            cause="queue.kind_not_managed",
        )


def _active(name: str) -> Any:
    def done(queues: dict[str, Object]) -> str | None:
        active = condition(queues.get(name, {}), "Active")
        if not active:
            return "no Active condition yet"
        return None if active["status"] == "True" else f"{active['reason']}: {active['message']}"

    return done


def _quantity(resource: str, amount: Decimal) -> str:
    """Return an amount as a quantity: in millicores, in mebibytes, or as an integer."""
    if resource == "cpu":
        return f"{int(amount * 1000)}m"
    if resource in ("memory", "ephemeral-storage") or resource.startswith("hugepages-"):
        return f"{int(amount / 2**20)}Mi"
    return str(int(amount))
