"""`harness accept` on a real cluster: healthy nodes pass, and each fault is named with its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from fault_matrix import each, faults_of, is_right, started

from harness.evidence.io.reader import Bundle
from harness.faults.catalogue_run import CONTROL, Matrix
from harness.faults.fault_file import Job
from harness.fixtures.plugin import Launch
from harness.launch.workloads import acceptance
from harness.launch.workloads.acceptance import AcceptanceSpec
from harness.provision.cluster import Ready
from harness.settings import Settings

pytestmark = pytest.mark.acceptance
FAULTS = faults_of("acceptance")
HEALTHY = CONTROL.model_copy(update={"job": Job(manifest="accept-ddp")})
CPU = AcceptanceSpec(device="cpu")
WAIT_SECONDS = 400.0


@pytest.fixture(scope="module")
def matrix(request: pytest.FixtureRequest, cluster: Ready, harness_settings: Settings) -> Iterator[Matrix]:
    """The faults of the selected tests, all started at once."""
    with started(request, cluster, harness_settings, control=HEALTHY) as matrix:
        yield matrix


def test_every_node_is_tested(launch: Launch, cluster: Ready) -> None:
    """Contract: one report of each node, control plane too; each limit has a source; nothing is left."""
    outcome = launch(acceptance.nodes(CPU), wait_seconds=WAIT_SECONDS)
    assert outcome.verdict.verdict == "PASS", outcome.verdict.explanation
    assert "no GPU was tested, so no GPU is accepted" in outcome.verdict.explanation
    bundle = Bundle.open(outcome.bundle)
    reports = [record.report for _, record in bundle.accepted() if record.report]
    nodes = {node["metadata"]["name"] for node in cluster.kube.objects("v1", "Node")}
    assert {report.node for report in reports} == nodes
    assert len(reports) == len(nodes)
    assert all(check.limit_source for one in reports for check in one.checks if check.limit is not None)
    assert bundle.manifest
    assert bundle.manifest.launch
    assert cluster.kube.objects("apps/v1", "DaemonSet", bundle.manifest.launch.namespace) == []


@each(FAULTS)
def test_a_fault_is_named_with_its_place(
    matrix: Matrix, name: str, record_property: Callable[[str, object], None]
) -> None:
    """Contract: verdict, cause and ranks are those of its file, and healthy collectives pass afterwards."""
    is_right(matrix, name, record_property)
