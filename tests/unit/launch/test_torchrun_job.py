"""A file with a TorchrunJob as a workload: what is read off it, what is applied, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.core.errors import HarnessError, UsageError
from harness.launch.labels import NONCE_LABEL
from harness.launch.workload_file import load
from harness.launch.workloads.base import Surroundings
from harness.launch.workloads.torchrun_job import TorchrunJobWorkload, raise_if_rejected

Object = dict[str, Any]


def documents(**job: Any) -> list[Object]:
    """Return manifests/torchrun-job.yaml, with these fields of the job instead."""
    queue, document = yaml.safe_load_all(Path("manifests/torchrun-job.yaml").read_text())
    document["spec"].update(job)
    return [queue, document]


def loaded(folder: Path, found: list[Object]) -> TorchrunJobWorkload:
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump_all(found))
    workload = load(path)
    assert isinstance(workload, TorchrunJobWorkload)
    return workload


def test_what_the_file_says(tmp_path: Path) -> None:
    """Contract: ranks, container, queue and environment are those that the controller makes."""
    workload = loaded(tmp_path, documents(processesPerNode=3, env=[{"name": "LR", "value": "0.1"}]))
    assert (workload.kind, workload.launcher, workload.container) == ("JobSet", "torchrun", "trainer")
    assert (workload.per_node, workload.queue, workload.uses_worker_image) == (3, "user-queue", True)
    assert workload.envs == {"LR": "0.1"}
    assert workload.first_host == "trainer-node-0-0.trainer"


def test_what_is_applied(tmp_path: Path) -> None:
    """Contract: image, environment and secrets of a launch win over the file's, and secrets are references;
    the cluster ends the job by itself; the job is found by the launch's label.
    """
    found = documents(env=[{"name": "PLUTO_API_KEY", "value": "typed in"}, {"name": "LR", "value": "0.1"}])
    found[0]["spec"]["env"] = [{"name": "PLUTO_RUN_ID", "value": "theirs"}]
    found[0]["spec"]["clusterQueue"] = "theirs"
    workload = loaded(tmp_path, found)
    nothing: Any = None
    given = Surroundings(
        context=nothing,
        kube=nothing,
        namespace="ns",
        nonce="abcd",
        image="worker:1",
        envs={"PLUTO_RUN_ID": "ours"},
        secret_env={"PLUTO_API_KEY": ("keys", "key")},
        max_seconds=100,
        nodes=2,
    )
    queue, job = workload.render(given)
    [trainer] = queue["spec"]["podTemplate"]["spec"]["containers"]
    env = {each["name"]: each for each in trainer["env"]}
    assert trainer["image"] == "worker:1"
    assert env["PLUTO_RUN_ID"]["value"] == "ours"
    assert env["PLUTO_API_KEY"]["valueFrom"] == {"secretKeyRef": {"name": "keys", "key": "key"}}
    assert env["LR"]["value"] == "0.1"
    assert (queue["spec"]["env"], job["spec"]["env"]) == ([], [])
    assert not {name for name in env if name.startswith("TORCHRUN_")}  # the controller's own
    assert "typed in" not in yaml.safe_dump_all([queue, job])
    assert "clusterQueue" not in queue["spec"]
    assert queue["spec"]["localQueue"] == "user-queue"
    assert job["spec"]["reliability"]["activeDeadlineSeconds"] == 100
    assert job["spec"]["labels"][NONCE_LABEL] == "abcd"
    assert {each["metadata"]["namespace"] for each in (queue, job)} == {"ns"}


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"jobQueue": "other"}, "expected TorchrunQueue other in the same file, found small"),
        ({"numGPUs": 4}, "the queue's nodes have no GPUs"),
        ({"workspaceStorage": {"source": "zip"}}, "harness torchrun submit"),
        ({"numNodes": 0}, "TorchrunJob spec.numNodes: Input should be greater"),
        ({"command": "torchrun x.py"}, "the controller starts torchrun"),
    ],
)
def test_refused_before_anything_is_made(tmp_path: Path, changed: Object, says: str) -> None:
    """Contract: what the controller would refuse is a usage error, before a cluster is there."""
    with pytest.raises(UsageError, match=says):
        loaded(tmp_path, documents(**changed))


POLICY = "ValidatingAdmissionPolicy 'team' with binding 'team' denied request: label the pod"


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        (f'the API server refuses its pods: pods "small-pod" is forbidden: {POLICY}', "launch.pods_refused"),
        ("StorageClass fast of workspaceStorage does not exist", "launch.rejected"),
        ('the API server refuses its pods: failed calling webhook "v.example"', None),
    ],
)
def test_a_queue_whose_pods_are_rejected_ends_the_launch(message: str, cause: str | None) -> None:
    """Contract: at once and with the message, unless the next attempt can succeed."""
    condition = {"type": "PodTemplateValid", "status": "False", "reason": "Rejected", "message": message}
    queue, _ = documents()
    queue["metadata"]["generation"] = 2
    queue["status"] = {"conditions": [condition | {"observedGeneration": 1}]}
    raise_if_rejected(queue)  # The condition is about an older generation of the queue.
    queue["status"] = {"conditions": [condition | {"observedGeneration": 2}]}
    if cause is None:
        raise_if_rejected(queue)
        return
    with pytest.raises(HarnessError, match="TorchrunQueue") as raised:
        raise_if_rejected(queue)
    assert (raised.value.cause, message in raised.value.message) == (cause, True)
