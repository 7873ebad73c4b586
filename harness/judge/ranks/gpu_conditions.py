"""Find faults of GPUs that a health monitor reported in the conditions of the job's nodes.

The error of a rank often does not show that its GPU failed, and the ranks that wait for it only time out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from harness.core.clock import seconds
from harness.evidence.kubernetes import gpu_nodes
from harness.evidence.kubernetes.objects import ObjectState
from harness.judge.case import Case, names
from harness.judge.pod_end import End

_OF_GPUS = re.compile(r"CUDA|CUBLAS|CUDNN|NCCL|nccl\w+Error|NVML|device-side|Watchdog caught")
_ADVICE = (
    "a health monitor reports a fault of this node's GPUs: drain the node, look for Xid errors in its kernel "
    "log, and reset the GPU or reboot the node"
)
_OWN_CAUSES = ("rank.crashed", "rank.killed", "rank.hung")
"""Causes for which a fault of the GPU explains more than the advice on the rank's last error."""


@dataclass(frozen=True)
class Faults:
    """The conditions about GPUs on the job's nodes, as sentences with references. `advice` can be ""."""

    texts: list[str]
    evidence: list[str]
    advice: str = ""


def of_failure(case: Case, cause: End) -> Faults:
    """Return the GPU faults of the job's nodes if the first failure is an error of CUDA or NCCL."""
    gpu_cause = (cause.cause or "").startswith("gpu.")
    if not (gpu_cause or _OF_GPUS.search(f"{cause.text} {cause.log_quote}")):
        return Faults([], [])
    texts, refs, advice = list[str](), list[str](), ""
    for index, pod in case.pods.items():
        for state in _last_states(case, str(pod.node)):
            for condition in gpu_nodes.fault_conditions(state.object):
                ranks = names(case.ranks_of(index))
                since = condition.get("lastTransitionTime") or "an unknown time"
                text = gpu_nodes.condition_text(condition)
                texts.append(f"node {pod.node} of {ranks} has a GPU fault since {since}: {text}")
                refs.append(state.ref)
                if index == cause.index and cause.cause in _OWN_CAUSES:
                    advice = _ADVICE
    return Faults(texts[:3], refs[:3], advice)


def _last_states(case: Case, node: str) -> list[ObjectState]:
    """Return the last recorded state of a node until the harness stopped the job, or []."""
    limit = case.stopped_at or float("inf")
    states = [
        state
        for history in case.bundle.objects("node").values()
        for state in history
        if state.name == node and (seconds(state.received_at) or 0.0) <= limit
    ]
    return states[-1:]
