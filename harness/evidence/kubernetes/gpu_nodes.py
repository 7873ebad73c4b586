"""Determine which GPUs a node has, how many it can provide to pods, and whether they are shared or split.

Four values must be distinguished: a node's capacity, its allocatable resources, the requests from other pods
(harness/observe/device_holders.py), and the device plugin's labels, which show how many times each GPU is
offered. The labels are those set by NVIDIA GPU Feature Discovery 0.17 and by GKE.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from harness.core.causes import CauseId
from harness.evidence.kubernetes.objects import ENDED_BY_NODE, items, mapping
from harness.evidence.kubernetes.unschedulable import quantity, requests

GPU = "nvidia.com/gpu"
SHARED = f"{GPU}.shared"
"""The resource name for shared GPUs if renameByDefault is set in the device plugin."""
_MIG = "nvidia.com/mig-"
_OF_NVIDIA = r"nvidia\.com/(?!hostdev|mlnx|sriov|rdma|roce|ib|hca|nic|cx-?\d|bf-?\d)"
"""Beginning of a pattern for NVIDIA's resources, except the network devices of its network operator."""
_LIKE_GPU = re.compile(rf"gpu|^{_OF_NVIDIA}", re.IGNORECASE)
_COUNT, _REPLICAS, _PRODUCT = f"{GPU}.count", f"{GPU}.replicas", f"{GPU}.product"
_STRATEGY, _SLICES = f"{GPU}.sharing-strategy", "nvidia.com/gpu.slices.gi"
_GKE_STRATEGY, _GKE_CLIENTS = (
    "cloud.google.com/gke-gpu-sharing-strategy",
    "cloud.google.com/gke-max-shared-clients-per-gpu",
)
_GKE_MIG = "cloud.google.com/gke-gpu-partition-size"
_ACCELERATORS = (
    "cloud.google.com/gke-accelerator",
    "k8s.amazonaws.com/accelerator",
    "kubernetes.azure.com/accelerator",
)
_MIG_STATE = "nvidia.com/mig.config.state"
"""The node label in which NVIDIA's MIG manager reports the state of a change to the node's MIG devices."""
_UPGRADE_STATE, _DEPLOY_PLUGIN = "nvidia.com/gpu-driver-upgrade-state", "nvidia.com/gpu.deploy.device-plugin"
"""The node labels with which the GPU operator reports a driver upgrade and pauses the device plugin."""
_WAIT = "wait until the GPU operator has finished this change (`kubectl get nodes -L {}`), or use other nodes"
_UPGRADE_FAILED = "read the log of the GPU operator's driver pod on this node, and repeat the upgrade"
_HAMI = "/node-nvidia-register"
"""The suffix of the annotation in which HAMi's device plugin lists the GPUs that it shares."""
_WITHOUT_PLUGIN = {
    _DEPLOY_PLUGIN: ("false",),
    "nvidia.com/gpu.workload.config": ("vm-passthrough", "vm-vgpu"),
}
"""Values of labels on nodes whose GPUs are not available to containers, for example because they are passed
through to virtual machines."""


@dataclass(frozen=True)
class Parts:
    """The reason why the devices offered by a node are not whole GPUs."""

    cause: Literal["gpu.shared", "gpu.mig"]
    text: str
    """The reason as a predicate whose subject is the node, such as "has 1 GPU, shared by 15
    (time-slicing)"."""


_ABOUT_GPUS = re.compile(r"gpu|xid|nvlink|nvswitch|nvidia|accelerated", re.IGNORECASE)
_FAULT = re.compile(
    r"error|xid|missing|unhealthy|not_?healthy|inactive|fail|fall|lost|down|degrad|problem", re.IGNORECASE
)
"""Pattern for the types and reasons of conditions that report a fault if their status is True."""
_MAX_MESSAGE = 200
_REJECTED = "Pod was rejected: "
"""The beginning of a pod's status message if the kubelet refused to run the pod. Older kubelets omit it."""
_ENDED_OTHERWISE = ("DeadlineExceeded", *ENDED_BY_NODE)
"""Status reasons of failed pods that the kubelet had not rejected. Such a pod was ended later, by the kubelet
or a controller."""
_NONE_LEFT = re.compile(r"\bcapacity: 0\b")
_OF_GPUS = re.compile(
    rf"{_OF_NVIDIA}|/[\w.-]*(gpu|vcuda)|nvml|\bGPU-[0-9a-f]|amd\.com/gpu|gpu\.intel\.com/|habana\.ai/"
    r"|unhealthy devices(?! [\w.-]+/)|GetPreferredAllocation",
    re.IGNORECASE,
)
"""Pattern for those of the device manager's messages that are about GPUs and not about other devices, such as
network devices."""
_SHARED_ONCE = "maximum request size for shared resources"
"""Part of the device plugin's error message if failRequestsGreaterThanOne is set. MPS implies this
setting."""


@dataclass(frozen=True)
class Shortage:
    """The reason why a node cannot provide the GPUs that a pod requests.

    `text` is a predicate whose subject is the node.
    """

    cause: CauseId
    text: str
    advice: str = ""
    """What the user should do, or "" if the cause's action in the catalogue is enough."""
    small: bool = False
    """Whether the only reason is that the node has no devices, or fewer than requested."""


def offered(node: Mapping[str, Any], resource: str, *, part: str = "allocatable") -> int:
    """Return the amount of an extended resource in a node's status. `part` is "capacity" or "allocatable"."""
    return int(quantity(mapping(node, "status", part).get(resource, 0)))


def gpu_resources(node: Mapping[str, Any]) -> dict[str, int]:
    """Return the node's extended resources that represent GPUs or parts of GPUs, with their capacity."""
    names = mapping(node, "status", "capacity")
    counts = {name: offered(node, name, part="capacity") for name in names if _LIKE_GPU.search(name)}
    return {name: count for name, count in counts.items() if count}


def is_gpu_node(node: Mapping[str, Any]) -> bool:
    """Return whether a node has NVIDIA GPUs, according to its capacity or its labels.

    If a node's device plugin is not running, the node has no GPU capacity but still has its labels.
    """
    if any(name in (GPU, SHARED) or name.startswith(_MIG) for name in gpu_resources(node)):
        return True
    labels = _labels(node)
    if any(labels.get(key) in values for key, values in _WITHOUT_PLUGIN.items()):
        return False
    present = labels.get("nvidia.com/gpu.present") == "true" or bool(_number(labels, _COUNT))
    return present or any(labels.get(key, "").lower().startswith("nvidia") for key in _ACCELERATORS)


def parts(node: Mapping[str, Any]) -> Parts | None:
    """Return why the devices offered by a node are shared GPUs or parts of GPUs, or None if they are whole
    GPUs."""
    return _mig(node) or _shared(node)


def proved_whole(node: Mapping[str, Any]) -> bool:
    """Return whether a node's labels prove that its device plugin offers each GPU only once."""
    count = _number(_labels(node), _COUNT)
    return parts(node) is None and count is not None and count >= offered(node, GPU, part="capacity") > 0


def shortage(node: Mapping[str, Any], resource: str, requested: int) -> Shortage | None:
    """Return why a node cannot provide `requested` devices to a pod even if it runs no other pods.

    Returns None if it can provide them.
    """
    capacity, allocatable = offered(node, resource, part="capacity"), offered(node, resource)
    if allocatable >= requested:
        return None
    in_progress = _mig_change(node, capacity) or _driver_upgrade(node)
    return in_progress or _shortage(node, resource, requested, capacity, allocatable)


def _driver_upgrade(node: Mapping[str, Any]) -> Shortage | None:
    """Return the shortage caused by an unfinished or failed upgrade of a node's driver, or None.

    The GPU operator stops the device plugin before it replaces the driver.
    """
    plugin, state = (_labels(node).get(key, "") for key in (_DEPLOY_PLUGIN, _UPGRADE_STATE))
    if state == "upgrade-failed":
        text = f"has GPUs whose driver could not be upgraded ({_UPGRADE_STATE}={state})"
        return Shortage("gpu.not_allocatable", text, _UPGRADE_FAILED)
    if plugin.startswith("paused-for-"):
        text = f"has GPUs whose device plugin is paused ({_DEPLOY_PLUGIN}={plugin})"
        return Shortage("scheduling.unschedulable", text, _WAIT.format(_DEPLOY_PLUGIN))
    if state not in ("", "unknown", "upgrade-done", "upgrade-required"):
        text = f"has GPUs whose driver is being upgraded ({_UPGRADE_STATE}={state})"
        return Shortage("scheduling.unschedulable", text, _WAIT.format(_UPGRADE_STATE))
    return None


def fault_conditions(node: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the conditions in which a health monitor reports a fault of a node's GPUs.

    NVSentinel and the node problem detector set such a condition to True (SysLogsXIDError, GPUMissing). The
    EKS node monitoring agent sets AcceleratedHardwareReady to False.
    """
    return [one for one in items(node, "status", "conditions") if _is_fault(one)]


def _is_fault(condition: Mapping[str, Any]) -> bool:
    kind, reason = str(condition.get("type")), str(condition.get("reason"))
    if not _ABOUT_GPUS.search(f"{kind} {reason}"):
        return False
    if kind.endswith(("Ready", "Healthy")):
        return condition.get("status") == "False"
    return condition.get("status") == "True" and _FAULT.search(f"{kind} {reason}") is not None


def unhealthy(node: Mapping[str, Any]) -> list[str]:
    """Return the GPUs that the node's device plugin reports as unhealthy, as predicates about the node."""
    counts = ((name, count, offered(node, name)) for name, count in gpu_resources(node).items())
    return [_unhealthy(name, count, healthy) for name, count, healthy in counts if healthy < count]


def unhealthy_devices(pod: Mapping[str, Any]) -> list[str]:
    """Return the devices of a pod's containers that the kubelet reports as unhealthy.

    The kubelet writes them to the pod's status if the feature gate ResourceHealthStatus is enabled.
    """
    return [
        f"{device.get('resourceID')} ({resource.get('name')})"
        for status in items(pod, "status", "containerStatuses")
        for resource in items(status, "allocatedResourcesStatus")
        for device in items(resource, "resources")
        if device.get("health") == "Unhealthy"
    ]


def condition_text(condition: Mapping[str, Any]) -> str:
    """Return a condition as a clause that quotes its reason and message."""
    message = str(condition.get("message") or "no message").strip().rstrip(".")[:_MAX_MESSAGE]
    return f"{condition.get('type')} is {condition.get('status')}, {condition.get('reason')}: {message}"


def _mig_change(node: Mapping[str, Any], capacity: int) -> Shortage | None:
    """Return the shortage caused by an unfinished or failed change to a node's MIG devices, or None."""
    state = _labels(node).get(_MIG_STATE, "")
    if state in ("pending", "rebooting"):  # The MIG manager stops the device plugin during the change.
        text = f"has GPUs whose MIG devices are being changed ({_MIG_STATE}={state})"
        return Shortage("scheduling.unschedulable", text, _WAIT.format(_MIG_STATE))
    if state == "failed" and not capacity:
        text = f"has GPUs whose MIG devices could not be changed ({_MIG_STATE}=failed)"
        return Shortage("gpu.not_allocatable", text)
    return None


def _shortage(
    node: Mapping[str, Any], resource: str, requested: int, capacity: int, allocatable: int
) -> Shortage:
    labelled = _number(_labels(node), _COUNT) if resource == GPU and parts(node) is None else None
    if capacity >= requested:
        conditions = "; ".join(map(condition_text, fault_conditions(node)))
        text = _unhealthy(resource, capacity, allocatable) + (f" ({conditions})" if conditions else "")
        return Shortage("gpu.not_allocatable", text)
    if labelled is not None and labelled >= requested:
        text = f"has {labelled} GPUs according to the label {_COUNT}, but the device plugin offers {capacity}"
        return Shortage("gpu.not_allocatable", text)
    if other := parts(node):
        return Shortage("scheduling.unschedulable", other.text)
    if not capacity and resource == GPU and is_gpu_node(node):
        text = f"is labelled as a GPU node, but has no {GPU}: the device plugin is not running"
        return Shortage("gpu.not_allocatable", text)
    other_resources = {name: count for name, count in gpu_resources(node).items() if name != resource}
    if not capacity and other_resources:
        listed = ", ".join(f"{count} {name}" for name, count in sorted(other_resources.items()))
        return Shortage("scheduling.unschedulable", f"has {listed}, but no {resource}")
    return Shortage("scheduling.unschedulable", f"has {capacity} {resource}", small=True)


def rejection(pod: Mapping[str, Any]) -> Shortage | None:
    """Return why the kubelet on a pod's node rejected the pod, or None if it did not.

    None of a rejected pod's containers ever starts. The pod's status contains a reason, such as
    UnexpectedAdmissionError, OutOfcpu, NodeAffinity, TopologyAffinityError or NodeShutdown.
    """
    status = mapping(pod, "status")
    reason, message = str(status.get("reason") or ""), str(status.get("message") or "no message")
    accepted = reason in _ENDED_OTHERWISE and not message.startswith(_REJECTED)
    if status.get("phase") != "Failed" or not reason or accepted or _has_started(status):
        return None
    of_gpus = _OF_GPUS.search(message) is not None
    if reason.startswith("OutOf"):  # A nonzero capacity in the message means that other pods use the GPUs.
        of_gpus = of_gpus and _NONE_LEFT.search(message) is not None
    cause: CauseId = "gpu.not_allocatable" if of_gpus else "scheduling.not_started"
    if _SHARED_ONCE in message:
        cause = "gpu.shared"
    prefix = "" if reason == "UnexpectedAdmissionError" else f"{reason}: "
    return Shortage(cause, f"has a kubelet that rejected the pod: {prefix}{message.removeprefix(_REJECTED)}")


def _has_started(status: Mapping[str, Any]) -> bool:
    """Return whether a container of the pod has run, according to the pod's status."""
    lists = [status.get(name) or [] for name in ("initContainerStatuses", "containerStatuses")]
    states = [mapping(each, "state") for one in lists for each in one]
    return any(state.keys() & {"running", "terminated"} for state in states)


def requested_gpus(requested: Mapping[str, Any]) -> dict[str, int]:
    """Return the NVIDIA GPU resources among a pod's requests, with their amounts."""
    return {
        name: int(amount)
        for name, amount in requested.items()
        if (name in (GPU, SHARED) or name.startswith(_MIG)) and int(amount) > 0
    }


def is_mig(resource: str) -> bool:
    """Return whether a resource represents MIG devices of one size."""
    return resource.startswith(_MIG)


def requests_none(pod: Mapping[str, Any]) -> bool:
    """Return whether a pod requests no GPU of any kind, neither as a resource nor as a resource claim.

    A pod with a runtime class, such as that of NVIDIA's container runtime, can get GPUs without requesting
    any, so the result is False for it.
    """
    spec = mapping(pod, "spec")
    if not spec.get("containers") or spec.get("resourceClaims") or spec.get("runtimeClassName"):
        return False
    return not any(_LIKE_GPU.search(name) for name in requests(dict(pod)))


def requested_by(container: Mapping[str, Any]) -> dict[str, float]:
    """Return the amounts of the GPU resources of any kind that a container requests.

    A resource claim for GPUs is included with an infinite amount, because its amount is not in the container.
    """
    resources = mapping(container, "resources")
    amounts = {**mapping(resources, "requests"), **mapping(resources, "limits")}
    found = {name: float(quantity(amount)) for name, amount in amounts.items() if _LIKE_GPU.search(name)}
    claims = [str(claim.get("name")) for claim in items(resources, "claims")]
    found |= {f"claim {name}": math.inf for name in claims if _LIKE_GPU.search(name)}
    return {name: amount for name, amount in sorted(found.items()) if amount > 0}


def _unhealthy(resource: str, capacity: int, allocatable: int) -> str:
    reason = f"the device plugin reports {capacity - allocatable} as unhealthy"
    return f"has {capacity} {resource}, of which {allocatable} are allocatable: {reason}" + (
        "" if allocatable else ", or is not running"
    )


def _mig(node: Mapping[str, Any]) -> Parts | None:
    labels = _labels(node)
    mig_devices = {name: count for name, count in gpu_resources(node).items() if name.startswith(_MIG)}
    if mig_devices:
        listed = ", ".join(f"{count} {name}" for name, count in sorted(mig_devices.items()))
        return Parts("gpu.mig", f"has GPUs that are split by MIG ({listed})")
    product = labels.get(_PRODUCT, "")
    size = labels.get(_GKE_MIG) or (product.split("-MIG-")[1] if "-MIG-" in product else "")
    if size or _number(labels, _SLICES):
        devices = offered(node, GPU, part="capacity")
        text = f"has GPUs that are split by MIG: the {devices} {GPU} are MIG devices" + (
            f" of {size.removesuffix('-SHARED')}" if size else ""
        )
        return Parts("gpu.mig", text)
    return None


def _shared(node: Mapping[str, Any]) -> Parts | None:
    labels = _labels(node)
    renamed = offered(node, SHARED, part="capacity")
    capacity = renamed or offered(node, GPU, part="capacity")
    count, replicas = _number(labels, _COUNT), _number(labels, _REPLICAS) or 0
    strategy = labels.get(_STRATEGY) or labels.get(_GKE_STRATEGY) or ""
    replicas = max(replicas, _number(labels, _GKE_CLIENTS) or 0)
    if any(str(key).endswith(_HAMI) for key in mapping(node, "metadata", "annotations")):
        return Parts("gpu.shared", f"has GPUs that HAMi shares: its device plugin offers {capacity} {GPU}")
    is_labelled = strategy.lower() not in ("", "none") or labels.get(_PRODUCT, "").endswith("-SHARED")
    is_oversubscribed = count is not None and 0 < count < capacity
    # The device plugin may not yet use the configuration in the labels.
    # In that case, the node still offers each GPU only once.
    if not (renamed or replicas > 1 or is_oversubscribed or is_labelled) or (
        count == capacity and not renamed
    ):
        return None
    each = replicas if replicas > 1 else capacity // count if count and is_oversubscribed else 0
    gpus = f"{count} GPU{'' if count == 1 else 's'}" if count else "GPUs that are"
    sharing = f"shared by {each}" + (" each" if count != 1 else "") if each else "shared"
    method = strategy if strategy.lower() not in ("", "none") else SHARED if renamed else ""
    return Parts(
        "gpu.shared", f"has {gpus}{',' if count else ''} {sharing}{f' ({method})' if method else ''}"
    )


def _labels(node: Mapping[str, Any]) -> dict[str, str]:
    labels = mapping(node, "metadata", "labels")
    return {str(key): str(value) for key, value in labels.items()}


def _number(labels: Mapping[str, str], key: str) -> int | None:
    text = labels.get(key, "")
    return int(text) if re.fullmatch(r"\d{1,6}", text, re.ASCII) else None
