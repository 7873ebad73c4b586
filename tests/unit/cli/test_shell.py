"""The copy of a rank's pod: what it has from the rank, and what it must not have."""

from __future__ import annotations

from typing import Any

from harness.cli.shell import container_of, copied
from harness.evidence.schema.bundle import Launch

POD: dict[str, Any] = {
    "metadata": {
        "name": "job-workers-0-1-x",
        "namespace": "e2e-1",
        "labels": {"jobset.sigs.k8s.io/jobset-name": "job", "kueue.x-k8s.io/queue-name": "user-queue"},
        "ownerReferences": [{"kind": "Job", "name": "job-workers-0"}],
        "annotations": {"a/index": "1"},
        "finalizers": ["batch.kubernetes.io/job-tracking"],
    },
    "spec": {
        "nodeName": "worker2",
        "schedulingGates": [{"name": "kueue.x-k8s.io/admission"}],
        "restartPolicy": "OnFailure",
        "volumes": [{"name": "scripts", "configMap": {"name": "scripts"}}],
        "containers": [
            {
                "name": "konduktor-container",
                "image": "worker:1",
                "env": [
                    {"name": "PLUTO_RUN_ID", "value": "r"},
                    {
                        "name": "RANK",
                        "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['a/index']"}},
                    },
                    {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "pluto", "key": "KEY"}}},
                ],
                "command": ["bash", "-c", "torchrun"],
                "args": ["more"],
                "resources": {"requests": {"cpu": "2"}},
                "volumeMounts": [{"name": "scripts", "mountPath": "/workspace/multinode.py"}],
                "workingDir": "/workspace",
            },
            {"name": "sidecar", "image": "other:1"},
        ],
    },
    "status": {"phase": "Succeeded"},
}


def test_it_has_what_the_rank_had() -> None:
    """Image, environment, files, folder and node."""
    spec = copied(POD, "shell-1")["spec"]
    container = spec["containers"][0]
    was = POD["spec"]["containers"][0]
    assert container["env"][0] == was["env"][0]
    assert container["env"][1] == {"name": "RANK", "value": "1"}
    assert container["env"][2] == was["env"][2], "a secret stays a reference"
    for field in ("image", "volumeMounts", "workingDir"):
        assert container[field] == was[field]
    assert (spec["volumes"], spec["nodeName"]) == (POD["spec"]["volumes"], "worker2")


def test_nobody_takes_it_for_a_rank() -> None:
    """It has no labels, owners or finalizers, and takes no quota. It waits, and ends at once when it is
    deleted.
    """
    copy = copied(POD, "shell-1")
    assert copy["metadata"] == {"name": "shell-1", "namespace": "e2e-1"}
    spec = copy["spec"]
    assert len(spec["containers"]) == 1
    assert spec["containers"][0]["command"][0] == "sleep"
    assert not {"args", "resources"} & set(spec["containers"][0])
    assert (spec["restartPolicy"], spec["terminationGracePeriodSeconds"]) == ("Never", 0)
    assert "schedulingGates" not in spec


def test_sidecar_before_ranks_is_not_taken_for_them() -> None:
    """Contract: the container that the launch names is entered and copied, wherever it is in the pod."""
    mesh = {"name": "mesh", "image": "mesh:1"}
    pod = {**POD, "spec": {**POD["spec"], "containers": [mesh, *POD["spec"]["containers"]]}}
    launch = Launch(launcher="attach", namespace="team", kind="Job", container="konduktor-container")
    assert container_of(pod, launch) == "konduktor-container"
    assert container_of(pod, None) == "mesh"
    (own,) = copied(pod, "shell", "konduktor-container")["spec"]["containers"]
    assert own["image"] == "worker:1"
