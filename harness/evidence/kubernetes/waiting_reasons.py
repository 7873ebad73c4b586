"""Map messages from Kueue and the kubelet to causes, and decide whether the harness should keep waiting.

The observer uses these tables to decide when to stop waiting, and the judge uses them to determine causes.
The messages are those of Kueue 0.19, and of the kubelet and containerd in Kubernetes 1.36.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from harness.core.causes import CauseId
from harness.evidence.kubernetes import nvidia_runtime

Prospect = Literal["final", "retried", "open"]
"""Whether the problem might go away while the harness waits. "open" means yes, and "final" means no.
"retried" means that Kubernetes retries, but usually without success."""


@dataclass(frozen=True)
class Meaning:
    """The cause indicated by a message, and whether waiting can help."""

    cause: CauseId
    prospect: Prospect = "open"


@dataclass(frozen=True)
class _Text:
    """A pattern for messages, which matches if a message contains all strings in `parts`.

    If `cause` is None, the reason that accompanies the message determines the cause.
    """

    parts: tuple[str, ...]
    cause: CauseId | None
    prospect: Prospect = "open"

    def within(self, message: str) -> bool:
        return all(part in message for part in self.parts)


_REFUSALS = (
    _Text(("LocalQueue", "doesn't exist"), "queue.local_queue_missing", "final"),
    _Text(("ClusterQueue", "doesn't exist"), "queue.cluster_queue_missing", "final"),
    _Text(("clusterQueue", "doesn't exist"), "queue.cluster_queue_missing", "final"),
    _Text(("Queue", "is inactive"), "queue.inactive", "final"),
    _Text(("Queue", "is stopped"), "queue.inactive"),
    _Text(("> maximum capacity",), "admission.quota_exceeded", "final"),
    _Text(("maximum capacity",), "admission.quota_exceeded"),
    _Text(("insufficient quota",), "admission.quota_exceeded"),
    _Text(("resource", "unavailable in ClusterQueue"), "admission.resource_not_covered", "final"),
    _Text(("untolerated taint",), "admission.no_flavor", "final"),
    _Text(("doesn't match node affinity",), "admission.no_flavor", "final"),
    _Text(("Flavor", "TopologyAwareScheduling"), "admission.no_flavor", "final"),
    _Text(("Flavor", "does not contain the requested level"), "admission.no_flavor", "final"),
    _Text(("insufficient unused quota",), "admission.pending"),
    _Text(("PodsReady condition",), "admission.pending"),
    _Text(("no longer fits after processing another workload",), "admission.pending"),
    _Text(("overlapping preemption targets",), "admission.pending"),
    _Text(("requires preemption",), "admission.pending"),
    _Text(("failed admission checks",), "admission.check_pending"),
    _Text(("admission check",), "admission.check_pending"),
    _Text(("Admission check",), "admission.check_pending"),
    _Text(("topology", "allow to fit"), "admission.topology"),
    _Text(("topology", "allows to fit only"), "admission.topology"),
    _Text(("no topology domains at level",), "admission.topology"),
    _Text(("LimitRange constraints",), "launch.pods_refused", "final"),
    _Text(("namespace doesn't match ClusterQueue selector",), "admission.refused", "final"),
    _Text(("resources validation failed",), "admission.refused", "final"),
    _Text(("doesn't exist",), None, "final"),
    _Text(("does not exist",), None, "final"),
    _Text(("is inactive",), None, "final"),
    _Text(("not found",), None, "final"),
    _Text(("unavailable in ClusterQueue",), None, "final"),
)
"""Patterns for messages in a Workload's QuotaReserved condition. The first matching pattern that has a cause
determines the cause."""
_UNTIL_QUOTA = "insufficient unused quota"
"""Part of Kueue's message about a flavor whose quota other jobs are using. This flavor might admit the job
later, even if no other flavor ever can."""
_NO_QUOTA = re.compile(r"insufficient (unused )?quota for (\S+) in flavor ([^\s,;]+)")
_EXCLUDED = re.compile(
    r"untolerated taint .{0,400}?in flavor ([^\s,;]+)|[fF]lavor \"?([^\s\",;]+)\"? do(?:es n|esn')(?:ot|t)\b"
)
_POD_SET = "couldn't assign flavors to pod set "
_REFUSAL_REASONS: dict[str, CauseId] = {
    "ExceedsMaxQuota": "admission.quota_exceeded",
    "NoMatchingFlavor": "admission.no_flavor",
    "WaitingForQuota": "admission.pending",
    "WaitingForPreemptedWorkloads": "admission.pending",
    "WaitingForPodsReady": "admission.pending",
    "TopologyPlacementFailed": "admission.topology",
    "Misconfigured": "admission.refused",
    "Suspended": "queue.inactive",
}
_UNDECIDED = ("", "PendingEvaluation")
"""Reasons in the QuotaReserved condition of a Workload that Kueue has not yet tried to admit."""
_EVICTIONS: tuple[tuple[str, CauseId], ...] = (
    ("MaximumExecutionTimeExceeded", "admission.max_execution_time"),
    ("PodsReadyTimeout", "admission.pods_ready_timeout"),
    ("RequeuingLimitExceeded", "admission.pods_ready_timeout"),
    ("Preempted", "admission.preempted"),
    ("ClusterQueueStopped", "admission.queue_stopped"),
    ("LocalQueueStopped", "admission.queue_stopped"),
    ("NodeFailures", "cluster.node_lost"),
    ("Deactivated", "admission.deactivated"),
    ("InactiveWorkload", "admission.deactivated"),
)
"""Pairs of (substring of the Evicted condition's reason, cause). The first match determines the cause."""
_CONTAINER_REASONS = {
    "ErrImagePull": Meaning("image.pull_failed", "retried"),
    "ImagePullBackOff": Meaning("image.pull_failed", "retried"),
    "RegistryUnavailable": Meaning("image.pull_failed"),
    "ImageInspectError": Meaning("image.pull_failed"),
    "InvalidImageName": Meaning("image.not_found", "final"),
    "ErrImageNeverPull": Meaning("image.not_found", "final"),
    "SignatureValidationFailed": Meaning("image.pull_denied", "retried"),
    "CreateContainerConfigError": Meaning("image.config", "final"),
    "CreateContainerError": Meaning("image.config", "final"),
    "RunContainerError": Meaning("image.entrypoint"),
    "StartError": Meaning("image.entrypoint"),
    "ContainerCannotRun": Meaning("image.entrypoint"),
    "PostStartHookError": Meaning("image.config", "retried"),
}
"""The meaning of each reason that the status of a waiting or failed container can contain."""
_PULLS = (
    # Denials come first, because their messages can also contain "does not exist".
    _Text(("pull access denied",), "image.pull_denied", "final"),
    _Text(("authorization failed",), "image.pull_denied"),
    _Text(("unauthorized",), "image.pull_denied"),
    _Text(("access denied",), "image.pull_denied"),
    _Text(("no basic auth credentials",), "image.pull_denied"),
    _Text((": denied: ",), "image.pull_denied"),
    _Text(("requested access to the resource is denied",), "image.pull_denied"),
    _Text(("denied on resource",), "image.pull_denied"),
    _Text(("authorization token has expired",), "image.pull_denied"),
    _Text(("authentication required",), "image.pull_denied"),
    _Text(("403 forbidden",), "image.pull_denied"),
    _Text(("not found",), "image.not_found", "final"),
    _Text(("does not exist",), "image.not_found", "final"),
    _Text(("manifest unknown",), "image.not_found", "final"),
    _Text(("not present",), "image.not_found"),
    _Text(("no such image",), "image.not_found"),
    _Text(("couldn't parse",), "image.not_found"),
    _Text(("no such host",), None, "final"),
)
"""Patterns for messages about failed image pulls. They match messages in lower case. The first match with a
cause determines the cause."""
_PASSING = (
    "pull qps exceeded",
    "failed to sync secret cache",
    "failed to sync configmap cache",
    "failed to reserve container name",
    "context deadline exceeded",
    "context canceled",
)
"""Parts of messages from a busy kubelet or container runtime, in lower case. The next attempt usually
succeeds."""
_NODE_FAULT: CauseId = "scheduling.not_started"
_OF_THE_NODE: tuple[tuple[str, CauseId], ...] = tuple(
    (part, _NODE_FAULT)
    for part in (
        "cgroup",
        "no space left on device",
        "no runtime for",
        "cannot allocate memory",
        "resource temporarily unavailable",
        "too many open files",
    )
)
"""Pairs of (part of a message in lower case, cause) for faults of the node or its container runtime."""
_STARTS: tuple[tuple[str, CauseId], ...] = (
    ("oom-killed (memory limit too low", "rank.oom_killed"),
    ("error mounting", "scheduling.volume_failed"),
    *_OF_THE_NODE,
)
"""Pairs of (part of a message in lower case, cause) for containers that were created but could not be
started."""
_CREATIONS: tuple[tuple[str, CauseId], ...] = (
    ("subpath", "scheduling.volume_failed"),
    ("failed to stat", "scheduling.volume_failed"),
    *_OF_THE_NODE,
)
"""Pairs of (part of a message in lower case, cause) for containers that could not be created."""
_NAMES = re.compile(r'"[^"\s]*"|(?<!\S)/(?!sys/fs/cgroup)\S*')
"""Pattern for names and paths. Users choose them, so they can contain any word."""
_WRONG_ARCHITECTURE = ("exec format error", "no match for platform")
_NO_IMAGE = ("image.pull_failed", "image.not_found")
PULL_REASONS = tuple(reason for reason, means in _CONTAINER_REASONS.items() if means.cause in _NO_IMAGE)
"""Container status reasons for images that could not be pulled."""


def refusal(message: str, reason: str = "") -> Meaning:
    """Return why Kueue has not reserved quota, given the QuotaReserved condition's message and reason."""
    if _fits_later(message):
        return Meaning("admission.pending")
    matches = [text for text in _REFUSALS if text.within(message)]
    matched_cause = next((text.cause for text in matches if text.cause), None)
    final = any(text.prospect == "final" for text in matches) and _UNTIL_QUOTA not in message
    cause = matched_cause or _REFUSAL_REASONS.get(reason)
    if cause is None:
        cause = "admission.refused" if message and reason not in _UNDECIDED else "admission.not_seen"
    return Meaning(cause, "final" if final else "open")


def _fits_later(message: str) -> bool:
    """Return whether each pod set can get quota in some flavor once other jobs have released their quota.

    Kueue lists why each flavor does not fit. If one flavor only lacks unused quota, the reasons for the other
    flavors are irrelevant. Such a reason can be a taint, a node affinity, or a maximum for the same resource
    that is too low.
    """
    first, *others = message.split(_POD_SET)
    parts = [first + others[0], *others[1:]] if others else [first]
    return _UNTIL_QUOTA in message and all(map(_part_fits_later, parts))


def _part_fits_later(text: str) -> bool:
    """Return whether the pod set that `text` is about fits into a flavor once other jobs have ended."""
    shortages = _NO_QUOTA.findall(text)
    excluded = {first or second for first, second in _EXCLUDED.findall(text)}
    exceeded = {(resource, flavor) for unused, resource, flavor in shortages if not unused}
    never = excluded | {flavor for _, flavor in exceeded}
    available = {resource for unused, resource, flavor in shortages if unused and flavor not in never}
    return bool(available) and all(resource in available for resource, _ in exceeded)


def without_names(message: str) -> str:
    """Return the kubelet's message without object names and paths."""
    return _NAMES.sub("", message)


def eviction(reason: str) -> CauseId:
    """Return the cause of an eviction, given the reason in the Workload's Evicted condition."""
    return next((cause for part, cause in _EVICTIONS if part in reason), "admission.evicted")


def not_started(reason: str, message: str) -> Meaning | None:
    """Return why a container did not start, given the reason and message in its status.

    Returns None if the reason does not mean that the container failed to start.
    """
    meaning = _CONTAINER_REASONS.get(reason)
    if meaning is None:
        return None
    text = message.lower()
    pull_meanings = (
        [each for each in _PULLS if each.within(text)] if meaning.cause == "image.pull_failed" else []
    )
    if meaning.prospect == "retried" and any(each.prospect == "final" for each in pull_meanings):
        meaning = replace(meaning, prospect="final")
    of_the_kubelet = reason in (*PULL_REASONS, "CreateContainerConfigError")
    if not of_the_kubelet and (fault := nvidia_runtime.fault(message)) is not None:
        return Meaning(fault.cause, "retried")
    if any(part in text for part in _WRONG_ARCHITECTURE):
        return replace(meaning, cause="image.wrong_architecture")
    if meaning.cause == "image.entrypoint":
        words = without_names(text)
        cause = next((cause for part, cause in _STARTS if part in words), meaning.cause)
        return replace(meaning, cause=cause)
    if meaning.cause == "image.config":
        words = without_names(text)
        cause = next((cause for part, cause in _CREATIONS if part in words), meaning.cause)
        meaning = replace(meaning, cause=cause)
    if any(part in text for part in _PASSING):
        meaning = replace(meaning, prospect="open")
    return replace(meaning, cause=next((each.cause for each in pull_meanings if each.cause), meaning.cause))
