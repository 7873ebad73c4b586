"""Explain why pods have not started yet, using Events about the JobSet, its Job, the pods and their claims.

Kubernetes reports some problems only in Events: pods rejected by an admission plugin, volumes that cannot be
mounted, and claims for which no storage class provisions a volume.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from harness.core.kubernetes import Object, condition
from harness.evidence.kubernetes.unschedulable import waits_for_group, waits_for_volumes
from harness.torchrun_controller.api import names
from harness.torchrun_controller.api.condition_type import parsed
from harness.torchrun_controller.decide.decisions import Snapshot

LATE = timedelta(seconds=5)
"""Pods that have not started within this time are late, and the controller reads Events about the late
pods."""
RECHECK = timedelta(seconds=10)
CLOCKS = timedelta(seconds=5)
"""The tolerated difference between the clocks of this process and of the control plane."""
UNSCHEDULED = timedelta(seconds=30)
"""A working scheduler sets each pod's PodScheduled condition within this time."""
IDLE = timedelta(seconds=60)
"""If another controller has done nothing for this long, a message suggests checking whether that controller
is running."""
USUAL = ("WaitForFirstConsumer", "Provisioning", "ProvisioningSucceeded")
"""Event reasons for a claim that is being provisioned normally."""
PULL_SECRET = "FailedToRetrieveImagePullSecret"  # noqa: S105 - the reason of an Event
ENDED = ("BackoffLimitExceeded", "DeadlineExceeded", "PodFailurePolicy")
"""Events with these reasons are ignored. They are about the failed Job of an earlier attempt, which has the
same name as the current Job."""
WITHOUT_IMAGE = ("ErrImagePull", "ImagePullBackOff")


def time_of(event: Object) -> str:
    """Return the time at which an Event last occurred, as a Kubernetes timestamp in whole seconds without the
    final Z."""
    series = event.get("series") or {}
    last = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return str(last or event["metadata"].get("creationTimestamp") or "")[:19]


def explanation(snapshot: Snapshot, pods: list[Object], nodes: int, since: datetime, now: datetime) -> str:
    """Return the reason why a job's pods are late, or "" if it is not known.

    `pods` contains the current attempt's pods, and `nodes` is their expected number. Events before `since`
    are ignored.
    """
    events = [event for event in snapshot.warnings or [] if not older(event, since)]
    return (
        _of_claims(snapshot, pods, events)
        or _missing(snapshot, nodes - len(pods), nodes, events)
        or _of_pods(pods, events)
        or _no_scheduler(pods, now)
        or _no_pods(pods, since, now)
    )


def older(event: Object, since: datetime) -> bool:
    """Return whether an Event occurred before `since`, for example because the Event is about an earlier
    attempt."""
    last = time_of(event)
    return not last or parsed(f"{last}Z") < since - CLOCKS


def _of_claims(snapshot: Snapshot, pods: list[Object], events: list[Object]) -> str:
    bound_claims = {
        claim["metadata"]["name"]
        for claim in snapshot.claims
        if (claim.get("status") or {}).get("phase") == "Bound"
    }
    waiting = [pod for pod in pods if not _scheduled(pod)]
    unbound = {
        claim for pod in waiting for claim in (pod.get("spec") or {}).get("claims") or []
    } - bound_claims
    for event in reversed(events):
        involved = event["involvedObject"]
        if (
            involved.get("kind") == "PersistentVolumeClaim"
            and involved.get("name") in unbound
            and event.get("reason") not in USUAL
        ):
            return _text(event)
    return ""


def _missing(snapshot: Snapshot, missing: int, nodes: int, events: list[Object]) -> str:
    """Return a message that explains why pods have not been created, or "" if no Event explains it."""
    text = _of_jobset(snapshot, events) if missing > 0 else ""
    return f"{missing} of {nodes} pods cannot be created: {text}" if text else ""


def of_jobset(snapshot: Snapshot, since: datetime) -> str:
    """Return the message of the last warning about the JobSet or its Job, or "".

    Warnings before `since` are ignored. A warning about the Job takes precedence.
    """
    return _of_jobset(snapshot, [event for event in snapshot.warnings or [] if not older(event, since)])


def _of_jobset(snapshot: Snapshot, events: list[Object]) -> str:
    assert snapshot.jobset is not None
    name = snapshot.jobset["metadata"]["name"]
    for kind, of_name in (("Job", f"{name}-{names.NODES}-0"), ("JobSet", name)):
        for event in reversed(events):
            involved = event["involvedObject"]
            if (involved.get("kind"), involved.get("name")) == (kind, of_name) and event.get(
                "reason"
            ) not in ENDED:
                return _text(event)
    return ""


def _of_pods(pods: list[Object], events: list[Object]) -> str:
    """Return the message of the last Event about a waiting pod, or "".

    FailedScheduling is ignored for a pod that has been scheduled. A message that gives a reason takes
    precedence over a message that only reports that a pod waits for its volumes or for other pods of its
    group.
    """
    pending_pods = {
        pod["metadata"]["name"]: pod
        for pod in pods
        if (pod.get("status") or {}).get("phase") in (None, "Pending")
    }
    vague: Object | None = None
    for event in reversed(events):
        involved, reason = event["involvedObject"], event.get("reason")
        pod = pending_pods.get(str(involved.get("name"))) if involved.get("kind") == "Pod" else None
        if pod is None or reason == PULL_SECRET or (reason == "FailedScheduling" and _scheduled(pod)):
            continue
        message = str(event.get("message") or "")
        if not waits_for_volumes(message) and not waits_for_group(message):
            return _text(event)
        vague = vague or event
    return _text(vague) if vague else ""


def pull_secret(pods: list[Object], events: list[Object]) -> str:
    """Return the message about a missing image pull Secret of a pod that cannot pull its image, or ""."""
    for event in reversed(events):
        if event.get("reason") == PULL_SECRET and any(
            event["involvedObject"].get("name") == pod["metadata"]["name"] for pod in without_image(pods)
        ):
            return str(event.get("message", ""))
    return ""


def without_image(pods: list[Object]) -> list[Object]:
    """Return the pods that have image pull Secrets and cannot pull an image."""
    return [
        pod
        for pod in pods
        if (pod.get("spec") or {}).get("imagePullSecrets")
        and any(
            ((each.get("state") or {}).get("waiting") or {}).get("reason") in WITHOUT_IMAGE
            for field in ("initContainerStatuses", "containerStatuses")
            for each in (pod.get("status") or {}).get(field) or []
        )
    ]


def waits_for_claims(pods: list[Object]) -> bool:
    """Return whether a pod is not scheduled yet and uses volume claims."""
    return any(not _scheduled(pod) and (pod.get("spec") or {}).get("claims") for pod in pods)


def starts_on_a_node(pods: list[Object]) -> bool:
    """Return whether a pod is scheduled but has not started on its node, for example because it is pulling
    its image."""
    return any(
        _scheduled(pod) and (pod.get("status") or {}).get("phase") in (None, "Pending") for pod in pods
    )


def _scheduled(pod: Object) -> bool:
    return bool(condition(pod, "PodScheduled").get("status") == "True")


def _no_scheduler(pods: list[Object], now: datetime) -> str:
    """Return a message about a pod whose PodScheduled condition no scheduler has set within UNSCHEDULED, or
    ""."""
    for pod in pods:
        created_at = pod["metadata"].get("creationTimestamp")
        if created_at and not condition(pod, "PodScheduled") and now - parsed(created_at) >= UNSCHEDULED:
            scheduler = (pod.get("spec") or {}).get("schedulerName") or "default-scheduler"
            return (
                f"{pod['metadata']['name']}: scheduler {scheduler} has not processed the pod for "
                f"{UNSCHEDULED.seconds} s: install this scheduler, or set scheduling.scheduler to another one"
            )
    return ""


def _no_pods(pods: list[Object], since: datetime, now: datetime) -> str:
    """Return a message if no pod has been created within IDLE and no Event explains why. Otherwise, return
    ""."""
    if pods or now - since < IDLE:
        return ""
    return (
        f"no pod has been created for {IDLE.seconds} s, and no Event explains why: check that JobSet's "
        "controller and kube-controller-manager are running"
    )


def no_workload(since: datetime, now: datetime) -> str:
    """Return a message if Kueue has not created the JobSet's Workload within IDLE. Otherwise, return ""."""
    if now - since < IDLE:
        return ""
    return (
        f"Kueue has created no Workload for the JobSet for {IDLE.seconds} s, and no Event explains why: "
        "check that Kueue's controller is running, and that Kueue manages jobs in this namespace"
    )


def _text(event: Object) -> str:
    involved = event["involvedObject"]
    message = " ".join(str(event.get("message") or "").split())
    return f"{involved.get('kind')} {involved.get('name')}: {event.get('reason')}: {message}"[:4000]
