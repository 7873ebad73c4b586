"""The kinds of objects that are watched and recorded, and the file below objects/ for each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WatchedKind:
    """A watched kind.

    `name` is its evidence file. A namespaced kind is watched in `namespace`, or in the launch's own.
    """

    name: str
    api_version: str
    kind: str
    namespaced: bool = True
    namespace: str | None = None


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
FILES = {"JobSet": "jobset", "Job": "job", "StatefulSet": "statefulset", "DaemonSet": "daemonset"}
"""Kind of a launched object → its file below objects/."""
