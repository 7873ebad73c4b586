"""Pods that wait while the GPU operator changes their nodes, and pods that HAMi's scheduler places."""

from __future__ import annotations

from typing import Any

import bundles
import pytest
from cluster_events import add_event, change_specs, never_started, unscheduled

from harness.evidence.kubernetes import gpu_nodes
from harness.evidence.kubernetes.unschedulable import never_fits

GPU, STATE, PLUGIN = (
    "nvidia.com/gpu",
    "nvidia.com/gpu-driver-upgrade-state",
    "nvidia.com/gpu.deploy.device-plugin",
)
REGISTERED = {"hami.io/node-nvidia-register": "GPU-0,10,24576,100,NVIDIA,0,true:"}
LABELS = {f"{GPU}.count": "8", f"{GPU}.present": "true"}
SHARE = {GPU: "1", "nvidia.com/gpumem": "3000"}
UNFIT = (
    "0/2 nodes are available: 2 NodeUnfitPod. preemption: 0/2 nodes are available: 2 No preemption victims."
)
NO_MEMORY = "0/2 nodes are available: 2 Insufficient nvidia.com/gpumem."


def node(name: str, gpus: int, labels: dict[str, str], allocatable: int | None = None) -> dict[str, Any]:
    given = {GPU: str(gpus if allocatable is None else allocatable)}
    metadata = {"name": name, "uid": name, "labels": labels, "annotations": {}}
    status = {"capacity": {GPU: str(gpus)}, "allocatable": given}
    return {"kind": "Node", "metadata": metadata, "spec": {}, "status": status}


def pending(
    message: str, limits: dict[str, str], nodes: list[dict[str, Any]], scheduler: str = ""
) -> bundles.Job:
    """Return a job whose pods have these limits and wait for the scheduler."""
    job = never_started()
    for index in (0, 1):
        unscheduled(job, index, message)
    containers = [{"name": bundles.CONTAINER, "resources": {"limits": limits}}]
    change_specs(job, 0, 1, containers=containers, **({"schedulerName": scheduler} if scheduler else {}))
    for one in nodes:
        job.see("node", 1, one)
    return job


def hami_nodes() -> list[dict[str, Any]]:
    both = [node(f"e2e-worker{number}", 10, {}) for number in (1, 2)]
    for one in both:
        one["metadata"]["annotations"] = REGISTERED
    return both


@pytest.mark.parametrize(
    ("labels", "allocatable", "cause", "text", "advice"),
    [
        (
            {PLUGIN: "paused-for-driver-upgrade", STATE: "pod-restart-required"},
            0,
            "scheduling.unschedulable",
            f"device plugin is paused ({PLUGIN}=paused-for-driver-upgrade)",
            f"-L {PLUGIN}",
        ),
        (
            {STATE: "validation-required"},
            0,
            "scheduling.unschedulable",
            f"driver is being upgraded ({STATE}=validation-required)",
            f"-L {STATE}",
        ),
        ({STATE: "upgrade-failed"}, 0, "gpu.not_allocatable", "could not be upgraded", "driver pod"),
        ({STATE: "upgrade-done"}, 0, "gpu.not_allocatable", "the device plugin reports 8", "Xid errors"),
        ({STATE: "upgrade-required"}, 7, "gpu.not_allocatable", "the device plugin reports 1", "Xid errors"),
        (
            {"nvidia.com/mig.config.state": "pending"},
            0,
            "scheduling.unschedulable",
            "are being changed",
            "-L nvidia.com/mig.config.state",
        ),
    ],
)
def test_node_that_gpu_operator_changes_is_not_called_unhealthy(
    judged, labels, allocatable, cause, text, advice
) -> None:
    """Contract: while the driver is upgraded, no GPU is accused, and the advice is to wait."""
    both = [node(f"e2e-worker{number}", 8, {**LABELS, **labels}, allocatable) for number in (1, 2)]
    verdict = judged(pending("0/2 nodes are available: 2 Insufficient nvidia.com/gpu.", {GPU: "8"}, both))
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", cause, [0, 1]), verdict.explanation
    assert text in verdict.explanation
    assert advice in verdict.next[-1]


@pytest.mark.parametrize(
    ("event", "advice"),
    [
        ("2 nodes CardInsufficientMemory(e2e-worker1,e2e-worker2)", "request less nvidia.com/gpumem"),
        # Project-HAMi/HAMi#1173, Project-HAMi/HAMi#602
        ("2 nodes AllocatedCardsInsufficientRequest(e2e-worker1)", "at most as many nvidia.com/gpu"),
        ("2 nodes NumaNotFit(e2e-worker1,e2e-worker2)", "request less"),
    ],
)
def test_hamis_scheduler_gives_the_reason_in_an_event(judged, event: str, advice: str) -> None:
    """Contract: HAMi's scheduler knows the shares of GPUs, which the nodes do not list (HAMi#661)."""
    job = pending(UNFIT, SHARE, hami_nodes(), "hami-scheduler")
    add_event(job, 0, "FilteringFailed", event)
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("scheduling.unschedulable", [0, 1]), verdict.explanation
    assert event in verdict.explanation
    assert "no node has any" not in verdict.explanation
    assert advice in verdict.next[-1]


@pytest.mark.parametrize(
    ("message", "limits", "scheduler", "advice"),
    [
        # Project-HAMi/HAMi#590: HAMi's webhook did not reach the pod.
        (NO_MEMORY, SHARE, "", "HAMi's webhook"),
        ("0/2 nodes are available: 2 node unregistered.", {GPU: "2"}, "hami-scheduler", "gpu=on"),
    ],
)
def test_advice_names_part_of_hami_that_does_not_work(
    judged, message: str, limits: dict[str, str], scheduler: str, advice: str
) -> None:
    verdict = judged(pending(message, limits, hami_nodes(), scheduler))
    assert (verdict.cause, verdict.ranks) == ("scheduling.unschedulable", [0, 1]), verdict.explanation
    assert advice in verdict.next[-1]


@pytest.mark.parametrize(
    ("scheduler", "fits"), [("hami-scheduler", True), ("default-scheduler", False), (None, False)]
)
def test_share_of_gpu_fits_if_hami_places_pod(scheduler: str | None, fits: bool) -> None:
    """Contract: the harness keeps waiting for a pod that HAMi can place later."""
    spec = {"schedulerName": scheduler, "containers": [{"name": "a", "resources": {"limits": SHARE}}]}
    assert (never_fits({"spec": spec}, hami_nodes()) is None) == fits


def test_node_offering_gpus_during_upgrade_has_no_shortage() -> None:
    assert gpu_nodes.shortage(node("a", 8, {STATE: "upgrade-required"}), GPU, 8) is None
    assert gpu_nodes.shortage(node("a", 8, {STATE: "wait-for-jobs-required"}), GPU, 8) is None
