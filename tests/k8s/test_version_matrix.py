"""`harness matrix` on a real cluster: two versions of konduktor with two clients, one of which is broken."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from client_checkout import DROPPING, checkout
from harness_command import Harness

from harness.core import processes
from harness.evidence.io.reader import Bundle
from harness.faults.harness_process import launch_environment
from harness.provision.cluster import Ready
from harness.settings import Settings

pytestmark = [pytest.mark.versions, pytest.mark.nightly]
MATRIX = """
vary:
  konduktor: [locked, "<0.1.0.dev20261027"]
  pluto-ml: [locked, {client}]
newest: 1
repeat: 2
expect:
  - where: {{pluto-ml: {client}}}
    cause: unification.client_rewrote
    reason: the checkout drops a point
"""


def test_a_matrix_goes_on_after_an_interruption(
    cluster: Ready, harness_settings: Settings, tmp_path: Path
) -> None:
    """Contract: two clients with two launchers; the broken client fails as expected, and is launched once.

    A launch that was interrupted is repeated, the finished ones are not.
    """
    client = checkout(tmp_path / "client")
    manager = client / "content" / "pluto" / "sync" / "process.py"
    manager.write_text(manager.read_text() + DROPPING)
    (tmp_path / "matrix.yaml").write_text(MATRIX.format(client=client))
    runs = tmp_path / "runs"
    env = launch_environment(harness_settings, runs, True)
    words = ["matrix", str(tmp_path / "matrix.yaml"), "--job", "jobs/multinode.yaml"]
    with Harness(*words, env=env) as harness:
        harness.until("1 of 4 cells", 300)
        harness.interrupt(signal.SIGINT)
        assert harness.end(200) == 130
        assert not processes.started_with(str(runs))
    (folder,) = runs.glob("matrix-*")
    before = (folder / "ledger.jsonl").read_text()
    assert f"--continue {folder}" in harness.stderr

    with Harness(*words, "--continue", str(folder), "--json", env=env) as harness:
        assert harness.end(400) == 0, harness.stderr
    document = json.loads(harness.stdout)
    assert document["counts"] == {"expected failure": 2, "passed": 2}
    assert (folder / "ledger.jsonl").read_text().startswith(before)
    assert all(len(cell["outcomes"]) == 1 for cell in document["cells"])
    page = (folder / "matrix.html").read_text()
    for cell in document["cells"]:
        (outcome,) = cell["outcomes"]
        manifest = Bundle.open(Path(outcome["bundle"])).manifest
        assert manifest is not None
        assert manifest.versions["konduktor"] == outcome["cell"]["konduktor-nightly"]
        replaced = "pluto-ml" in {one.name for one in manifest.replaced}
        assert replaced == (cell["status"] == "expected failure")
        assert f'href="{Path(outcome["bundle"]).relative_to(folder)}/report.html"' in page
