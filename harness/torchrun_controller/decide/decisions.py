"""Data types for decisions: the snapshot of a job or queue, the actions, and the pod counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from harness.core.kubernetes import Object, condition
from harness.torchrun_controller.api import names
from harness.torchrun_controller.api.models import JobStatus, QueueStatus, Workers
from harness.torchrun_controller.api.rejected import Rejected
from harness.torchrun_controller.plan.capacity import Capacity


@dataclass(frozen=True)
class Create:
    """Create an object unless an object of the same name exists."""

    document: Object


@dataclass(frozen=True)
class Check:
    """Let the API server validate an object in a strict dry run. After a rejection, skip the other actions.

    `alike` is the same object under a name that all jobs share. If the API server has recently accepted an
    object with an equal `alike`, the dry run is skipped.
    """

    document: Object
    alike: Object


@dataclass(frozen=True)
class Delete:
    """Delete the object with the given UID, and all objects that it owns.

    If a resource version is given, the object is not deleted if it has changed since that version.
    """

    api_version: str
    kind: str
    name: str
    uid: str
    resource_version: str | None = None


@dataclass(frozen=True)
class Finalizers:
    """Set a TorchrunQueue's finalizers."""

    found: list[str]


@dataclass(frozen=True)
class DeleteParts:
    """Delete the Secrets and the StatefulSet that store the code for the job with the given UID."""

    uid: str


Action = Check | Create | Delete | DeleteParts | Finalizers


@dataclass(frozen=True)
class Decision:
    """The new status, the actions to execute, and the time for the next reconcile if no event occurs."""

    status: JobStatus
    actions: list[Action] = field(default_factory=list)
    wake: datetime | None = None
    unexplained: bool = False
    """Whether pods are late and none of the watched objects shows why. The controller then reads Events."""


@dataclass(frozen=True)
class QueueDecision:
    status: QueueStatus
    actions: list[Action] = field(default_factory=list)


@dataclass(frozen=True)
class Seen:
    """A snapshot of one job's objects."""

    queue: Object | None = None
    jobset: Object | None = None
    workload: Object | None = None
    """Kueue's Workload for the JobSet."""
    pods: list[Object] = field(default_factory=list)
    claims: list[Object] = field(default_factory=list)
    capacity: Capacity | None = None
    """The nodes and their pods, or None if they are unknown."""
    waits_in: Object | None = None
    """The job's TorchrunQueue, used for the message while the job waits for GPUs."""
    priority_classes: frozenset[str] | None = None
    """The names of the PriorityClasses, or None if the controller is not permitted to read them."""
    rejected: Rejected | None = None
    """The rejection, if the API server just rejected one of the job's objects."""
    no_etcd: bool = False
    """Whether the job needs the default etcd but that etcd's Service does not exist."""
    silent: tuple[datetime | None, datetime] | None = None
    """A pair of times, or None if the logs were not checked.

    The first is the time of the last log line if all ranks are silent, otherwise None. The second is the time
    for the next check.
    """
    warnings: list[Object] | None = None
    """The namespace's Events, oldest first, or None if they were not read."""


@dataclass(frozen=True)
class SeenQueue:
    """A snapshot of one queue's objects."""

    local_queue: Object | None = None
    resources: dict[tuple[str, str], Object] = field(default_factory=dict)
    """The existing objects for the queue's resource templates, keyed by (kind, name)."""
    kai_queue: Object | None = None
    kai_parent: Object | None = None
    """The parent of the kai-scheduler Queue, or None if it is missing or the Queue exists."""
    cluster_queue: Object | None = None
    """The ClusterQueue named in the queue's spec, or None if it is missing or the LocalQueue exists."""
    template: str | None = None
    """The pod template's error, "" if the template was accepted, or None if it was not checked."""
    rejected: Rejected | None = None
    """The rejection, if the API server just rejected one of the queue's objects."""


def owned(found: Object, uid: str) -> bool:
    """Return whether an object has an owner with the UID `uid`."""
    return any(owner.get("uid") == uid for owner in found["metadata"].get("ownerReferences") or [])


def owned_by_job(found: Object, name: str) -> bool:
    """Return whether an object has an owner that is a TorchrunJob of this name, possibly a deleted one."""
    owners = found["metadata"].get("ownerReferences") or []
    return any((owner.get("kind"), owner.get("name")) == (names.JOB_KIND, name) for owner in owners)


def ending(found: Object) -> bool:
    return bool(found["metadata"].get("deletionTimestamp"))


def attempt(pods: list[Object], jobset: Object, *, terminating: bool = False) -> list[Object]:
    """Return the current attempt's pods. Terminating pods are included only if `terminating` is true."""
    number = str((jobset.get("status") or {}).get("restarts") or 0)
    return [
        pod
        for pod in pods
        if (terminating or not ending(pod))
        and (pod["metadata"].get("labels") or {}).get(names.ATTEMPT_LABEL, "0") == number
    ]


def counted(pods: list[Object]) -> Workers:
    """Return the number of pods per phase. Pods that are being scheduled or pulling an image are pending."""
    phases = [(pod.get("status") or {}).get("phase") for pod in pods]
    return Workers(
        pending=sum(phase in (None, "Pending", "Unknown") for phase in phases),
        running=phases.count("Running"),
        ready=sum(
            phase == "Running" and condition(pod, "Ready").get("status") == "True"
            for pod, phase in zip(pods, phases, strict=True)
        ),
        failed=phases.count("Failed"),
        succeeded=phases.count("Succeeded"),
    )
