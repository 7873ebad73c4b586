"""The oracle for random faults reads the database of a real tracker."""

from __future__ import annotations

import json
import math
import subprocess
import sys

from tracker_server import Server, create, log_metrics

from harness.faults.random import oracle


def test_the_oracle_reads_the_points_of_one_run(server: Server) -> None:
    """Contract: the oracle returns all points of the run and none of another run, with NaN as null."""
    values = {"loss": 0.1 + 0.2, "odd": math.nan, "huge": math.inf}
    with server.client() as client:
        for run in ("ours", "theirs"):
            id_ = create(client, run)["runId"]
            lines = [json.dumps({"time": 1, "step": 3, "data": {**values, f"only/{run}": 1.0}})]
            assert log_metrics(client, id_, "\n".join(lines)).is_success
    program = [sys.executable, "-c", oracle.POINTS, str(server.db), "e2e", "ours"]
    text = subprocess.run(program, check=True, capture_output=True, text=True).stdout
    there = {oracle.point(*json.loads(line)) for line in text.splitlines()}
    meant = {oracle.point(name, 3, value) for name, value in {**values, "only/ours": 1.0}.items()}
    assert there == meant
    assert "lacks 1 of 5 points of rank 0" in oracle.lacks({0: {*meant, ("loss", 4, 0.5)}}, there)
