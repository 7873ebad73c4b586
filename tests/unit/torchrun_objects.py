"""Jobs, queues and what a cluster has of them, as the API server would return them."""

from __future__ import annotations

from typing import Any

from harness.torchrun_controller.api import names

Object = dict[str, Any]


def job(*, annotations: Object | None = None, status: Object | None = None, **spec: Any) -> Object:
    """Return a TorchrunJob of two CPU nodes, with these fields instead."""
    return {
        "apiVersion": names.API,
        "kind": names.JOB_KIND,
        "metadata": {
            "name": "demo",
            "namespace": "team",
            "uid": "job-uid",
            "generation": 1,
            "creationTimestamp": "2026-11-23T10:00:00Z",
            "annotations": annotations or {},
        },
        "spec": {"jobQueue": "cpu", "command": "python train.py", "numNodes": 2, **spec},
        "status": status or {},
    }


CHECKED: Object = {
    "type": "PodTemplateValid",
    "status": "True",
    "reason": "Accepted",
    "message": "",
    "lastTransitionTime": "2026-11-23T10:00:00Z",
    "observedGeneration": 1,
}


def queue(**spec: Any) -> Object:
    """Return a TorchrunQueue of nodes with two CPUs, whose pod template was checked."""
    return {
        "apiVersion": names.API,
        "kind": names.QUEUE_KIND,
        "metadata": {"name": "cpu", "namespace": "team", "uid": "queue-uid", "generation": 1},
        "spec": {"image": "torch:1", "nodeResources": {"cpus": 2, "memory": "1Gi"}, **spec},
        "status": {"conditions": [CHECKED]},
    }


CREATED = {"jobID": "js-uid", "jobName": "demo", "numNodes": 2, "processesPerNode": 1}
"""The status of a job whose JobSet was created."""


def jobset(*, uid: str = "js-uid", suspend: bool = False, restarts: int = 0, **conditions: Object) -> Object:
    """Return the job's JobSet. Completed={} or Failed={"reason": …} are its conditions."""
    return {
        "apiVersion": names.JOBSET_API,
        "kind": "JobSet",
        "metadata": {
            "name": "demo",
            "uid": uid,
            "resourceVersion": "7",
            "ownerReferences": [{"uid": "job-uid", "controller": True}],
        },
        "spec": {"suspend": suspend},
        "status": {
            "restarts": restarts,
            "conditions": [{"type": kind, "status": "True", **of} for kind, of in conditions.items()],
        },
    }


def pod(index: int, phase: str, *, attempt: int = 0, ready: bool | None = None, **status: Any) -> Object:
    """Return a pod of the job's attempt."""
    is_ready = phase == "Running" if ready is None else ready
    return {
        "metadata": {
            "name": f"demo-node-0-{index}-x{attempt}",
            "labels": {names.ATTEMPT_LABEL: str(attempt), names.JOB_LABEL: "demo"},
        },
        "status": {
            "phase": phase,
            "conditions": [{"type": "Ready", "status": str(is_ready)}],
            **status,
        },
    }
