"""How the harness's workers handle Pluto's upload process, with the real client."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tracker_server import ROOT, Server, create

SLOW = """
import sys, time
if "pluto.sync" in " ".join(sys.orig_argv):
    time.sleep(3)
"""
PROGRAM = """
import os, pluto, multinode
run = pluto.init(project="e2e", name="rank0")
for step in range(5):
    run.log({"loss": 0.5}, step=step)
if os.environ["WAITS"] == "1":
    multinode.wait_for_uploader(0, 30)
run.finish()
multinode.wait_for_sync(0, 30)
"""


@pytest.mark.parametrize(("waits", "points"), [("1", 5), ("0", 0)])
def test_an_uploader_that_starts_slowly_is_waited_for(
    server: Server, tmp_path: Path, waits: str, points: int
) -> None:
    """Contract: finish() is called only once the upload process handles SIGTERM. An earlier call would kill
    it, and all points would be lost."""
    site, home = tmp_path / "site", tmp_path / "home"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SLOW)
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    job = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "PLUTO_RUN_ID": f"slow-{waits}", "WAITS": waits}
    path = os.pathsep.join([str(site), str(ROOT / "harness" / "workers")])
    environment = server.pluto_environment(home, PYTHONPATH=path, **job)
    program = [sys.executable, str(script)]
    output = subprocess.run(
        program, env=environment, cwd=home, check=True, capture_output=True, text=True
    ).stdout
    assert ("left rows unsent" in output) == (points == 0), output
    with server.client() as client:
        id_ = create(client, f"slow-{waits}")["runId"]
        found = client.get("/api/audit/points", params={"runIds": id_}).json()
    assert [point[1] for point in found["points"]].count("loss") == points
