"""The object kinds that are watched and recorded, and the name of each kind's file in objects/."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class WatchedKind:
    """An object kind that is watched and recorded in objects/<name>.jsonl.

    A namespaced kind is watched in `namespace`, or in the launch's namespace if `namespace` is None.
    """

    name: str
    api_version: str
    kind: str
    namespaced: bool = True
    namespace: str | None = None
    labels: str = ""
    """The label selector for the watch."""
    own: bool = False
    """Whether to watch only the object that has the same name as the launch's namespace."""
    metadata_only: bool = False
    """Whether to request only the metadata, which shows who wrote the object and when."""
    optional: bool = False
    """Whether to skip the kind if the harness may not read it or the API server does not serve it. No verdict
    depends on an optional kind."""


def _surrounding(
    name: str, api_version: str, kind: str, namespace: str | None = None, **fields: Any
) -> WatchedKind:
    return WatchedKind(name, api_version, kind, namespace=namespace, optional=True, **fields)


SURROUNDINGS = (
    _surrounding("namespace", "v1", "Namespace", namespaced=False, own=True),
    _surrounding("secret", "v1", "Secret", metadata_only=True),
    _surrounding("configmap", "v1", "ConfigMap", metadata_only=True),
    _surrounding("service", "v1", "Service"),
    _surrounding("endpointslice", "discovery.k8s.io/v1", "EndpointSlice"),
    _surrounding("networkpolicy", "networking.k8s.io/v1", "NetworkPolicy"),
    _surrounding("node-event", "v1", "Event", "default"),
    _surrounding("node-lease", "coordination.k8s.io/v1", "Lease", "kube-node-lease"),
    _surrounding("dns", "apps/v1", "Deployment", "kube-system", labels="k8s-app=kube-dns"),
    _surrounding("dns-pod", "v1", "Pod", "kube-system", labels="k8s-app=kube-dns"),
    _surrounding("control-plane", "v1", "Pod", "kube-system", labels="tier=control-plane"),
    _surrounding("dns-service", "v1", "Service", "kube-system", labels="k8s-app=kube-dns"),
    _surrounding("system-daemonset", "apps/v1", "DaemonSet", "kube-system"),
    _surrounding("service-proxy", "v1", "Pod", "kube-system", labels="k8s-app=kube-proxy"),
    _surrounding("tracker-service", "v1", "Service", "harness-system"),
    _surrounding("tracker-endpoints", "discovery.k8s.io/v1", "EndpointSlice", "harness-system"),
    _surrounding("tracker-deployment", "apps/v1", "Deployment", "harness-system"),
    _surrounding("resourcequota", "v1", "ResourceQuota"),
    _surrounding("limitrange", "v1", "LimitRange"),
    *(
        _surrounding(name, "admissionregistration.k8s.io/v1", kind, namespaced=False, metadata_only=True)
        for name, kind in (
            ("admission-policy", "ValidatingAdmissionPolicy"),
            ("admission-binding", "ValidatingAdmissionPolicyBinding"),
            ("validating-webhooks", "ValidatingWebhookConfiguration"),
            ("mutating-webhooks", "MutatingWebhookConfiguration"),
        )
    ),
    _surrounding("jobset-endpoints", "discovery.k8s.io/v1", "EndpointSlice", "jobset-system"),
    _surrounding("kueue-endpoints", "discovery.k8s.io/v1", "EndpointSlice", "kueue-system"),
    _surrounding("jobset-pod", "v1", "Pod", "jobset-system"),
    _surrounding("kueue-pod", "v1", "Pod", "kueue-system"),
)
"""Kinds of objects that a launch depends on and that other clients can change during the launch
(harness/judge/disturbance/changes.py)."""
ALWAYS = (
    WatchedKind("pod", "v1", "Pod"),
    WatchedKind("node", "v1", "Node", namespaced=False),
    WatchedKind("event", "v1", "Event"),
    WatchedKind("tracker", "v1", "Pod", namespace="harness-system"),
)
JOB = WatchedKind("job", "batch/v1", "Job")
STATEFULSET = WatchedKind("statefulset", "apps/v1", "StatefulSet")
DAEMONSET = WatchedKind("daemonset", "apps/v1", "DaemonSet")
QUEUED = (
    WatchedKind("workload", "kueue.x-k8s.io/v1beta2", "Workload"),
    WatchedKind("localqueue", "kueue.x-k8s.io/v1beta2", "LocalQueue"),
    WatchedKind("clusterqueue", "kueue.x-k8s.io/v1beta2", "ClusterQueue", namespaced=False),
    WatchedKind("kueue-controller", "apps/v1", "Deployment", namespace="kueue-system"),
)
JOBSET = (
    WatchedKind("jobset", "jobset.x-k8s.io/v1alpha2", "JobSet"),
    JOB,
    WatchedKind("jobset-controller", "apps/v1", "Deployment", namespace="jobset-system"),
    *QUEUED,
)
TORCHRUN_JOB = WatchedKind("torchrunjob", "torchrun.ai/v1alpha1", "TorchrunJob", optional=True)
FILES = {
    **{"JobSet": "jobset", "Job": "job", "StatefulSet": "statefulset", "DaemonSet": "daemonset"},
    **{"TorchrunJob": "torchrunjob", "PyTorchJob": "pytorchjob", "MPIJob": "mpijob", "Pod": "pod"},
}
"""Maps the kind of a launched object to the name of its file in objects/, without the suffix."""
