"""Acknowledged data is on disk: if the tracker is killed at any time, it keeps every row that it
acknowledged."""

from __future__ import annotations

import itertools
import json
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tracker_server import KEY, Server, create, log_metrics

from harness.core.errors import HarnessError
from harness.tracker.client import audit, hosted
from harness.tracker.client.audit import EmbeddedAudit, HostedAudit, collect
from harness.tracker.client.retry import ask

RANKS = 8


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path).start()
    yield server
    server.stop()


def test_a_sigkill_amid_writes_loses_nothing_that_was_acknowledged(server: Server) -> None:
    with server.client() as client:
        run = create(client)["runId"]
    acknowledged: list[list[int]] = [[] for _ in range(RANKS)]
    kills = 3

    def rank_logs(rank: int) -> None:
        """Send requests with 10 rows each until the server is killed."""
        start = acknowledged[rank][-1] + 1 if acknowledged[rank] else 0
        with server.client() as client:
            for first in itertools.count(start, 10):
                steps = range(first, first + 10)
                lines = (json.dumps({"time": 1, "step": s, "data": {f"loss/{rank}": s}}) for s in steps)
                try:
                    if log_metrics(client, run, "\n".join(lines), f"rank{rank}").status_code == 200:
                        acknowledged[rank].extend(steps)
                except httpx.TransportError:
                    return

    for kill in range(kills):
        threads = [threading.Thread(target=rank_logs, args=(rank,)) for rank in range(RANKS)]
        before = sum(map(len, acknowledged))
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 10
        while sum(map(len, acknowledged)) < before + 500 + 170 * kill:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        server.kill()
        for thread in threads:
            thread.join()
        server.start()
    with server.client() as client:
        reader = EmbeddedAudit(client)
        reader.runs(external_id="shared", project="e2e", job_name=None)
        stored = {(p.metric, p.step) for p in reader.points([run])}
        assert stored == {(p.metric, p.step) for p in EmbeddedAudit(client).points([run])}
        assert create(client)["resumed"] is True
    expected = {(f"loss/{rank}", step) for rank in range(RANKS) for step in acknowledged[rank]}
    assert len(expected) > 1500
    assert expected <= stored


def test_a_reader_waits_while_the_tracker_restarts(server: Server) -> None:
    with server.client() as client:
        run = create(client)["runId"]
        log_metrics(client, run, '{"time": 1, "step": 0, "data": {"a": 1}}')
        server.kill()
        restart = threading.Timer(0.3, server.start)
        restart.start()
        try:
            assert len(list(EmbeddedAudit(client, seconds=20).points([run]))) == 1
        finally:
            restart.join()


def ignored(*_: object) -> None:
    pass


def test_an_unreachable_or_refusing_tracker_is_a_named_error(server: Server) -> None:
    with server.client() as client:
        server.stop()
        reader = EmbeddedAudit(client, seconds=0.2)
        with pytest.raises(HarnessError) as unreachable:
            reader.runs(external_id="x", project="e2e", job_name=None)
        summary = collect(
            reader, external_id="x", project="e2e", job_name=None, write=ignored, write_points=ignored
        )
    server.start()
    with pytest.raises(HarnessError) as rejected:
        HostedAudit(server.url, "wrong").runs(external_id="x", project="e2e", job_name=None)
    assert unreachable.value.cause == "tracker.unreachable"
    assert summary.error
    assert "tracker at" in summary.error
    assert rejected.value.cause == "tracker.key_rejected"


def test_counts_that_do_not_settle_are_no_complete_reading(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a row arrives before every read, the hosted reader stops at its deadline and reports incomplete
    data."""
    steps = itertools.count()
    with server.client() as client:
        run = create(client)["runId"]

        def ask_amid_writes(reader: httpx.Client, path: str, params: dict[str, Any], seconds: float) -> Any:
            log_metrics(client, run, json.dumps({"time": 1, "step": next(steps), "data": {"a": 1}}))
            return ask(reader, path, params, seconds)

        monkeypatch.setattr(hosted, "ask", ask_amid_writes)
        reader = HostedAudit(server.url, KEY, settle_seconds=0.1, deadline_seconds=0.5)
        summary = collect(
            reader, external_id="shared", project="e2e", job_name=None, write=ignored, write_points=ignored
        )
    assert summary.error
    assert "stable count" in summary.error


def test_rows_are_paged_and_interleaved_runs_separated(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract: every row is returned once and in order, both as rows and as columns."""
    with server.client() as client:
        runs = [create(client, f"run-{i}")["runId"] for i in range(3)]
        for first in range(0, 3000, 100):
            lines = (
                json.dumps({"time": 1, "step": s, "data": {"m": s, "n": -s}})
                for s in range(first, first + 100)
            )
            text = "\n".join(lines)
            for run in runs:
                log_metrics(client, run, text)
        points = list(EmbeddedAudit(client, page=999).points(runs[::2]))
        reader = EmbeddedAudit(client)
        reader.runs(external_id="run-0", project="e2e", job_name=None)
        monkeypatch.setattr(audit, "COLUMNS_PAGE", 999)
        assert list(reader.points(runs[::2])) == points
        page = client.get("/api/audit/points", params={"runIds": f"{runs[1]}", "limit": 5, "after": 17_000})
    assert [p.run_id for p in points].count(runs[0]) == 6000
    assert len(points) == 12_000
    assert len({(p.run_id, p.metric, p.step) for p in points}) == 12_000
    assert len(page.json()["points"]) == 5
    assert isinstance(page.json()["next"], int)


def test_a_database_of_another_schema_is_not_touched(tmp_path: Path) -> None:
    folder = tmp_path / "old"
    folder.mkdir()
    with sqlite3.connect(folder / "tracker.db") as db:
        db.execute("CREATE TABLE other (a)")
    server = Server(folder)
    with pytest.raises(AssertionError, match="schema 0"):
        server.start()
    assert server.stop() != 0


def test_a_new_database_gives_no_run_id_again(tmp_path: Path) -> None:
    """Contract: data from clients of a lost database is not added to a later run."""
    ids = []
    for name in ("lost", "new"):
        (tmp_path / name).mkdir()
        server = Server(tmp_path / name).start()
        with server.client() as client:
            ids += [create(client)["runId"], create(client, "other")["runId"]]
            log_metrics(client, ids[0], '{"time": 1, "step": 0, "data": {"loss": 1}}', "rank0")
        server.stop()
        time.sleep(3)  # Ids start at the current time in seconds.
    assert len(set(ids)) == 4
