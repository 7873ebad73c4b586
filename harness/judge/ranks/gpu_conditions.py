"""Find GPU faults on the job's nodes that the kubelet, the device plugin or a health monitor reported.

A rank's error often does not show that its GPU failed, and the ranks that wait for this rank only time out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from harness.core.clock import seconds
from harness.evidence.kubernetes import gpu_nodes
from harness.evidence.kubernetes.objects import ObjectState, Pod
from harness.judge.case import Case, names
from harness.judge.pod_end import End

_OF_GPUS = re.compile(r"CUDA|CUBLAS|CUDNN|NCCL|nccl\w+Error|NVML|Watchdog caught")
_OF_THE_PROGRAM = re.compile(
    r"out of memory|device-side assert|invalid device ordinal|INTERNAL ASSERT|Duplicate GPU|forked subprocess"
    r"|no kernel image|kernel image is invalid|PTX was compiled|not compiled with CUDA|invalid usage"
    r"|stub library|deserialize object"
)
"""Pattern for CUDA and NCCL errors whose cause is the program, its image or its resource requests."""
_ADVICE = (
    "the node reports a fault of its GPUs: drain it, look for Xid errors in its kernel log, and reset the "
    "GPU or reboot the node"
)
_OWN_CAUSES = ("rank.crashed", "rank.killed", "rank.hung")
"""Causes for which advice on the GPU fault is better than advice on the rank's last error."""


@dataclass(frozen=True)
class Faults:
    """GPU faults on the job's nodes: a sentence in `texts` and a reference in `evidence` for each fault."""

    texts: list[str]
    evidence: list[str]
    advice: str = ""


def of_failure(case: Case, cause: End) -> Faults:
    """Return the GPU faults of the job's pods and nodes if the first failure is a CUDA or NCCL error."""
    gpu_cause, error = (cause.cause or "").startswith("gpu."), f"{cause.text} {cause.log_quote}"
    if not (gpu_cause or _OF_GPUS.search(error)) or _OF_THE_PROGRAM.search(error):
        return Faults([], [])
    faults: list[tuple[str, str]] = []
    advice = ""
    for index, pod in case.pods.items():
        own = [*_of_pod(case, pod, index), *_of_node(case, pod, index)]
        faults += own
        if own and index == cause.index and cause.cause in _OWN_CAUSES:
            advice = _ADVICE
    return Faults([text for text, _ in faults[:3]], [ref for _, ref in faults[:3]], advice)


def _of_pod(case: Case, pod: Pod, index: int) -> Iterator[tuple[str, str]]:
    """Yield a sentence about the unhealthy devices in a pod's status, and its reference."""
    states = ((state, gpu_nodes.unhealthy_devices(state.object)) for state in reversed(pod.history))
    state, devices = next(((state, devices) for state, devices in states if devices), (None, []))
    if state is not None:
        text = f"the kubelet reports that devices of {names(case.ranks_of(index))} are unhealthy"
        yield f"{text}: {', '.join(devices[:3])}", state.ref


def _of_node(case: Case, pod: Pod, index: int) -> Iterator[tuple[str, str]]:
    """Yield a sentence and its reference for each GPU fault in the last recorded state of a pod's node."""
    place = f"node {pod.node} of {names(case.ranks_of(index))}"
    for state in _last_states(case, str(pod.node)):
        for condition in gpu_nodes.fault_conditions(state.object):
            since = condition.get("lastTransitionTime") or "an unknown time"
            text = gpu_nodes.condition_text(condition)
            yield f"{place} has had a GPU fault since {since}: {text}", state.ref
        for text in gpu_nodes.unhealthy(state.object):
            yield f"{place} {text}", state.ref


def _last_states(case: Case, node: str) -> list[ObjectState]:
    """Return a list with the last state of a node recorded before the harness stopped the job, or []."""
    limit = case.stopped_at or float("inf")
    states = [
        state
        for history in case.bundle.objects("node").values()
        for state in history
        if state.name == node and (seconds(state.received_at) or 0.0) <= limit
    ]
    return states[-1:]
