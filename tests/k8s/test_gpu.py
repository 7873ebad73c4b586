"""The GPU-labelled job: on a cluster with GPUs all of it, on kind all of it up to the device.

    pytest -m gpu --kubeconfig=F --kube-context C     nccl on real GPUs; HARNESS_WORKER_IMAGE has CUDA
    pytest -m gpu                                     kind, with nvidia.com/gpu advertised on its nodes

On kind it is proved that GPUs are asked for, given quota, scheduled and labelled as konduktor and Kueue do
it, and that a job which needs a device fails without one. Not proved there: CUDA, NCCL, drivers, the device
plugin.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kubernetes import client

from harness import run as running
from harness.cli import logs
from harness.context import RunContext
from harness.core.kubernetes import Object
from harness.evidence.io.reader import Bundle
from harness.launch.konduktor.job_file import JobFile
from harness.provision.cluster import Ready
from harness.provision.controllers import queues
from harness.report.finalize import Outcome
from harness.settings import Settings

pytestmark = pytest.mark.gpu
GPU = "nvidia.com/gpu"
ADVERTISED = 2


def progress(text: str) -> None:
    print(f"  {text}", flush=True)


@pytest.fixture(scope="module")
def real(harness_settings: Settings) -> bool:
    """Whether the GPUs that the nodes advertise are real devices."""
    return harness_settings.kubeconfig is not None


@pytest.fixture(scope="module")
def gpus(cluster: Ready, real: bool) -> Iterator[Ready]:
    """The user's cluster as it is, or the session's cluster, whose nodes advertise GPUs meanwhile."""
    if real:
        yield cluster
        return
    try:
        amounts = _advertise(cluster, str(ADVERTISED))
        assert amounts[GPU] == str(ADVERTISED * cluster.schedulable_nodes)
        yield cluster
    finally:
        assert GPU not in _advertise(cluster, None)


def _advertise(ready: Ready, count: str | None) -> dict[str, str]:
    """Advertise GPUs as a device plugin would: an extended resource of the nodes that take pods, and quota
    for it.

    With None, both are removed. Returns the quota.
    """
    for node in ready.kube.ready_nodes():
        if not node["spec"].get("taints"):
            status = {"capacity": {GPU: count}, "allocatable": {GPU: count}}
            client.CoreV1Api(ready.kube.api).patch_node_status(node["metadata"]["name"], {"status": status})

    def seen(nodes: dict[str, Object]) -> str | None:
        takers = {name: node["status"] for name, node in nodes.items() if not node["spec"].get("taints")}
        wrong = [name for name, status in takers.items() if status["allocatable"].get(GPU) != count]
        return f"{GPU} allocatable is not {count} on {wrong}" if wrong else None

    ready.kube.wait(f"{GPU} to be allocatable: {count}", "v1", "Node", seen, seconds=60)
    return queues.install(ready.kube)


@pytest.fixture
def launch(gpus: Ready, harness_settings: Settings) -> Callable[[JobFile], Outcome]:
    context = RunContext(settings=harness_settings, progress=progress)
    return lambda job: running.launch(job, context, gpus)


@pytest.fixture(scope="module")
def gpu_job() -> JobFile:
    return JobFile.load(Path(os.environ.get("HARNESS_GPU_JOB", "jobs/gpu.yaml")))


def test_gpus_are_asked_for_given_and_labelled(
    launch: Callable[[JobFile], Outcome], gpu_job: JobFile, real: bool
) -> None:
    """The job has its GPU requests, accelerator labels, toleration and quota, and all points are in one run.

    With real devices, it runs over nccl. On kind, it runs over gloo, and only the check `gpus` fails.
    """
    outcome = launch(gpu_job if real else gpu_job.with_(envs={"E2E_DEVICE": "auto"}))
    verdict = outcome.verdict
    expected = ("PASS", None, []) if real else ("FAIL", "gpu.not_used", [0, 1])
    assert (verdict.verdict, verdict.cause, verdict.ranks) == expected, verdict.explanation
    assert [check.name for check in verdict.checks if check.result != "PASS"] == ([] if real else ["gpus"])
    bundle = Bundle.open(outcome.bundle)
    for rank, pod in bundle.ranks().items():
        spec, labels = pod.last.object["spec"], pod.last.object["metadata"]["labels"]
        wanted = spec["containers"][0]["resources"]
        assert wanted["requests"][GPU] == wanted["limits"][GPU] == "1"
        assert labels["trainy.ai/accelerator"] == "H100"
        assert any(t["key"] == GPU for t in spec["tolerations"])
        log = "\n".join(logs.lines(bundle, rank))
        assert f"ranks over {'nccl' if real else 'gloo'} on " in log
    (workload,) = bundle.last("workload").values()
    given = workload.object["status"]["admission"]["podSetAssignments"][0]
    assert given["resourceUsage"][GPU] == "2"
    if not real:
        print("NOT PROVED here: CUDA, NCCL, drivers, device plugin; the nodes only say they have GPUs")


def test_a_gpu_job_without_a_device_fails(
    launch: Callable[[JobFile], Outcome], gpu_job: JobFile, real: bool
) -> None:
    """With a broken driver or a CPU image, the ranks report it, and the verdict names them."""
    if real:
        pytest.skip("this cluster has devices")
    outcome = launch(gpu_job)
    assert outcome.verdict.cause == "rank.crashed"
    assert outcome.verdict.ranks
    assert "torch finds no CUDA device" in outcome.verdict.explanation


def test_more_gpus_than_there_are_is_told(launch: Callable[[JobFile], Outcome], gpu_job: JobFile) -> None:
    outcome = launch(gpu_job.with_(resources={"accelerators": "H100:64"}))
    assert outcome.verdict.cause == "admission.quota_exceeded"
    assert GPU in outcome.verdict.explanation
