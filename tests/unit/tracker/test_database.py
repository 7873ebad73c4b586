"""database.py and blocks.py: what is kept is what a simple model of rows says, whatever is sent."""

from __future__ import annotations

import asyncio
import json
import math
import statistics
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.tracker.query import audit_view, series
from harness.tracker.shared.requests import Sender
from harness.tracker.storage import ingest_lines
from harness.tracker.storage.database import Store
from harness.tracker.storage.writer import Sent

RUNS, NAMES = (1, 2), ("a", "b", 'q"\\é\x00', "a/b")
VALUES = st.floats() | st.integers(-(2**70), 2**70) | st.sampled_from([None, "NaN", "-Infinity"])
LINES = st.lists(
    st.tuples(
        st.integers(0, 3) | st.sampled_from([ingest_lines.MAX_INT, -1, 1.0]),
        st.integers(0, 2),
        st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4),
    ),
    max_size=8,
)
"""Lines of a request: step, time, values. Steps of -1 and 1.0 are refused, with the lines after them."""
REQUESTS = st.lists(st.tuples(st.sampled_from(RUNS), st.integers(0, 2), LINES), max_size=6)
Row = tuple[int, str, int, str, int, str]
"""Run, name, step, value, time and sender. The value as text, so that NaN equals NaN and 0.0 is not -0.0."""


def sender(run: int, rank: int) -> Sender:
    return Sender(run, f"{run}", f"rank{rank}", "e2e", "127.0.0.1")


def meant(run: int, rank: int, lines: Iterable[tuple[Any, int, dict[str, Any]]]) -> list[Row]:
    """Return the rows that a request means: those of the lines before the first bad one."""
    found = []
    for step, time_ms, data in lines:
        if type(step) is not int or step < 0:
            break
        for name, value in data.items():
            number = {None: math.nan, "NaN": math.nan, "-Infinity": -math.inf}.get(value, value)
            found.append((run, name, step, repr(float(number)), time_ms, f"rank{rank}"))
    return found


def body(lines: Iterable[tuple[Any, int, dict[str, Any]]]) -> bytes:
    return "\n".join(json.dumps({"time": t, "step": s, "data": d}) for s, t, d in lines).encode()


@contextmanager
def kept(sent: Iterable[Sent]) -> Iterator[Store]:
    """A store that was given these requests at once."""

    async def keep(store: Store) -> None:
        await asyncio.gather(*map(store.write_points, sent))

    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "tracker.db")
        try:
            asyncio.run(keep(store))
            yield store
        finally:
            store.close()


@given(REQUESTS)
def test_audit_has_every_row_in_order_with_its_sender(
    requests: list[tuple[int, int, list[tuple[Any, int, dict[str, Any]]]]],
) -> None:
    """Contract: rows as sent, in order of arrival, each once for each time it was sent; pages join."""
    sent = [Sent(sender(run, rank), ingest_lines.read_points(body(lines))) for run, rank, lines in requests]
    expected = [row for one in requests for row in meant(*one)]

    def read(db: Any) -> list[Row]:
        found: list[Row] = []
        after: int | None = 0
        while after is not None:
            rows, after = audit_view.points(db, RUNS, after, 3)
            found += [(r[0], r[1], r[2], repr(float(r[3])), r[4], r[6]) for r in rows]
        return found

    with kept(sent) as store:
        assert asyncio.run(store.read(read)) == expected


@given(REQUESTS)
def test_a_series_is_plutos(requests: list[tuple[int, int, list[tuple[Any, int, dict[str, Any]]]]]) -> None:
    """Contract: of each (run, name, step) the highest client time wins, then the row that came last."""
    sent = [Sent(sender(run, rank), ingest_lines.read_points(body(lines))) for run, rank, lines in requests]
    expected: dict[tuple[int, str, int], tuple[int, str]] = {}
    for run, name, step, value, time_ms, _ in (row for one in requests for row in meant(*one)):
        if time_ms >= expected.get((run, name, step), (-1, ""))[0]:
            expected[run, name, step] = time_ms, value

    def read(db: Any) -> dict[tuple[int, str, int], tuple[int, str]]:
        found = {}
        for run in RUNS:
            names = series.of_run(db, run)
            assert names == sorted({name for of, name, _ in expected if of == run})
            for name in names:
                shown = series.deduplicated(db, run, name)
                assert list(shown.steps) == sorted(shown.steps)
                for step, time_ms, value in zip(shown.steps, shown.times, shown.values, strict=True):
                    found[run, name, step] = time_ms, repr(value)
                part = series.deduplicated(db, run, name, 1, 2)
                assert list(part.steps) == [step for step in shown.steps if 1 <= step <= 2]
        return found

    with kept(sent) as store:
        assert asyncio.run(store.read(read)) == expected


def test_a_bad_request_in_a_batch_fails_alone(tmp_path: Path) -> None:
    """Contract: of requests that came together the bad one alone fails, and it leaves nothing."""
    points = ingest_lines.read_points(b'{"time": 1, "step": 2, "data": {"new": 1}}')
    bad = Sender(1, "1", "\ud800", "e2e", None)

    async def keep(store: Store) -> list[Any]:
        senders = [sender(1, 0), bad, sender(1, 1), bad, sender(2, 2)]
        return await asyncio.gather(
            *(store.write_points(Sent(who, points)) for who in senders), return_exceptions=True
        )

    store = Store(tmp_path / "tracker.db")
    outcomes = asyncio.run(keep(store))
    rows = asyncio.run(store.read(lambda db: audit_view.points(db, RUNS, 0, 99)[0]))
    store.close()
    assert [type(one) for one in outcomes] == [type(None), UnicodeEncodeError] * 2 + [type(None)]
    assert [row[6] for row in rows] == ["rank0", "rank1", "rank2"]


@pytest.mark.parametrize("names", [1, 3])
def test_many_requests_at_once_are_all_there(tmp_path: Path, names: int) -> None:
    """Contract: also those that one statement keeps together."""
    line = {"time": 1, "step": 0, "data": {f"m{name}": name for name in range(names)}}
    points = ingest_lines.read_points(json.dumps(line).encode())

    async def keep(store: Store) -> None:
        await asyncio.gather(*(store.write_points(Sent(sender(1, at), points)) for at in range(300)))

    store = Store(tmp_path / "tracker.db")
    asyncio.run(keep(store))
    rows = asyncio.run(store.read(lambda db: audit_view.points(db, RUNS, 0, 9999)[0]))
    store.close()
    assert [row[6] for row in rows] == [f"rank{at}" for at in range(300) for _ in range(names)]


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=9))
def test_statistics_of_any_finite_values(values: list[float]) -> None:
    """Contract: an answer for each of them, and the same as statistics.pstdev's where squares are floats."""
    lines = [(step, 1, {"a": value}) for step, value in enumerate(values)]

    def read(db: Any) -> dict[str, Any]:
        found = series.statistics(db, 1, "a")
        assert found is not None
        for aggregation in series.AGGREGATIONS:
            series.aggregate(found, aggregation)
        return found

    with kept([Sent(sender(1, 0), ingest_lines.read_points(body(lines)))]) as store:
        found = asyncio.run(store.read(read))
    assert (found["min"], found["max"], found["count"]) == (min(values), max(values), len(values))
    if max(map(abs, values)) < 1e150:
        assert found["mean"] == pytest.approx(statistics.fmean(values))
        tolerance = 1e-9 * max(map(abs, values))
        assert found["stddev"] == pytest.approx(statistics.pstdev(values), abs=tolerance + 1e-150)
