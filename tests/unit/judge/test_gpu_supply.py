"""Nodes that cannot provide the requested GPUs, and nodes with shared GPUs. The verdict names each node with
the reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from acceptance_bundles import NODES, checks, node_of, nodes
from bundles import Job, at, cond

from harness.evidence.io.reader import Bundle
from harness.evidence.kubernetes import gpu_nodes
from harness.evidence.schema.bundle import DeviceHolder
from harness.judge.acceptance.fleet import fleet
from harness.judge.acceptance.node_fault_proof import doubtful
from harness.judge.acceptance.pod_records import Member
from harness.judge.engine import judge

GPU = "nvidia.com/gpu"
SLICED = {
    f"{GPU}.count": "1",
    f"{GPU}.replicas": "15",
    f"{GPU}.sharing-strategy": "time-slicing",
    f"{GPU}.product": "NVIDIA-A10-SHARED",
}


def node(
    name: str, capacity: int | None, allocatable: int | None = None, labels: dict[str, str] | None = None
) -> dict[str, Any]:
    """Return a node with GPUs, of which `allocatable` are healthy."""
    has = {} if capacity is None else {GPU: str(capacity)}
    gives = has if allocatable is None else {GPU: str(allocatable)}
    return {
        "kind": "Node",
        "metadata": {"name": name, "uid": f"node-{name}", "labels": labels or {}},
        "spec": {},
        "status": {"capacity": has, "allocatable": gives},
    }


def launched(
    by_node: dict[int, Any],
    of: list[dict[str, Any]],
    requested: int = 8,
    pending: dict[int, str] | None = None,
) -> Job:
    """Return a launch whose pods request GPUs. `pending` maps pods that were not scheduled to the message."""
    gpus = [{"index": 0, "uuid": "GPU-0", "name": "NVIDIA A10"}]
    job = nodes(by_node, device="cuda", gpus=gpus)
    manifest = job.manifest
    expected = manifest.expected.model_copy(update={"device": "cuda"}) if manifest.expected else None
    job.manifest = manifest.model_copy(update={"expected": expected})
    job.accepted = [
        one.model_copy(update={"report": one.report and one.report.model_copy(update={"device": "cuda"})})
        for one in job.accepted
    ]
    for each in of:
        job.see("node", 1, each)
    for index, message in (pending or {}).items():
        job.drop_pod(index)
        condition = cond("PodScheduled", "False", "Unschedulable", message)
        job.pod(index, 6, "Pending", node=False, conditions=[condition])
    resources = {"limits": {GPU: str(requested)}}
    for index in range(NODES):
        field = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node_of(index)]}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [field]}}
        for kind, seen in job.objects:
            if kind == "pod" and seen.object["metadata"]["name"] == job.pod_name(index):
                seen.object["spec"]["containers"] = [{"name": "accept", "resources": resources}]
                seen.object["spec"]["affinity"] = {"nodeAffinity": required}
    return job


HEALTHY: dict[int, Any] = {index: checks() for index in range(NODES)}
OTHERS = {"shared": f"{GPU}.shared", "mig": "nvidia.com/mig-1g.10gb"}
INSUFFICIENT = "0/4 nodes are available: 1 Insufficient nvidia.com/gpu, 3 didn't match node affinity."


def verdict(job: Job, path: Path, holders: list[DeviceHolder] | None = None) -> Any:
    bundle = job.write(path / "bundle")
    if holders:
        lines = [one.model_dump_json() + "\n" for one in holders]
        (bundle.path / "device-holders.jsonl").write_text("".join(lines))
    return judge(Bundle.open(bundle.path))


def test_a_healthy_fleet_passes(tmp_path: Path) -> None:
    of = [node(node_of(index), 8, labels={f"{GPU}.count": "8"}) for index in range(NODES)]
    seen = verdict(launched(HEALTHY, of), tmp_path)
    assert seen.verdict == "PASS", seen.explanation


@pytest.mark.parametrize(
    ("capacity", "allocatable", "labels", "text"),
    [
        (
            8,
            7,
            {},
            "has 8 nvidia.com/gpu, of which 7 are allocatable: the device plugin reports 1 as unhealthy",
        ),
        (
            16,
            0,
            {},
            "has 16 nvidia.com/gpu, of which 0 are allocatable: the device plugin reports 16 as unhealthy",
        ),
        (7, 7, {f"{GPU}.count": "8"}, "has 8 GPUs according to the label nvidia.com/gpu.count"),
        (0, 0, {"nvidia.com/mig.config.state": "failed"}, "has GPUs whose MIG devices could not be changed"),
        (None, None, {f"{GPU}.present": "true"}, "the device plugin is not running"),
    ],
)
def test_gpus_that_a_node_does_not_offer(
    capacity: int | None, allocatable: int | None, labels: dict[str, str], text: str, tmp_path: Path
) -> None:
    """Contract: each node is named, with the GPUs that it has and that it offers (k8s-device-plugin #58,
    #75)."""
    of = [
        node(node_of(0), 8),
        node(node_of(1), capacity, allocatable, labels),
        node(node_of(2), capacity, allocatable, labels),
    ]
    seen = verdict(launched({0: checks()}, of, pending={1: INSUFFICIENT, 2: INSUFFICIENT}), tmp_path)
    assert (seen.verdict, seen.cause) == ("FAIL", "gpu.not_allocatable"), seen.explanation
    plural = text.replace("has", "have", 1) if text.startswith("has") else text
    assert f"e2e-worker2 and e2e-worker3 {plural}" in seen.explanation or text in seen.explanation
    assert "e2e-worker2 and e2e-worker3" in seen.explanation
    check = next(check for check in seen.checks if check.name == "reports")
    assert check.cause == "gpu.not_allocatable", check.explanation


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        # gpu-operator #322: the MIG manager stops the device plugin while it changes the devices.
        (
            {"labels": {f"{GPU}.count": "8", "nvidia.com/mig.config.state": "pending"}},
            "has GPUs whose MIG devices are being changed (nvidia.com/mig.config.state=pending)",
        ),
        # gpu-feature-discovery #76: the label counts one replica of a GPU that is offered 50 times.
        (
            {"labels": {f"{GPU}.count": "1", f"{GPU}.replicas": "1"}, "shared": "50"},
            "has 1 GPU, shared by 50 (nvidia.com/gpu.shared)",
        ),
        # k8s-device-plugin #1501, #738: the label counts the GPUs that are split, too.
        (
            {"labels": {f"{GPU}.count": "8", "nvidia.com/mig.strategy": "mixed"}, "mig": "14"},
            "has GPUs that are split by MIG (14 nvidia.com/mig-1g.10gb)",
        ),
        # HAMi #71
        ({"annotations": {"hami.io/node-nvidia-register": "GPU-0,10,24576"}}, "has GPUs that HAMi shares"),
    ],
)
def test_split_or_shared_gpus_are_not_unhealthy(metadata: dict[str, Any], text: str) -> None:
    has = {name: metadata.pop(key) for key, name in OTHERS.items() if key in metadata}
    status = {"capacity": {GPU: "0", **has}, "allocatable": {GPU: "0", **has}}
    found = gpu_nodes.shortage({"metadata": metadata, "status": status}, GPU, 1)
    assert found is not None
    assert (found.cause, found.small) == ("scheduling.unschedulable", False)
    assert found.text.startswith(text)


def test_each_node_has_its_own_reason(tmp_path: Path) -> None:
    """Contract: both GPUs in use by other pods and unhealthy GPUs are named."""
    holder = DeviceHolder(
        at=at(6), node=node_of(2), resource=GPU, namespace="team", pod="train-0", amount=8, allocatable=8
    )
    of = [node(node_of(0), 8), node(node_of(1), 8, 7), node(node_of(2), 8)]
    job = launched({0: checks()}, of, pending={1: INSUFFICIENT, 2: INSUFFICIENT})
    seen = verdict(job, tmp_path, [holder])
    assert (seen.verdict, seen.cause) == ("FAIL", "gpu.not_allocatable"), seen.explanation
    assert "e2e-worker2 has 8 nvidia.com/gpu, of which 7 are allocatable" in seen.explanation
    assert "eam/train-0 holds 8 of 8 on e2e-worker3" in seen.explanation


@pytest.mark.parametrize(
    ("resources", "text"),
    [
        ({"nvidia.com/mig-1g.10gb": "7"}, "has GPUs that are split by MIG (7 nvidia.com/mig-1g.10gb)"),
        ({"nvidia.com/gpu.shared": "4"}, "has GPUs that are shared by 4"),
        ({"amd.com/gpu": "8"}, "has 8 amd.com/gpu, but no nvidia.com/gpu"),
    ],
)
def test_other_names_of_gpus(resources: dict[str, str], text: str) -> None:
    """Contract: the devices that the node offers instead are named (gpu-operator #693)."""
    labels = {f"{GPU}.replicas": "4"} if "nvidia.com/gpu.shared" in resources else {}
    other = node("a", None, labels=labels)
    other["status"] = {"capacity": resources, "allocatable": resources}
    why = gpu_nodes.shortage(other, GPU, 1)
    assert why is not None
    assert (why.cause, text in why.text) == ("scheduling.unschedulable", True), why.text


@pytest.mark.parametrize("capacity", [None, 4])
def test_nodes_that_are_too_small_are_judged_by_request(capacity: int | None, tmp_path: Path) -> None:
    """Contract: a node with fewer GPUs than requested, or none, is not at fault."""
    of = [node(node_of(index), capacity) for index in range(NODES)]
    pending = dict.fromkeys(range(NODES), INSUFFICIENT)
    seen = verdict(launched({}, of, pending=pending), tmp_path)
    assert (seen.verdict, seen.cause) == ("FAIL", "scheduling.unschedulable"), seen.explanation
    has = "the most that a node has is 4" if capacity else "no node has any"
    assert f"requests 8 nvidia.com/gpu; {has}" in seen.explanation


def test_pods_of_a_daemonset_without_an_address_count(tmp_path: Path) -> None:
    """Contract: the pending pods of a DaemonSet have no node index, but their nodes get their reason."""
    of = [node(node_of(index), 2, labels={f"{GPU}.count": "8"}) for index in range(NODES)]
    job = launched({}, of, pending=dict.fromkeys(range(NODES), INSUFFICIENT))
    assert job.manifest.launch is not None
    launch = job.manifest.launch.model_copy(update={"kind": "DaemonSet", "uid": "set-uid"})
    job.manifest = job.manifest.model_copy(update={"launch": launch})
    for kind, seen in job.objects:
        if kind == "pod":
            seen.object["metadata"]["ownerReferences"] = [{"kind": "DaemonSet", "uid": "set-uid"}]
    seen = verdict(job, tmp_path)
    check = next(check for check in seen.checks if check.name == "reports")
    assert (check.result, check.cause) == ("FAIL", "gpu.not_allocatable"), check.explanation
    assert "e2e-worker1, e2e-worker2 and e2e-worker3 have 8 GPUs" in check.explanation


SLOW = {"verdict": "FAIL", "cause": "compute.slow", "text": "300 TFLOP/s"}
WRONG = {"verdict": "FAIL", "cause": "compute.wrong", "text": "9 wrong elements"}


@pytest.mark.parametrize(
    "failed",
    [
        {},
        {"compute__gemm__fp32": SLOW},
        {"env__shm": {"verdict": "FAIL", "cause": "gpu.fewer", "text": "1 of 15 GPUs are visible"}},
        {"env__shm": {"verdict": "FAIL", "cause": "gpu.absent", "text": "no GPU is visible"}},
    ],
)
def test_a_shared_gpu_is_neither_accepted_nor_accused(failed: dict[str, Any], tmp_path: Path) -> None:
    """Contract: the verdict is UNKNOWN and quotes the labels, and nodes with shared GPUs are not tainted
    (case S1)."""
    of = [node(node_of(index), 15 if index else 8, labels=SLICED if index else {}) for index in range(NODES)]
    job = launched({0: checks(), 1: checks(**failed), 2: checks()}, of, 1)
    seen = verdict(job, tmp_path)
    assert (seen.verdict, seen.cause, seen.ranks) == ("UNKNOWN", "gpu.shared", [1, 2]), seen.explanation
    assert "node e2e-worker2: has 1 GPU, shared by 15 (time-slicing)" in seen.explanation
    expected = [Member(node_of(index), job.pod_name(index)) for index in range(NODES)]
    shared = [replace(one, shared=gpu_nodes.parts(on)) for one, on in zip(expected, of, strict=True)]
    found = fleet(job.accepted, shared)
    shared_nodes = {one.node for one in found.nodes if any(cell.id == "fleet.shared" for cell in one.cells)}
    assert shared_nodes == {node_of(1), node_of(2)}
    assert doubtful(found) == {}
    assert {one.node for one in found.nodes if one.verdict == "FAIL"} == set()


def test_a_wrong_result_of_a_shared_gpu_counts(tmp_path: Path) -> None:
    of = [node(node_of(index), 15, labels=SLICED) for index in range(NODES)]
    seen = verdict(launched({**HEALTHY, 1: checks(compute__gemm__fp32=WRONG)}, of, 1), tmp_path)
    assert (seen.verdict, seen.cause, seen.ranks) == ("FAIL", "compute.wrong", [1])


def test_a_shared_gpu_that_only_its_pod_detects(tmp_path: Path) -> None:
    """Contract: without labels, the pod's own findings decide (MPS, MIG, processes of others)."""
    of = [node(node_of(index), 1) for index in range(NODES)]
    found = {"verdict": "UNKNOWN", "cause": "gpu.shared", "text": "shared through MPS"}
    by_node = {**HEALTHY, 1: checks(env__shm=found, compute__gemm__fp32=SLOW)}
    seen = verdict(launched(by_node, of, 1), tmp_path)
    assert (seen.verdict, seen.cause, seen.ranks) == ("UNKNOWN", "gpu.shared", [1]), seen.explanation
    assert "shared through MPS" in seen.explanation


@pytest.mark.parametrize(
    ("message", "word", "cause"),
    [
        ("Allocate failed due to no healthy devices present", "FAIL", "scheduling.not_started"),
        (
            "Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. Requested: 1",
            "FAIL",
            "gpu.not_allocatable",
        ),
        ("GetPreferredAllocation rpc failed: nvml: GPU is lost", "FAIL", "gpu.not_allocatable"),
        (
            "rpc error: invalid request: maximum request size for shared resources is 1; found 10",
            "UNKNOWN",
            "gpu.shared",
        ),
    ],
)
def test_a_kubelet_that_rejects_the_pod_is_quoted(
    message: str, word: str, cause: str, tmp_path: Path
) -> None:
    """Contract: node and message are in the verdict (kubernetes #97131, k8s-device-plugin #929)."""
    job = launched({0: checks(), 2: checks()}, [node(node_of(index), 10) for index in range(NODES)])
    job.drop_pod(1)
    job.pod(1, 6, "Failed")
    job.objects[-1][1].object["status"] |= {"reason": "UnexpectedAdmissionError", "message": message}
    job.objects[-1][1].object["spec"]["containers"] = [{"resources": {"limits": {GPU: "10"}}}]
    seen = verdict(job, tmp_path)
    assert (seen.verdict, seen.cause) == (word, cause), seen.explanation
    assert "e2e-worker2 has a kubelet that rejected the pod" in seen.explanation
    assert message in seen.explanation
