"""A running run without heartbeats is shown as FAILED, and verdicts use the status that was reported."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from tracker_server import KEY, Server, create, log_metrics

SECONDS = 3.0
LINE = '{"time": 1, "step": 0, "data": {"m": 1}}'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("silent"), "--stale-seconds", f"{SECONDS}").start()
    yield server
    server.stop()


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def beat(client: httpx.Client, run: int) -> None:
    assert client.post("/api/runs/trigger", json={"runId": run}).status_code == 200


def seen(client: httpx.Client, run: int, **query: Any) -> str:
    """Return a run's status as users see it. It is the same everywhere, except while it changes."""
    for _ in range(5):
        found = [*everywhere(client, run, **query)]
        if len(set(found)) == 1:
            return found[0]
    raise AssertionError(found)


def everywhere(client: httpx.Client, run: int, **query: Any) -> Iterator[str]:
    listed = client.get("/api/runs/list", params={"projectName": "e2e", **query}).json()["runs"]
    yield from (one["status"] for one in listed if one["id"] == run)
    details = client.get(f"/api/runs/details/{run}").json()
    yield details["status"]
    yield client.get(f"/api/runs/details/by-display-id/{details['displayId']}").json()["status"]
    with httpx.Client(base_url=client.base_url, trust_env=False) as browser:
        browser.post("/login", data={"key": KEY})
        yield browser.get(f"/pages/pulse?runs={run}").json()["runs"][0]["status"]
        page = re.search(
            r'class="pill ([A-Z]+)" id="status"', browser.get(f"/o/harness/projects/e2e/r{run}").text
        )
        assert page is not None
        yield page[1]


def until(wanted: str, look: Callable[[], str]) -> None:
    late = time.monotonic() + 30
    while (found := look()) != wanted:
        assert time.monotonic() < late, found
        time.sleep(0.1)


def test_a_silent_run_is_failed_until_its_next_request(client: httpx.Client) -> None:
    """Contract: heartbeats or points keep a run alive, and the audit contains the reported status."""
    run = create(client, "silent")["runId"]
    beat(client, run)
    assert seen(client, run) == "RUNNING"
    until("FAILED", lambda: seen(client, run))
    details = client.get(f"/api/runs/{run}").json()
    assert details["statusMetadata"] == {"reason": "heartbeat-timeout"}
    assert seen(client, run, sort="+status", filter=json.dumps({"status": "FAILED"})) == "FAILED"
    wanted = {"projectName": "e2e", "filter": json.dumps({"status": "RUNNING"})}
    assert run not in [one["id"] for one in client.get("/api/runs/list", params=wanted).json()["runs"]]
    audit = client.get("/api/audit/runs?externalId=silent&projectName=e2e").json()["runs"][0]
    assert (audit["status"], [one["toStatus"] for one in audit["statusHistory"]]) == ("RUNNING", ["RUNNING"])
    assert len(client.get(f"/api/runs/status/history?runId={run}").json()["events"]) == 1

    log_metrics(client, run, LINE)
    assert seen(client, run) == "RUNNING"
    until("FAILED", lambda: seen(client, run))
    beat(client, run)
    assert seen(client, run) == "RUNNING"


def test_what_a_run_reports_itself_counts(client: httpx.Client) -> None:
    """Contract: a run that reports again and succeeds is COMPLETED, and remains so."""
    run = create(client, "back")["runId"]
    beat(client, run)
    until("FAILED", lambda: seen(client, run))
    client.post("/api/runs/status/update", json={"runId": run, "status": "COMPLETED"})
    time.sleep(1.5 * SECONDS)
    assert seen(client, run) == "COMPLETED"
    assert client.get(f"/api/runs/details/{run}").json()["statusMetadata"] is None


def test_the_trackers_own_absence_is_nobodys_silence(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Contract: after the tracker starts, the time limit of every running run starts again."""
    server = Server(tmp_path_factory.mktemp("absent")).start()
    with server.client() as client:
        run = create(client, "old")["runId"]
        beat(client, run)
    server.stop()
    with sqlite3.connect(server.db) as db:
        db.execute("UPDATE runs SET heartbeat_at = '2026-01-01T00:00:00.000000Z', updated_at = heartbeat_at")
    server.start()
    with server.client() as client:
        assert seen(client, run) == "RUNNING"
    server.stop()
