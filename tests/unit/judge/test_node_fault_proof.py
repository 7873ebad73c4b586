"""Only failed nodes that are proved to be at fault themselves may be tainted."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from fleets import Node, changed, collective, expected, healthy, records, together

from harness.evidence.schema.acceptance import AcceptanceCheck, AcceptanceRecord
from harness.judge.acceptance.fleet import fleet
from harness.judge.acceptance.node_fault_proof import COMPARED, OWN, doubtful, image_at_fault, shared_cause
from harness.workers.acceptance.causes import ADVICE


@dataclass(frozen=True)
class Failing(Node):
    """A node with one check that fails with this cause."""

    cause: str = ""

    def checks(self) -> list[AcceptanceCheck]:
        cause = self.cause or None
        failed = AcceptanceCheck(id="env.gpus", tag="ENV", verdict="FAIL", text="it fails", cause=cause)
        return [*super().checks(), failed]


@dataclass(frozen=True)
class WithoutCuda(Node):
    """A node whose pod has an image without CUDA. It has only one check."""

    def checks(self) -> list[AcceptanceCheck]:
        text, cause = "built without CUDA", "image.no_cuda"
        return [AcceptanceCheck(id="env.image", tag="ENV", verdict="UNKNOWN", text=text, cause=cause)]


def failing(count: int, *, of: int, cause: str) -> list[Node]:
    nodes = healthy(of)
    return [Failing(node.name, cause=cause) if at < count else node for at, node in enumerate(nodes)]


def reasons(nodes: list[Node]) -> dict[str, str]:
    return doubtful(fleet(records(nodes), expected(nodes)))


@pytest.mark.parametrize("cause", sorted(COMPARED | OWN))
def test_a_cause_that_most_nodes_share_is_nobodys_own(cause: str) -> None:
    """For example, an image without CUDA makes every node FAIL, but no node is at fault."""
    found = reasons(failing(4, of=5, cause=cause))
    assert sorted(found) == ["gpu-00", "gpu-01", "gpu-02", "gpu-03"]
    assert found["gpu-00"] == f"4 of 5 nodes failed with {cause}: look for a common reason"


@pytest.mark.parametrize("cause", sorted(COMPARED | OWN))
def test_a_cause_that_few_nodes_have_is_their_own(cause: str) -> None:
    assert reasons(failing(2, of=5, cause=cause)) == {}


@pytest.mark.parametrize("cause", [*sorted(ADVICE.keys() - COMPARED - OWN), ""])
def test_a_cause_that_is_no_nodes_own_stays_doubtful(cause: str) -> None:
    assert list(reasons(failing(1, of=5, cause=cause))) == ["gpu-00"]


def test_a_single_node_is_blamed_only_for_hardware() -> None:
    assert reasons(failing(1, of=1, cause="gpu.ecc")) == {}
    assert "may be caused by the image" in reasons(failing(1, of=1, cause="gpu.absent"))["gpu-00"]


def test_a_failure_on_most_nodes_needs_force_to_taint() -> None:
    """Contract: if most nodes fail, a node is tainted only with --force, even if its own fault is proved."""
    nodes = failing(4, of=4, cause="gpu.driver")
    nodes = changed(nodes, 1, bad={("compute.gemm.bf16.correct", 1): "FAIL"})
    found = reasons(nodes)
    assert sorted(found) == ["gpu-00", "gpu-01", "gpu-02", "gpu-03"]
    assert (
        found["gpu-01"]
        == "4 of 4 nodes failed with gpu.driver: look for a common reason; --force taints them anyway"
    )
    assert doubtful(fleet(records(nodes), expected(nodes)), force=True) == {}


def test_force_does_not_prove_what_an_image_may_lack() -> None:
    nodes = failing(1, of=1, cause="gpu.absent")
    assert (
        "may be caused by the image" in doubtful(fleet(records(nodes), expected(nodes)), force=True)["gpu-00"]
    )


@pytest.mark.parametrize(("count", "shared"), [(1, False), (2, False), (3, True), (4, True)])
def test_more_than_half_share_a_cause(count: int, shared: bool) -> None:
    nodes = failing(count, of=4, cause="gpu.ecc")
    found = shared_cause(fleet(records(nodes), expected(nodes)))
    assert (found is not None) is shared


def test_an_image_without_cuda_accuses_no_node() -> None:
    """Contract: the nodes are UNKNOWN, so they neither count as failed nor are tainted."""
    nodes = [WithoutCuda(node.name) for node in healthy(3)]
    found = fleet(records(nodes), expected(nodes))
    assert {node.verdict for node in found.nodes} == {"UNKNOWN"}
    assert doubtful(found, force=True) == {}
    assert image_at_fault(found) == "built without CUDA"
    assert image_at_fault(fleet(records(healthy(3)), expected(healthy(3)))) is None


def test_a_collective_that_failed_accuses_no_node() -> None:
    nodes = healthy(4)
    records = [record for node in nodes for record in node.said()]
    report = together(nodes, collective("ddp.allreduce", "FAIL"))
    records.append(AcceptanceRecord(at=records[-1].at, pod=nodes[0].pod, report=report))
    found = fleet(records, expected(nodes))
    failed = {node.node for node in found.nodes if node.verdict == "FAIL"}
    assert failed == set(doubtful(found))
