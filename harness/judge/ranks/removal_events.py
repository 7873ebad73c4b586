"""Find the Event that shows which program evicted or deleted a pod, and give advice on how to prevent this.

The pod's own condition often shows only that something called the eviction API, or nothing at all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from harness.evidence.kubernetes.objects import mapping
from harness.judge.case import Case
from harness.judge.cluster import kubelet_rejections, pod_events, start_events
from harness.judge.cluster.pod_events import PodEvent

_REMOVALS = re.compile(r"\b(?:evict|preempt|drain|descheduler|scale[ -]?down)", re.IGNORECASE)
"""Pattern for the message of an Event about the removal of a pod."""
_OF_OTHERS = (
    *("Scheduled", "FailedScheduling", "NotTriggerScaleUp", "TriggeredScaleUp", "Nominated"),
    *("FailedEvict", "EvictionThresholdMet", "ScaleDownFailed", "Killing"),
)
"""Reasons of Events that can mention evictions or preemptions without reporting the removal of a pod. Their
messages can contain names chosen by users, such as the name of a namespace for preemptible jobs."""
NEAR_SECONDS = 120.0
"""Maximum time, in seconds, between a pod's removal and the Event about it."""
_ADVICE = (
    (re.compile(r"its kubelet rejected the running pod"), kubelet_rejections.RUNNING_AGAIN),
    (
        re.compile(r"spot ?interruption|imminent node shutdown|node is shutting", re.IGNORECASE),
        "the node was reclaimed: use nodes that are not preemptible, or checkpoint and allow restarts",
    ),
    (
        re.compile(r"ScaleDown|node scale down", re.IGNORECASE),
        'annotate the pods with cluster-autoscaler.kubernetes.io/safe-to-evict: "false"',
    ),
    (
        re.compile(r"Evicted pod: \w*(?:Drift|Underutilized|Empty|Expired|Consolidat)\w*", re.IGNORECASE),
        'annotate the pods with karpenter.sh/do-not-disrupt: "true"',
    ),
    (
        re.compile(r"Device Taint manager"),
        "the DRA driver has tainted the pod's device: see `kubectl get resourceslices,devicetaintrules`",
    ),
    (re.compile(r"is unresponsive"), "check whether the node is running: `kubectl describe node`"),
    (
        re.compile(r"descheduler", re.IGNORECASE),
        "exclude the job's namespace or priority in the descheduler's policy",
    ),
    (re.compile(r"\bVPA\b"), "exclude the job from the VerticalPodAutoscaler"),
    (
        re.compile(r"preempt", re.IGNORECASE),
        "give the job a PriorityClass that other jobs cannot preempt, or run it on nodes without such jobs",
    ),
    (
        re.compile(r"ephemeral[ -](?:local )?storage", re.IGNORECASE),
        "raise the ephemeral-storage limit, or write checkpoints and caches to a volume",
    ),
    (
        re.compile(r"low on resource: memory"),
        "request the memory that the ranks use: the kubelet first evicts pods that use more than "
        "they request",
    ),
)
"""Pairs of (pattern for the reason or the Event of a removal, advice)."""


@dataclass(frozen=True)
class Removal:
    """An Event about the removal of a pod, as a clause and a reference."""

    text: str
    evidence: str


def of_pod(case: Case, index: int, at: float, known: str = "") -> Removal | None:
    """Return the Event that gives the reason for the removal of a node's pod, or None.

    `at` is the time of the removal in seconds since the epoch. `known` is the reason in the pod's status. An
    Event that only repeats this reason is ignored.
    """
    for event in reversed(pod_events.of_pod(case, index)):
        is_near = abs(event.at - at) <= NEAR_SECONDS
        if is_near and not _is_of_others(event) and _REMOVALS.search(event.text):
            message = event.message.rstrip(" .")
            return None if message in known else Removal(f"Event {event.reason}: {message}", event.state.ref)
    return None


def _is_of_others(event: PodEvent) -> bool:
    """Return whether an Event is about something other than the removal of the pod."""
    is_start = event.reason in _OF_OTHERS or event.reason in start_events.STEPS
    is_about_a_container = bool(mapping(event.state.object, "involvedObject").get("fieldPath"))
    return is_start or is_about_a_container or event.message.startswith("Cancelling")


def advice(text: str) -> str:
    """Return advice for the reason of a removal, or "" if the cause's advice is sufficient."""
    return next((advice for pattern, advice in _ADVICE if pattern.search(text)), "")
