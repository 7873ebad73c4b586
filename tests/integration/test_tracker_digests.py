"""Digest reports in a tracker on loopback are stored as sent, never replaced, and limited in number."""

from __future__ import annotations

import base64
import json
import sqlite3
import zlib
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tracker_server import KEY, Server, create

from harness.tracker.client.audit import EmbeddedAudit
from harness.tracker.shared.keys import launch_key, project_key
from harness.tracker.shared.requests import Refused, Sender
from harness.tracker.storage import digest_reports
from harness.tracker.storage.database import connect
from harness.tracker.storage.schema import TABLES

ENTRY = ["loss", 0, 1000, "A" * 22, 1, 2]


def report(number: int = 0, **more: Any) -> bytes:
    body = {"process": "attempt0", "rank": 0, "number": number, "line": 0, "chain": "c", "entries": [ENTRY]}
    return json.dumps({**body, **more}).encode()


def post(client: httpx.Client, run: int, content: bytes) -> httpx.Response:
    headers = {"X-Run-Id": f"{run}", "X-Project-Name": "e2e"}
    return client.post("/api/audit/digests", content=content, headers=headers)


def stored(server: Server, run: int) -> list[bytes]:
    with server.client() as client:
        audit = EmbeddedAudit(client)
        audit.runs(external_id="", project="e2e", job_name=None)
        return [zlib.decompress(base64.b64decode(f"{one.packed}==")) for one in audit.digests([run]) or ()]


def test_reports_are_stored_unchanged_and_cannot_be_replaced(server: Server) -> None:
    first, second = report(), report(1, entries=[ENTRY] * 3)
    with server.client() as client:
        run = create(client, None)["runId"]
        assert post(client, run, report(entries=[])).json() == {"reports": 0}
        assert post(client, run, first).json() == {"reports": 1}
        assert post(client, run, report(2)).status_code == 409
        assert post(client, run, second).json() == {"reports": 2}
        assert post(client, run, first).json() == {
            "reports": 2
        }  # The response was lost, so the report is sent again.
        assert post(client, run, report(chain="other")).status_code == 409
        assert post(client, run, report(process="attempt1")).json() == {"reports": 1}
        assert post(client, run, report(entries=[])).json() == {"reports": 2}
    assert stored(server, run) == [first, second, report(process="attempt1")]


def test_a_key_stores_reports_only_of_its_own_runs(server: Server) -> None:
    """Contract: a key that may write a run's points may also send reports about them, but cannot read other
    runs."""
    with server.client() as own:
        theirs = create(own, "theirs", projectName="theirs")["runId"]
    keys = {project_key(KEY, "e2e"), launch_key(KEY, "n7", project="e2e", run="of-n7")}
    for key in keys:
        with server.client(Authorization=f"Bearer {key}") as client:
            run = create(client, "of-n7")["runId"]
            assert post(client, run, report(process=key[:8])).status_code == 200
            assert post(client, theirs, report()).status_code == 404
            assert post(client, 7, report()).status_code == 404
            assert client.get(f"/api/audit/digests?runIds={run}").status_code == 403
    assert stored(server, theirs) == []


@pytest.mark.parametrize(
    "content",
    [
        b"", b"[]", b"{", report(process=""), report(process=7), report(number=-1), report(number=True),
        report(line="1"), report(chain=None), report(rank="0"), report(entries={}), report(entries=[[]]),
        report(entries=[[*ENTRY, 1]]), report(entries=[["", *ENTRY[1:]]]), report(entries=[ENTRY] * 4001),
        report(entries=[["loss", 2**63, 1, "A", 1, 1]]), report(chain="\ud800"),
    ],
)  # fmt: skip
def test_an_invalid_report_is_refused(server: Server, content: bytes) -> None:
    with server.client() as client:
        run = create(client, None)["runId"]
        assert post(client, run, content).status_code == 400
    assert stored(server, run) == []


def test_a_report_that_is_too_large_is_refused(server: Server) -> None:
    with server.client() as client:
        run = create(client, None)["runId"]
        assert post(client, run, report(padding="x" * digest_reports.MAX_REPORT_BYTES)).status_code == 413


def test_reports_fill_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract: there are limits per process, per run and for the tracker, and a rejected report is not
    stored."""
    db = connect(tmp_path / "tracker.db")
    db.executescript(TABLES)
    for run in (1, 2):
        db.execute(
            "INSERT INTO runs (id, project, number, display_id, name, created_at, updated_at)"
            " VALUES (?, 'p', ?, '', '', '', '')",
            (run, run),
        )
    size = digest_reports.parsed(report()).size + 9  # The lengths of compressed reports differ.
    for name, count in (("MAX_PROCESS_BYTES", 2), ("MAX_RUN_BYTES", 3), ("MAX_ALL_BYTES", 5)):
        monkeypatch.setattr(digest_reports, name, count * size)

    def append(run: int, process: str, number: int) -> None:
        sent = digest_reports.parsed(report(number, process=process))
        digest_reports.append(db, Sender(run, f"{run}", None, "p", None), sent)

    for run, process, count in ((1, "attempt0", 2), (1, "attempt1", 1), (2, "attempt0", 2)):
        for number in range(count):
            append(run, process, number)
        with pytest.raises(Refused, match="would exceed"):
            append(run, process, count)
    assert db.execute("SELECT count(*) FROM digests").fetchone()[0] == 5
    db.close()


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["a", "b"])), max_size=12))
def test_what_is_stored_is_always_prefix_that_never_changes(sent: list[tuple[int, str]]) -> None:
    """Property: whatever is sent in any order, a stored report never changes."""
    db = sqlite3.connect(":memory:", isolation_level=None)
    db.row_factory = sqlite3.Row
    db.executescript(TABLES)
    db.execute(
        "INSERT INTO runs (id, project, number, display_id, name, created_at, updated_at)"
        " VALUES (1, 'p', 1, '', '', '', '')"
    )
    model: list[str] = []
    for number, chain in sent:
        new, same = number == len(model), number < len(model) and model[number] == chain
        with nullcontext() if new or same else pytest.raises(Refused, match="report"):
            digest_reports.append(
                db, Sender(1, "1", None, "p", None), digest_reports.parsed(report(number, chain=chain))
            )
        model += [chain] if new else []
    rows, after = digest_reports.read(db, [1], 0, 100)
    assert [row["number"] for row in rows] == [*range(len(model))]
    assert after is None
    db.close()
