"""Find the Event that gives the kubelet's reason for killing a running container.

If a probe or a postStart hook fails, the container's status contains only the exit code of a signal.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.core.clock import seconds
from harness.evidence.kubernetes.objects import mapping
from harness.evidence.kubernetes.refusals import occurred
from harness.judge.case import Case
from harness.judge.cluster import pod_events
from harness.judge.cluster.pod_events import PodEvent

_PROBES = ("liveness", "startup")
_HOOK = "FailedPostStartHook"
_PROBE_ADVICE = (
    "raise timeoutSeconds and failureThreshold of this probe, or remove it: a rank that computes or waits "
    "for its peers might not answer in time"
)
_OF_TORCHRUN = (
    "the torchrun controller's probe makes the kubelet kill node 0's container if all its processes hang or "
    "its store never listens: see the last log lines"
)
_HOOK_ADVICE = "correct the command of lifecycle.postStart, or run it in the container's own command"
SLACK_SECONDS = 2.0
"""Tolerance, in seconds, for the timestamps of Events and statuses, which are whole seconds."""


@dataclass(frozen=True)
class Kill:
    """The kubelet's reason for killing a container, a reference into the evidence, and advice."""

    reason: str
    evidence: str
    advice: str


def of_container(case: Case, index: int, terminated: dict[str, object]) -> Kill | None:
    """Return the reason why the kubelet killed a node's rank container, or None.

    `terminated` is the container's terminated state. Its times can be compared with those of the Events,
    because both come from the kubelet.
    """
    start, end = (seconds(terminated.get(name)) for name in ("startedAt", "finishedAt"))
    events = [
        event
        for event in pod_events.of_pod(case, index)
        if _is_of_the_ranks(case, event)
        and (at := occurred(event.state.object))
        and (start is None or at >= start - SLACK_SECONDS)
        and (end is None or at <= end + SLACK_SECONDS)
    ]
    for event in reversed(events):
        if event.reason == _HOOK:
            return Kill(f"its postStart hook failed: {event.message}", event.state.ref, _HOOK_ADVICE)
        for probe in _PROBES:
            if (
                event.reason == "Killing"
                and f"Container {case.launch.container} failed {probe} probe" in event.message
            ):
                text = f"its {probe} probe failed{_last_failure(events, probe)}"
                own_probe = case.launch.launcher == "torchrun"
                return Kill(text, event.state.ref, _OF_TORCHRUN if own_probe else _PROBE_ADVICE)
    return None


def _is_of_the_ranks(case: Case, event: PodEvent) -> bool:
    """Return whether an Event can be about the rank's container rather than another container in the pod."""
    path = mapping(event.state.object, "involvedObject").get("fieldPath")
    return path in (None, "", f"spec.containers{{{case.launch.container}}}")


def _last_failure(events: list[PodEvent], probe: str) -> str:
    """Return a clause with the kubelet's last message about a probe, or ""."""
    start = f"{probe.capitalize()} probe failed"
    failed = [e.message for e in events if e.reason == "Unhealthy" and e.message.startswith(start)]
    return f" ({failed[-1].removeprefix(start).strip(': ').rstrip()})" if failed else ""
