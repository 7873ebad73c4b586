"""Judge whether the JobSet and Kueue controllers reconciled the job, and if not, why."""

from __future__ import annotations

from dataclasses import dataclass

from harness.core.causes import NOT_READY, NOT_RECONCILING, CauseId, Controller
from harness.core.checks import CheckId
from harness.core.clock import seconds
from harness.evidence.kubernetes import refusals
from harness.evidence.kubernetes.objects import ObjectState, items, mapping
from harness.evidence.schema.bundle import DryRun
from harness.judge.case import Case, names
from harness.judge.catalogue import PROVISION
from harness.judge.finding import Finding, not_passed, unknown

_WEBHOOK = "failed calling webhook"
_LOCAL_MANAGERS = (
    "",
    "jobset.sigs.k8s.io/jobset-controller",
    "kubernetes.io/job-controller",
    "kubeflow.org/training-operator",
    "trainer.kubeflow.org/trainjob-controller",
    "ray.io/kuberay-operator",
)
"""Values of a job's managedBy field that leave the job to its usual controller in this cluster."""
_TITLES: dict[Controller, str] = {"jobset": "JobSet", "kueue": "Kueue"}


def waited(case: Case) -> bool:
    """Return whether the harness waited, without being stopped, until the job ended or the deadline passed.

    Only then is the absence of an object meaningful.
    """
    is_complete = case.wait is not None and (case.wait.ok or case.wait.cause == "run.timed_out")
    return is_complete and not case.cut_short


def down(case: Case, controller: Controller) -> ObjectState | None:
    """Return the last state of the controller's Deployment if it has no available pods, otherwise None.

    States that were recorded after the harness stopped waiting are ignored.
    """
    limit = case.stopped_at or float("inf")
    states = [s for s in case.bundle.history(f"{controller}-controller") if _at(s) <= limit]
    if not states:
        return None
    last = states[-1]
    is_serving = last.type != "DELETED" and mapping(last.object, "status").get("availableReplicas")
    return None if is_serving else last


@dataclass(frozen=True)
class SilentWebhook:
    """A webhook Service that has no ready endpoint. `ref` refers to its EndpointSlice in the evidence."""

    service: str
    ref: str


def webhook_without_endpoints(case: Case) -> SilentWebhook | None:
    """Return the first webhook Service that had no ready endpoint when the harness stopped waiting.

    Returns None if every recorded webhook Service had one.
    """
    limit = case.stopped_at or float("inf")
    last: dict[str, list[ObjectState]] = {}
    for kind in ("kueue-endpoints", "jobset-endpoints"):
        newest = {state.uid: state for state in case.bundle.history(kind) if _at(state) <= limit}
        for state in newest.values():
            service = str(mapping(state.object, "metadata", "labels").get("kubernetes.io/service-name"))
            if "webhook" in service:
                last.setdefault(service, []).append(state)
    for service, slices in last.items():
        if not any(_serves(state) for state in slices):
            return SilentWebhook(service, slices[-1].ref)
    return None


def _serves(slice_: ObjectState) -> bool:
    """Return whether an EndpointSlice has a ready endpoint. A missing condition counts as ready."""
    endpoints = [] if slice_.type == "DELETED" else items(slice_.object, "endpoints")
    return any(
        end.get("addresses") and mapping(end, "conditions").get("ready") is not False for end in endpoints
    )


@dataclass(frozen=True)
class Refused:
    """A controller's request that the API server rejects, as shown by a dry run."""

    cause: CauseId | None
    """The cause that the rejection proves. If it is None, the finding mentions the rejection only as a
    detail."""
    text: str
    ref: str


def refused_request(case: Case) -> Refused | None:
    """Return the API server's rejection of an object that a controller should have created, or None.

    Rejections that may be due to a difference between the dry run and the controller's own request are
    ignored.
    """
    dry_runs = [(f"dry-runs.jsonl:{line}", run) for line, run in case.bundle.dry_runs()]
    for awaited in (True, False):
        runs = [(ref, run) for ref, run in dry_runs if run.awaited is awaited]
        rejected = [(ref, run) for ref, run in runs if _is_conclusive(run)]
        if rejected:
            ref, run = rejected[-1]
            subject = f"the missing {run.kind}" if awaited else f"another {run.kind}"
            user = f" as user {run.user}" if run.user else ""
            text = f"at {run.at[11:19]}, a dry run of {subject}{user} was refused: {run.message}"
            later_runs = [other for _, other in runs if other.at > run.at and other.kind == run.kind]
            if later_runs and later_runs[-1].message is None:
                text += f"; at {later_runs[-1].at[11:19]}, it was accepted"
            return Refused(_cause(run), text, ref)
    return None


def _is_conclusive(run: DryRun) -> bool:
    message = run.message or ""
    return _WEBHOOK in message or (run.awaited and refusals.by_rule(message))


def _cause(run: DryRun) -> CauseId | None:
    """Return the cause that a rejection proves, or None.

    Rejections due to missing permissions of the controller, or to rules that might apply only to the harness,
    do not prove a cause. The finding mentions them as details of the controller's failure.
    """
    message = run.message or ""
    if _WEBHOOK in message:
        return "controllers.webhook_not_serving"
    return "launch.pods_refused" if run.user and refusals.rule_of(message) else None


def not_followed(
    case: Case,
    check: CheckId,
    controller: Controller,
    head: str,
    evidence: list[str],
    phase: float = PROVISION,
) -> Finding:
    """Return the finding for an action that `controller` should have taken but did not.

    The cause names this controller, another controller that it depends on, or a rejected request.
    """
    other: Controller = "kueue" if controller == "jobset" else "jobset"
    refusal = refused_request(case)
    rejection, refs = ([refusal.text], [refusal.ref]) if refusal else ([], [])
    cause: CauseId = NOT_RECONCILING[controller]
    available = case.bundle.history(f"{controller}-controller")
    reasons = [f"the Deployment of {_TITLES[controller]} is Available"] if available else []
    absent = next(((name, last) for name in (controller, other) if (last := down(case, name))), None)
    if absent is not None:
        name, deployment = absent
        replicas = mapping(deployment.object, "spec").get("replicas", "?")
        problem = f"has no available pod (replicas: {replicas})"
        problem = "was deleted" if deployment.type == "DELETED" else problem
        reasons = [f"{_TITLES[name]} is down: Deployment {deployment.name} {problem}", *rejection]
        cause, refs = NOT_READY[name], [deployment.ref, *refs]
    elif (webhook := webhook_without_endpoints(case)) is not None:
        text = f"Service {webhook.service} has no endpoints, so the API server cannot call its webhooks"
        reasons = [text, *rejection]
        cause, refs = "controllers.webhook_not_serving", [webhook.ref, *refs]
    elif refusal is not None:
        cause, reasons = refusal.cause or cause, rejection if refusal.cause else [*reasons, *rejection]
    return not_passed(
        check, cause, head, why=reasons, ranks=case.ranks, evidence=[*refs, *evidence], phase=phase
    )


def no_job(case: Case) -> Finding | None:
    """Return a finding if the JobSet controller created no Job for a resumed JobSet, otherwise None."""
    jobset = case.jobset
    if case.launch.kind != "JobSet" or jobset is None or case.pod_attempts:
        return None
    if case.terminal or not waited(case):
        return None
    resumed = mapping(jobset.object, "spec").get("suspend") is not True and jobset.type != "DELETED"
    if not resumed or case.bundle.history("job") or case.broken("objects/workload.jsonl"):
        return None
    text = f"JobSet {jobset.name} was resumed, but no Job was created for {names(case.ranks)}"
    if manager := foreign_manager(jobset):
        return unknown("rank-pods", f"{text}: its spec.managedBy is {manager}", evidence=[jobset.ref])
    return not_followed(case, "rank-pods", "jobset", text, [jobset.ref])


def foreign_manager(job: ObjectState) -> str:
    """Return the value of a job's managedBy field if it makes the local controllers ignore the job, or "".

    MultiKueue and other controllers set the field, and run the job elsewhere or by other means.
    """
    spec = mapping(job.object, "spec")
    manager = str(spec.get("managedBy") or mapping(spec, "runPolicy").get("managedBy") or "")
    return "" if manager in _LOCAL_MANAGERS else manager


def _at(state: ObjectState) -> float:
    return seconds(state.received_at) or 0.0
