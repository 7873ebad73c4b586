"""Find pods that a kubelet rejected after they had run, and give advice on rejected pods.

A kubelet that restarts admits the running pods of its node again. If a device plugin has not registered by
then, the kubelet rejects the pods that use the plugin's devices, and ends their containers
(kubernetes/kubernetes#138446). The kubelet never retries.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from harness.evidence.kubernetes.objects import ENDED_BY_NODE, ObjectState, Pod, items, mapping
from harness.evidence.kubernetes.unschedulable import requests

_ADMISSION = re.compile(r"^(UnexpectedAdmissionError|Topology ?Affinity ?Error|NodeAffinity|OutOf\w.*)$")
"""Pattern for the status reason of a pod that a kubelet did not admit."""
REJECTED = "Pod was rejected: "
"""The beginning of a rejected pod's status message. Older kubelets omit it."""
RUNNING_AGAIN = (
    "find out why the kubelet or the node restarted (`journalctl -u kubelet`), and see whether the device "
    "plugin was late: a restarting kubelet rejects running pods whose devices are not registered yet"
)
_DEVICES = (
    "read the log of the device plugin for {} on this node, and delete the pod once the plugin works: the "
    "kubelet does not retry"
)
_ADVICE = (
    (
        re.compile(r"Topology ?Affinity ?Error|Topology locality"),
        "no NUMA node of this node has all the CPUs and devices that the pod requests. Other pods may use a "
        "part of each NUMA node: remove these pods, request less, or relax the kubelet's "
        "topologyManagerPolicy",
    ),
    (
        re.compile(r"^OutOf"),
        "other pods on the node already use this resource: run `kubectl describe node`, and check whether "
        "nodeName or a second scheduler placed the pod",
    ),
    (
        re.compile(r"^NodeAffinity"),
        "the labels of the node do not match the pod's node selector or affinity: compare them with `kubectl "
        "get node --show-labels`",
    ),
)
"""Pairs of (pattern for the reason and message of a rejected pod's status, advice)."""


def advice(pod: Mapping[str, Any]) -> str:
    """Return advice on a pod that its kubelet rejected, or "" if the cause's advice is sufficient."""
    status = mapping(pod, "status")
    text = f"{status.get('reason')}: {status.get('message')}"
    known = next((advice for pattern, advice in _ADVICE if pattern.search(text)), "")
    devices = sorted(name for name in requests(dict(pod)) if "/" in name)
    if known or not devices or "Allocate failed" not in text:
        return known
    return _DEVICES.format(", ".join(devices))


def of_running(pod: Pod) -> ObjectState | None:
    """Return the first state in which the kubelet had rejected a pod whose container had run, or None."""
    has_run = False
    for state in pod.history:
        status = mapping(state.object, "status")
        statuses = items(state.object, "status", "containerStatuses")
        has_run = has_run or any(mapping(one, "state").keys() & {"running", "terminated"} for one in statuses)
        if has_run and _is_rejected(status):
            return state
    return None


def _is_rejected(status: Mapping[str, Any]) -> bool:
    reason, message = str(status.get("reason") or ""), str(status.get("message") or "")
    if status.get("phase") != "Failed" or reason in ENDED_BY_NODE:
        return False
    return _ADMISSION.search(reason) is not None or message.startswith(REJECTED)
