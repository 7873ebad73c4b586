"""The unmodified pluto-ml client against the tracker: ranks that share one PLUTO_RUN_ID, and its reads."""

from __future__ import annotations

import json
import math
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tracker_server import KEY, Server, finished

from harness.evidence.schema.tracker import Attachment, Point, TrackerRun
from harness.tracker.client.audit import EmbeddedAudit, HostedAudit, collect

JOB = {"KONDUKTOR_JOB_NAME": "demo-x1"}


@pytest.fixture(scope="module")
def two(server: Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the run id that two ranks shared. Each logged 10 steps, and rank 0 also logged a string, a
    histogram and a file."""
    home = tmp_path_factory.mktemp("ranks")
    ranks = [
        server.pluto(home / str(rank), "log", str(rank), "10", PLUTO_RUN_ID="demo-run", RANK=str(rank), **JOB)
        for rank in range(2)
    ]
    outputs = finished(*ranks)
    assert sorted("started (external_id=" in output for output in outputs) == [False, True]
    return "demo-run"


def read(
    reader: EmbeddedAudit | HostedAudit, run_id: str
) -> tuple[list[TrackerRun], list[Attachment], list[Point]]:
    """Return the records that `collect` writes, after comparing them with its own counts."""
    written: dict[str, list[Any]] = {"runs": [], "attachments": [], "points": [], "writers": []}
    summary = collect(
        reader,
        external_id=run_id,
        project="e2e",
        job_name="demo-x1",
        write=lambda kind, record: written[kind].append(record),
        write_points=lambda rows: written["points"].extend(rows.records()),
    )
    assert summary.error is None
    assert not summary.truncated
    assert (summary.runs, summary.points) == (len(written["runs"]), len(written["points"]))
    return written["runs"], written["attachments"], written["points"]


def test_two_ranks_are_one_run_with_every_point(server: Server, two: str) -> None:
    with server.client() as client:
        runs, attachments, points = read(EmbeddedAudit(client, page=7), two)
    assert [(run.external_id, run.status) for run in runs] == [(two, "COMPLETED")]
    assert sorted((one.rank, one.name, one.job_name) for one in attachments) == [
        (0, "node0", "demo-x1"),
        (1, "node1", "demo-x1"),
    ]
    assert [one.resumed for one in attachments].count(False) == 1
    for rank in range(2):
        logged = {p.step: p.value for p in points if p.metric == f"loss/node{rank}"}
        assert logged == {step: 1 / (step + 1) for step in range(10)}
        assert {p.sender for p in points if p.metric == f"loss/node{rank}"} == {f"node{rank}"}
    odd = {p.metric: p.value for p in points if p.metric.startswith("odd/")}
    assert math.isnan(odd["odd/nan"])
    assert (odd["odd/inf"], odd["odd/minus"], odd["odd/big"]) == (math.inf, -math.inf, float(2**70))


def test_pluto_query_reads_what_was_logged(server: Server, two: str, tmp_path: Path) -> None:
    (output,) = finished(server.pluto(tmp_path / "home", "query", "e2e"))
    found = json.loads(output.splitlines()[-1])
    assert found["run"]["externalId"] == two
    assert found["same"] == found["run"]["id"]
    assert found["run"]["config"] == {"rank0": 0, "rank1": 1}
    assert {(log["logName"], log["logType"]) for log in found["run"]["logNames"]} >= {
        ("loss/node0", "METRIC"),
        ("shared/loss", "METRIC"),
        ("histogram", "HISTOGRAM"),
    }
    assert {"loss/node0", "loss/node1", "shared/loss"} <= set(found["names"])
    assert [(p["step"], p["value"]) for p in found["loss"]] == [(s, 1 / (s + 1)) for s in range(10)]
    assert [p["step"] for p in found["window"]] == [2, 3]
    assert len(found["two"]) == 20
    assert {(p["metric"], p["valueFlag"]) for p in found["odd"]} == {
        ("odd/nan", "NaN"),
        ("odd/inf", "Inf"),
        ("odd/minus", "-Inf"),
        ("odd/big", ""),
    }
    assert found["statistics"]["metrics"][0]["count"] == 10
    assert found["leaderboard"]["total"] == 1
    assert found["downloaded"] == "kept"
    assert found["uploaded"] == "more"
    assert any("a line of output" in line["message"] for line in found["logs"])


def test_strings_and_histograms_are_kept(server: Server, two: str) -> None:
    with sqlite3.connect(f"file:{server.db}?mode=ro", uri=True) as db:
        kept = dict(db.execute("SELECT log_name, data FROM data").fetchall())
    assert kept["note"] == "a string"
    assert "histogram" in kept


def test_hosted_pluto_is_read_by_its_public_api_alone(server: Server, two: str) -> None:
    """The rows are the same as in the audit view, but there are no attachments and senders."""
    with server.client() as client:
        _, _, embedded = read(EmbeddedAudit(client), two)
    runs, attachments, hosted = read(HostedAudit(server.url, KEY, settle_seconds=0.1), two)
    assert [run.external_id for run in runs] == [two]
    assert [event["toStatus"] for event in runs[0].status_history][-1] == "COMPLETED"
    assert attachments == []

    def rows(points: list[Point]) -> list[tuple[str, int, str, int]]:
        return sorted((p.metric, p.step, repr(p.value), p.time_ms) for p in points)

    assert rows(hosted) == rows(embedded)


def test_eight_ranks_share_one_run(server: Server, tmp_path: Path) -> None:
    ranks = [
        server.pluto(tmp_path / str(rank), "log", str(rank), "20", PLUTO_RUN_ID="eight") for rank in range(8)
    ]
    outputs = finished(*ranks)
    assert sum("started (external_id=" in output for output in outputs) == 1
    with server.client() as client:
        runs, attachments, points = read(EmbeddedAudit(client), "eight")
        run = next(run for run in runs if run.external_id == "eight")
        query = {"runId": run.run_id, "projectName": "e2e", "logName": "shared/loss"}
        shown = client.get("/api/runs/metrics", params=query).json()["metrics"]
    mine = [p for p in points if p.run_id == run.run_id and p.metric.startswith("loss/")]
    assert len([one for one in attachments if one.run_id == run.run_id]) == 8
    assert len({(p.metric, p.step) for p in mine}) == len(mine) == 160
    assert len([p for p in points if p.run_id == run.run_id and p.metric == "shared/loss"]) == 160
    assert len(shown) == 20


def test_a_rank_with_another_run_id_matches_its_job(server: Server, two: str, tmp_path: Path) -> None:
    finished(server.pluto(tmp_path / "r", "log", "5", "2", PLUTO_RUN_ID="other", RANK="5", **JOB))
    with server.client() as client:
        runs, attachments, _ = read(EmbeddedAudit(client), two)
    assert {run.external_id for run in runs} == {two, "other"}
    assert {one.rank for one in attachments} == {0, 1, 5}
