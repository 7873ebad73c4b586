"""Judge whether Kueue admitted the job and let it keep its quota."""

from __future__ import annotations

from collections.abc import Mapping

from harness.core.causes import CauseId
from harness.core.deadlines import MIN_WAIT, Budget
from harness.evidence import messages
from harness.evidence.objects import ObjectState, items, mapping
from harness.judge import controllers
from harness.judge.case import RUNNING, Case, Finding, condition, found, gated, passed, seconds, unknown

_MANAGED = "kueue.x-k8s.io/managed"
"""The label of pods that Kueue admits."""


def _is(state: ObjectState, kind: str) -> bool:
    return condition(state, kind).get("status") == "True"


def ever_admitted(case: Case) -> bool:
    """Return whether any recorded state of the job's Workload shows that it was admitted."""
    return any(_is(state, "Admitted") for state in case.workload)


def queue_and_admission(case: Case) -> list[Finding]:
    """Check `queue` and `admission`."""
    if not case.queue:
        if case.jobset is None:
            missing = found("admission", "run.evidence_missing", "no state of the job was recorded")
            return [unknown("queue", "the job's queue is not known"), missing]
        return [passed("queue", "the job names no queue"), passed("admission", "the job needs no admission")]
    if not case.workload:
        return [unknown("queue", "no Workload was recorded"), _no_workload(case)]
    last = case.workload[-1]
    if ever_admitted(case):
        return [
            passed("queue", f"queue {case.queue} took the job", [last.ref]),
            passed("admission", f"Workload {last.name} was admitted", [last.ref]),
        ]
    if case.pods:
        text = f"pods ran, and Workload {last.name} was not recorded as admitted"
        missing = found("admission", "run.evidence_missing", text, evidence=[last.ref])
        return [unknown("queue", "the Workload's last states are missing"), missing]
    return _refused(case, last)


def _refused(case: Case, last: ObjectState) -> list[Finding]:
    """Return both checks for a Workload that was never admitted. The cause is what Kueue says of it."""
    reserved = condition(last, "QuotaReserved")
    message, reason = str(reserved.get("message", "")), str(reserved.get("reason", ""))
    if reserved.get("status") == "True":
        checks = items(last.object, "status", "admissionChecks")
        waits = [f"{c.get('name')} is {c.get('state')}" for c in checks if c.get("state") != "Ready"]
        message = f"quota is reserved, admission check {', '.join(waits)}"
        cause: CauseId = "admission.check_pending"
    else:
        cause = messages.refusal(message, reason).cause
    if cause == "admission.not_seen" and not message and controllers.down(case, "kueue"):
        text = f"Kueue says nothing of Workload {last.name}"
        return [
            unknown("queue", "not reached: see admission"),
            controllers.not_followed(case, "admission", "kueue", text, [last.ref]),
        ]
    text = f"Kueue did not admit the job (queue {case.queue}): {message or 'it says nothing'}"
    text += _inactive(case, message) if cause == "queue.inactive" else ""
    name, other = ("queue", "admission") if cause.startswith("queue.") else ("admission", "queue")
    result = found(name, cause, text, evidence=[last.ref])
    rest = (
        unknown(other, "not reached: see queue")
        if name == "queue"
        else passed(other, f"queue {case.queue} is known to Kueue", [last.ref])
    )
    return [result, rest] if name == "queue" else [rest, result]


def _inactive(case: Case, message: str) -> str:
    """Return why the queue that Kueue names is inactive, as the end of a sentence, from its status."""
    for kind in ("clusterqueue", "localqueue"):
        for queue in case.bundle.last(kind).values():
            active = condition(queue, "Active")
            if queue.name in message.split() and active.get("status") == "False":
                policy = mapping(queue.object, "spec").get("stopPolicy") or "None"
                stopped = f" (stopPolicy {policy})" if policy != "None" else ""
                return f"; it says {active.get('reason')}: {active.get('message')}{stopped}"
    return ""


def _no_workload(case: Case) -> Finding:
    launched = case.jobset
    if launched is not None and case.terminal is None and not case.pods:
        held = any(gated(pod.last) for pods in case.pod_attempts.values() for pod in pods)
        if held or mapping(launched.object, "spec").get("suspend") is True:
            text = (
                f"{case.launch.kind} {launched.name} waits for queue {case.queue}, "
                "and Kueue made no Workload for it"
            )
            return controllers.not_followed(case, "admission", "kueue", text, [launched.ref])
    if launched is not None and case.pods and not _held_by_kueue(case):
        what = f"{case.launch.kind} {launched.name} names queue {case.queue}, and Kueue does not manage it"
        text = f"{what}: there is no Workload of it, and its pods ran without being admitted"
        return found("admission", "queue.kind_not_managed", text, evidence=[launched.ref])
    return found("admission", "run.evidence_missing", "no Workload of the job was recorded")


def _held_by_kueue(case: Case) -> bool:
    """Return whether Kueue ever held the job back: it suspends a JobSet and a Job, and gates other pods.

    If it did, it also made a Workload, and the evidence of that is lost.
    """
    pods = [state for pods in case.pod_attempts.values() for pod in pods for state in pod.history]
    suspended = any(mapping(state.object, "spec").get("suspend") is True for state in case.jobsets)
    return suspended or any(gated(s) or mapping(s.object, "metadata", "labels").get(_MANAGED) for s in pods)


def eviction(case: Case) -> Finding:
    """Check whether Kueue took the job's quota away before the job ended.

    A job that still completed passes.
    """
    if not case.queue and case.jobset is not None:
        return passed("eviction", "the job is in no queue")
    if not case.workload:
        return unknown("eviction", "no Workload was recorded")
    if not ever_admitted(case):
        return unknown("eviction", "the job was not admitted")
    for state in case.workload:
        inactive = mapping(state.object, "spec").get("active") is False
        if not _is(state, "Evicted") and not inactive:
            continue
        evicted = condition(state, "Evicted") or condition(state, "DeactivationTarget")
        reason = str(evicted.get("reason") or "Deactivated")
        if not _is(state, "Evicted") and state is not case.workload[-1]:
            continue
        if case.terminal == "Completed":
            return passed("eviction", f"evicted once ({reason}), admitted again, completed", [state.ref])
        cause = messages.eviction(reason)
        allowed = _allowed(case, state) if cause == "admission.max_execution_time" else ""
        return found(
            "eviction",
            cause,
            f"Kueue ended the job ({reason}): {_said(case, evicted)}{allowed}",
            ranks=range(case.expected.ranks),
            evidence=[state.ref],
            phase=RUNNING,
            at=seconds(evicted.get("lastTransitionTime")) or seconds(state.received_at),
        )
    return passed("eviction", "the job was not evicted", [case.workload[-1].ref])


def _allowed(case: Case, workload: ObjectState) -> str:
    """Return how long the job was allowed to run, and whether the harness or the job file set that limit."""
    limit = mapping(workload.object, "spec").get("maximumExecutionTimeSeconds")
    if not limit:
        return ""
    wait = case.manifest.deadline_seconds
    if wait is None or wait < MIN_WAIT or limit != int(Budget(wait).job):
        return f" ({limit} s)"
    return f" ({limit} s). That is what --wait {wait:g} leaves for the job: if it needs longer, raise --wait"


def _said(case: Case, evicted: Mapping[str, object]) -> str:
    """Return Kueue's message.

    A workload that it names only by UID is also given by name, where it was seen.
    """
    message = str(evicted.get("message", "no message"))
    names = [seen.name for uid, seen in case.bundle.last("workload").items() if uid in message]
    return message + (f"; that is Workload {', '.join(names)}" if names else "")
