"""Define the kinds that the controller watches, and the fields that its decisions read.

Only these fields are cached, which saves memory. Changes to other fields cause no reconcile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from harness.core.kubernetes import Object
from harness.torchrun_controller.api import names

METADATA = ("name", "namespace", "uid", "resourceVersion", "labels", "ownerReferences", "deletionTimestamp")
CONTAINERS = ("initContainerStatuses", "containerStatuses")
CONTAINER = ("name", "state", "started", "lastState")
WORKLOAD_LABEL = "kueue.x-k8s.io/job-uid"
"""The label on a Workload that contains the UID of its JobSet."""


@dataclass(frozen=True)
class Kind:
    """A watched kind, with the objects to watch and the fields to cache."""

    api: str
    kind: str
    plural: str
    trimmer: Callable[[Object], Object]
    label: str | None = None
    """The label by which the objects are indexed. The `of` methods of a store and of a cluster find objects
    by the label's value."""
    selector: str = ""
    """The label selector that limits which objects are watched."""
    fields: str = ""
    """The field selector that limits which objects are watched."""
    namespaced: bool = True

    def path(self, namespace: str | None) -> str:
        """Return the URL path for listing the kind's objects."""
        root = "/api" if "/" not in self.api else "/apis"
        scope = f"/namespaces/{namespace}" if namespace and self.namespaced else ""
        return f"{root}/{self.api}{scope}/{self.plural}"

    def trim(self, item: Mapping[str, object]) -> Object:
        """Return the part of an object that is cached.

        The API version and the kind are added, because the items of a list do not contain them.
        """
        return {"apiVersion": self.api, "kind": self.kind, **self.trimmer(dict(item))}


def _part(document: Mapping[str, object] | None, fields: tuple[str, ...]) -> Object:
    return {field: document[field] for field in fields if field in document} if document else {}


def _whole(item: Object) -> Object:
    return {**item, "metadata": {k: v for k, v in item["metadata"].items() if k != "managedFields"}}


def _conditions(status: Object, kinds: tuple[str, ...], *extra_fields: str) -> list[Object]:
    return [
        _part(condition, ("type", "status", "reason", "message", *extra_fields))
        for condition in status.get("conditions") or []
        if condition["type"] in kinds
    ]


def _claim(item: Object) -> Object:
    return {
        "metadata": _part(item["metadata"], METADATA),
        "status": _part(item.get("status") or {}, ("phase",)),
    }


def _jobset(item: Object) -> Object:
    status = item.get("status") or {}
    return {
        "metadata": _part(item["metadata"], (*METADATA, "creationTimestamp")),
        "spec": _part(item["spec"], ("suspend", "managedBy")),
        "status": {
            **_part(status, ("restarts",)),
            "conditions": _conditions(status, ("Completed", "Failed"), "lastTransitionTime"),
        },
    }


def _pod(item: Object) -> Object:
    status, spec = item.get("status") or {}, item.get("spec") or {}
    claims = [
        volume["persistentVolumeClaim"]["claimName"]
        for volume in spec.get("volumes") or []
        if "persistentVolumeClaim" in volume
    ]
    containers = {
        field: [_part(container, CONTAINER) for container in status.get(field) or []] for field in CONTAINERS
    }
    initial = spec.get("initContainers") or []
    return {
        "metadata": _part(item["metadata"], (*METADATA, "creationTimestamp")),
        "spec": {
            "initContainers": [_part(container, ("name", "restartPolicy")) for container in initial],
            **_part(spec, ("schedulerName", "imagePullSecrets", "nodeName", "schedulingGates")),
            **({"claims": claims} if claims else {}),
        },
        "status": {
            **_part(status, ("phase", "reason", "message")),
            "conditions": _conditions(status, ("Ready", "PodScheduled", "DisruptionTarget")),
            **containers,
        },
    }


def _node(item: Object) -> Object:
    return {
        "metadata": _part(item["metadata"], ("name", "labels", "resourceVersion")),
        "spec": _part(item.get("spec"), ("unschedulable", "taints")),
        "status": {
            **_part(item.get("status"), ("allocatable",)),
            "conditions": _conditions(item.get("status") or {}, ("Ready",)),
        },
    }


def _requesting(item: Object) -> Object:
    spec, fields = item["spec"], ("resources", "restartPolicy")
    return {
        "metadata": _part(item["metadata"], ("name", "namespace", "labels", "resourceVersion")),
        "spec": {
            "nodeName": spec.get("nodeName"),
            **{
                kind: [_part(container, fields) for container in spec.get(kind) or []]
                for kind in ("containers", "initContainers")
            },
        },
    }


def _conditions_only(*kinds: str) -> Callable[[Object], Object]:
    """Return a function that keeps only an object's metadata and its conditions of the given types."""

    def trimmer(item: Object) -> Object:
        status = item.get("status") or {}
        return {
            "metadata": _part(item["metadata"], METADATA),
            "status": {"conditions": _conditions(status, kinds)},
        }

    return trimmer


def _workload(item: Object) -> Object:
    status = item.get("status") or {}
    return {
        "metadata": _part(item["metadata"], METADATA),
        "spec": _part(item.get("spec"), ("active",)),
        "status": {
            "conditions": _conditions(status, ("Evicted", "QuotaReserved", "Finished"), "lastTransitionTime"),
            "admissionChecks": [
                _part(check, ("name", "state", "message")) for check in status.get("admissionChecks") or []
            ],
        },
    }


def _local_queue(item: Object) -> Object:
    return {**_conditions_only("Active")(item), "spec": _part(item.get("spec") or {}, ("clusterQueue",))}


JOBS = Kind(names.API, names.JOB_KIND, "torchrunjobs", _whole)
QUEUES = Kind(names.API, names.QUEUE_KIND, "torchrunqueues", _whole)
JOBSETS = Kind(names.JOBSET_API, "JobSet", "jobsets", _jobset)
"""All JobSets are watched, because a JobSet that does not belong to a job might have the same name as a
job."""
PODS = Kind("v1", "Pod", "pods", _pod, names.JOBSET_LABEL, names.JOB_LABEL)
CLAIMS = Kind(
    "v1", "PersistentVolumeClaim", "persistentvolumeclaims", _claim, names.JOB_LABEL, names.JOB_LABEL
)
WORKLOADS = Kind(
    names.KUEUE_API,
    "Workload",
    "workloads",
    _workload,
    WORKLOAD_LABEL,
    WORKLOAD_LABEL,
)
LOCAL_QUEUES = Kind(names.KUEUE_API, "LocalQueue", "localqueues", _local_queue)
PRIORITY_CLASSES = Kind(
    "scheduling.k8s.io/v1", "PriorityClass", "priorityclasses", _conditions_only(), namespaced=False
)
SERVICES = Kind("v1", "Service", "services", _conditions_only())
"""Services are not watched. etcd's Service is read only when a job that needs etcd starts."""
NODES = Kind("v1", "Node", "nodes", _node, namespaced=False)
REQUESTS = Kind(
    "v1",
    "Pod",
    "pods",
    _requesting,
    fields="spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed",
)
"""All pods that use the resources of a node, whether or not they belong to a job."""
RECONCILED = (JOBS, QUEUES)
"""The kinds that are listed first. The objects created for jobs and queues are listed later, so their cached
state is never older than that of the jobs and queues."""
PARTS = (JOBSETS, PODS, CLAIMS, PRIORITY_CLASSES)
KUEUES = (WORKLOADS, LOCAL_QUEUES)
