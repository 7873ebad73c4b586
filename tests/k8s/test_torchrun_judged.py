"""manifests/torchrun-job.yaml on a real cluster: the controller in its pods, the job judged as others are."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from harness.fixtures.plugin import Launch
from harness.launch.workloads.loader import of_manifest
from harness.provision.cluster import Ready
from harness.torchrun_controller.api import crd_generator

pytestmark = pytest.mark.controller
PATH = Path("manifests/torchrun-job.yaml")


def test_a_healthy_torchrun_job_passes(launch: Launch, cluster: Ready) -> None:
    """Contract: its ranks are judged as konduktor's are, and what it says of itself is too; also by the
    first launch of a new cluster, which does not know the kind yet.
    """
    kube, kind = cluster.kube, ("apiextensions.k8s.io/v1", "CustomResourceDefinition")
    ours = {str(definition["metadata"]["name"]) for definition in crd_generator.definitions()}
    for name in ours:
        kube.delete(*kind, name)
    kube.wait("no CRDs", *kind, lambda found: ", ".join(ours & found.keys()) or None, seconds=60)
    outcome = launch(of_manifest(list(yaml.safe_load_all(PATH.read_text())), str(PATH)), wait_seconds=200)
    assert outcome.verdict.verdict == "PASS", outcome.verdict.explanation
    checks = {check.name: check for check in outcome.verdict.checks}
    assert all(check.result == "PASS" for check in checks.values())
    assert "The TorchrunJob was Succeeded" in checks["job-status"].explanation
    assert checks["disturbances"].explanation.startswith(
        "No changes by other clients were recorded for the job, its pods, "
    )


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("worker", "cause", "job"),
    [
        ("faulty.py exit3", "rank.crashed", "The TorchrunJob was Failed"),
        ("faulty.py silent", "unification.rank_silent", "The TorchrunJob was Succeeded"),
    ],
)
def test_a_rank_that_fails_is_named(launch: Launch, worker: str, cause: str, job: str) -> None:
    """Contract: a rank that dies or is silent is named, and the job did not say otherwise."""
    queue, document = yaml.safe_load_all(PATH.read_text())
    document["spec"]["command"] = f"python /workspace/{worker} 1"
    outcome = launch(of_manifest([queue, document], str(PATH)), wait_seconds=200)
    assert (outcome.verdict.verdict, outcome.verdict.cause) == ("FAIL", cause), outcome.verdict.explanation
    assert outcome.verdict.ranks == [1]
    checks = {check.name: check for check in outcome.verdict.checks}
    assert job in checks["job-status"].explanation
