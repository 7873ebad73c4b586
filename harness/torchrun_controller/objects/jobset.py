"""Build the JobSet and the volume claims of a job."""

from __future__ import annotations

import hashlib
import json

from harness.core.kubernetes import Object
from harness.torchrun_controller.api import names
from harness.torchrun_controller.objects import pod_template
from harness.torchrun_controller.objects.permission_check import check_pod
from harness.torchrun_controller.objects.pod_template import Resolved

DISRUPTED = {"type": "DisruptionTarget", "status": "True"}
"""The type of the condition that Kubernetes sets on a pod before evicting or preempting the pod, or if the
pod was lost with its node."""
DEADLINE_MARGIN = 60
"""The Job's deadline is this number of seconds later than the controller's deadline, so that the controller
usually acts first. The controller's message contains more details."""


def owner(job: Object) -> Object:
    """Return an owner reference to the given TorchrunJob or TorchrunQueue."""
    return {
        "apiVersion": names.API,
        "kind": job["kind"],
        "name": job["metadata"]["name"],
        "uid": job["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def jobset(job: Object, resolved: Resolved, local_queue: str | None, *, kai: bool = False) -> Object:
    """Return a job's JobSet. Raises Refused if its pods need a privilege that its queue does not list.

    If `local_queue` is given, the JobSet is suspended until Kueue admits it.
    """
    pod = pod_template.pod(resolved, kai=kai)
    check_pod(pod, resolved.queue)
    plan, reliability = resolved.plan, resolved.spec.reliability
    no_restart = reliability.restart_policy == "Never"
    restarts = 0 if no_restart else reliability.max_restarts
    inner: Object = {
        "parallelism": plan.nodes,
        "completions": plan.nodes,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "podFailurePolicy": {"rules": [{"action": "FailJob", "onPodConditions": [DISRUPTED]}]},
        "template": pod,
    }
    if plan.elastic:
        # In an elastic job, only lost pods are replaced, and the other pods continue. The job ends once
        # `least` pods have succeeded.
        inner["backoffLimit"] = restarts * plan.nodes
        if not no_restart:
            inner["podFailurePolicy"]["rules"][0]["action"] = "Ignore"
        inner["successPolicy"] = {"rules": [{"succeededCount": plan.least}]}
        restarts = 0
    if reliability.active_deadline_seconds:
        inner["activeDeadlineSeconds"] = reliability.active_deadline_seconds + DEADLINE_MARGIN
    deadline = {"name": "deadline", "action": "FailJobSet", "onJobFailureReasons": ["DeadlineExceeded"]}
    disruption = {
        "name": "disruption",
        "action": "RestartJobSetAndIgnoreMaxRestarts",
        "onJobFailureReasons": ["PodFailurePolicy"],
    }
    spec: Object = {
        "suspend": local_queue is not None,
        # The headless Service must also resolve pods that are not ready, because pods become ready only after
        # the rendezvous.
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "failurePolicy": {
            "maxRestarts": restarts,
            "rules": [deadline, *([] if no_restart else [disruption])],
        },
        "successPolicy": {"operator": "All"},
        "replicatedJobs": [{"name": names.NODES, "replicas": 1, "template": {"spec": inner}}],
    }
    labels = pod_template.labels_of(resolved)
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
    """Return the volume claims of a job.

    The job owns only its workspace claim, which is therefore deleted with the job.
    """
    documents = []
    for volume in resolved.volumes:
        if volume.claim is not None:
            metadata = {
                **volume.claim["metadata"],
                "namespace": job["metadata"]["namespace"],
                "labels": pod_template.labels_of(resolved),
                **({"ownerReferences": [owner(job)]} if volume.ours else {}),
            }
            documents.append({**volume.claim, "metadata": metadata})
    return documents


def _digest(spec: Object) -> str:
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]
