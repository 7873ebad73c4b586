"""Judge whether the job completed."""

from __future__ import annotations

from harness.core.clock import seconds
from harness.core.deadlines import MIN_WAIT, Budget
from harness.evidence.kubernetes.objects import ObjectState, mapping
from harness.judge.case import Case, condition
from harness.judge.catalogue import END, RUNNING
from harness.judge.cluster import admission, controllers, pod_deletion
from harness.judge.finding import Finding, not_passed, passed, unknown
from harness.judge.logs import ranks_outside_collectives
from harness.judge.pod_end import End
from harness.judge.ranks import attached_ends, pods, terminating


def completed(case: Case, ends: dict[int, End]) -> Finding:
    """Run the `completed` check: the launched object completed.

    If not, report why it failed or did not end.
    """
    if case.launch.kind == "Pod":
        return attached_ends.of_bare_pods(case, ends)
    jobset = case.jobset
    if jobset is None:
        text = f"no state of {case.launch.kind} {case.launch.object_name} was recorded"
        return not_passed("completed", "run.evidence_missing", text)
    if case.terminal == "Completed":
        early = attached_ends.completed_early(case, jobset, ends)
        return early or passed(
            "completed", f"{_object_name(case, jobset)} {_completion_text(case)}", [jobset.ref]
        )
    return _failed(case, jobset) if case.terminal == "Failed" else _unended(case, jobset, ends)


def _failed(case: Case, jobset: ObjectState) -> Finding:
    """Return the finding for an object whose status shows that it failed."""
    failure = condition(jobset, "Failed")
    if (job := pod_deletion.first_out_of_time(case)) is not None:
        return _too_long(case, job)
    if case.launch.held:
        failure = {"reason": "RankFailed", "message": "a rank's command did not end with exit code 0"}
    reason = f"{failure.get('reason', 'no reason')}: {failure.get('message', 'no message')}"
    text = f"{_object_name(case, jobset)} failed: {reason}"
    if case.launch.attached:
        return attached_ends.failed(case, jobset, text)
    return not_passed("completed", "run.not_completed", text, evidence=[jobset.ref])


def _too_long(case: Case, job: ObjectState) -> Finding:
    """Return the finding for a Job that exceeded its deadline, so Kubernetes terminated all ranks of the Job.

    The Job is either the launched object or a part of the launched JobSet.
    """
    limit = mapping(job.object, "spec").get("activeDeadlineSeconds")
    return _out_of_time(
        case, f"Kubernetes ended Job {job.name}", limit, [job.ref], pod_deletion.deadline_of(job)
    )


def _out_of_time(case: Case, head: str, limit: object, refs: list[str], at: float | None) -> Finding:
    wait = case.manifest.deadline_seconds
    reasons = ranks_outside_collectives.when_stopped(case)
    if wait is not None and wait >= MIN_WAIT and limit == int(Budget(wait).job):
        reasons.append(f"this limit follows from --wait {wait:g}: if the job needs more time, raise --wait")
    return not_passed(
        "completed",
        "run.timed_out",
        f"{head}: it ran longer than its activeDeadlineSeconds ({limit} s)",
        why=reasons,
        ranks=range(case.expected.ranks),
        evidence=refs,
        phase=RUNNING,
        at=at,
    )


def _unended(case: Case, jobset: ObjectState, ends: dict[int, End]) -> Finding:
    """Return the finding for a job that is neither Completed nor Failed."""
    refs = [jobset.ref]
    if pod_deletion.leaving(jobset) and (finding := _by_torchrun_controller(case, jobset)) is not None:
        return finding
    is_leaving = case.launch.attached and pod_deletion.leaving(jobset)
    if (jobset.type == "DELETED" or is_leaving) and not case.by_signal:
        deletion_state = next(filter(pod_deletion.leaving, case.jobsets))
        return not_passed(
            "completed",
            "run.deleted",
            f"{_object_name(case, jobset)} was deleted before it ended, and not by the harness",
            ranks=case.ranks,
            evidence=refs,
            phase=RUNNING,
            at=pod_deletion.requested_at(deletion_state)
            if case.launch.attached
            else seconds(deletion_state.received_at),
        )
    if (job := pod_deletion.first_out_of_time(case)) is not None and not case.by_signal:
        return _too_long(case, job)
    if mapping(jobset.object, "spec").get("suspend") is True and admission.evicted(case):
        text = f"Kueue suspended {_object_name(case, jobset)}, so it did not end: see the eviction check"
        return unknown("completed", text, evidence=refs)
    not_ended = attached_ends.not_ended if case.launch.attached else _waited_for
    return not_ended(case, jobset, ends)


def _waited_for(case: Case, jobset: ObjectState, ends: dict[int, End]) -> Finding:
    """Return the finding for a launched job that did not end and whose object still exists."""
    refs = [jobset.ref]
    if controllers.waited(case) and _pods_have_ended(case, ends):
        text = f"every rank's pod has ended, but {_object_name(case, jobset)} has not"
        return controllers.not_followed(case, "completed", "jobset", text, refs, END)
    if admission.worker_cluster(case):
        return unknown(
            "completed", f"{_object_name(case, jobset)} ran in another cluster: see the admission check"
        )
    if case.timed_out:
        ranks, reasons = pods.stalled(case, ends)
        reasons += [*ranks_outside_collectives.when_stopped(case), *terminating.overdue(case)]
        text = f"{_object_name(case, jobset)} did not end: {case.deadline}"
        return not_passed("completed", "run.timed_out", text, why=reasons, ranks=ranks, evidence=refs)
    text = "has no recorded end" + ": the harness was stopped before the job ended" * case.by_signal
    if case.given_up and not case.by_signal:
        text = f"had not ended when the harness stopped waiting, and all its pods were running{_waited(case)}"
    return unknown("completed", f"{_object_name(case, jobset)} {text}", evidence=refs)


def _waited(case: Case) -> str:
    """Return a clause with the scheduler's last message about a pod that waited for a node, or ""."""
    for pod in case.pods.values():
        for state in reversed(pod.history):
            scheduled = condition(state, "PodScheduled")
            if scheduled.get("reason") == "Unschedulable":
                return f": pod {pod.name} had waited for a node ({scheduled.get('message')})"
    return ""


def _by_torchrun_controller(case: Case, jobset: ObjectState) -> Finding | None:
    """Return the finding for a JobSet deleted by the torchrun controller after the job ended, or None."""
    job = pod_deletion.by_torchrun_controller(case)
    if job is None:
        return None
    status = mapping(job.object, "status")
    failure = condition(job, "Failed")
    phase, at = str(status.get("phase")), seconds(status.get("completionTime"))
    refs = [job.ref, jobset.ref]
    if phase == "TimedOut":
        limit = mapping(job.object, "spec", "reliability").get("activeDeadlineSeconds")
        return _out_of_time(case, f"the torchrun controller ended TorchrunJob {job.name}", limit, refs, at)
    if phase in ("Failed", "Cancelled") and failure:
        reason = f"{failure.get('reason', 'no reason')}: {failure.get('message', 'no message')}"
        text = f"TorchrunJob {job.name} is {phase}, and its controller deleted the JobSet: {reason}"
        return not_passed("completed", "run.not_completed", text, ranks=case.ranks, evidence=refs)
    return None


def _pods_have_ended(case: Case, ends: dict[int, End]) -> bool:
    """Return whether all pods and all their containers have ended."""
    phases = {mapping(pod.last.object, "status").get("phase") for pod in case.pods.values()}
    return phases <= {"Succeeded", "Failed"} and all(
        end.state in {"succeeded", "failed"} for end in ends.values()
    )


def _object_name(case: Case, launched: ObjectState) -> str:
    return f"{case.launch.kind} {launched.name}"


def _completion_text(case: Case) -> str:
    """Return a clause with the evidence that the job completed. The clause follows the object's name."""
    if not case.launch.held:
        return "is Completed"
    return "ran to its end: the command of every rank ended with exit code 0, and none was restarted"
