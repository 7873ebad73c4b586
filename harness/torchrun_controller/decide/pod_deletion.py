"""Report pods that do not terminate in time, and pods that were deleted while their rank was running."""

from __future__ import annotations

from datetime import datetime, timedelta

from harness.core.kubernetes import Object, condition
from harness.torchrun_controller.api.condition_type import parsed
from harness.torchrun_controller.decide.containers import Problem, trainer_end
from harness.torchrun_controller.decide.decisions import ending

OVERDUE = timedelta(seconds=30)
"""A working kubelet reports the end of a pod within this time after the pod's grace period."""

SIGTERM_EXIT = 143
"""The exit code of a trainer that the kubelet ended with SIGTERM."""


def terminating(pods: list[Object], now: datetime) -> Problem:
    """Return a problem that names the terminating pod whose grace period ends first.

    The problem is a warning if the pod is overdue. Kubernetes does not replace the pod before it is gone. A
    pod's deletion timestamp is the end of its grace period.
    """
    found = sorted(
        (parsed(str(pod["metadata"]["deletionTimestamp"])), str(pod["metadata"]["name"]), _node(pod))
        for pod in pods
        if ending(pod)
    )
    if not found:
        return Problem()
    until, name, node = found[0]
    subject, time = f"{name} on node {node}" if node else name, f"{until:%Y-%m-%dT%H:%M:%SZ}"
    if now < until + OVERDUE:
        return Problem(f"{subject} is terminating, and must end by {time}", until + OVERDUE)
    advice = (
        f"check node {node}; if the node is gone for good, run `kubectl delete pod {name} --force`"
        if node
        else "check the pod's finalizers"
    )
    others = sum(each + OVERDUE <= now for each, _, _ in found[1:])
    more = f" (and {others} more)" if others else ""
    text = f"{subject}{more} is terminating, but should have ended by {time}: {advice}"
    return Problem(text, warning=True)


def _node(pod: Object) -> str:
    return str((pod.get("spec") or {}).get("nodeName") or "")


def deleted(pods: list[Object]) -> str:
    """Return a message about a pod that was deleted although no rank had ended, or "".

    `pods` contains all pods of the current attempt. The attempt's JobSet has not ended and is not suspended.
    The Job deletes pods only after a pod has failed or enough pods have succeeded. Before that, a pod can
    only have been deleted by a user or by another controller. Pods with the condition DisruptionTarget are
    reported by containers.disruption.
    """
    if any(_has_ended(pod) for pod in pods):
        return ""
    for pod in pods:
        if ending(pod) and condition(pod, "DisruptionTarget").get("status") != "True":
            place = f" on node {_node(pod)}" if _node(pod) else ""
            return f"{pod['metadata']['name']}{place} was deleted by a user or by another controller"
    return ""


def _has_ended(pod: Object) -> bool:
    """Return whether a pod or its trainer has ended for a reason other than the pod's deletion."""
    end = trainer_end(pod)
    if ending(pod) and end.get("exitCode") == SIGTERM_EXIT:
        return False
    return bool(end) or (pod.get("status") or {}).get("phase") in ("Failed", "Succeeded")
