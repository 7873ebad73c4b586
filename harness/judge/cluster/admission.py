"""Judge whether Kueue admitted the job, and whether it evicted the job later."""

from __future__ import annotations

import re

from harness.core.causes import CauseId
from harness.core.clock import seconds
from harness.core.deadlines import MIN_WAIT, Budget
from harness.evidence.kubernetes import waiting_reasons
from harness.evidence.kubernetes.objects import ObjectState, items, mapping
from harness.judge.case import Case, condition, gated, names
from harness.judge.cluster import controllers
from harness.judge.finding import Finding, listed, not_passed, passed, unknown
from harness.judge.logs import ranks_outside_collectives

ENDING_SECONDS = 20.0
"""Maximum time, in seconds, that ranks, the Pluto client and torchrun need to exit after the last point."""
RESUME_SECONDS = 10.0
"""An admitted job that is still suspended after this many seconds counts as not resumed."""
_MULTIKUEUE = "kueue.x-k8s.io/multikueue"
"""Value of the managedBy field of jobs that MultiKueue runs in a worker cluster."""
_MANAGED = "kueue.x-k8s.io/managed"
"""Label that Kueue sets on the pods that it manages."""


def _is(state: ObjectState, kind: str) -> bool:
    return condition(state, kind).get("status") == "True"


def ever_admitted(case: Case) -> bool:
    """Return whether any recorded state of the job's Workload has a true Admitted condition.

    For an attached job, an eviction proves an earlier admission.
    """
    conditions = ("Admitted", "Evicted") if case.launch.attached else ("Admitted",)
    return any(_is(state, each) for state in case.workload for each in conditions)


def evicted(case: Case) -> bool:
    """Return whether the job's Workload had a true Evicted condition when the harness stopped waiting."""
    return bool(case.workload) and _is(case.workload[-1], "Evicted")


def refused(case: Case) -> bool:
    """Return whether the job has a Workload that was never admitted."""
    return bool(case.workload) and not ever_admitted(case)


def queue_and_admission(case: Case) -> list[Finding]:
    """Run the `queue` and `admission` checks: the queue exists and is active, and it admitted the job."""
    if not case.queue:
        return _without_queue(case)
    if not case.workload:
        return [unknown("queue", "no Workload for the job was recorded"), _no_workload(case)]
    last = case.workload[-1]
    if cluster := worker_cluster(case):
        text = f"MultiKueue runs the job in {cluster}, so none of its pods are in this cluster"
        elsewhere = (
            not_passed("admission", "admission.other_cluster", text, evidence=[last.ref])
            if case.timed_out and case.terminal is None
            else unknown("admission", text, evidence=[last.ref])
        )
        return [passed("queue", f"queue {case.queue} accepted the job", [last.ref]), elsewhere]
    if ever_admitted(case):
        return [
            passed("queue", f"queue {case.queue} accepted the job", [last.ref]),
            _not_resumed(case, last) or passed("admission", f"Workload {last.name} was admitted", [last.ref]),
        ]
    if case.pods:
        text = f"pods ran, but no recorded state of Workload {last.name} is Admitted"
        missing = not_passed("admission", "run.evidence_missing", text, evidence=[last.ref])
        return [unknown("queue", "the last states of the Workload are missing"), missing]
    return _refused(case, last)


def _not_resumed(case: Case, workload: ObjectState) -> Finding | None:
    """Return a finding if the job remained suspended after Kueue had admitted it, otherwise None.

    Kueue resumes the object that the Workload belongs to. If this object is the JobSet's owner, such as a
    TrainJob, either Kueue did not resume the owner, or the owner's controller did not resume the JobSet.
    """
    job, until = case.jobset, case.stopped_at
    if job is None or until is None or case.pods or not controllers.waited(case):
        return None
    since = seconds(str(condition(workload, "Admitted").get("lastTransitionTime") or ""))
    is_admitted = _is(workload, "Admitted") and not _is(workload, "Evicted")
    if not is_admitted or since is None or until - since < RESUME_SECONDS:
        return None
    if mapping(job.object, "spec").get("suspend") is not True:
        return None
    text = f"Kueue admitted Workload {workload.name}, but {case.launch.kind} {job.name} is still suspended"
    refs = [workload.ref, job.ref]
    owner = next(
        (each for each in items(job.object, "metadata", "ownerReferences") if each.get("kind")), None
    )
    if owner is None:
        return controllers.not_followed(case, "admission", "kueue", text, refs)
    name = f"{owner['kind']} {owner.get('name')}"
    text = (
        f"{text}: either Kueue did not resume its owner, {name}, or the owner's controller did not resume it"
    )
    return not_passed("admission", "run.timed_out", text, evidence=refs)


def _without_queue(case: Case) -> list[Finding]:
    """Return the `queue` and `admission` findings for a job that does not name a queue.

    Pods without a controller belong to no object that could have the queue label, so they need no admission.
    """
    if case.jobset is None and case.launch.kind != "Pod":
        missing = not_passed("admission", "run.evidence_missing", "no state of the job was recorded")
        return [unknown("queue", "the job's queue is not known"), missing]
    return [
        passed("queue", "the job does not name a queue"),
        passed("admission", "the job needs no admission"),
    ]


_TOLERATE = (
    "add a toleration for the taint to the pod template (for konduktor jobs, in HARNESS_KONDUKTOR_CONFIG) "
    "or, for all jobs that use the ResourceFlavor, to the ResourceFlavor's spec.tolerations"
)

_ADVICE = (
    ("untolerated taint", _TOLERATE),
    (
        "PodsReady condition",
        "Kueue admits one job at a time until its pods are ready (waitForPodsReady): find the admitted "
        "Workload whose PodsReady condition is False",
    ),
    (
        "DRA configuration",
        "map the DeviceClass in deviceClassMappings of Kueue's configuration, and add a quota for the mapped "
        "resource to the ClusterQueue",
    ),
    (
        "admission check",
        "`kubectl describe admissionchecks`; if the check provisions nodes: `kubectl describe "
        "provisioningrequests`",
    ),
)
"""Pairs of (part of Kueue's message, advice)."""
_EXCLUDED_NODES = re.compile(r'(taint|nodeSelector|affinity|resource|topologyDomain)(?: "[^"]*")?: (\d{1,9})')
"""Pattern for the number of nodes that topology-aware scheduling excluded for each reason."""
_OF_TOPOLOGY = {
    "taint": _TOLERATE,
    "nodeSelector": "correct the job's nodeSelector, or the nodes' labels",
    "affinity": "correct the job's nodeAffinity, or the nodes' labels",
    "resource": "wait until other pods on these nodes have ended, or request fewer devices for each pod",
}
_RESERVATION = re.compile(r'got reservation on "([^"]+)"')


def _refused(case: Case, last: ObjectState) -> list[Finding]:
    """Return the `queue` and `admission` findings for a Workload that Kueue never admitted.

    The message of the Workload's QuotaReserved condition determines the cause.
    """
    reserved = condition(last, "QuotaReserved")
    message, reason = str(reserved.get("message", "")), str(reserved.get("reason", ""))
    checks = _pending_checks(last)
    queue_exists = passed("queue", f"queue {case.queue} exists", [last.ref])
    has_quota = reserved.get("status") == "True"
    if has_quota and not checks and _without_topology(last):
        message = "quota is reserved, but Kueue has not found nodes for the job's pods in the topology"
        cause: CauseId = "admission.topology"
    elif has_quota and not checks and controllers.waited(case):
        text = f"quota is reserved for Workload {last.name}, but Kueue has not admitted it"
        return [queue_exists, controllers.not_followed(case, "admission", "kueue", text, [last.ref])]
    elif has_quota:
        message = f"quota is reserved, but {'; '.join(checks) or 'the Workload is not admitted'}"
        cause = "admission.check_pending"
    else:
        cause = waiting_reasons.refusal(message, reason).cause
        if cause == "admission.check_pending" and checks:
            message = f"{message.rstrip('.')} ({'; '.join(checks)})"
    if cause == "admission.not_seen" and not message and controllers.down(case, "kueue"):
        text = f"Kueue wrote no status for Workload {last.name}"
        return [
            unknown("queue", "see admission"),
            controllers.not_followed(case, "admission", "kueue", text, [last.ref]),
        ]
    text = f"Kueue did not admit the job (queue {case.queue}): {message or 'no message'}"
    if cause.startswith("queue."):
        reasons = _inactive(case, message) if cause == "queue.inactive" else []
        result = not_passed("queue", cause, text, why=reasons, evidence=[last.ref])
        return [result, unknown("admission", "see queue")]
    advice = _advice(cause, message)
    return [queue_exists, not_passed("admission", cause, text, evidence=[last.ref], advice=advice)]


def _without_topology(workload: ObjectState) -> bool:
    """Return whether Kueue waits for the admission checks before it assigns the topology."""
    assignments = items(workload.object, "status", "admission", "podSetAssignments")
    return any(each.get("delayedTopologyRequest") == "Pending" for each in assignments)


def _pending_checks(workload: ObjectState) -> list[str]:
    """Return a clause for each of the Workload's admission checks that is not Ready, with its message."""
    checks = [
        each for each in items(workload.object, "status", "admissionChecks") if each.get("state") != "Ready"
    ]
    return [
        f"admission check {each.get('name')} is {each.get('state')}"
        + (f": {str(each['message']).rstrip('.')}" if each.get("message") else "")
        for each in checks
    ]


def _advice(cause: CauseId, message: str) -> str:
    """Return advice for Kueue's message, or "" if the cause's advice is sufficient."""
    if cause == "admission.topology":
        excluded = {kind: int(count) for kind, count in _EXCLUDED_NODES.findall(message)}
        most = max(excluded, key=lambda kind: excluded[kind], default="")
        return _OF_TOPOLOGY.get(most, "")
    if cause == "admission.pending" and "untolerated taint" in message:
        return ""
    return next((advice for part, advice in _ADVICE if part in message), "")


def worker_cluster(case: Case) -> str:
    """Return the worker cluster in which MultiKueue runs the job, such as "cluster a", or "".

    If the Workload does not name the cluster, return "another cluster" if the job's managedBy field names
    MultiKueue.
    """
    last = case.workload[-1] if case.workload else None
    if case.pods or last is None or not _is(last, "QuotaReserved"):
        return ""
    if name := mapping(last.object, "status").get("clusterName"):
        return f"cluster {name}"
    texts = [str(each.get("message")) for each in items(last.object, "status", "admissionChecks")]
    if reservation := next(filter(None, map(_RESERVATION.search, texts)), None):
        return f"cluster {reservation[1]}"
    manager = controllers.foreign_manager(case.jobset) if case.jobset is not None else ""
    return "another cluster" if manager == _MULTIKUEUE and _is(last, "Admitted") else ""


def _inactive(case: Case, message: str) -> list[str]:
    """Return a one-item list that explains why the queue named in Kueue's message is not Active, or []."""
    for kind in ("clusterqueue", "localqueue"):
        for queue in case.bundle.last(kind).values():
            active = condition(queue, "Active")
            if queue.name in message.split() and active.get("status") == "False":
                policy = mapping(queue.object, "spec").get("stopPolicy") or "None"
                policy_text = f" (stopPolicy {policy})" if policy != "None" else ""
                return [
                    f"queue {queue.name} is not Active, {active.get('reason')}: "
                    f"{active.get('message')}{policy_text}"
                ]
    return []


def _no_workload(case: Case) -> Finding:
    launched = case.jobset
    if launched is not None and case.terminal is None and not case.pods:
        are_gated = any(gated(pod.last) for pods in case.pod_attempts.values() for pod in pods)
        if are_gated or mapping(launched.object, "spec").get("suspend") is True:
            text = (
                f"{case.launch.kind} {launched.name} waits for queue {case.queue}, "
                "but Kueue created no Workload for it"
            )
            return controllers.not_followed(case, "admission", "kueue", text, [launched.ref])
    if case.launch.attached:
        text = f"the job has no Workload now (queue {case.queue}), so its admission is not known"
        return unknown("admission", text)
    if launched is not None and case.pods and not _suspended_by_kueue(case):
        subject = f"{case.launch.kind} {launched.name} names queue {case.queue}, but is not managed by Kueue"
        text = f"{subject}: it has no Workload, and its pods ran without admission"
        return not_passed("admission", "queue.kind_not_managed", text, evidence=[launched.ref])
    return not_passed("admission", "run.evidence_missing", "no Workload for the job was recorded")


def _suspended_by_kueue(case: Case) -> bool:
    """Return whether the job (a JobSet or Job) was ever suspended, or its pods (for other kinds) were gated.

    If so, Kueue also created a Workload, which is missing from the evidence.
    """
    pods = [state for pods in case.pod_attempts.values() for pod in pods for state in pod.history]
    suspended = any(mapping(state.object, "spec").get("suspend") is True for state in case.jobsets)
    return suspended or any(gated(s) or mapping(s.object, "metadata", "labels").get(_MANAGED) for s in pods)


def eviction(case: Case) -> Finding:
    """Run the `eviction` check: Kueue did not evict the job before it ended.

    The check also passes if the job was evicted and completed later.
    """
    if not case.queue and (case.jobset is not None or case.launch.kind == "Pod"):
        return passed("eviction", "the job is not in a queue")
    if not case.workload:
        return unknown("eviction", "no Workload for the job was recorded")
    if not ever_admitted(case):
        return unknown("eviction", "no recorded state of the job's Workload is Admitted")
    for state in case.workload:
        inactive = mapping(state.object, "spec").get("active") is False
        if not _is(state, "Evicted") and not inactive:
            continue
        evicted = condition(state, "Evicted") or condition(state, "DeactivationTarget")
        reason = str(evicted.get("reason") or "Deactivated")
        if not _is(state, "Evicted") and state is not case.workload[-1]:
            continue
        if case.terminal == "Completed":
            text = f"Kueue evicted the job ({reason}) and admitted it again, and the job completed"
            return passed("eviction", text, [state.ref])
        cause, message = waiting_reasons.eviction(reason), str(evicted.get("message", "no message"))
        limit, advice = "", list[str]()
        failed_checks = _pending_checks(state) if "AdmissionCheck" in reason else []
        if cause == "admission.max_execution_time":
            limit, advice = _allowed(case, state)
            over = seconds(evicted.get("lastTransitionTime")) or 0.0
            if case.recorded:
                advice = [*_slow_start(case, over), *_silent(case, over, advice)]
        return not_passed(
            "eviction",
            cause,
            f"Kueue evicted the job ({reason}): {message}{limit}",
            why=[*_workload_name(case, message), *failed_checks, *advice],
            ranks=case.ranks,
            evidence=[state.ref],
            at=seconds(evicted.get("lastTransitionTime")) or seconds(state.received_at),
        )
    return passed("eviction", "the job was not evicted", [case.workload[-1].ref])


def _silent(case: Case, over: float, advice: list[str]) -> list[str]:
    """Return the advice, preceded by sentences about ranks that stopped logging long before the time limit.

    The rank that stopped logging first is named first. If all ranks had logged all their points, more time
    would not have helped, so a sentence about the processes that did not end replaces the advice.
    """
    last = {rank: case.last_logged(rank) for rank in case.ranks}
    quiet_ranks = [rank for rank in last if last[rank] and over - last[rank] >= ENDING_SECONDS]
    quiet_ranks.sort(key=lambda rank: last[rank])
    if len(quiet_ranks) == len(last) and all(map(case.record_ended, case.ranks)):
        text = (
            f"{names(case.ranks)} had logged everything {over - max(last.values()):.0f} s before the time "
            "limit"
        )
        return [f"{text}: torchrun, or a command after it in the run script, did not end"]
    text = listed(
        [
            f"{names([rank])} had logged nothing for {over - last[rank]:.0f} s before the time limit"
            for rank in quiet_ranks
        ]
    )
    return [text, *ranks_outside_collectives.when_stopped(case), *advice] if text else advice


def _slow_start(case: Case, over: float) -> list[str]:
    """Return [sentence] if the job spent more than half of its time limit on starting, otherwise []."""
    admissions = [condition(state, "Admitted") for state in case.workload if _is(state, "Admitted")]
    admitted_at = max((seconds(one.get("lastTransitionTime")) or over for one in admissions), default=over)
    logged = {rank: case.first_logged(rank) or over for rank in case.logging}
    last_logged = max(logged.values(), default=over)
    if last_logged - admitted_at <= (over - admitted_at) / 2:
        return []
    times = [case.container_started(case.node_of(rank)) or over for rank in case.ranks]
    not_started = [rank for rank, time in zip(case.ranks, times, strict=True) if time >= over]
    if not_started:
        return [f"when the time limit was reached, the containers of {names(not_started)} had not started"]
    start_text = f"the last container started {max(times) - admitted_at:.0f} s after the job was admitted"
    silent_ranks = [rank for rank, time in logged.items() if time >= over]
    if silent_ranks:
        return [f"{start_text}, and {names(silent_ranks)} had logged nothing when the time limit was reached"]
    return [
        f"{start_text}, and it took {last_logged - admitted_at:.0f} s from the admission until the last "
        "rank logged its first point"
    ]


def _allowed(case: Case, workload: ObjectState) -> tuple[str, list[str]]:
    """Return the job's maximum execution time as text, and advice if this limit was derived from --wait."""
    limit = mapping(workload.object, "spec").get("maximumExecutionTimeSeconds")
    wait = case.manifest.deadline_seconds
    text = f" ({limit} s)" if limit else ""
    if not limit or wait is None or wait < MIN_WAIT or limit != int(Budget(wait).job):
        return text, []
    return text, [f"this limit follows from --wait {wait:g}: if the job needs more time, raise --wait"]


def _workload_name(case: Case, message: str) -> list[str]:
    """Return a one-item list with the name of the Workload whose UID is in Kueue's message, or []."""
    names = [state.name for uid, state in case.bundle.last("workload").items() if uid in message]
    return [f"this UID belongs to Workload {', '.join(names)}"] if names else []
