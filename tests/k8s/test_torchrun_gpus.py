"""TorchrunJobs that ask for GPUs, on nodes that advertise `nvidia.com/gpu` and have no device."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
from kubernetes import client
from torchrun_team import Controller, Team

from harness.core.kubernetes import Kube, Object
from harness.provision.cluster import Ready
from harness.provision.controllers import queues
from harness.torchrun_controller.api import names

pytestmark = [pytest.mark.controller, pytest.mark.nightly]
GPU = "nvidia.com/gpu"
WHOLE = {"gpus": 4, "cpus": "500m", "memory": "1Gi"}
"""A node of the queues. Each node of the cluster has half of its GPUs."""


def advertise(kube: Kube, count: str | None) -> int:
    """Have the nodes that take pods advertise GPUs, with quota for them. Return how many nodes do."""
    takers = [node for node in kube.ready_nodes() if not node["spec"].get("taints")]
    for node in takers:
        status = {"capacity": {GPU: count}, "allocatable": {GPU: count}}
        client.CoreV1Api(kube.api).patch_node_status(node["metadata"]["name"], {"status": status})

    def seen(nodes: dict[str, Object]) -> str | None:
        wrong = [
            name
            for name in (node["metadata"]["name"] for node in takers)
            if nodes[name]["status"]["allocatable"].get(GPU) != count
        ]
        return f"{GPU} is not {count} on {wrong}" if wrong else None

    kube.wait(f"{GPU} to be allocatable: {count}", "v1", "Node", seen, seconds=60)
    queues.install(kube)
    return len(takers)


@pytest.fixture(scope="module")
def team(cluster: Ready, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    """A namespace on nodes of two GPUs each, and a controller with its own rights."""
    found = Team(cluster.kube, f"gpus-{secrets.token_hex(3)}", cluster.worker.tag)
    folder = tmp_path_factory.mktemp("controller")
    controller = Controller(found.account(folder), found.namespace, folder / "log")
    try:
        if advertise(cluster.kube, "2") < 2:
            pytest.fail("expected two nodes that take pods")
        found.prepare()
        controller.start()
        found.until_led()
        yield found
        controller.kill()
        print((folder / "log").read_text())
    finally:
        found.remove()
        advertise(cluster.kube, None)


def until_says(team: Team, name: str, text: str) -> str:
    """Wait until the message of a job has this text, and return the message."""
    last = ""

    def done(jobs: dict[str, Object]) -> str | None:
        nonlocal last
        last = str((jobs.get(name) or {}).get("status", {}).get("message"))
        return None if text in last else last

    team.kube.wait(f"{name}: {text}", names.API, names.JOB_KIND, done, seconds=90, namespace=team.namespace)
    return last


def test_best_fit_splits_a_job_that_packing_queues(team: Team) -> None:
    """Contract: with 2 and 2 GPUs free a job of 4 runs as two pods; the packed one says what would fit, and a
    job that Kueue has not admitted says who holds the GPUs."""
    team.queue("best", distribution="BestFit", nodeResources=WHOLE)
    team.queue("packed", nodeResources=WHOLE)
    asked = {"numNodes": None, "numGPUs": 4}
    team.job("whole", jobQueue="packed", command="true", **asked)
    message = until_says(team, "whole", "4 GPUs are free on this queue's nodes now")
    assert (
        "2 x 2 GPUs would fit: submit a job with numNodes 2, or set the queue's distribution to BestFit"
        in message
    )
    team.change("whole", cancel=True)
    team.job("split", jobQueue="best", command="true", **asked)
    ended = team.until("split", "Succeeded")
    assert (ended["status"]["numNodes"], ended["status"]["processesPerNode"]) == (2, 2)
    team.job("holder", jobQueue="best", command="sleep 600", **asked)
    team.until("holder", "Running")
    team.job("behind", jobQueue="best", command="true", **asked)
    message = until_says(team, "behind", "GPUs are free")
    assert f"4 are held by TorchrunJob {team.namespace}/holder (4)" in message, message
    assert "no equal split of 4 GPUs fits" in message, message
    team.change("holder", cancel=True)
    team.until("behind", "Succeeded")
