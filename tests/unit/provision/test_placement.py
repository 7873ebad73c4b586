"""Which nodes a pod can run on, and the message where there is none."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.core.errors import HarnessError
from harness.launch.konduktor.job_file import JobFile
from harness.launch.konduktor.workload import KonduktorWorkload
from harness.launch.workloads.netcheck_job import job
from harness.provision.placement import require_node
from harness.settings import Settings, load

TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}


def node(name: str, *taints: dict[str, str], cordoned: bool = False) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"taints": list(taints), "unschedulable": cordoned}}


def cluster(*nodes: dict[str, Any]) -> Any:
    return SimpleNamespace(objects=lambda *_: list(nodes))


def of_kind(kind: str, *tolerations: dict[str, str], queue: str | None = None) -> Any:
    pod = {"spec": {"tolerations": list(tolerations)}}
    return SimpleNamespace(kind=kind, name="x", queue=queue, placed=lambda _: pod)


@pytest.fixture(scope="module")
def settings() -> Settings:
    return load()


def test_nodes_are_counted_as_the_pod_sees_them(settings: Settings) -> None:
    """Contract: a DaemonSet's pods run on cordoned nodes and on those that are not Ready, others do not."""
    there = cluster(node("a"), node("b", TAINT), node("c", cordoned=True), node("d", NOT_READY))
    assert require_node(there, of_kind("Job"), settings) == ["a"]
    tolerating = {"key": "nvidia.com/gpu", "operator": "Exists"}
    assert require_node(there, of_kind("Job", tolerating), settings) == ["a", "b"]
    assert require_node(there, of_kind("DaemonSet"), settings) == ["a", "c", "d"]


def test_message_has_each_taint_and_where_toleration_goes(settings: Settings) -> None:
    there = cluster(node("a", TAINT), node("b", TAINT), node("c", cordoned=True), node("d", NOT_READY))
    with pytest.raises(HarnessError) as error:
        require_node(there, job(2), settings)
    assert error.value.cause == "scheduling.unschedulable"
    assert error.value.message == (
        "no node takes a pod of Job netcheck: a and b have the taint nvidia.com/gpu=present:NoSchedule; "
        "c is cordoned; d is not ready"
    )
    assert "--pod file" in error.value.hint


def test_a_large_cluster_has_a_short_message(settings: Settings) -> None:
    there = cluster(*(node(f"n{number:03}", TAINT) for number in range(500)))
    with pytest.raises(HarnessError, match="n004 and 495 more nodes have the taint"):
        require_node(there, job(2), settings)


def test_a_queue_may_add_tolerations(settings: Settings) -> None:
    """Contract: Kueue's ResourceFlavors have tolerations for their pods, so nothing is decided before."""
    require_node(cluster(node("a", TAINT)), of_kind("Job", queue="user-queue"), settings)
    require_node(cluster(), of_kind("Job"), settings)


def test_konduktors_pods_tolerate_what_its_config_says(settings: Settings, tmp_path: Path) -> None:
    """Contract: konduktor tolerates the taint of GPU nodes for jobs with GPUs; the config counts too."""
    gpus = KonduktorWorkload(JobFile.load(Path("jobs/gpu.yaml")))
    plain = KonduktorWorkload(JobFile.load(Path("jobs/multinode.yaml")))
    there = cluster(node("a", TAINT), node("b", {**TAINT, "key": "team"}))
    assert require_node(there, gpus, settings) == ["a"]
    assert require_node(there, plain, settings) == []
    config = tmp_path / "konduktor.yaml"
    config.write_text("kubernetes: {pod_config: {spec: {tolerations: [{key: team, operator: Exists}]}}}")
    users = settings.model_copy(update={"konduktor_config": config})
    assert require_node(there, plain, users) == ["b"]
    assert require_node(there, gpus, users) == ["a", "b"]
