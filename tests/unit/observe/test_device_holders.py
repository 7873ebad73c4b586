"""Who holds the devices that pods wait for: recorded from the pods of others, and named in the verdict."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import bundles
import pytest
from acceptance_bundles import NODES, checks, node_of, nodes
from bundles import at, cond
from kubernetes.client.exceptions import ApiException

from harness.evidence.io.reader import Bundle
from harness.evidence.io.redaction import Redactor
from harness.evidence.io.writer import BundleWriter
from harness.evidence.schema.bundle import DeviceHolder
from harness.judge import judge
from harness.observe import device_holders

GPU = "nvidia.com/gpu"
WAITS = "0/3 nodes are available: 1 Insufficient nvidia.com/gpu, 2 Insufficient cpu. preemption: not helpful."


def node(name: str, gpus: int) -> dict[str, Any]:
    return {"metadata": {"name": name}, "status": {"allocatable": {GPU: str(gpus)}}}


def pod(name: str, namespace: str, on: str, gpus: int, phase: str = "Running", **more: Any) -> dict[str, Any]:
    limits = {GPU: str(gpus), "cpu": "1"} if gpus else {"cpu": "1"}
    return {
        "metadata": {"name": name, "namespace": namespace, **more},
        "spec": {"nodeName": on, "containers": [{"resources": {"limits": limits}}]},
        "status": {"phase": phase},
    }


def waiting(message: str = WAITS) -> dict[str, Any]:
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"metadata": {"name": "w"}, "spec": {}, "status": {"conditions": [scheduled]}}


def recorded(folder: Path, kube: Any, pods: list[dict[str, Any]]) -> list[DeviceHolder]:
    writer = BundleWriter.create(folder, "abcd1234", Redactor())
    device_holders.record(kube, pods, "e2e-mine", writer)
    return [one for _, one in Bundle.open(writer.path).device_holders()]


def cluster(*pods: dict[str, Any]) -> Any:
    there = {"Node": [node("a", 8), node("b", 8)], "Pod": list(pods)}
    return SimpleNamespace(objects=lambda _, kind: there[kind])


def test_pods_of_others_with_the_devices_are_recorded(tmp_path: Path) -> None:
    """Contract: what has ended, has no device, or is of the launch holds nothing."""
    owner = [{"controller": True, "kind": "Job", "name": "train"}]
    kube = cluster(
        pod("train-0", "team-a", "a", 8, ownerReferences=owner),
        pod("done", "team-a", "b", 8, "Succeeded"),
        pod("web", "team-b", "b", 0),
        pod("mine", "e2e-mine", "b", 4),
        pod("small", "team-b", "b", 2, "Pending"),
    )
    found = recorded(tmp_path, kube, [waiting()])
    assert [one.sentence for one in found] == [
        "team-a/train-0 of Job train holds 8 of 8 on a",
        "team-b/small holds 2 of 8 on b",
    ]


@pytest.mark.parametrize(
    "message", ["0/3 nodes are available: 3 Insufficient cpu.", "0/3: untolerated taint"]
)
def test_a_pod_that_waits_for_something_else_records_nothing(tmp_path: Path, message: str) -> None:
    assert recorded(tmp_path, cluster(pod("t", "team-a", "a", 8)), [waiting(message)]) == []
    assert recorded(tmp_path / "b", cluster(pod("t", "team-a", "a", 8)), [pod("p", "e2e-mine", "a", 8)]) == []


def test_pods_that_may_not_be_listed_are_no_error(tmp_path: Path) -> None:
    def objects(_: str, __: str) -> Any:
        raise ApiException(status=403)

    assert recorded(tmp_path, SimpleNamespace(objects=objects), [waiting()]) == []


def holder(on: str) -> DeviceHolder:
    more: Any = {"resource": GPU, "namespace": "team-a", "pod": "train-0", "amount": 8, "allocatable": 8}
    return DeviceHolder(at=at(5), node=on, **more)


def silent(job: bundles.Job, index: int) -> None:
    """Have no pod on a node: a DaemonSet's pod that waits has none, and so no number."""
    job.drop_pod(index)


def test_a_node_whose_gpus_others_hold_is_not_accused(tmp_path: Path) -> None:
    """Contract: the cause is that others hold the devices, and the verdict says who."""
    job = nodes({index: checks() for index in range(NODES - 1)})
    silent(job, NODES - 1)
    bundle = job.write(tmp_path / "bundle")
    with (bundle.path / "device-holders.jsonl").open("w") as file:
        file.write(holder(node_of(NODES - 1)).model_dump_json() + "\n")
    found = {check.name: check for check in judge(Bundle.open(bundle.path)).checks}["reports"]
    assert found.cause == "scheduling.devices_held"
    assert f"team-a/train-0 holds 8 of 8 on {node_of(NODES - 1)}" in found.explanation


def test_a_silent_node_whose_gpus_nobody_holds_is_named(tmp_path: Path) -> None:
    job = nodes({index: checks() for index in range(NODES - 2)})
    silent(job, NODES - 1)
    silent(job, NODES - 2)
    bundle = job.write(tmp_path / "bundle")
    with (bundle.path / "device-holders.jsonl").open("w") as file:
        file.write(holder(node_of(NODES - 1)).model_dump_json() + "\n")
    found = {check.name: check for check in judge(Bundle.open(bundle.path)).checks}["reports"]
    assert found.cause == "node.not_answered"
    assert "team-a/train-0 holds 8 of 8" in found.explanation


def test_waiting_ranks_are_told_who_has_devices(tmp_path: Path) -> None:
    """Contract: also outside of acceptance tests, beside the scheduler's own words."""
    job = bundles.healthy()
    job.drop_pod(1)
    job.pod(1, 6, "Pending", node=False, conditions=[cond("PodScheduled", "False", "Unschedulable", WAITS)])
    bundle = job.write(tmp_path / "bundle")
    before = judge(bundle)
    assert (before.cause, before.ranks) == ("scheduling.unschedulable", [1])
    with (bundle.path / "device-holders.jsonl").open("w") as file:
        file.write(holder("e2e-worker2").model_dump_json() + "\n")
    found = judge(Bundle.open(bundle.path))
    assert (found.verdict, found.cause, found.ranks) == ("FAIL", "scheduling.devices_held", [1])
    assert "Insufficient nvidia.com/gpu" in found.explanation
    assert "Team-a/train-0 holds 8 of 8 on e2e-worker2" in found.explanation


def test_device_holders_on_unusable_nodes_are_not_named(tmp_path: Path) -> None:
    """Contract: pods on nodes with other labels or taints do not keep the pod waiting."""
    kube = cluster(pod("theirs", "team-a", "a", 8), pod("others", "team-b", "b", 8))
    nodes_there = kube.objects("v1", "Node")
    nodes_there[0]["metadata"]["labels"] = {"gpu": "h100"}
    pods = [waiting()]
    pods[0]["spec"] = {"nodeSelector": {"gpu": "h100"}}
    assert [one.pod for one in recorded(tmp_path, kube, pods)] == ["theirs"]
