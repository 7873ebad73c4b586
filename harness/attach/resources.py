"""The resources that `harness attach` reads, and the minimum permissions required for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml

from harness.core.service_proxy import Service
from harness.evidence.kubernetes import kinds
from harness.evidence.kubernetes.kinds import WatchedKind

READ = ("get", "list", "watch")
ROLE, TRACKER_ROLE = "harness-attach", "harness-attach-tracker"


@dataclass(frozen=True)
class Resource:
    """A kind of object, with the plural name used in API paths and roles."""

    kind: WatchedKind
    plural: str

    @property
    def group(self) -> str:
        return self.kind.api_version.rpartition("/")[0]

    def path(self, namespace: str, name: str = "") -> str:
        """Return the API path of the objects in a namespace, or of one object."""
        root = f"/apis/{self.kind.api_version}" if self.group else f"/api/{self.kind.api_version}"
        within = f"/namespaces/{namespace}" if self.kind.namespaced else ""
        return f"{root}{within}/{self.plural}" + (f"/{name}" if name else "")


def _resource(name: str, api_version: str, kind: str, plural: str, namespaced: bool = True) -> Resource:
    return Resource(WatchedKind(name, api_version, kind, namespaced, optional=True), plural)


POD = _resource("pod", "v1", "Pod", "pods")
EVENT = _resource("event", "v1", "Event", "events")
NODE = _resource("node", "v1", "Node", "nodes", namespaced=False)
JOB = _resource("job", "batch/v1", "Job", "jobs")
JOBSET = _resource("jobset", "jobset.x-k8s.io/v1alpha2", "JobSet", "jobsets")
STATEFULSET = _resource("statefulset", "apps/v1", "StatefulSet", "statefulsets")
DAEMONSET = _resource("daemonset", "apps/v1", "DaemonSet", "daemonsets")
TORCHRUN_JOB = _resource("torchrunjob", kinds.TORCHRUN_JOB.api_version, "TorchrunJob", "torchrunjobs")
TRAIN_JOB = _resource("trainjob", "trainer.kubeflow.org/v1alpha1", "TrainJob", "trainjobs")
PYTORCH_JOB = _resource("pytorchjob", "kubeflow.org/v1", "PyTorchJob", "pytorchjobs")
MPI_JOB = _resource("mpijob", "kubeflow.org/v2beta1", "MPIJob", "mpijobs")
MPI_JOB_V1 = _resource("mpijob", "kubeflow.org/v1", "MPIJob", "mpijobs")
"""The MPIJob version served by the training operator. The MPI operator serves MPI_JOB."""
WORKLOAD = _resource("workload", "kueue.x-k8s.io/v1beta2", "Workload", "workloads")
LOCAL_QUEUE = _resource("localqueue", "kueue.x-k8s.io/v1beta2", "LocalQueue", "localqueues")
CLUSTER_QUEUE = _resource("clusterqueue", "kueue.x-k8s.io/v1beta2", "ClusterQueue", "clusterqueues", False)
NAMESPACE = Resource(kinds.SURROUNDINGS[0], "namespaces")
SERVICE = _resource("service", "v1", "Service", "services")
ENDPOINTS = _resource("endpointslice", "discovery.k8s.io/v1", "EndpointSlice", "endpointslices")

TARGETS = (JOBSET, JOB, STATEFULSET, DAEMONSET, TORCHRUN_JOB, TRAIN_JOB, PYTORCH_JOB, MPI_JOB, POD)
"""The kinds of objects to which the harness can attach."""
AROUND = (EVENT, NODE, NAMESPACE, JOB, WORKLOAD, LOCAL_QUEUE, CLUSTER_QUEUE, SERVICE, ENDPOINTS)
"""Resources that are read in addition to the job's object and pods. If one of them cannot be read, some
checks are UNKNOWN."""
_ALIASES = {"sts": STATEFULSET, "ds": DAEMONSET, "js": JOBSET, "po": POD}


def target_of(word: str) -> Resource | None:
    """Return the resource with this name, in any form that kubectl accepts: `job`, `jobs.batch`, `sts`."""
    plural = word.lower().partition(".")[0]
    by_name = {**_ALIASES, **{key: each for each in TARGETS for key in (each.kind.name, each.plural)}}
    return by_name.get(plural)


def cluster_role(namespace: str) -> str:
    """Return the name of the ClusterRole for attaching to jobs in a namespace."""
    return f"{ROLE}-{namespace}"


def roles(namespace: str, probe: bool = False, secret: str = "", service: Service | None = None) -> str:
    """Return a Role and a ClusterRole as YAML, with the minimum permissions to attach to any kind of job.

    The ClusterRole's name contains the namespace, so the ClusterRole for another namespace does not replace
    it. With `secret`, the Role allows reading this Secret. With `service`, another Role allows connecting to
    the tracker at this Service.
    """
    inside = {each.kind.name: each for each in (*TARGETS, *AROUND) if each.kind.namespaced}
    rules = _rules(list(inside.values()))
    rules.append({"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]})
    if probe:
        rules.append({"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create", "get"]})
    if secret:
        rules.append(_one("secrets", secret))
    outside = _rules([each for each in AROUND if not each.kind.namespaced and not each.kind.own])
    outside.append(
        {"apiGroups": [""], "resources": ["namespaces"], "resourceNames": [namespace], "verbs": list(READ)}
    )
    documents = [
        _role("Role", ROLE, rules, namespace),
        _role("ClusterRole", cluster_role(namespace), outside),
    ]
    if service is not None:
        tracker = [_one("services/proxy", service.proxied)]
        documents.append(_role("Role", TRACKER_ROLE, tracker, service.namespace))
    return yaml.safe_dump_all(documents, sort_keys=False)


def _role(kind: str, name: str, rules: list[dict[str, Any]], namespace: str = "") -> dict[str, Any]:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": metadata,
        "rules": rules,
    }


def _one(resource: str, name: str) -> dict[str, Any]:
    return {"apiGroups": [""], "resources": [resource], "resourceNames": [name], "verbs": ["get"]}


def _rules(resources: list[Resource]) -> list[dict[str, Any]]:
    """Return RBAC rules that allow reading the resources, one rule per API group."""
    groups: dict[str, list[str]] = {}
    for each in resources:
        groups.setdefault(each.group, []).append(each.plural)
    return [
        {"apiGroups": [group], "resources": plurals, "verbs": list(READ)} for group, plurals in groups.items()
    ]
