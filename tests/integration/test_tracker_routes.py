"""The tracker's HTTP API: Pluto's responses and error formats, the key, and shared runs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from tracker_server import KEY, ROOT, Server, create, log_metrics

IDS = count()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("tracker"), "--max-file-mib", "1", "--max-files-mib", "2").start()
    yield server
    assert server.stop() == 0, "SIGTERM ends it cleanly"


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


@pytest.fixture
def run_id(client: httpx.Client) -> int:
    """Return a new run."""
    found: int = create(client, f"run-{next(IDS)}")["runId"]
    return found


def status_of(client: httpx.Client, run_id: int) -> str:
    found: str = client.get(f"/api/runs/details/{run_id}").json()["status"]
    return found


def set_status(client: httpx.Client, run_id: int, status: str) -> None:
    answer = client.post("/api/runs/status/update", json={"runId": run_id, "status": status})
    assert answer.json() == {"success": True}


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": f"Bearer {KEY}x"}, 401),
        ({"Authorization": KEY}, 401),
        ({"X-Api-Key": "wrong"}, 401),
        ({"Authorization": f"Bearer {KEY}"}, 200),
        ({"X-Api-Key": KEY}, 200),
    ],
)
def test_every_route_but_the_probe_needs_the_key(
    server: Server, headers: dict[str, str], expected: int
) -> None:
    with httpx.Client(base_url=server.url, headers=headers, trust_env=False) as client:
        assert client.post("/api/slug").status_code == expected
        assert client.get("/api/audit/runs").status_code == expected
        whose = {"X-Run-Id": "1", "X-Project-Name": "p"}
        assert client.post("/ingest/metrics", content="", headers=whose).status_code == expected
        assert client.get("/healthz").status_code == 200
        if expected == 401:
            assert client.post("/api/slug").json()["error"] == "Unauthorized"
            assert set(client.post("/ingest/metrics", content="").json()) == {"code", "message"}


def test_without_a_key_it_does_not_start(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "harness.tracker", "--db", str(tmp_path / "db")]
    ended = subprocess.run(command, cwd=ROOT, env={}, capture_output=True, text=True, check=False)
    assert ended.returncode == 64
    assert "TRACKER_API_KEY" in ended.stderr
    assert not (tmp_path / "db").exists()


def test_the_server_needs_nothing_but_starlette_and_uvicorn() -> None:
    """Only the server's modules and the redaction rules are copied into a small image."""
    program = (
        "import sys; before = set(sys.modules); import harness.tracker.__main__;"
        "print([m for m in set(sys.modules) - before"
        " if m.split('.')[0] in {'pydantic', 'httpx', 'kubernetes', 'tenacity'}"
        " or m.startswith('harness.') and not m.startswith('harness.tracker')"
        " and m not in {'harness.core', 'harness.core.secret_rules',"
        " 'harness.core.terminal_row', 'harness.core.terminal_text'}])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ended.stdout.strip() == "[]"


def test_of_24_that_create_at_once_one_starts_run(server: Server) -> None:
    def one(rank: int) -> dict[str, Any]:
        metadata = json.dumps({"os_info": {"hostname": f"pod-{rank}"}, "konduktor": {"rank": str(rank)}})
        with server.client() as client:
            return create(client, "race", systemMetadata=metadata, config=json.dumps({f"r{rank}": rank}))

    with ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(one, range(24)))
    assert len({answer["runId"] for answer in answers}) == 1
    assert [answer["resumed"] for answer in answers].count(False) == 1
    with server.client() as client:
        run = answers[0]["runId"]
        attached = client.get(f"/api/audit/attachments?runIds={run}").json()["attachments"]
        config = client.get(f"/api/runs/details/{run}").json()["config"]
    assert sorted(one["rank"] for one in attached) == list(range(24))
    assert {one["hostname"] for one in attached} == {f"pod-{rank}" for rank in range(24)}
    assert [one["resumed"] for one in attached].count(False) == 1
    assert config == {f"r{rank}": rank for rank in range(24)}


def test_runs_are_numbered_within_their_project(client: httpx.Client) -> None:
    found = [create(client, None, projectName="unify-test") for _ in range(3)]
    assert [run["displayId"] for run in found] == ["UTE-1", "UTE-2", "UTE-3"]
    assert create(client, "shared", projectName="one")["runId"] != create(client, "shared")["runId"]


def test_resume_by_each_kind_of_id(client: httpx.Client) -> None:
    run = create(client, "to-resume", projectName="resumes")
    for body in (
        {"runId": run["runId"]},
        {"displayId": run["displayId"]},
        {"externalId": "to-resume", "projectName": "resumes"},
    ):
        answer = client.post("/api/runs/resume", json=body).json()
        assert (answer["runId"], answer["resumed"]) == (run["runId"], True)
    missing = client.post("/api/runs/resume", json={"runId": 10**9})
    assert (missing.status_code, missing.json()) == (404, {"error": "Run not found"})


@pytest.mark.parametrize(
    ("reports", "status"),
    [
        (["COMPLETED", "FAILED"], "FAILED"),
        (["FAILED", "COMPLETED"], "FAILED"),
        (["TERMINATED", "COMPLETED"], "TERMINATED"),
        (["TERMINATED", "CANCELLED", "TERMINATED"], "CANCELLED"),
        (["COMPLETED", "RUNNING"], "COMPLETED"),
    ],
)
def test_a_status_is_replaced_only_upward(
    client: httpx.Client, run_id: int, reports: list[str], status: str
) -> None:
    for report in reports:
        set_status(client, run_id, report)
    assert status_of(client, run_id) == status


def test_a_late_joiner_reopens_the_run_in_the_history(client: httpx.Client) -> None:
    run = create(client, "reopened")
    set_status(client, run["runId"], "FAILED")
    assert create(client, "reopened")["resumed"] is True
    assert status_of(client, run["runId"]) == "RUNNING"
    set_status(client, run["runId"], "COMPLETED")
    set_status(client, run["runId"], "COMPLETED")
    events = client.get(f"/api/runs/status/history?runId={run['runId']}").json()["events"]
    assert [event["toStatus"] for event in events] == ["RUNNING", "FAILED", "RUNNING", "COMPLETED"]
    audit = client.get("/api/audit/runs?externalId=reopened&projectName=e2e").json()["runs"][0]
    assert [event["applied"] for event in audit["statusHistory"]] == [True, True, True, True, False]


def test_heartbeats_tags_config_alert_graph(client: httpx.Client, run_id: int) -> None:
    assert client.post("/api/runs/trigger", json={"runId": run_id}).json() == {
        "status": "RUNNING",
        "triggers": None,
    }
    for path, body in (
        ("tags/update", {"tags": ["a", "b"]}),
        ("config/update", {"config": json.dumps({"a": {"b": 1}})}),
        ("config/update", {"config": json.dumps({"a": {"c": None}})}),
        ("modelGraph/create", {"graph": {"format": "torch", "nodes": {}}}),
        ("alert", {"alert": {"timestamp": 1, "level": "WARN", "title": "t", "body": "b"}}),
    ):
        assert client.post(f"/api/runs/{path}", json={"runId": run_id, **body}).status_code == 200, path
    details = client.get(f"/api/runs/details/{run_id}").json()
    assert details["tags"] == ["a", "b"]
    assert details["config"] == {"a": {"b": 1, "c": None}}


def test_a_fork_takes_what_it_asks_for(client: httpx.Client) -> None:
    parent = create(client, None, config='{"a": 1}', tags=["x"])["runId"]
    fork = {"forkRunId": parent, "forkStep": 5, "inheritConfig": True, "inheritTags": False}
    run = create(client, None, config='{"b": 2}', **fork)
    details = client.get(f"/api/runs/details/{run['runId']}").json()
    assert (run["forkedFromRunId"], run["forkStep"]) == (parent, 5)
    assert (details["config"], details["tags"]) == ({"a": 1, "b": 2}, [])


def test_a_fork_is_read_with_its_parents_points(client: httpx.Client) -> None:
    """Contract: a fork includes its parent's points up to the fork's step, and the parent's metrics. Rows,
    statistics and the audit contain only its own data.
    """
    parent = create(client, None)["runId"]
    line = '{"time": 1, "step": %d, "data": {"loss": %d, "%s": 1}}'
    log_metrics(
        client, parent, "\n".join(line % (step, step, "early" if step < 3 else "late") for step in range(6))
    )
    fork = create(client, None, forkRunId=parent, forkStep=2)["runId"]
    log_metrics(client, fork, line % (3, 30, "own"))
    asked = {"projectName": "e2e", "runId": fork}
    found = client.get("/api/runs/metrics", params=asked).json()["metrics"]
    assert {(one["logName"], one["step"], one["value"]) for one in found} == {
        *(("loss", step, step) for step in range(3)),
        *(("early", step, 1) for step in range(3)),
        *(("loss", 3, 30), ("own", 3, 1)),
    }
    part = client.get("/api/runs/metrics", params={**asked, "logName": "loss", "stepMin": 2}).json()[
        "metrics"
    ]
    assert [one["step"] for one in part] == [2, 3]
    raw = client.get("/api/runs/metrics/raw", params={**asked, "logName": "loss"}).json()["metrics"]
    assert [one["step"] for one in raw] == [3]
    loss = client.get("/api/runs/statistics", params={**asked, "logName": "loss"}).json()["metrics"][0]
    assert (loss["count"], loss["min"]) == (1, 30)
    rows = client.get(f"/api/audit/points?runIds={fork}").json()["points"]
    assert sorted(row[1] for row in rows) == ["loss", "own"]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("create", "{", 400),
        ("create", "[]", 400),
        ("create", '{"runName": "a"}', 400),
        ("create", '{"runName": "a", "projectName": "p", "externalId": ""}', 400),
        ("create", json.dumps({"runName": "a", "projectName": "p", "externalId": "x" * 256}), 400),
        ("create", '{"runName": "a", "projectName": "p", "config": "{\\"a\\": NaN}"}', 400),
        ("create", '{"runName": "\\ud800", "projectName": "p"}', 400),
        ("create", json.dumps({"runName": "a", "projectName": "p", "tags": ["t"] * 51}), 400),
        ("resume", "{}", 400),
        ("resume", '{"displayId": "ZZZZ-99"}', 404),
        ("trigger", '{"runId": 987654}', 404),
        ("trigger", '{"runId": "None"}', 400),
        ("status/update", '{"runId": 1, "status": "DONE"}', 400),
        ("status/update", '{"runId": 987654, "status": "FAILED"}', 404),
        ("tags/update", '{"runId": 1, "tags": "a"}', 400),
        ("config/update", '{"runId": 1, "config": "["}', 400),
        ("logName/add", '{"runId": 1, "logType": "METRIC", "logName": 3}', 400),
        ("nothing", "{}", 404),
    ],
)
def test_bad_requests_get_plutos_error(client: httpx.Client, path: str, body: str, status: int) -> None:
    answer = client.post(f"/api/runs/{path}", content=body)
    assert answer.status_code == status, answer.text
    assert isinstance(answer.json()["error"], str)


@pytest.mark.parametrize("query", ["metrics", "metrics?runId=x&projectName=e2e", "list", "compare"])
def test_bad_reads_get_plutos_error(client: httpx.Client, query: str) -> None:
    answer = client.get(f"/api/runs/{query}")
    assert answer.status_code == 400
    assert isinstance(answer.json()["error"], str)


def test_lines_before_a_refused_line_are_stored(client: httpx.Client, run_id: int) -> None:
    lines = [json.dumps({"time": 1, "step": step, "data": {"a": step}}) for step in (0, 1, -1, 2)]
    answer = log_metrics(client, run_id, "\n".join(lines))
    assert answer.status_code == 422
    assert answer.json() == {"code": 422, "message": "line 3: step: expected an integer ≥ 0"}
    rows = client.get(f"/api/audit/points?runIds={run_id}").json()["points"]
    assert [row[2] for row in rows] == [0, 1]


def test_sent_twice_is_there_twice_and_shown_once(client: httpx.Client, run_id: int) -> None:
    """If two ranks log the same name, the value with the later client time is shown, and both rows are kept
    with their senders."""
    log_metrics(client, run_id, '{"time": 9, "step": 0, "data": {"m": 1}}', "rank0")
    log_metrics(client, run_id, '{"time": 9, "step": 0, "data": {"m": 1}}', "rank0")
    log_metrics(client, run_id, '{"time": 8, "step": 0, "data": {"m": 2}}', "rank1")
    where = f"runId={run_id}&projectName=e2e&logName=m"
    shown = client.get(f"/api/runs/metrics?{where}").json()["metrics"]
    raw = client.get(f"/api/runs/metrics/raw?{where}").json()
    audit = client.get(f"/api/audit/points?runIds={run_id}").json()["points"]
    assert [(row["step"], row["value"]) for row in shown] == [(0, 1.0)]
    assert [row["value"] for row in raw["metrics"]] == [1.0, 1.0, 2.0]
    assert raw["truncated"] is False
    assert client.get(f"/api/runs/metrics/raw?{where}&limit=2").json()["truncated"] is True
    assert [row[6] for row in audit] == ["rank0", "rank0", "rank1"]


def test_long_series_is_thinned_and_window_is_not(client: httpx.Client, run_id: int) -> None:
    lines = (json.dumps({"time": 1, "step": step, "data": {"m": step}}) for step in range(500))
    assert log_metrics(client, run_id, "\n".join(lines)).text == "Stream processed successfully: 500 records"
    where = f"runId={run_id}&projectName=e2e&limit=100"
    steps = [row["step"] for row in client.get(f"/api/runs/metrics?{where}").json()["metrics"]]
    window = client.get(f"/api/runs/metrics?{where}&stepMin=20&stepMax=29").json()["metrics"]
    assert (len(steps), steps[0], steps[-1]) == (100, 0, 499)
    assert [row["step"] for row in window] == list(range(20, 30))


@pytest.mark.parametrize("header", ["None", "987654321", "99999999999999999999999", "-1"])
def test_rows_without_run_are_shown_as_orphans(client: httpx.Client, header: str) -> None:
    """Like Pluto's ingest, the tracker does not check whether the run exists."""
    assert log_metrics(client, header, '{"time": 1, "step": 0, "data": {"lost": 1}}').status_code == 200
    orphans = client.get("/api/audit/runs?projectName=e2e").json()["orphans"]
    assert header in {orphan["run_header"] for orphan in orphans}


def test_files_are_stored_within_limits(client: httpx.Client, run_id: int, server: Server) -> None:
    def announce(size: int) -> httpx.Response:
        entry = {
            "fileName": "a.txt",
            "fileSize": size,
            "fileType": "txt",
            "time": 1,
            "logName": "f",
            "step": 1,
        }
        headers = {"X-Run-Id": str(run_id)}
        return client.post("/files", json={"files": [entry]}, headers=headers)

    def address(size: int) -> str:
        found: str = announce(size).json()["f"][0]["a.txt"]
        return found

    assert announce(2 << 20).status_code == 413
    where = f"/api/runs/files?runId={run_id}&projectName=e2e"
    kept = address(5)
    assert client.get(where).json() == {"files": []}, "a file is there once its bytes are"
    with httpx.Client(trust_env=False) as bare:
        assert bare.put(kept, content=b"12345", headers={"Content-Type": "text/plain"}).status_code == 200
        assert bare.put(address(5), content=b"x" * (1 << 20 | 1)).status_code == 413
        assert bare.put(address(1 << 20), content=b"x" * (1 << 20)).status_code == 200
        assert bare.put(address(1 << 20), content=b"x" * (1 << 20)).status_code == 507
        assert bare.put(f"{server.url}/files/put/guessed", content=b"").status_code == 404
        shown = client.get(where).json()["files"]
        assert [file["fileSize"] for file in shown] == [5, 1 << 20]
        assert bare.get(shown[0]["url"]).content == b"12345"


def test_statistics_and_rankings(client: httpx.Client) -> None:
    ids = [create(client, None, projectName="ranked")["runId"] for _ in range(2)]
    for run, values in zip(ids, ([1, 2, 3], [5, 4, float("nan")]), strict=True):
        text = "\n".join(
            json.dumps({"time": 1, "step": step, "data": {"m": v}}) for step, v in enumerate(values)
        )
        log_metrics(client, run, text)
    stats = client.get(f"/api/runs/statistics?runId={ids[0]}&projectName=ranked").json()["metrics"][0]
    assert {key: stats[key] for key in ("count", "min", "max", "mean")} == {
        "count": 3,
        "min": 1.0,
        "max": 3.0,
        "mean": 2.0,
    }
    query = "/api/runs/leaderboard?projectName=ranked&logName=m&aggregation=LAST&direction=DESC"
    assert [(one["runId"], one["value"]) for one in client.get(query).json()["runs"]] == [
        (ids[1], 4.0),
        (ids[0], 3.0),
    ]
    compared = client.get(f"/api/runs/compare?projectName=ranked&logName=m&runIds={ids[0]},{ids[1]}").json()
    assert [run["stats"]["count"] for run in compared["runs"]] == [3, 2]


def test_runs_are_listed_by_search_tag_and_page(client: httpx.Client) -> None:
    for name, tags in (("Alpha", ["x"]), ("beta", ["y"]), ("alphabet", [])):
        create(client, None, projectName="listed", runName=name, tags=tags)

    def names(query: str) -> list[str]:
        return [
            run["name"] for run in client.get(f"/api/runs/list?projectName=listed&{query}").json()["runs"]
        ]

    assert names("") == ["alphabet", "beta", "Alpha"]
    assert names("search=ALPHA&sort=%2BcreatedAt") == ["Alpha", "alphabet"]
    assert names("tags=x,y&sort=name") == ["Alpha", "beta"]
    assert names("limit=1&offset=1") == ["beta"]
