"""Find restarts of an attached job that happened before the harness read its objects.

Pods from an earlier attempt have usually been deleted, together with their logs. However, the status of a
JobSet counts its restarts, and the status of a Job counts its failed pods. For other kinds, only Events show
how often a pod was created.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from harness.core.clock import seconds
from harness.evidence.kubernetes.objects import ObjectState, Pod, items, mapping
from harness.judge.case import Case, Restart, condition
from harness.judge.finding import counted

_COUNTING = ("JobSet", "Job", "TorchrunJob")
"""Kinds of objects whose status counts restarts or failed pods."""
_CREATIONS = ("SuccessfulCreate", "SuccessfulCreatePod")
"""Reasons of Events in which Kubernetes and Kubeflow controllers report that they created a pod."""
_CREATION_SECONDS = 5.0
"""Maximum number of seconds between the creation of an object and the Event about it."""
_GONE = "the pods of earlier attempts are gone, so it is not known why"


def restarts(case: Case) -> Iterator[Restart]:
    """Yield the restarts that the JobSet or the Jobs have counted and whose pods were not recorded."""
    if not case.launch.attached:
        return
    pods = [pod for attempts in case.pod_attempts.values() for pod in attempts]
    last = max((pod.attempt for pod in pods), default=0)
    first = min((pod.attempt for pod in pods), default=0)
    restart_count = last or _restarts(case.jobset)
    unseen = min(first, restart_count) if pods else restart_count
    if unseen and case.jobset is not None:
        which, is_allowed = jobset_restart(case, unseen)
        text = f"the {case.launch.kind} was restarted {which} times: {_GONE}"
        allowed = case.launch.kind != "JobSet" or is_allowed
        yield Restart(0.0, list(case.ranks), text, allowed, [case.jobset.ref])
    for job in case.bundle.last("job").values():
        yield from _replaced(case, job)


def max_restarts(case: Case) -> int:
    """Return the maxRestarts of the JobSet's failurePolicy."""
    limit = mapping(case.jobset.object, "spec", "failurePolicy").get("maxRestarts") if case.jobset else 0
    return limit if isinstance(limit, int) else 0


def jobset_restart(case: Case, number: int) -> tuple[str, bool]:
    """Return (clause, allowed) for a restart of a JobSet, such as ("1 of at most 2", True).

    A rule of the failurePolicy may exclude restarts from maxRestarts, for example after a disruption. The
    status counts the other restarts separately.
    """
    limit = max_restarts(case)
    statuses = [mapping(state.object, "status") for state in case.jobsets]
    own = next(
        (each for each in statuses if each.get("restarts") == number), statuses[-1] if statuses else {}
    )
    counted = own.get("restartsCountTowardsMax")
    if not isinstance(counted, int) or counted >= number:
        return f"{number} of at most {limit}", number <= limit
    return f"{number}, of which {counted} of at most {limit} count", counted <= limit


def _restarts(launched: ObjectState | None) -> int:
    count = mapping(launched.object, "status").get("restarts", 0) if launched else 0
    return count if isinstance(count, int) else 0


def _replaced(case: Case, job: ObjectState) -> Iterator[Restart]:
    """Yield a restart if a Job that has not failed counts more failed pods than were recorded."""
    failed_count = mapping(job.object, "status").get("failed", 0)
    if not isinstance(failed_count, int) or condition(job, "Failed").get("status") == "True":
        return
    if condition(job, "FailureTarget").get("status") == "True":
        return  # The Job controller is deleting pods, which then count as failed.
    recorded = [
        states[-1]
        for states in case.bundle.objects("pod").values()
        if any(
            owner.get("uid") == job.uid for owner in items(states[-1].object, "metadata", "ownerReferences")
        )
        and mapping(states[-1].object, "status").get("phase") == "Failed"
    ]
    if failed_count > len(recorded):
        limit = mapping(job.object, "spec").get("backoffLimit", 6)
        text = (
            f"Job {job.name} replaced {counted(failed_count, 'failed pod')} (backoffLimit {limit}), and only "
        )
        text += f"{len(recorded)} can still be read, so it is not known why the others failed"
        at = seconds(job.received_at) or 0.0
        yield Restart(at, list(case.ranks), text, isinstance(limit, int) and failed_count <= limit, [job.ref])


def not_known(case: Case) -> str:
    """Return the reason why it is not known whether a rank was restarted, or "" if it is known."""
    if not case.launch.attached or case.launch.kind in _COUNTING or _created_once(case):
        return ""
    return f"a {case.launch.kind} does not count pods that it replaced before they were read"


def _created_once(case: Case) -> bool:
    """Return whether Events show that the job's controller created each rank's pod exactly once.

    By default, the API server deletes an Event one hour after its last update. If an Event from the job's
    creation still exists and was never updated, no later Event has expired.
    """
    launched = case.jobset
    created_at = seconds(mapping(launched.object, "metadata").get("creationTimestamp")) if launched else None
    if launched is None or created_at is None:
        return False
    own = [
        event.object
        for event in case.bundle.last("event").values()
        if mapping(event.object, "involvedObject").get("uid") == launched.uid
    ]
    once = [event for event in own if _count(event) == 1]
    first = min((at for event in once if (at := _time(event)) is not None), default=None)
    pods = [pod for attempts in case.pod_attempts.values() for pod in attempts]
    if first is None or first - created_at > _CREATION_SECONDS or len(pods) != len(case.pod_attempts):
        return False
    return all(_one_creation(pod, own) for pod in pods)


def _one_creation(pod: Pod, events: list[dict[str, Any]]) -> bool:
    """Return whether exactly one Event reports the pod's creation, at the time when the pod was created."""
    name = re.compile(rf"(?<![\w.-]){re.escape(pod.name)}(?![\w.-])")
    creations = [
        event
        for event in events
        if event.get("reason") in _CREATIONS and name.search(str(event.get("message") or ""))
    ]
    created_at = seconds(mapping(pod.last.object, "metadata").get("creationTimestamp"))
    if len(creations) != 1 or created_at is None or (at := _time(creations[0])) is None:
        return False
    return _count(creations[0]) == 1 and abs(at - created_at) <= _CREATION_SECONDS


def _count(event: dict[str, Any]) -> Any:
    """Return the number of times that an Event has occurred."""
    return event.get("count") or mapping(event, "series").get("count") or 1


def _time(event: dict[str, Any]) -> float | None:
    return seconds(event.get("firstTimestamp") or event.get("eventTime"))
