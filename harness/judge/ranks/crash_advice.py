"""Give advice on the last error of a crashed rank. The advice can depend on the rank's pod and node.

A process can use only one MIG device, so a rank finds only one device even if its pod requests several
(k8s-device-plugin #446). If GPUs are shared, several of the requested devices can be the same GPU. In both
cases, the log alone suggests that the program selects a wrong device.
"""

from __future__ import annotations

import re

from harness.evidence.kubernetes import gpu_nodes
from harness.evidence.kubernetes.unschedulable import requests
from harness.judge.case import Case
from harness.judge.cluster import gpu_supply
from harness.judge.logs import known_errors
from harness.judge.ranks import stale_store_addresses

_NO_SUCH_GPU = re.compile(r"invalid device ordinal|device >= 0 && device < num_gpus INTERNAL ASSERT")
_SAME_GPU = re.compile(r"Duplicate GPU detected")
_FULL = re.compile(r"CUDA out of memory|Cuda failure \d+ 'out of memory'|CUDA error: out of memory")
_ONE_MIG_DEVICE = (
    "the pod requests {} MIG devices, but a process can use only one: request one MIG device for each pod "
    "and start one rank in it, or request whole GPUs"
)
_SAME_MIG_GPU = (
    "NCCL does not connect MIG devices of the same GPU: use one MIG device of each GPU, or whole GPUs"
)
_MEMORY_SHARE = "nvidia.com/gpumem"
_SHARE_FULL = "the pod's share of the GPU's memory is full: raise its limit {}, or reduce the batch"
_SHARED = {
    _NO_SUCH_GPU: "The {} devices that the pod requests can be one GPU: request one for each pod and start "
    "one rank in it, or use nodes without sharing",
    _SAME_GPU: "Two ranks can get the same GPU: use nodes without sharing. If both ranks are in one pod, "
    "also check whether they call torch.cuda.set_device(LOCAL_RANK)",
    _FULL: "Other pods may use the same memory: use nodes without sharing, or reduce the batch",
}
"""Maps the pattern for each error to advice for a node whose GPUs are shared."""


def advice(case: Case, index: int, error: str) -> str:
    """Return advice on the last error of a rank in the pod of node `index`, or "" if there is none."""
    return (
        stale_store_addresses.advice(case, index)
        or _on_partial_gpus(case, index, error)
        or known_errors.advice(error)
    )


def _on_partial_gpus(case: Case, index: int, error: str) -> str:
    """Return advice if MIG devices or shared GPUs explain an error, or ""."""
    pattern = next((one for one in _SHARED if one.search(error)), None)
    if pattern is None or index not in case.pods:
        return ""
    pod = case.pods[index]
    requested = gpu_nodes.requested_gpus(requests(pod.last.object))
    amount = sum(requested.values())
    shares = [name for name in requests(pod.last.object) if name.startswith(_MEMORY_SHARE)]
    if pattern is _FULL and shares:
        return _SHARE_FULL.format(shares[0])
    if pattern is _NO_SUCH_GPU and amount < 2:
        return ""
    parts = gpu_supply.parts(case).get(pod.node or "")
    if any(map(gpu_nodes.is_mig, requested)) or (parts is not None and parts.cause == "gpu.mig"):
        of_node = f"node {pod.node} {parts.text}. " if parts else ""
        return {_NO_SUCH_GPU: _ONE_MIG_DEVICE.format(amount), _SAME_GPU: of_node + _SAME_MIG_GPU}.get(
            pattern, ""
        )
    return f"node {pod.node} {parts.text}. {_SHARED[pattern].format(amount)}" if parts else ""
