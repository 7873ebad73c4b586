"""Build the `<job>-sync-0` pod, which stores the code of a multi-node job in the `<job>-workspace` claim.

The job's pods use emptyDir volumes, because one ReadWriteOnce claim would force all pods onto one node. Pods
that start later read a small amount of code from Secrets, and a larger amount from this pod
(pod/stored_archive.py).
"""

from __future__ import annotations

from harness.core import pod_security
from harness.core.kubernetes import Object
from harness.torchrun_controller.api import names
from harness.torchrun_controller.objects import command, pod_template, workspace
from harness.torchrun_controller.objects.jobset import owner
from harness.torchrun_controller.objects.pod_template import Resolved
from harness.torchrun_sync.pod_script import archive_server_command
from harness.torchrun_sync.pods import STORE, WAITING

COPIED_FIELDS = ("imagePullSecrets", "nodeSelector", "securityContext", "serviceAccountName", "tolerations")
"""The fields that are copied from the queue's pod template. These fields determine on which nodes the pod can
run, and as which user."""


def documents(job: Object, resolved: Resolved) -> list[Object]:
    """Return the Service and the StatefulSet of the pod that stores the job's code, or [] if the job does not
    need this pod."""
    code = next((volume for volume in resolved.volumes if volume.name == "workspace"), None)
    if code is None or not code.used_by_archive_pod or resolved.workspace_digest is None:
        return []
    name = names.archive_server(resolved.name)
    labels = {
        names.PART_LABEL: job["metadata"]["uid"],
        names.QUEUE_LABEL: names.queue_label(resolved.queue_name),
    }
    metadata = {
        "name": name,
        "namespace": job["metadata"]["namespace"],
        "labels": labels,
        "ownerReferences": [owner(job)],
    }
    service = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": labels,
        "ports": [{"name": "code", "port": names.ARCHIVE_PORT}],
    }
    stateful = {
        "replicas": 1,
        "serviceName": name,
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": _pod(resolved, code.path)},
    }
    return [
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": service},
        {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata, "spec": stateful},
    ]


def _pod(resolved: Resolved, path: str) -> Object:
    pod_spec = pod_template.pod(resolved, kai=False)["spec"]
    trainer = pod_spec["containers"][0]
    digest = resolved.workspace_digest or ""
    words = archive_server_command(
        workspace.PARTS_FOLDER, f"{path.rstrip('/')}/{STORE}", digest, names.ARCHIVE_PORT
    )
    requests = {"cpu": "50m", "memory": "128Mi"}
    container = {
        "name": WAITING,
        "image": trainer["image"],
        "imagePullPolicy": trainer["imagePullPolicy"],
        "command": command.verbatim(words),
        "workingDir": path,
        # Without a CPU limit, a ResourceQuota for limits.cpu would reject the pod.
        "resources": {"requests": requests, "limits": {"cpu": "2", "memory": "512Mi"}},
        "volumeMounts": [
            {"name": "workspace", "mountPath": path},
            {"name": workspace.PARTS_VOLUME, "mountPath": workspace.PARTS_FOLDER, "readOnly": True},
        ],
        **({"securityContext": trainer["securityContext"]} if "securityContext" in trainer else {}),
    }
    claim_source = {"persistentVolumeClaim": {"claimName": names.workspace_claim(resolved.name)}}
    spec = {
        **{field: pod_spec[field] for field in COPIED_FIELDS if field in pod_spec},
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 5,
        "containers": [container],
        "volumes": [
            {"name": "workspace", **claim_source},
            workspace.parts_volume(resolved.name, names.MAX_PARTS),
        ],
    }
    # The pod runs as the trainer's user, because the trainer reads and writes the same claim.
    pod_security.harden(spec, root=True)
    return spec
