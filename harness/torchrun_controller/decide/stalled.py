"""Why pods are late, where no status says it: Events of the JobSet, its Job, the pods and their claims.

A pod that an admission plugin refuses, a volume that cannot be mounted, a claim that no storage class serves:
Kubernetes reports each in an Event alone.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from harness.core.kubernetes import Object, condition
from harness.torchrun_controller.api import names
from harness.torchrun_controller.api.conditions import parsed
from harness.torchrun_controller.decide.decisions import Seen

LATE = timedelta(seconds=5)
"""Pods that do not run for longer than this are late: Events are read."""
AGAIN = timedelta(seconds=10)
CLOCKS = timedelta(seconds=5)
"""By how much the clocks of the control plane and of this process may differ."""
UNSCHEDULED = timedelta(seconds=30)
"""A scheduler that is there has reported on each pod by then."""
USUAL = ("WaitForFirstConsumer", "Provisioning", "ProvisioningSucceeded")
"""Events of a claim that is on its way."""
PULL_SECRET = "FailedToRetrieveImagePullSecret"  # noqa: S105 - the reason of an Event
WITHOUT_IMAGE = ("ErrImagePull", "ImagePullBackOff")


def time_of(event: Object) -> str:
    """Return when an Event was last seen, in whole seconds as Kubernetes writes them."""
    series = event.get("series") or {}
    last = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return str(last or event["metadata"].get("creationTimestamp") or "")[:19]


def explanation(seen: Seen, pods: list[Object], nodes: int, since: datetime, now: datetime) -> str:
    """Return why pods of a job are late, or "" where nothing explains it.

    `pods` are those of the attempt that runs now, `nodes` how many there should be, `since` when they began.
    """
    told = [event for event in seen.warnings or [] if not older(event, since)]
    return (
        _of_claims(seen, pods, told)
        or _missing(seen, nodes - len(pods), nodes, told)
        or _of_pods(pods, told)
        or _no_scheduler(pods, now)
    )


def older(event: Object, since: datetime) -> bool:
    """Return whether an Event is of a time before, e.g. of an attempt that has ended."""
    last = time_of(event)
    return not last or parsed(f"{last}Z") < since - CLOCKS


def _of_claims(seen: Seen, pods: list[Object], told: list[Object]) -> str:
    bound = {
        claim["metadata"]["name"]
        for claim in seen.claims
        if (claim.get("status") or {}).get("phase") == "Bound"
    }
    waiting = [pod for pod in pods if not _scheduled(pod)]
    wanted = {claim for pod in waiting for claim in (pod.get("spec") or {}).get("claims") or []} - bound
    for event in reversed(told):
        of = event["involvedObject"]
        if (
            of.get("kind") == "PersistentVolumeClaim"
            and of.get("name") in wanted
            and event.get("reason") not in USUAL
        ):
            return _text(event)
    return ""


def _missing(seen: Seen, missing: int, nodes: int, told: list[Object]) -> str:
    """Return why the JobSet has no Job, or the Job not all of its pods."""
    text = _of_jobset(seen, told) if missing > 0 else ""
    return f"{missing} of {nodes} pods cannot be created: {text}" if text else ""


def of_jobset(seen: Seen, since: datetime) -> str:
    """Return the last warning about the JobSet or its Job, or ""."""
    return _of_jobset(seen, [event for event in seen.warnings or [] if not older(event, since)])


def _of_jobset(seen: Seen, told: list[Object]) -> str:
    assert seen.jobset is not None
    name = seen.jobset["metadata"]["name"]
    for kind, of_name in (("Job", f"{name}-{names.NODES}-0"), ("JobSet", name)):
        for event in reversed(told):
            of = event["involvedObject"]
            if (of.get("kind"), of.get("name")) == (kind, of_name):
                return _text(event)
    return ""


def _of_pods(pods: list[Object], told: list[Object]) -> str:
    """Return the last Event of a pod that waits. One that is scheduled no longer waits for a node."""
    late = {
        pod["metadata"]["name"]: pod
        for pod in pods
        if (pod.get("status") or {}).get("phase") in (None, "Pending")
    }
    for event in reversed(told):
        of, reason = event["involvedObject"], event.get("reason")
        pod = late.get(str(of.get("name"))) if of.get("kind") == "Pod" else None
        if pod is None or reason == PULL_SECRET or (reason == "FailedScheduling" and _scheduled(pod)):
            continue
        return _text(event)
    return ""


def pull_secret(pods: list[Object], told: list[Object]) -> str:
    """Return which image pull Secret a pod without its image lacks, or ""."""
    for event in reversed(told):
        if event.get("reason") == PULL_SECRET and any(
            event["involvedObject"].get("name") == pod["metadata"]["name"] for pod in without_image(pods)
        ):
            return str(event.get("message", ""))
    return ""


def without_image(pods: list[Object]) -> list[Object]:
    """Return pods that name image pull Secrets and cannot pull an image."""
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
    """Return whether a pod with claims is not scheduled."""
    return any(not _scheduled(pod) and (pod.get("spec") or {}).get("claims") for pod in pods)


def _scheduled(pod: Object) -> bool:
    return bool(condition(pod, "PodScheduled").get("status") == "True")


def _no_scheduler(pods: list[Object], now: datetime) -> str:
    """Return which scheduler has not reported on a pod for UNSCHEDULED."""
    for pod in pods:
        created = pod["metadata"].get("creationTimestamp")
        if created and not condition(pod, "PodScheduled") and now - parsed(created) >= UNSCHEDULED:
            scheduler = (pod.get("spec") or {}).get("schedulerName") or "default-scheduler"
            return (
                f"{pod['metadata']['name']}: scheduler {scheduler} has not reported on it for "
                f"{UNSCHEDULED.seconds} s: install it, or name another one in scheduling.scheduler"
            )
    return ""


def _text(event: Object) -> str:
    of = event["involvedObject"]
    message = " ".join(str(event.get("message") or "").split())
    return f"{of.get('kind')} {of.get('name')}: {event.get('reason')}: {message}"[:4000]
