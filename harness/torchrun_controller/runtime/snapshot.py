"""Read the objects of a job or queue, either from the watch caches or from the API server."""

from __future__ import annotations

from typing import Protocol

from kubernetes.dynamic.exceptions import ForbiddenError
from pydantic import ValidationError

from harness.core.kubernetes import Kube, Object
from harness.torchrun_controller.api import names
from harness.torchrun_controller.api.models import QueueSpec
from harness.torchrun_controller.api.names import PERMITTED
from harness.torchrun_controller.decide.decisions import QueueSnapshot, Snapshot, ending
from harness.torchrun_controller.decide.queue import DEFAULT_PARENT, kai_parent, resource_name
from harness.torchrun_controller.objects.pod_template import kai_queue
from harness.torchrun_controller.runtime.kinds import (
    CLAIMS,
    JOBSETS,
    LOCAL_QUEUES,
    PODS,
    PRIORITY_CLASSES,
    QUEUES,
    WORKLOADS,
    Kind,
)


class Source(Protocol):
    """A source of objects: the watch caches or the API server.

    Callers must not modify the returned objects.
    """

    def one(self, kind: Kind, namespace: str, name: str) -> Object | None: ...

    def of(self, kind: Kind, namespace: str, value: str) -> list[Object]:
        """Return the objects in a namespace whose label `kind.label` has the value `value`."""
        ...

    def names(self, kind: Kind) -> frozenset[str]: ...


def job_snapshot(source: Source, job: Object, *, kai: bool) -> Snapshot:
    """Return a snapshot of a job's objects. It contains only the objects that the next decision needs."""
    metadata = job["metadata"]
    namespace, name = metadata["namespace"], metadata["name"]
    jobset = source.one(JOBSETS, namespace, name)
    claims = source.of(CLAIMS, namespace, name)
    if jobset is None:
        return Snapshot(
            queue=queue_of(source, job), claims=claims, priority_classes=source.names(PRIORITY_CLASSES)
        )
    workload = None
    if jobset["spec"].get("suspend") and not kai:
        workload = next(iter(source.of(WORKLOADS, namespace, jobset["metadata"]["uid"])), None)
    pods = source.of(PODS, namespace, name)
    return Snapshot(queue=None, jobset=jobset, workload=workload, pods=pods, claims=claims)


def queue_of(source: Source, job: Object) -> Object | None:
    """Return the TorchrunQueue to which a job belongs, or None if it does not exist."""
    name = str(job["spec"].get("jobQueue") or job["spec"].get("queue") or "")
    return source.one(QUEUES, job["metadata"]["namespace"], name)


def queue_snapshot(source: Source, kube: Kube, queue: Object, *, kai: bool) -> QueueSnapshot:
    """Return a snapshot of a queue's objects.

    The ClusterQueue and the objects of the resource templates are read from the API server, because they are
    not watched.
    """
    metadata = queue["metadata"]
    namespace, name = metadata["namespace"], metadata["name"]
    if ending(queue) and names.FINALIZER in (metadata.get("finalizers") or []):
        return _last_snapshot(kube, queue, kai=kai)
    try:
        spec = QueueSpec.model_validate(queue["spec"])
    except ValidationError:
        return QueueSnapshot()
    kai_one = parent = local = cluster_one = None
    if kai:
        kai_one = kube.get(names.KAI_API, "Queue", kai_queue(spec) or name)
        if kai_one is None and kai_parent(spec) != DEFAULT_PARENT:
            parent = kube.get(names.KAI_API, "Queue", kai_parent(spec))
    else:
        local = source.one(LOCAL_QUEUES, namespace, spec.local_queue or name)
        if local is None and spec.cluster_queue:
            cluster_one = kube.get(names.KUEUE_API, "ClusterQueue", spec.cluster_queue)
    resources = {}
    for template in spec.resources:
        kind = str(template.template.get("kind"))
        if kind in PERMITTED:
            resource = kube.get(PERMITTED[kind], kind, resource_name(name, template), namespace)
            if resource is not None:
                resources[kind, template.name] = resource
    return QueueSnapshot(
        local_queue=local,
        resources=resources,
        kai_queue=kai_one,
        kai_parent=parent,
        cluster_queue=cluster_one,
    )


def _last_snapshot(kube: Kube, queue: Object, *, kai: bool) -> QueueSnapshot:
    """Return the snapshot of a queue that is being deleted, with its kai-scheduler Queue.

    The Queue is also read if the controller now runs with `--gang kueue` or cannot read the spec. Without
    this, the Queue would never be deleted.
    """
    spec = queue.get("spec") or {}
    name = spec.get("kaiQueue") or (spec.get("queue") or {}).get("name") or queue["metadata"]["name"]
    try:
        return QueueSnapshot(kai_queue=kube.get(names.KAI_API, "Queue", str(name)))
    except ForbiddenError:
        if kai:
            raise
        return QueueSnapshot(kai_forbidden=True)
