"""`--replace` on a real cluster: jobs run with another client or konduktor, which the verdict names."""

from __future__ import annotations

from importlib.metadata import distribution
from pathlib import Path

import pytest

from harness.evidence.io.reader import Bundle
from harness.fixtures.plugin import Launch
from harness.launch.konduktor.job_file import JobFile

pytestmark = pytest.mark.versions
BACKEND = """
import base64, hashlib, os, pathlib, zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    record, files = "", sorted(path for path in pathlib.Path("content").rglob("*") if path.is_file())
    info = next(pathlib.Path("content").glob("*.dist-info")).name
    name = info.removesuffix(".dist-info") + "-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as packed:
        for path in files:
            place, data = str(path.relative_to("content")), path.read_bytes()
            packed.writestr(place, data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record += f"{place},sha256={digest},{len(data)}\\n"
        packed.writestr(info + "/RECORD", record + info + "/RECORD,,\\n")
    return name
"""
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""
DROPPING = """

def _dropping(original):
    def enqueue(self, metrics, timestamp_ms, step):
        if step == 7 and os.environ.get("RANK") == "1":
            metrics = {name: value for name, value in metrics.items() if not name.startswith("loss/")}
        original(self, metrics, timestamp_ms, step)
    return enqueue

import os
SyncProcessManager.enqueue_metrics = _dropping(SyncProcessManager.enqueue_metrics)
"""


@pytest.fixture
def client(tmp_path: Path) -> Path:
    """A checkout of the client that this environment has."""
    checkout = tmp_path / "client"
    installed = distribution("pluto-ml")
    for file in installed.files or ():
        source = Path(str(file.locate()))
        if source.is_file() and ".." not in file.parts and source.name not in ("RECORD", "INSTALLER"):
            copy = checkout / "content" / file
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(source.read_bytes())
    (checkout / "pyproject.toml").write_text(PROJECT)
    (checkout / "backend.py").write_text(BACKEND)
    return checkout


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
