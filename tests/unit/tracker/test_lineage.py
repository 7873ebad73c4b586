"""lineage.py: a fork shows its parents' points up to the step of the fork, and then its own."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.tracker.query import audit_view, lineage, series
from harness.tracker.shared import run_fields
from harness.tracker.shared.requests import Sender
from harness.tracker.storage import ingest_lines, runs
from harness.tracker.storage.database import Store
from harness.tracker.storage.writer import Sent

STEPS = st.lists(st.integers(0, 12), max_size=8)
CHAIN = st.lists(st.tuples(STEPS, st.integers(0, 12)), min_size=1, max_size=4)
"""From the root on: the steps of a run, and the step at which the next one forks."""


def model(chain: list[tuple[list[int], int]], end: int) -> dict[int, float]:
    """Return step → value of the fork at place `end`; the value says which run a point is of."""
    steps = chain[end][0]
    if end == 0:
        return dict.fromkeys(steps, 0.0)
    fork = chain[end - 1][1]
    before = {step: value for step, value in model(chain, end - 1).items() if step <= fork}
    return before | {step: float(end) for step in steps if step > fork}


async def filled(store: Store, chain: list[tuple[list[int], int]]) -> list[int]:
    ids: list[int] = []
    for at, (steps, _) in enumerate(chain):
        sender = Sender(0, None, "rank0", "e2e", None)
        body: dict[str, Any] = {"projectName": "e2e", "runName": f"r{at}"}
        if at:
            body |= {"forkRunId": ids[-1], "forkStep": chain[at - 1][1]}
        new = run_fields.read_create(body)

        def create(db: sqlite3.Connection, new: run_fields.Create = new, who: Sender = sender) -> int:
            found: int = runs.create(db, new, run_fields.read_attach(who, new))[0]["id"]
            return found

        ids.append(await store.write(create))
        lines = [{"time": 1, "step": step, "data": {"m": at, f"only{at}": 1}} for step in steps]
        text = "\n".join(map(json.dumps, lines)).encode()
        await store.write_points(
            Sent(Sender(ids[-1], f"{ids[-1]}", "rank0", "e2e", None), ingest_lines.read_points(text))
        )
    return ids


@given(CHAIN, st.integers(0, 12), st.integers(0, 12))
@settings(deadline=None)
def test_a_fork_shows_what_a_model_says(chain: list[tuple[list[int], int]], first: int, last: int) -> None:
    """Contract: of every run of a chain, whole and between two steps; its own rows alone for the audit."""

    def read(db: sqlite3.Connection, run: int, at: int) -> None:
        expected = model(chain, at)
        found = lineage.deduplicated(db, run, "m")
        assert dict(zip(found.steps, found.values, strict=True)) == expected
        assert list(found.steps) == sorted(found.steps)
        part = lineage.deduplicated(db, run, "m", first, last)
        assert list(part.steps) == sorted(step for step in expected if first <= step <= last)
        points = lineage.points(db, run, "m", 100, None, None)
        assert {point["step"]: point["value"] for point in points} == expected
        own = {f"only{at}", "m"} if chain[at][0] else set()
        inherited = {f"only{int(value)}" for value in expected.values()} | ({"m"} if expected else set())
        assert set(lineage.names(db, run)) == own | inherited
        assert series.of_run(db, run) == sorted(own)
        rows, _ = audit_view.points(db, [run], 0, 1000)
        assert sorted(row[2] for row in rows if row[1] == "m") == sorted(chain[at][0])

    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "tracker.db")
        try:
            ids = asyncio.run(filled(store, chain))
            for at, run in enumerate(ids):
                asyncio.run(store.read(lambda db, run=run, at=at: read(db, run, at)))  # type: ignore[misc]
        finally:
            store.close()


def test_a_circle_or_a_lost_parent_ends(tmp_path: Path) -> None:
    """Contract: a database that says nonsense is read all the same."""
    store = Store(tmp_path / "tracker.db")
    ids = asyncio.run(filled(store, [([1, 2, 3], 2), ([5], 0)]))

    def twist(db: sqlite3.Connection) -> None:
        db.execute("UPDATE runs SET forked_from = ?, fork_step = 9 WHERE id = ?", (ids[1], ids[0]))

    asyncio.run(store.write(twist))
    found = asyncio.run(store.read(lambda db: lineage.segments(db, ids[1])))
    assert len(found) == lineage.DEPTH
    asyncio.run(store.write(lambda db: db.execute("UPDATE runs SET forked_from = 7 WHERE id = ?", (ids[0],))))
    assert list(asyncio.run(store.read(lambda db: lineage.deduplicated(db, ids[1], "m"))).steps) == [5]
    store.close()
