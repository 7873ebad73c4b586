"""Quotas are what the schedulable nodes can still allocate."""

from decimal import Decimal
from typing import Any

from harness.controllers.queues import quotas


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
    assert found == {"cpu": Decimal("3.75"), "memory": Decimal(7 * 2**30), "nvidia.com/gpu": Decimal(2)}


def test_pods_that_ended_hold_nothing() -> None:
    assert quotas([node("a")], [pod("a", "Succeeded")])["cpu"] == 2


def test_never_below_zero() -> None:
    assert quotas([node("a", cpu="100m")], [pod("a")])["cpu"] == 0
