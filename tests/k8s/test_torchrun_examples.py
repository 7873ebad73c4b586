"""Each example of examples/torchrun is applied and runs to its end, with CPUs in place of GPUs."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from torchrun_team import Team, led

from harness.core.kubernetes import Object
from harness.provision.cluster import Ready
from harness.torchrun_controller.api import names

pytestmark = [pytest.mark.controller, pytest.mark.nightly]
EXAMPLES = Path(__file__).parents[2] / "examples/torchrun"
FILES = sorted(path.name for path in EXAMPLES.glob("*.yaml"))
SECONDS = 240.0


@pytest.fixture(scope="module")
def team(cluster: Ready, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    found = Team(cluster.kube, f"examples-{secrets.token_hex(3)}", cluster.worker.tag)
    found.prepare()
    code = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "training-code"}}
    found.kube.apply(
        {
            **code,
            "metadata": {**code["metadata"], "namespace": found.namespace},  # type: ignore[dict-item]
            "data": {"train.py": (EXAMPLES / "train.py").read_text()},
        }
    )
    with led(found, tmp_path_factory.mktemp("controller")):
        yield found
    found.kube.delete("scheduling.k8s.io/v1", "PriorityClass", "urgent-training")


def read(name: str) -> list[Object]:
    return list(yaml.safe_load_all((EXAMPLES / name).read_text()))


def on_cpus(documents: list[Object], team: Team) -> list[Object]:
    """Return an example without GPUs: a job has the nodes that its GPUs would have asked for, with one rank
    each. Everything else is as in the file.
    """
    whole: dict[str, int] = {}
    for document in documents:
        spec = document.get("spec") or {}
        if document["kind"] == names.QUEUE_KIND:
            whole[document["metadata"]["name"]] = spec["nodeResources"].get("gpus", 0)
            spec["nodeResources"] = {"cpus": "400m", "memory": "1Gi"}
            spec["image"] = team.image
        elif document["kind"] == names.JOB_KIND and spec.get("numGPUs"):
            spec["numNodes"] = -(-spec.pop("numGPUs") // whole[spec["jobQueue"]])
        if document["kind"] in (names.QUEUE_KIND, names.JOB_KIND):
            document["metadata"]["namespace"] = team.namespace
    return documents


def apply(team: Team, name: str) -> list[str]:
    """Apply an example. Return the names of its jobs."""
    documents = on_cpus(read(name), team)
    for document in documents:
        team.kube.apply(document)
    return [each["metadata"]["name"] for each in documents if each["kind"] == names.JOB_KIND]


@pytest.mark.parametrize("name", FILES)
def test_an_example_runs_to_its_end(team: Team, name: str) -> None:
    """Contract: every job of the file succeeds, with the nodes and the labels that it asks for."""
    jobs = apply(team, name)
    assert jobs
    for job in jobs:
        ended = team.until(job, "Succeeded", SECONDS)
        spec, pods = ended["spec"], team.pods(job)
        assert ended["status"]["numNodes"] == (spec.get("maxNodes") or spec.get("numNodes") or 1)
        for pod in pods:
            assert (spec.get("labels") or {}).items() <= pod["metadata"]["labels"].items()
            wanted = (spec.get("scheduling") or {}).get("priorityClassName")
            assert wanted in (None, pod["spec"].get("priorityClassName"))


def test_the_workspace_example_runs_the_folder_s_code(team: Team) -> None:
    """Contract: the README's command, with the exit code of the job."""
    apply(team, "single-and-multi-node.yaml")
    program = Path(sys.executable).with_name("kubectl-torchrun")
    words = ("submit", "--queue", "gpu-training", "--name", "workspace", "--namespace", team.namespace)
    where = ("--kubeconfig", str(team.kube.kubeconfig), "python train.py")
    done = subprocess.run(
        [program, *words, *where],
        cwd=EXAMPLES,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, "rank 0 of 1: done" in done.stdout) == (0, True), done.stdout + done.stderr


def test_a_job_may_not_say_what_its_queue_forbids(team: Team) -> None:
    """Contract: the refusal that priority.yaml speaks of."""
    [*_, job] = on_cpus(read("priority.yaml"), team)
    job["metadata"]["name"] = "another-image"
    job["spec"]["image"] = "another:1"
    apply(team, "priority.yaml")
    team.kube.apply(job)
    refused = team.until("another-image", "Failed")
    assert "does not permit its jobs to set image (images: another:1)" in refused["status"]["message"]


def test_the_examples_with_gpus_are_accepted_as_written(team: Team) -> None:
    """Contract: each document as it is in the file passes the API server's checks."""
    for name in FILES:
        for document in read(name):
            document["metadata"].setdefault("namespace", team.namespace)
            if document["kind"] == "PriorityClass":
                del document["metadata"]["namespace"]
            document["metadata"]["name"] += "-dry"
            team.kube.dry_run(document)
