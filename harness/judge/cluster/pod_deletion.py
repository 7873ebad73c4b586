"""Determine whether a pod's controllers deleted the pod when the job ended, or another client before that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.core.clock import seconds
from harness.evidence.kubernetes.kinds import TORCHRUN_JOB
from harness.evidence.kubernetes.objects import ENDED_BY_NODE, ObjectState, Pod, items, mapping
from harness.judge.case import Case, condition
from harness.judge.cluster import kubelet_rejections
from harness.judge.finding import LATE
from harness.judge.pod_end import SAME_MOMENT

_BY_POD_GC, _BY_TAINT = "DeletionByPodGC", "DeletionByTaintManager"
"""Reasons in a pod's DisruptionTarget condition if the pod's node no longer exists, or if a taint on the node
evicts the pod."""
_STOPPED_BY = {"Suspended": "{} was suspended", "SuccessCriteriaMet": "the success policy of {} was met"}
"""Conditions of a Job or JobSet that make its controller delete running pods, with their meanings."""
_ENDS = ["Failed", "FailureTarget", "Complete", "Completed", "Evicted", "Finished", "SuccessCriteriaMet"]
"""Types of conditions that show that a JobSet, Job or Workload has ended or is about to end."""
_COMPLETED = {"SuccessCriteriaMet", "Complete"}
"""Types of conditions that show that a Job completed. Newer versions of Kubernetes set both."""
WHOLE_SECONDS = 1.0
"""Tolerance in seconds, because Kubernetes timestamps are truncated to whole seconds."""


def leaving(state: ObjectState) -> bool:
    """Return whether, in this state, the object has a deletionTimestamp or is already deleted."""
    return bool(mapping(state.object, "metadata").get("deletionTimestamp")) or state.type == "DELETED"


def removed(pod: Pod) -> ObjectState | None:
    """Return the first state in which the pod was being deleted, or None if no state shows a deletion."""
    return next(filter(leaving, pod.history), None)


def while_it_ran(case: Case, pod: Pod) -> ObjectState | None:
    """Return the first state in which the pod was being deleted, or None if its container ended earlier."""
    state = removed(pod)
    if state is None or _had_ended(case, state):
        return None
    return None if state.version > _first_ended(case, pod).version else state


def _had_ended(case: Case, state: ObjectState) -> bool:
    """Return whether the state that shows the deletion also shows that the container had ended earlier."""
    ended_at = seconds(mapping(_own_status(case, state), "state", "terminated").get("finishedAt"))
    return case.launch.attached and ended_at is not None and ended_at < requested_at(state)


def _own_status(case: Case, pod: ObjectState) -> dict[str, Any]:
    """Return the status of the rank's container in a pod, or {} if it is missing."""
    statuses = items(pod.object, "status", "containerStatuses")
    return next((status for status in statuses if status.get("name") == case.launch.container), {})


def evicted(pod: Pod) -> str | None:
    """Return the reason why the kubelet or the scheduler evicted the pod, or None if it was not evicted."""
    details, status = disruption(pod.last), mapping(pod.last.object, "status")
    if (rejected := kubelet_rejections.of_running(pod)) is not None:
        message = str(mapping(rejected.object, "status").get("message") or "no reason given").rstrip(" .")
        return f"its kubelet rejected the running pod: {message.removeprefix(kubelet_rejections.REJECTED)}"
    if not details and not ended_by_node(pod.last):
        return None
    reason = details.get("message") or details.get("reason") or status.get("message") or "no reason given"
    return str(reason).rstrip(" .")  # The kubelet's message ends with ". ".


def evicted_at(pod: Pod) -> float | None:
    """Return the receive time of the first state that shows the pod's eviction, or None.

    This time is needed because the kubelet may never report that the pod's container terminated.
    """
    rejected = kubelet_rejections.of_running(pod)
    for state in pod.history:
        if disruption(state) or ended_by_node(state) or state is rejected:
            return seconds(state.received_at)
    return None


def ended_by_node(state: ObjectState) -> bool:
    """Return whether the pod's status reason shows that its node terminated it.

    This check is needed because not all Kubernetes versions add the DisruptionTarget condition.
    """
    return mapping(state.object, "status").get("reason") in ENDED_BY_NODE


def by_lost_node(case: Case, pod: ObjectState) -> bool:
    """Return whether the pod was deleted because its node had been lost, often minutes earlier.

    The garbage collector deletes pods whose node no longer exists, and the taint manager deletes the pods of
    an unreachable node after five minutes. A node that has reported the end of the container was not lost.
    """
    reason, terminated = disruption(pod).get("reason"), mapping(_own_status(case, pod), "state", "terminated")
    return reason == _BY_POD_GC or (reason == _BY_TAINT and not terminated)


def disruption(pod: ObjectState) -> dict[str, Any]:
    """Return the pod's DisruptionTarget condition, which gives the reason for an eviction, or {}.

    If an evicted pod is not deleted within two minutes, Kubernetes sets the condition to False.
    """
    target = condition(pod, "DisruptionTarget")
    return {} if target.get("status") == "False" else target


def asked_to_stop(pod: Pod) -> float:
    """Return the time of the pod's deletion or eviction, in seconds since the epoch, or LATE if unknown."""
    state, at = removed(pod), seconds(disruption(pod.last).get("lastTransitionTime"))
    return min(LATE if at is None else at, requested_at(state) if state else LATE)


def stopped_by_node(pod: Pod, ended_at: float) -> bool:
    """Return whether the kubelet stopped a container that ended at `ended_at`, in seconds since the epoch.

    A container may have ended by itself before the kubelet stopped its pod, if a helper container kept the
    pod running. The DisruptionTarget condition shows when the kubelet stopped the pod. Without this
    condition, the function returns True only for a pod with a single container.
    """
    if not ended_by_node(pod.last):
        return False
    if disruption(pod.last):
        return asked_to_stop(pod) <= ended_at
    return len(items(pod.last.object, "status", "containerStatuses")) == 1


def requested_at(removed: ObjectState) -> float:
    """Return the time at which the deletion was requested, in seconds since the epoch.

    This is earlier than the deletionTimestamp, which marks the end of the grace period.
    """
    metadata = mapping(removed.object, "metadata")
    limit, grace = seconds(metadata.get("deletionTimestamp")), metadata.get("deletionGracePeriodSeconds")
    if limit is not None and isinstance(grace, int):
        return limit - grace
    return limit or seconds(removed.received_at) or LATE


def version(removed: ObjectState) -> float:
    """Return the state's resource version, or LATE if it is not known."""
    return removed.version if removed.version >= 0 else LATE


def at_the_deadline(case: Case, removed: ObjectState) -> float | None:
    """Return the time of the Job's deadline if the pod was deleted because of this deadline, otherwise None.

    The controller deletes the pods before it writes the Job's condition, so resource versions do not show
    which came first. Without the condition, the deadline is computed from the Job's start time.
    """
    job = job_of(case, removed)
    if job is None:
        return None
    at = deadline_of(job) if _failure(job) else _planned_deadline(job)
    return at if at is not None and requested_at(removed) >= at - WHOLE_SECONDS else None


def job_of(case: Case, pod: ObjectState) -> ObjectState | None:
    """Return the last state of the Job that owns a pod, or None if no Job was recorded."""
    owners = {str(owner.get("uid")) for owner in items(pod.object, "metadata", "ownerReferences")}
    owner = next((job for job in case.bundle.last("job").values() if job.uid in owners), None)
    return owner or (case.jobset if case.launch.kind == "Job" else None)


def deadline_of(job: ObjectState) -> float | None:
    """Return the time at which a Job exceeded its activeDeadlineSeconds, or None if no condition shows it."""
    failure = _failure(job)
    return seconds(failure.get("lastTransitionTime")) if failure.get("reason") == "DeadlineExceeded" else None


def too_many_restarts(case: Case, pod: Pod) -> dict[str, Any] | None:
    """Return the container's last failure if a Job deleted its pod after too many restarts, or None.

    With restartPolicy OnFailure, the Job controller counts the restarts of containers. When the count reaches
    the backoffLimit, it deletes the pods while their restarted containers are running.
    """
    job, state = job_of(case, pod.last), removed(pod)
    if not case.launch.attached or job is None or state is None:
        return None
    limit = _failure(job)
    at = seconds(limit.get("lastTransitionTime"))
    if (
        limit.get("reason") != "BackoffLimitExceeded"
        or at is None
        or requested_at(state) < at - WHOLE_SECONDS
    ):
        return None
    last_failure = mapping(_own_status(case, pod.last), "lastState", "terminated")
    return last_failure if last_failure.get("exitCode") else None


def by_its_controller(case: Case, removed: ObjectState) -> str:
    """Return a clause that explains why a controller deleted an attached job's pod, or "".

    The reason is taken from the job's conditions, which a controller can write after it deletes the pods.
    """
    if not case.launch.attached:
        return ""
    for kind, job in (("Job", job_of(case, removed)), (case.launch.kind, case.jobset)):
        for name, reason in _STOPPED_BY.items():
            stop = condition(job, name)
            at = seconds(stop.get("lastTransitionTime")) if stop.get("status") == "True" else None
            if job is not None and at is not None and requested_at(removed) >= at - SAME_MOMENT:
                return f"because {reason.format(f'{kind} {job.name}')}"
    return ""


def _failure(job: ObjectState) -> dict[str, Any]:
    """Return the condition that reports why a Job fails, or {}. FailureTarget precedes Failed."""
    return condition(job, "FailureTarget") or condition(job, "Failed")


def _planned_deadline(job: ObjectState) -> float | None:
    """Return the deadline that follows from a Job's spec, or None if it has no deadline or is suspended."""
    limit = mapping(job.object, "spec").get("activeDeadlineSeconds")
    started_at = seconds(mapping(job.object, "status").get("startTime"))
    return started_at + limit if isinstance(limit, int) and started_at is not None else None


def first_out_of_time(case: Case) -> ObjectState | None:
    """Return the Job that exceeded its deadline, or None if another Job of the launch failed earlier."""
    jobs = {job.uid: job for job in case.bundle.last("job").values()}
    if case.launch.kind == "Job" and case.jobset is not None:
        jobs[case.jobset.uid] = case.jobset
    failed = [job for job in jobs.values() if _failure(job).get("status") == "True"]

    def order(job: ObjectState) -> tuple[float, bool]:
        at = seconds(_failure(job).get("lastTransitionTime"))
        return LATE if at is None else at, deadline_of(job) is not None

    first = min(failed, key=order, default=None)
    return first if first is not None and deadline_of(first) is not None else None


def by_somebody(case: Case, pod: Pod, removed: ObjectState) -> bool:
    """Return whether a pod was deleted before any sign that the job or another of its pods was ending.

    If so, another client deleted the pod, because controllers delete pods only when the job ends. The order
    of the changes is taken from the objects' resource versions.
    """
    first_version = -1 if case.launch.attached and leaving(pod.history[0]) else pod.history[0].version
    if (
        case.launch.attached and first_version < 0
    ):  # Before the harness attached, only timestamps show the order.
        at = requested_at(removed) + WHOLE_SECONDS
        signs = (sign for sign in _signs_of_an_end(case, pod) if not _of_another_step(case, sign, removed))
        return all(at <= _sign_at(case, sign) for sign in signs)
    if _by_its_job(case, pod, removed):
        return False
    return removed.version >= 0 and not any(
        first_version < state.version < removed.version for state in _signs_of_an_end(case, pod)
    )


def _by_its_job(case: Case, pod: Pod, removed: ObjectState) -> bool:
    """Return whether the Job controller deleted the pod because another pod was being deleted.

    The controller counts a pod with a deletionTimestamp as failed. It deletes the other pods before it sets
    the FailureTarget condition.
    """
    states = (state for other in case.pods.values() if other is not pod for state in other.history)
    if not any(leaving(state) and 0 <= state.version < removed.version for state in states):
        return False
    at = requested_at(removed)
    failures = (condition(state, "FailureTarget") for state in case.bundle.history("job"))
    times = (seconds(failure.get("lastTransitionTime")) for failure in failures)
    return any(time is not None and -WHOLE_SECONDS <= time - at <= SAME_MOMENT for time in times)


def with_the_job(case: Case, removed: ObjectState) -> bool:
    """Return whether the garbage collector deleted the pod because the launched object was deleted."""
    deletions = list(filter(leaving, case.jobsets)) if case.terminal is None else []
    if case.launch.attached and deletions and requested_at(deletions[0]) <= requested_at(removed):
        return True
    return any(0 <= state.version < removed.version for state in deletions)


def by_torchrun_controller(case: Case) -> ObjectState | None:
    """Return the first TorchrunJob state with a completionTime if it precedes the JobSet's deletion.

    When a TorchrunJob has ended, the torchrun controller deletes its JobSet if the JobSet is still running.
    """
    leaves = next(filter(leaving, case.jobsets), None)
    if case.launch.launcher != "torchrun" or leaves is None:
        return None
    over = (
        state
        for state in case.bundle.history(TORCHRUN_JOB.name)
        if state.name == case.launch.object_name and mapping(state.object, "status").get("completionTime")
    )
    return next((state for state in over if state.version <= leaves.version), None)


def _signs_of_an_end(case: Case, pod: Pod) -> Iterator[ObjectState]:
    """Yield the states of other objects that can cause controllers to delete this pod."""
    for other in case.pods.values():
        for state in other.history:
            phase = mapping(state.object, "status").get("phase")
            if other is not pod and (state.type == "DELETED" or phase in {"Failed", "Succeeded"}):
                yield state
    for kind in ("jobset", "job", "workload"):
        for state in case.bundle.history(kind):
            suspended = mapping(state.object, "spec").get("suspend") is True
            if leaving(state) or suspended or any(_end_conditions(state)):
                yield state


def _of_another_step(case: Case, sign: ObjectState, pod: ObjectState) -> bool:
    """Return whether `sign` shows only that another Job of the JobSet completed, such as an initializer.

    The end of such a Job does not end the pod. If it ends the JobSet because of a success policy, the
    JobSet's own status shows this.
    """
    owners = {str(owner.get("uid")) for owner in items(pod.object, "metadata", "ownerReferences")}
    other_jobs = [job.uid for job in case.bundle.last("job").values() if job.uid not in owners]
    end_types = {end.get("type") for end in _end_conditions(sign)}
    return sign.uid in other_jobs and not leaving(sign) and end_types in ({"Complete"}, _COMPLETED)


def _end_conditions(state: ObjectState) -> Iterator[dict[str, Any]]:
    """Yield each condition with status "True" which shows that the object has ended or is about to end."""
    for name in _ENDS:
        if (end := condition(state, name)).get("status") == "True":
            yield end


def _sign_at(case: Case, sign: ObjectState) -> float:
    """Return the time at which the object began to end, in seconds since the epoch, or 0 if unknown."""
    if by_lost_node(case, sign):  # The node was lost at an earlier, unknown time.
        return 0.0
    reported = (*_end_conditions(sign), disruption(sign))
    texts = [end.get("lastTransitionTime") for end in reported]
    texts.append(mapping(_own_status(case, sign), "state", "terminated").get("finishedAt"))
    times = [time for time in map(seconds, texts) if time is not None]
    suspended = condition(sign, "Suspended")
    if suspended.get("status") == "True" and (at := seconds(suspended.get("lastTransitionTime"))) is not None:
        times.append(at - SAME_MOMENT)  # The controllers delete the pods before they write this condition.
    if mapping(sign.object, "metadata").get("deletionTimestamp"):
        times.append(requested_at(sign))
    return min(times, default=0.0)


def _first_ended(case: Case, pod: Pod) -> ObjectState:
    """Return the pod's first state with a terminated rank container, or its last state if there is none."""
    terminated = (state for state in pod.history if mapping(_own_status(case, state), "state", "terminated"))
    return next(terminated, pod.last)
