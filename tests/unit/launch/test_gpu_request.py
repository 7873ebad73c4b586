"""Which GPUs the pods of `harness accept --nodes` request, by the capacity and the labels of the nodes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from harness.core.errors import UsageError
from harness.launch.workloads import acceptance, gpu_request
from harness.launch.workloads.acceptance import AcceptanceSpec

GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"


def node(name: str, capacity: dict[str, int], **labels: str) -> dict[str, Any]:
    """Return a node. In the names of labels, `gpu_count` stands for nvidia.com/gpu.count."""
    amounts = {key: str(value) for key, value in capacity.items()}
    named = {f"nvidia.com/{key.replace('__', '-').replace('_', '.')}": value for key, value in labels.items()}
    return {
        "metadata": {"name": name, "labels": named},
        "spec": {},
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def sliced(name: str, count: int = 1, replicas: int = 15) -> dict[str, Any]:
    return node(
        name,
        {GPU: count * replicas},
        gpu_count=str(count),
        gpu_replicas=str(replicas),
        gpu_sharing__strategy="time-slicing",
        gpu_product="NVIDIA-A10-SHARED",
    )


def test_a_time_sliced_gpu_is_requested_once() -> None:
    """Contract: not the capacity counts, but the GPU (case S1; k8s-device-plugin #929)."""
    workload = acceptance.nodes(AcceptanceSpec())
    kube = SimpleNamespace(objects=lambda *_: [sliced("a"), sliced("b", replicas=4)])
    assert workload.members(kube) == 2  # type: ignore[arg-type]
    document = yaml.safe_load(yaml.safe_dump(workload.document))
    workload.prepare(document, SimpleNamespace(kube=kube))  # type: ignore[arg-type]
    container = document["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"] == {GPU: 1}
    assert {"name": "ACCEPT_GPUS", "value": "1"} in container["env"]
    assert "ACCEPT_WHOLE" not in str(container["env"])


@pytest.mark.parametrize(
    "shared",
    [
        node("a", {SHARED: 4, GPU: 0}, gpu_count="1"),
        node("a", {SHARED: 4}),
        node("a", {SHARED: 4}, gpu_product="Quadro-P2000-SHARED", gpu_replicas="4"),
    ],
)
def test_a_renamed_resource_is_requested(shared: dict[str, Any]) -> None:
    """Contract: renameByDefault of the device plugin (k8s-device-plugin #321)."""
    assert gpu_request.of([shared], None) == gpu_request.Request(SHARED, 1, whole=False)


@pytest.mark.parametrize(
    ("nodes", "requested", "message"),
    [
        (
            [node("a", {GPU: 0, "nvidia.com/mig-1g.10gb": 7}), node("b", {GPU: 8})],
            None,
            r"a has GPUs that are split by MIG \(7 nvidia.com/mig-1g.10gb\)",
        ),
        (
            [node("a", {GPU: 7}, gpu_product="NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", mig_strategy="single")],
            None,
            "a has GPUs that are split by MIG: the 7 nvidia.com/gpu are MIG devices of 1g.5gb",
        ),
        (
            [sliced("a"), sliced("c"), node("b", {GPU: 8}, gpu_count="8")],
            None,
            r"a and c have 1 GPU, shared by 15 \(time-slicing\)",
        ),
        ([sliced("a", 4, 4)], 2, r"a has 4 GPUs, shared by 4 each \(time-slicing\)"),
        ([node("a", {GPU: 10}, gpu_sharing__strategy="mps")], 10, r"a has GPUs that are shared \(mps\)"),
        ([node("a", {GPU: 16}, gpu_count="4")], 2, "a has 4 GPUs, shared by 4 each"),
        ([sliced("a"), node("b", {SHARED: 4})], None, "b offers its GPUs as nvidia.com/gpu.shared"),
        ([node("a", {GPU: 8}), node("b", {GPU: 4}), node("c", {GPU: 8})], None, "a and c have 8; b has 4"),
    ],
)
def test_nodes_that_cannot_be_tested_are_refused_by_name(
    nodes: list[dict[str, Any]], requested: int | None, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        gpu_request.of(nodes, requested)


@pytest.mark.parametrize(
    ("nodes", "count", "whole"),
    [
        ([node("a", {GPU: 8}, gpu_count="8", gpu_replicas="1", gpu_sharing__strategy="none")], 8, True),
        ([node("a", {GPU: 8}, gpu_count="8", mig_strategy="single", gpu_product="NVIDIA-H200")], 8, True),
        # The plugin does not use the configuration in the labels yet (k8s-device-plugin #990).
        ([node("a", {GPU: 1}, gpu_count="1", gpu_replicas="4")], 1, True),
        # A restarted device plugin offers the 7 GPUs that still work.
        ([node("a", {GPU: 7}, gpu_count="8"), node("b", {GPU: 8}, gpu_count="8")], 8, True),
        ([node("a", {}, gpu_present="true"), node("b", {GPU: 8})], 8, False),
        ([node("a", {GPU: 8})], 8, False),
    ],
)
def test_whole_gpus_are_all_requested(nodes: list[dict[str, Any]], count: int, whole: bool) -> None:
    assert gpu_request.of(nodes, None) == gpu_request.Request(GPU, count, whole)


def test_a_gpu_node_without_a_device_plugin_must_answer() -> None:
    """Contract: such a node is not left out, which would be a PASS for a fleet that lacks a node."""
    there = [
        node("a", {GPU: 8}),
        node("b", {}, gpu_present="true"),
        node("c", {}, gpu_present="true", gpu_deploy_device__plugin="false"),
        node("d", {}),
        node("e", {"amd.com/gpu": 8}),
    ]
    kube = SimpleNamespace(objects=lambda *_: there)
    assert acceptance.nodes(AcceptanceSpec()).must_answer(kube) == ["a", "b"]  # type: ignore[arg-type]
    others = SimpleNamespace(objects=lambda *_: there[3:])
    with pytest.raises(UsageError, match=r"there is none: e has 8 amd.com/gpu"):
        acceptance.nodes(AcceptanceSpec()).members(others)  # type: ignore[arg-type]
