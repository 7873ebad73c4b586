"""Use an attached job's objects and Events to find out why some of its ranks have no pod.

The status and the log of a deleted pod are lost. The job's spec and status show which controller may have
deleted the pod. By default, the API server keeps Events about the pod for an hour.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.evidence.kubernetes.objects import ObjectState, items, mapping
from harness.judge.case import Case, condition
from harness.judge.cluster import pod_deletion

LATER = (
    "a deleted pod cannot be read later: attach to the next run while its pods exist, with --wait or --follow"
)
AGAIN = "attach again, or use --follow, which records the pods before they are deleted"
MAX_EVENTS = 2
"""Maximum number of Events that a finding quotes."""
_DELETIONS = ("SuccessfulDelete", "SuccessfulDeletePod", "Evicted", "Preempted", "TaintManagerEviction")
"""Reasons of Events in which controllers report that they deleted a pod."""
_OPERATORS = ("PyTorchJob", "MPIJob")
_FIRST_FAILED = re.compile(r"first failed job: ([\w.-]+)")
"""Pattern for the first failed Job in the message of a JobSet's Failed condition, which JobSet 0.12 writes in
pkg/controllers/failure_policy.go."""


def advice(case: Case) -> str:
    """Return advice on how to record pods before they are deleted."""
    return LATER if case.terminal else AGAIN


def reason(case: Case) -> str:
    """Return a clause with the possible reasons for a pod's deletion, according to the job's objects."""
    launched = case.jobset
    if launched is None:
        return "the pod was deleted by its controller, a person, a program or the removal of its node"
    if case.launch.kind in _OPERATORS and not items(launched.object, "status", "conditions"):
        return f"the {case.launch.kind} has no conditions either: is its operator running?"
    if case.launch.kind in _OPERATORS:
        policy = mapping(launched.object, "spec", "runPolicy").get("cleanPodPolicy")
        policy = policy or mapping(launched.object, "spec").get("cleanPodPolicy") or "not set"
        return f"the operator deletes pods when the {case.launch.kind} has ended (cleanPodPolicy: {policy})"
    return next(_of_ended(case, launched) if case.terminal else _of_unended(case, launched))


def _of_ended(case: Case, launched: ObjectState) -> Iterator[str]:
    """Yield the possible reasons why pods of a finished job are missing, the most specific first."""
    kind, name = case.launch.kind, launched.name
    job = pod_deletion.first_out_of_time(case) if case.terminal == "Failed" else None
    if job is not None:
        limit = mapping(job.object, "spec").get("activeDeadlineSeconds")
        yield f"the Job controller deleted the pods of Job {job.name} at its deadline ({limit} s)"
    if seconds := _seconds_to_live(launched):
        yield f"the Jobs of JobSet {name} and their pods are deleted {seconds} s after the Jobs have ended"
    if kind == "Job" and case.terminal == "Completed":
        yield (
            "the Job controller keeps the pods of a completed Job, so a person, a program, the pod garbage "
            "collector or the removal of a node deleted them"
        )
    if kind == "Job":
        yield "the Job controller deletes the pods that still run when the Job fails"
    if kind == "JobSet" and case.terminal == "Failed":
        text = "when the JobSet fails, the JobSet controller deletes its running Jobs and their pods"
        failed_job = _FIRST_FAILED.search(str(condition(launched, "Failed").get("message")))
        yield f"{text}; according to its status, Job {failed_job[1]} failed first" if failed_job else text
    yield f"the controller of {kind} {name}, a person or a program may have deleted the pod"


def _seconds_to_live(launched: ObjectState) -> str:
    """Return the ttlSecondsAfterFinished values of a JobSet's Jobs, separated by commas, or ""."""
    replicated = items(launched.object, "spec", "replicatedJobs")
    limits = {mapping(job, "template", "spec").get("ttlSecondsAfterFinished") for job in replicated}
    return ", ".join(sorted(str(limit) for limit in limits if isinstance(limit, int)))


def _of_unended(case: Case, launched: ObjectState) -> Iterator[str]:
    """Yield the possible reasons why pods of an unfinished job are missing, the most specific first."""
    kind, name = case.launch.kind, launched.name
    if mapping(launched.object, "spec").get("suspend") is True:
        yield f"{kind} {name} is suspended, and its controller deletes the pods of a suspended job"
    if pod_deletion.leaving(launched):
        yield f"{kind} {name} and its pods are being deleted"
    restarts = mapping(launched.object, "status").get("restarts")
    if kind == "JobSet" and restarts:
        yield f"the JobSet controller has restarted the job ({restarts} so far): it deletes all pods first"
    failure_target = condition(launched, "FailureTarget")
    if failure_target.get("status") == "True":
        yield f"its controller deletes the pods that still run: {failure_target.get('message')}"
    if not case.pods:
        yield "it is not known whether these ranks had pods before"
    if kind in ("StatefulSet", "DaemonSet"):
        yield f"the {kind} controller has not created the pod yet, or is about to recreate it"
    yield "a person, a program or a controller deleted the pod, which has not been replaced yet"


def events(case: Case) -> tuple[list[str], list[str]]:
    """Return (sentences, references) for the last Events that report the deletion of missing pods."""
    pod_names = {pod.name for pods in case.pod_attempts.values() for pod in pods}
    by_message: dict[str, ObjectState] = {}
    for event in case.bundle.last("event").values():
        involved, message = mapping(event.object, "involvedObject"), str(event.object.get("message") or "")
        if event.object.get("reason") not in _DELETIONS:
            continue
        if str(involved.get("name")) in pod_names or any(name in message for name in pod_names):
            continue
        by_message[message] = event
    newest = list(by_message.values())[-MAX_EVENTS:]
    texts = [f"Event {e.object.get('reason')}: {str(e.object.get('message')).rstrip('.')}" for e in newest]
    return texts, [event.ref for event in newest]
