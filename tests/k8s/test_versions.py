"""`--replace` on a real cluster: jobs run with another client or konduktor, which the verdict names."""

from __future__ import annotations

from importlib.metadata import distribution
from pathlib import Path

import pytest
from client_checkout import DROPPING, checkout

from harness.evidence.io.reader import Bundle
from harness.fixtures.plugin import Launch
from harness.launch.konduktor.job_file import JobFile

pytestmark = pytest.mark.versions


@pytest.fixture
def client(tmp_path: Path) -> Path:
    """A checkout of the client that this environment has."""
    return checkout(tmp_path / "client")


def test_a_client_that_drops_a_point_is_named(launch: Launch, job: JobFile, client: Path) -> None:
    """Contract: the verdict names the point and the replaced client."""
    manager = client / "content" / "pluto" / "sync" / "process.py"
    manager.write_text(manager.read_text() + DROPPING)
    outcome = launch(job, replace={"pluto-ml": str(client)})
    verdict = outcome.verdict
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "unification.client_rewrote", [1])
    assert "'loss/node1' (float) at step 7 of rank 1" in verdict.explanation
    assert f"package pluto-ml was replaced: {distribution('pluto-ml').version}" in verdict.explanation
    manifest = Bundle.open(outcome.bundle).manifest
    assert manifest is not None
    (one,) = manifest.replaced
    assert (one.name, one.origin) == ("pluto-ml", str(client))


@pytest.mark.nightly
def test_another_version_of_each_package_passes(launch: Launch, job: JobFile) -> None:
    """Contract: the newest konduktor, and an older client, are what the evidence says."""
    outcome = launch(job, replace={"konduktor": "latest", "pluto-ml": "<0.0.29"})
    assert outcome.verdict.verdict == "PASS", outcome.verdict.explanation
    manifest = Bundle.open(outcome.bundle).manifest
    assert manifest is not None
    replaced = {one.name: one.version for one in manifest.replaced}
    assert manifest.versions["konduktor"] == replaced["konduktor-nightly"]
    assert manifest.versions["pluto"] == replaced["pluto-ml"] < "0.0.29"
