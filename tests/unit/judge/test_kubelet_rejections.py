"""Pods that a kubelet rejects before or after their containers ran, as in public bug reports."""

from __future__ import annotations

import json

import bundles
import pytest
from bundles import at
from cluster_events import never_started
from ended_pods import failing
from failed_ranks import PEER, of

from harness.evidence.kubernetes import gpu_nodes

GPUS, SHARES = {"nvidia.com/gpu": "8"}, {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-cores": "100"}
PORTS = {"nvidia.com/hostdev": "8", "nvidia.com/gpu": "8"}
NO_DEVICES = (
    "requested number of devices unavailable for {}. Requested: {}, Available: 0, which is unexpected"
)
CLOSED = "rpc error: code = Unavailable desc = transport is closing, which is unexpected"
TOPOLOGY = "Resources cannot be allocated with Topology locality"


def request(job: bundles.Job, limits: dict[str, str]) -> None:
    containers = [{"name": bundles.CONTAINER, "resources": {"limits": limits}}]
    for kind, observation in job.objects:
        if kind == "pod":
            observation.object["spec"]["containers"] = containers


def reject(job: bundles.Job, when: float, reason: str, message: str, state=None) -> None:
    job.pod(1, when, "Failed", state)
    job.objects[-1][1].object["status"] |= {"reason": reason, "message": f"Pod was rejected: {message}"}


@pytest.mark.parametrize(
    ("reason", "message", "limits", "cause", "advice"),
    [
        # pytorch/ci-infra#696
        ("TopologyAffinityError", TOPOLOGY, GPUS, "scheduling.not_started", "NUMA node"),
        # Project-HAMi/HAMi#39, Project-HAMi/volcano-vgpu-device-plugin#93: the message names no resource.
        (
            "UnexpectedAdmissionError",
            f"Allocate failed due to {CLOSED}",
            GPUS,
            "scheduling.not_started",
            "device plugin for nvidia.com/gpu",
        ),
        (
            "UnexpectedAdmissionError",
            "Allocate failed due to rpc error: code = Unknown desc = device number not matched",
            SHARES,
            "scheduling.not_started",
            "device plugin for volcano.sh/vgpu-cores, volcano.sh/vgpu-number",
        ),
        # Project-HAMi/volcano-vgpu-device-plugin#142
        (
            "UnexpectedAdmissionError",
            f"Allocate failed due to {NO_DEVICES.format('volcano.sh/vgpu-cores', 100)}",
            SHARES,
            "gpu.not_allocatable",
            "the device plugin's pod",
        ),
        # The network operator's devices are not GPUs, although NVIDIA is in their name.
        (
            "UnexpectedAdmissionError",
            f"Allocate failed due to {NO_DEVICES.format('nvidia.com/hostdev', 8)}",
            PORTS,
            "scheduling.not_started",
            "device plugin for nvidia.com/gpu, nvidia.com/hostdev",
        ),
        ("OutOfcpu", "Node didn't have enough resource: cpu", GPUS, "scheduling.not_started", "nodeName"),
        ("NodeAffinity", "Predicate NodeAffinity failed", GPUS, "scheduling.not_started", "labels"),
        ("NodeShutdown", "the node is shutting down", GPUS, "scheduling.not_started", "kubelet of that node"),
    ],
)
def test_the_advice_on_a_rejected_pod_fits_the_message(
    judged, reason, message, limits, cause, advice
) -> None:
    job = never_started()
    job.drop_pod(1)
    reject(job, 6, reason, message)
    request(job, limits)
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", cause, [1]), verdict.explanation
    assert message in verdict.explanation
    assert advice in verdict.next[-1]


LOST = {
    "reason": "ContainerStatusUnknown",
    "message": "The container could not be located when the pod was terminated",
}


@pytest.mark.parametrize(
    "state",
    [
        None,
        {"terminated": {"exitCode": 137, "reason": "Error", "startedAt": at(5), "finishedAt": at(12)}},
        {"terminated": {"exitCode": 137, **LOST}},
    ],
    ids=["no status", "killed", "lost"],
)
def test_running_pod_that_its_restarted_kubelet_rejects_was_evicted(judged, state) -> None:
    """Contract: neither the memory limit nor the rank that lost its peer is blamed (kubernetes#138446)."""
    job = failing()
    message = f"Allocate failed due to {NO_DEVICES.format('nvidia.com/gpu', 8)}"
    reject(job, 12, "UnexpectedAdmissionError", message, state)
    job.logs[job.pod_name(0)] = [f"{at(13, True)} {line}" for line in of(0, PEER)]
    job.ended(0, 14, 1, message=json.dumps({"exit": 1}))
    job.jobset(15, "Failed")
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "rank.evicted", [1])
    assert f"its kubelet rejected the running pod: {message}" in verdict.explanation
    assert "device plugin was late" in verdict.next[-1]


def test_network_devices_of_nvidia_do_not_count_as_gpus() -> None:
    spec = {"containers": [{"resources": {"limits": {"nvidia.com/hostdev": "1"}}}]}
    assert gpu_nodes.requests_none({"spec": spec})
    node = {"status": {"capacity": {"nvidia.com/hostdev": "8", "nvidia.com/gpu": "4"}}}
    assert gpu_nodes.gpu_resources(node) == {"nvidia.com/gpu": 4}
