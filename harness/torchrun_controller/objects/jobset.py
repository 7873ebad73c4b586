"""Queue + job → JobSet and claims."""

from __future__ import annotations

import hashlib
import json

from harness.core.kubernetes import Object
from harness.torchrun_controller.api import names
from harness.torchrun_controller.objects import template
from harness.torchrun_controller.objects.template import Resolved

DEADLINE_MARGIN = 60
"""Seconds that the cluster's own deadline lies behind the controller's, which says more."""


def owner(job: Object) -> Object:
    """Return the owner reference by which an object goes with its TorchrunJob or TorchrunQueue."""
    return {
        "apiVersion": names.API,
        "kind": job["kind"],
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def jobset(job: Object, resolved: Resolved, local_queue: str | None, *, kai: bool = False) -> Object:
    """Return the JobSet of a job. With a LocalQueue it is made suspended, and Kueue starts it."""
    plan, reliability = resolved.plan, resolved.spec.reliability
    restarts = 0 if reliability.restart_policy == "Never" else reliability.max_restarts
    inner: Object = {
        "parallelism": plan.nodes,
        "completions": plan.nodes,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": template.pod(resolved, kai=kai),
    }
    if plan.elastic:
        # A lost pod comes back alone, and the others go on. Those that are left decide the end.
        inner["backoffLimit"] = restarts * plan.nodes
        inner["successPolicy"] = {"rules": [{"succeededCount": plan.least}]}
        restarts = 0
    if reliability.active_deadline_seconds:
        inner["activeDeadlineSeconds"] = reliability.active_deadline_seconds + DEADLINE_MARGIN
    deadline = {"name": "deadline", "action": "FailJobSet", "onJobFailureReasons": ["DeadlineExceeded"]}
    spec: Object = {
        "suspend": local_queue is not None,
        # A headless Service, with names also of pods that are not ready: ranks meet before they are.
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "failurePolicy": {"maxRestarts": restarts, "rules": [deadline]},
        "successPolicy": {"operator": "All"},
        "replicatedJobs": [{"name": names.NODES, "replicas": 1, "template": {"spec": inner}}],
    }
    labels = template.labels_of(resolved)
    if local_queue is not None:
        labels[names.KUEUE_QUEUE_LABEL] = local_queue
    return {
        "apiVersion": names.JOBSET_API,
        "kind": "JobSet",
        "metadata": {
            "name": resolved.name,
            "namespace": job["metadata"]["namespace"],
            "labels": labels,
            "annotations": {names.TEMPLATE_ANNOTATION: _digest(spec)},
            "ownerReferences": [owner(job)],
        },
        "spec": spec,
    }


def claims(job: Object, resolved: Resolved) -> list[Object]:
    """Return the claims of a job. The workspace goes with it; datasets and checkpoints stay."""
    made = []
    for volume in resolved.volumes:
        if volume.claim is not None:
            metadata = {
                **volume.claim["metadata"],
                "namespace": job["metadata"]["namespace"],
                "labels": template.labels_of(resolved),
                **({"ownerReferences": [owner(job)]} if volume.ours else {}),
            }
            made.append({**volume.claim, "metadata": metadata})
    return made


def _digest(spec: Object) -> str:
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]
