"""Quotas are what the schedulable nodes can still allocate."""

from decimal import Decimal
from typing import Any

import pytest

from harness.core.errors import HarnessError
from harness.provision.controllers.queues import check_configuration, fitting_request, quotas


def node(name: str, cpu: str = "2", taint: str | None = None) -> dict[str, Any]:
    taints = [{"key": "k", "effect": taint}] if taint else []
    allocatable = {"cpu": cpu, "memory": "4Gi", "ephemeral-storage": "10Gi", "nvidia.com/gpu": "1"}
    return {"metadata": {"name": name}, "spec": {"taints": taints}, "status": {"allocatable": allocatable}}


def pod(on: str, phase: str = "Running") -> dict[str, Any]:
    requests = {"cpu": "250m", "memory": "1Gi"}
    return {
        "spec": {"nodeName": on, "containers": [{"resources": {"requests": requests}}]},
        "status": {"phase": phase},
    }


def test_a_tainted_control_plane_does_not_count() -> None:
    found = quotas([node("cp", taint="NoSchedule"), node("a"), node("b")], [pod("cp"), pod("a")])
    assert found == {
        "cpu": Decimal("3.75"),
        "memory": Decimal(7 * 2**30),
        "ephemeral-storage": Decimal(20 * 2**30),
        "nvidia.com/gpu": Decimal(2),
    }


def test_sidecars_and_the_overhead_of_pods_are_subtracted() -> None:
    running_pod = pod("a")
    running_pod["spec"]["initContainers"] = [
        {"restartPolicy": "Always", "resources": {"requests": {"cpu": "500m"}}},
        {"resources": {"requests": {"cpu": "200m"}}},
    ]
    running_pod["spec"]["overhead"] = {"cpu": "250m"}
    assert quotas([node("a")], [running_pod])["cpu"] == 1


def test_node_without_huge_pages_adds_no_quota_of_them() -> None:
    """Contract: Kueue names the resource that it does not cover. A quota of 0 would be a shortage instead."""
    bare, full = node("a"), node("b")
    bare["status"]["allocatable"]["hugepages-2Mi"] = "0"
    assert "hugepages-2Mi" not in quotas([bare], [])
    full["status"]["allocatable"] |= {"hugepages-2Mi": "64Mi", "pods": "110"}
    assert quotas([bare, full], [])["hugepages-2Mi"] == 64 * 2**20
    assert "pods" not in quotas([full], [])


def test_pods_that_ended_hold_nothing() -> None:
    assert quotas([node("a")], [pod("a", "Succeeded")])["cpu"] == 2


def test_never_below_zero() -> None:
    assert quotas([node("a", cpu="100m")], [pod("a")])["cpu"] == 0


@pytest.mark.parametrize(
    ("asked", "pods", "quota", "lowered"),
    [
        ("1", 2, "1.03", "0.51"),
        ("1", 2, "2", None),
        ("64", 2, "1.03", None),
        ("2", 1, "1.03", "1.03"),
        ("1", 2, "0", None),
        ("1", 2, "0.01", None),
    ],
)
def test_requests_are_lowered_only_for_pods_that_could_run(
    asked: str, pods: int, quota: str, lowered: str | None
) -> None:
    """On a node of 2 CPUs: to share it, never to hide that a pod is larger than it, nor down to nothing."""
    found = fitting_request(Decimal(asked), pods, Decimal(quota), Decimal(2))
    assert found == (Decimal(lowered) if lowered else None)


def configured(text: str) -> dict[str, Any]:
    return {"data": {"controller_manager_config.yaml": text}}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("integrations: {frameworks: [batch/job, pod, statefulset]}", "StatefulSet"),
        ("integrations: {frameworks: [jobset.x-k8s.io/jobset]}", "JobSet"),
        ("", "Job"),
        ("integrations: {}", "Job"),
    ],
)
def test_kinds_that_kueue_manages(text: str, kind: str) -> None:
    """Contract: what integrations.frameworks names; a Job where it names nothing, as Kueue does."""
    check_configuration(configured(text), kind)
    check_configuration({}, kind)


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("integrations: {frameworks: [batch/job, pod]}", "StatefulSet", "integrations are batch/job, pod"),
        ("", "StatefulSet", "integrations are batch/job"),
        ("integrations: {frameworks: [statefulset]}", "Job", "does not manage a Job"),
    ],
)
def test_kinds_that_kueue_does_not_manage(text: str, kind: str, message: str) -> None:
    """Contract: refused before the launch, with what Kueue is told and what to add."""
    with pytest.raises(HarnessError) as refused:
        check_configuration(configured(text), kind)
    assert refused.value.cause == "queue.kind_not_managed"
    assert message in refused.value.message
    assert "integrations.frameworks" in refused.value.hint
