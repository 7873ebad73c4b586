"""A project's key gives access to this project, and to no other project, on any route."""

from __future__ import annotations

import json
import string
from collections.abc import Iterator

import httpx
import pytest
from tracker_server import KEY, Server, create, log_metrics

from harness.tracker.shared.keys import Grant, grant_of, launch_key, project_key


@pytest.fixture(scope="module")
def theirs(server: Server) -> int:
    """Return a run in another project, with a point."""
    with server.client() as client:
        run: int = create(client, "secret", projectName="theirs")["runId"]
        headers = {"X-Run-Id": str(run), "X-Project-Name": "theirs", "X-Run-Name": "r"}
        client.post("/ingest/metrics", content='{"time":1,"step":0,"data":{"m":1}}', headers=headers)
    return run


@pytest.fixture
def mine(server: Server) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {project_key(KEY, 'e2e')}"}
    with httpx.Client(base_url=server.url, headers=headers, trust_env=False) as client:
        yield client


def test_keys_tell_what_they_open() -> None:
    key = b"mlpi_k"
    assert grant_of(key, key) is not None
    assert b"mlpi_k" not in (of_launch := launch_key("mlpi_k", "n1", project="p", run="r").encode())
    assert grant_of(of_launch, key) == Grant("p", "n1", "r")
    assert grant_of(of_launch, b"another") is None
    assert grant_of(b"mlpi_k.n1", key) is None
    longest = launch_key("mlpi_k", "n1", project="💡" * 4096, run="💡" * 255)
    assert grant_of(longest.encode(), key) == Grant("💡" * 4096, "n1", "💡" * 255)
    for project in ("e2e", "ünï/ code", "x" * 255):
        api_key = project_key("mlpi_k", project)
        assert getattr(grant_of(api_key.encode(), key), "project", None) == project
        assert grant_of(api_key.encode(), b"another") is None
        assert grant_of(api_key[:-1].encode() + b"z", key) is None
        assert grant_of(f"{api_key}.n1".encode(), key) is None
        assert grant_of(api_key.replace("mlpi_p", "mlpi_l").encode(), key) is None
    scope, dot, seal = project_key("mlpi_k", "ab").partition(".")
    spellings = [f"{scope[:-1]}{last}{dot}{seal}" for last in string.ascii_letters + string.digits + "-_"]
    assert [grant_of(each.encode(), key) for each in spellings].count(Grant(project="ab")) == 1
    assert grant_of(b"mlpi_p!.00", key) is None
    assert grant_of(b"", key) is None


@pytest.mark.parametrize(
    "address",
    [
        "/api/runs/list?projectName=theirs",
        "/api/runs/list?projectName=e2e&projectName=theirs",
        "/api/runs/list",
        "/api/runs/details/{run}",
        "/api/runs/{run}",
        "/api/runs/details/by-display-id/{shown}",
        "/api/runs/details/by-display-id/{shown}?projectName=theirs",
        "/api/runs/details/by-display-id/{shown}?projectName=e2e",
        "/api/runs/metrics?runId={run}&projectName=e2e",
        "/api/runs/metrics/raw?runId={run}&projectName=e2e&logName=m",
        "/api/runs/metric-names?projectName=theirs",
        "/api/runs/metric-names?projectName=e2e&runIds={run}",
        "/api/runs/statistics?runId={run}&projectName=e2e",
        "/api/runs/compare?runIds={run}&projectName=e2e&logName=m",
        "/api/runs/leaderboard?projectName=theirs&logName=m",
        "/api/runs/files?runId={run}",
        "/api/runs/logs?runId={run}",
        "/api/runs/data?runId={run}",
        "/api/runs/alerts?runId={run}",
        "/api/runs/status/history?runId={run}",
        "/api/audit/runs?projectName=e2e",
        "/api/audit/points?runIds={run}",
        "/api/audit/failures",
        "/no/such/route",
    ],
)
def test_reads_of_another_project_are_refused(
    mine: httpx.Client, theirs: int, server: Server, address: str
) -> None:
    with server.client() as own:
        shown = own.get(f"/api/runs/{theirs}").json()["displayId"]
    answer = mine.get(address.format(run=theirs, shown=shown))
    assert answer.status_code in {403, 404}, answer.text
    assert "secret" not in answer.text


def test_writes_into_another_project_are_refused(mine: httpx.Client, theirs: int, server: Server) -> None:
    with server.client() as own:
        before = own.get(f"/api/runs/{theirs}").json()
    bodies: dict[str, dict[str, object]] = {
        "create": {"runName": "r", "projectName": "theirs", "externalId": "secret"},
        "resume": {"runId": theirs},
        "logName/add": {"runId": theirs, "logType": "METRIC", "logName": ["a"]},
        "trigger": {"runId": theirs},
        "status/update": {"runId": theirs, "status": "FAILED"},
        "tags/update": {"runId": theirs, "tags": ["mine"]},
        "config/update": {"runId": theirs, "config": json.dumps({"a": 1})},
        "notes/update": {"runId": theirs, "notes": "mine"},
        "alert": {"runId": theirs, "alert": {"title": "t"}},
        "modelGraph/create": {"runId": theirs, "graph": {"nodes": {}}},
    }
    for path, body in bodies.items():
        assert mine.post(f"/api/runs/{path}", json=body).status_code in {403, 404}, path
    resumed = {"displayId": before["displayId"], "projectName": "theirs"}
    assert mine.post("/api/runs/resume", json=resumed).status_code == 404
    resumed = {"externalId": "secret", "projectName": "theirs"}
    assert mine.post("/api/runs/resume", json=resumed).status_code == 404
    assert log_metrics(mine, theirs, '{"time":1,"step":1,"data":{"m":2}}').status_code == 404
    assert mine.post("/files", json={"files": []}, headers={"X-Run-Id": str(theirs)}).status_code == 404
    assert mine.post("/api/audit/claims", json={}).status_code == 403
    fork = {"runName": "f", "projectName": "e2e", "forkRunId": theirs, "forkStep": 0}
    assert mine.post("/api/runs/create", json=fork).status_code == 404
    with server.client() as own:
        assert own.get(f"/api/runs/{theirs}").json() == before
        points = own.get(f"/api/audit/points?runIds={theirs}").json()["points"]
    assert [row[2] for row in points] == [0]


def test_its_own_project_is_open(mine: httpx.Client) -> None:
    run = create(mine, "own")["runId"]
    assert log_metrics(mine, run, '{"time":1,"step":0,"data":{"m":1}}').status_code == 200
    query = f"runId={run}&projectName=e2e"
    assert mine.get(f"/api/runs/metrics?{query}").json()["metrics"][0]["value"] == 1
    assert [one["name"] for one in mine.get("/api/runs/projects").json()["projects"]] == ["e2e"]
    assert mine.post("/api/slug").status_code == 200
