"""Find restarts that happened before an attached job was read, using the counters in its objects.

Pods from an earlier attempt are usually gone, and so are their logs. However, a JobSet counts its restarts,
and a Job counts its failed pods.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.core.clock import seconds
from harness.evidence.kubernetes.objects import ObjectState, items, mapping
from harness.judge.case import Case, Restart, condition

_COUNTING = ("JobSet", "Job", "TorchrunJob")
"""Kinds whose status counts restarts or failed pods."""
_GONE = "the pods of earlier attempts are gone, so it is not known why"


def restarts(case: Case) -> Iterator[Restart]:
    """Yield the restarts that the JobSet or the Jobs have counted and whose pods were not recorded."""
    if not case.launch.attached:
        return
    pods = [pod for attempts in case.pod_attempts.values() for pod in attempts]
    last = max((pod.attempt for pod in pods), default=0)
    first = min((pod.attempt for pod in pods), default=0)
    counted = last or _restarts(case.jobset)
    unseen = min(first, counted) if pods else counted
    if unseen and case.jobset is not None:
        limit = mapping(case.jobset.object, "spec", "failurePolicy").get("maxRestarts", 0)
        text = f"the {case.launch.kind} was restarted {unseen} of at most {limit} times: {_GONE}"
        allowed = case.launch.kind != "JobSet" or (isinstance(limit, int) and unseen <= limit)
        yield Restart(0.0, list(case.ranks), text, allowed, [case.jobset.ref])
    for job in case.bundle.last("job").values():
        yield from _replaced(case, job)


def _restarts(launched: ObjectState | None) -> int:
    count = mapping(launched.object, "status").get("restarts", 0) if launched else 0
    return count if isinstance(count, int) else 0


def _replaced(case: Case, job: ObjectState) -> Iterator[Restart]:
    """Yield a restart if a Job that has not failed counts more failed pods than were recorded."""
    failed = mapping(job.object, "status").get("failed", 0)
    if not isinstance(failed, int) or condition(job, "Failed").get("status") == "True":
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
    if failed > len(recorded):
        limit = mapping(job.object, "spec").get("backoffLimit", 6)
        text = (
            f"Job {job.name} replaced {failed} failed pods (backoffLimit {limit}), of which {len(recorded)} "
        )
        text += "still exist: why the others failed is not known"
        at = seconds(job.received_at) or 0.0
        yield Restart(at, list(case.ranks), text, isinstance(limit, int) and failed <= limit, [job.ref])


def not_known(case: Case) -> str:
    """Return why it is not known whether a rank was restarted, or "" if it is known."""
    if not case.launch.attached or case.launch.kind in _COUNTING:
        return ""
    return f"a {case.launch.kind} does not count pods that it replaced before they were read"
