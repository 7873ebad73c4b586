"""The view `series` is Pluto's: of each (run, name, step) the highest client time wins, then the last."""

from __future__ import annotations

import sqlite3

from hypothesis import given
from hypothesis import strategies as st

from harness.tracker.schema import TABLES

RUN, NAME, STEP = st.integers(1, 2), st.sampled_from(["a", "b"]), st.integers(0, 3)
ROWS = st.lists(st.tuples(RUN, NAME, STEP, st.integers(0, 3), st.integers(0, 99)), max_size=40)


@given(ROWS)
def test_series_keeps_the_row_with_the_highest_time(rows: list[tuple[int, str, int, int, int]]) -> None:
    db = sqlite3.connect(":memory:")
    db.executescript(TABLES)
    db.executemany("INSERT INTO points (run_id, name, step, time_ms, value) VALUES (?, ?, ?, ?, ?)", rows)
    expected: dict[tuple[int, str, int], tuple[int, int]] = {}
    for run, name, step, time, value in rows:
        if time >= expected.get((run, name, step), (-1, 0))[0]:
            expected[run, name, step] = time, value
    shown = db.execute("SELECT run_id, name, step, time_ms, value FROM series").fetchall()
    seen = {(run, name, step): (time, int(value)) for run, name, step, time, value in shown}
    assert len(shown) == len(seen)
    db.close()
    assert seen == expected


def test_reads_by_series_use_the_index() -> None:
    """A query of one metric does not sort or scan the points of others."""
    db = sqlite3.connect(":memory:")
    db.executescript(TABLES)
    query = "EXPLAIN QUERY PLAN SELECT * FROM series WHERE run_id = 1 AND name = 'a' AND step BETWEEN 0 AND 9"
    plan = " ".join(row[3] for row in db.execute(query))
    db.close()
    assert "points_series (run_id=? AND name=?" in plan, plan
