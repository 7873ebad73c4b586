"""Find the Event that explains why a scheduled pod does not start a container.

The kubelet prepares devices and volumes first, then the sandbox with its network, and then the containers. An
Event about a later step shows that the earlier steps have since succeeded.
"""

from __future__ import annotations

from collections.abc import Iterable

from harness.core.causes import CauseId
from harness.core.clock import seconds
from harness.evidence.kubernetes.unschedulable import waits_for_volumes
from harness.judge.case import Case
from harness.judge.cluster import container_start_advice
from harness.judge.cluster.pod_events import PodEvent, of_pod

BLOCKERS: dict[str, CauseId] = {
    "NetworkNotReady": "scheduling.sandbox_failed",
    "FailedPrepareDynamicResources": "scheduling.not_started",
    "FailedMount": "scheduling.volume_failed",
    "FailedAttachVolume": "scheduling.volume_failed",
    "FailedMapVolume": "scheduling.volume_failed",
    "FailedCreatePodContainer": "scheduling.not_started",
    "FailedCreatePodSandBox": "scheduling.sandbox_failed",
}
"""Reasons of Events that explain why a scheduled pod's containers do not start, mapped to their causes."""
LATE_START = (
    "find out why this container starts late (`kubectl describe pod`), pull its image on the nodes before "
    "the launch, or raise the timeout of the rendezvous"
)
"""Advice if ranks timed out while they waited for a rank whose container had not started."""
LASTING_SECONDS = 5.0
"""A warning Event counts only if it recurs over at least this many seconds. A single warning may be
outdated."""
STEPS = {
    **dict.fromkeys(("NetworkNotReady", "FailedCreatePodContainer"), 0),
    **dict.fromkeys(("FailedPrepareDynamicResources", "FailedMount", "FailedMapVolume"), 1),
    "FailedAttachVolume": 1,
    **dict.fromkeys(("FailedCreatePodSandBox", "AddedInterface"), 2),
    **dict.fromkeys(("Pulling", "Pulled", "Created", "Started", "Failed", "BackOff"), 3),
}
"""Maps the reason of an Event to the number of the kubelet's startup step in which the Event occurs. The
steps are numbered in the order in which they run."""
_WITHOUT_EFFECT = ("Scheduled", "FailedScheduling", "DNSConfigForming", "FailedToRetrieveImagePullSecret")
"""Reasons of Events that do not show what the kubelet is waiting for. The kubelet can repeat some of them
although the pod can start. Examples are a warning about too many DNS servers, and a missing pull Secret for
an image that needs none."""
_ATTACHED = "SuccessfulAttachVolume"
_STAMPS = ("firstTimestamp", "lastTimestamp")
_REPORTED_ONCE = "Multi-Attach error"
"""Part of a message that the attach-detach controller reports only once for each pod and volume, although the
error persists."""
_ADVICE = (
    (
        _REPORTED_ONCE,
        "only one node can use a ReadWriteOnce volume: use a volume with ReadWriteMany or a claim for each "
        "pod, or wait until the pod in the message is deleted",
    ),
    (
        "mount.nfs",
        "check whether the node can reach the file server: its address, its exports, and the firewall or "
        "security group (NFS uses port 2049)",
    ),
    (
        "failed to assign an IP address",
        "the subnet or the node has no free IP address: release addresses, add a subnet, or use larger nodes",
    ),
    (
        "no IP addresses available",
        "the node's pod address range is exhausted: restart the node's CNI plugin to release addresses of "
        "deleted pods, or use a larger range",
    ),
    (
        "Pulling image",
        "raise --wait, or pull the image on the nodes beforehand: a large image takes minutes",
    ),
    (
        "prepare dynamic resources",
        "read the log of the DRA driver's pod on that node, and compare `kubectl get resourceclaims -o yaml` "
        "with the driver's ResourceSlices",
    ),
)
"""Pairs of (part of an Event's message, advice)."""


def advice(event: PodEvent | None) -> str:
    """Return advice for an Event's message, or "" if the cause's advice is sufficient."""
    message = event.message if event else ""
    own = next((advice for part, advice in _ADVICE if part in message), "")
    return own or container_start_advice.of(message)


def blocking(case: Case, index: int) -> PodEvent | None:
    """Return the warning Event that explains why a scheduled pod's containers do not start, or None.

    Warnings that did not recur over at least LASTING_SECONDS are ignored, and so are warnings about a step
    that the kubelet has since completed. A message that gives a reason takes precedence over the kubelet's
    summary that a volume is not mounted.
    """
    events = of_pod(case, index)
    warnings = [event for event in events if event.reason in BLOCKERS and not _outdated(event, events)]
    if not warnings or not (_lasts(case, warnings) or _reported_once(case, warnings)):
        return None
    return next((event for event in reversed(warnings) if not waits_for_volumes(event.message)), warnings[-1])


def last(case: Case, index: int) -> PodEvent | None:
    """Return the last Event that shows what the kubelet did for a pod, or None. Warnings are preferred."""
    events = [event for event in of_pod(case, index) if event.reason not in _WITHOUT_EFFECT]
    warnings = [event for event in events if event.is_warning and not _outdated(event, events)]
    return next(iter([*reversed(warnings), *reversed(events)]), None)


def unstarted(case: Case, indexes: Iterable[int]) -> list[str]:
    """Return a sentence with the pod's last Event for each of these nodes whose container never started."""
    sentences = []
    for index in dict.fromkeys(indexes):
        if index in case.pods and not case.started(index):
            event = last(case, index)
            reason = f": the last Event of its pod is {event.text}" if event else ""
            sentences.append(f"the container of {case.place(index)} had not started{reason}")
    return sentences


def _outdated(warning: PodEvent, events: list[PodEvent]) -> bool:
    """Return whether a later Event shows that the failed step has succeeded since then."""
    step = STEPS.get(warning.reason, max(STEPS.values()))
    later_events = [event for event in events if event.at > warning.at]
    return any(STEPS.get(event.reason, 0) > step for event in later_events) or (
        warning.reason == "FailedAttachVolume" and any(event.reason == _ATTACHED for event in later_events)
    )


def _lasts(case: Case, warnings: list[PodEvent]) -> bool:
    """Return whether the warnings recurred over at least LASTING_SECONDS."""
    times = [event.at for event in warnings]
    if case.launch.attached:  # The Events' own timestamps also cover the time before the harness attached.
        stamps = [event.state.object.get(name) for event in warnings for name in _STAMPS]
        times = [at for stamp in stamps if (at := seconds(str(stamp))) is not None]
    return bool(times) and max(times) - min(times) >= LASTING_SECONDS


def _reported_once(case: Case, warnings: list[PodEvent]) -> bool:
    """Return whether a controller reported a persistent error that it does not report again."""
    until = case.stopped_at or case.waited_until
    return until is not None and any(
        _REPORTED_ONCE in event.message and until - event.at >= LASTING_SECONDS for event in warnings
    )
