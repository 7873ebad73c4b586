"""Events of pods and jobs as an evidence bundle stores them, and jobs whose pods never started."""

from __future__ import annotations

import itertools
from typing import Any

import bundles
from bundles import at, cond

_NUMBERS = itertools.count()


def add_event(
    job: bundles.Job,
    about: int | tuple[str, str, str],
    reason: str,
    message: str,
    times: tuple[float, ...] = (6, 36),
    type_: str = "Warning",
    container: str = "",
) -> None:
    """Record an Event at each of these times. `about` is a node index, or a kind, a name and a uid."""
    kind, name, uid = ("Pod", job.pod_name(about), f"pod-uid-{about}") if isinstance(about, int) else about
    number = next(_NUMBERS)
    for count, when in enumerate(times, 1):
        event: dict[str, Any] = {
            "kind": "Event",
            "metadata": {"name": f"event-{number}", "uid": f"event-uid-{number}"},
            "involvedObject": {
                **{"kind": kind, "name": name, "uid": uid},
                **({"fieldPath": f"spec.containers{{{container}}}"} if container else {}),
            },
            "reason": reason,
            "message": message,
            "type": type_,
            "count": count,
            "firstTimestamp": at(times[0]),
            "lastTimestamp": at(when),
        }
        job.see("event", when, event)


def never_started(nodes: int = 2) -> bundles.Job:
    """Return a job that reached its deadline while its pods waited on their nodes."""
    job = bundles.stuck(bundles.healthy(nodes), keep=0)
    job.truth, job.points, job.runs, job.attachments, job.logs = {}, [], [], [], {}
    for index in range(nodes):
        waiting = {"waiting": {"reason": "ContainerCreating"}}
        job.pod(index, 5, "Pending", waiting, conditions=[cond("PodScheduled", "True", "", when=5)])
    bundles.timed_out(job)
    return job


def unscheduled(job: bundles.Job, index: int, message: str, reason: str = "Unschedulable") -> None:
    """Replace a node's pod by one that the scheduler could not place."""
    job.drop_pod(index)
    conditions = [cond("PodScheduled", "False", reason, message, when=5)]
    job.pod(index, 5, "Pending", node=False, conditions=conditions)


def change_specs(job: bundles.Job, *indexes: int, **spec: Any) -> None:
    """Set fields of the specs of these nodes' pods."""
    names = [job.pod_name(index) for index in indexes]
    for kind, observation in job.objects:
        if kind == "pod" and observation.object["metadata"]["name"] in names:
            observation.object["spec"] |= spec
