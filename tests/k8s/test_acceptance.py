"""`harness accept` on a real cluster: healthy nodes pass, and each fault is named with its place."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.evidence.reader import Bundle
from harness.faults import commands
from harness.faults.fault import Job, catalogue
from harness.faults.inject import Injector
from harness.faults.matrix import CONTROL, Matrix
from harness.fixtures.plugin import Launch
from harness.launch import acceptance
from harness.launch.acceptance import Asked
from harness.launch.konduktor.job_file import JobFile
from harness.provision.cluster import Ready
from harness.settings import Settings

pytestmark = [pytest.mark.e2e, pytest.mark.acceptance]
FAULTS = {name: fault for name, fault in catalogue().items() if fault.target == "acceptance" and fault.expect}
HEALTHY = CONTROL.model_copy(update={"job": Job(manifest="accept-ddp")})
CPU = Asked(device="cpu")
WAIT_SECONDS = 400.0


def progress(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


@pytest.fixture(scope="module")
def matrix(request: pytest.FixtureRequest, cluster: Ready, harness_settings: Settings) -> Iterator[Matrix]:
    """The faults of the selected tests, all started at once."""
    items = [item for item in request.session.items if item.path == request.path]
    names = [item.callspec.params["name"] for item in items if hasattr(item, "callspec")]
    job = JobFile.load(Path("jobs/multinode.yaml"))
    injector = Injector(cluster, job, harness_settings, commands.folder(harness_settings))
    started = Matrix(injector, [FAULTS[name] for name in names], 2, progress, control=HEALTHY).start()
    yield started
    started.stop()


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


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.nightly] if fault.nightly else [])
        for name, fault in FAULTS.items()
    ],
)
def test_a_fault_is_named_with_its_place(
    matrix: Matrix, name: str, record_property: Callable[[str, object], None]
) -> None:
    """Contract: verdict, cause and ranks are those of its file, and healthy collectives pass afterwards."""
    row = matrix.row(name)
    for key in ("got", "bundle", "control"):
        record_property(f"harness.{key}", str(getattr(row, key)))
    assert row.right, f"{row.wrong}: expected {row.expected}, got {row.got}: {row.explanation} [{row.bundle}]"
