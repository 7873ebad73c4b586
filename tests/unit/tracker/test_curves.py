"""Curves in buckets: against a plain reading of all points."""

from __future__ import annotations

import math
import sqlite3
from array import array
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.tracker.query import curves
from harness.tracker.shared import blocks
from harness.tracker.shared.requests import Sender
from harness.tracker.storage import ingest_lines, writer
from harness.tracker.storage.schema import TABLES

STEP = st.one_of(st.integers(0, 60), st.integers(0, 10**15))
VALUE = st.one_of(st.just(math.nan), st.floats(allow_nan=False))
ROWS = st.lists(st.tuples(STEP, st.integers(0, 3), VALUE), max_size=80)


def filled(rows: list[tuple[int, int, float]]) -> sqlite3.Connection:
    """Return a database with these rows of a metric, 1000 in each request."""
    db = sqlite3.connect(":memory:")
    db.row_factory = sqlite3.Row
    db.executescript(TABLES)
    sender = Sender(1, "1", "rank0", "e2e", None)
    for first in range(0, len(rows), 1000):
        block = blocks.of_rows([("m", *row) for row in rows[first : first + 1000]])
        writer.PointWriter().write(db, [writer.Sent(sender, ingest_lines.Points(block))])
    return db


def shown(rows: list[tuple[int, int, float]]) -> dict[int, float]:
    """Return the series as Pluto has it: of each step the highest time, of equal times the last row."""
    found: dict[int, tuple[int, float]] = {}
    for step, time_ms, value in rows:
        if time_ms >= found.get(step, (-1, 0.0))[0]:
            found[step] = time_ms, value
    return {step: value for step, (_, value) in found.items()}


def same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


@given(ROWS, st.integers(1, 40))
def test_no_extreme_is_dropped(rows: list[tuple[int, int, float]], buckets: int) -> None:
    """Contract: every value of the deduplicated series lies in its bucket's range, and each range's ends are
    values of it; the counts are those of the series; buckets are in order and not more than asked for.
    """
    db = filled(rows)
    expected = shown(rows)
    found = curves.curve(db, 1, "m", buckets)
    assert len(found.buckets) <= buckets
    assert found.points == len(expected) == sum(one.count + one.odd for one in found.buckets)
    ends = [edge for one in found.buckets for edge in (one.first, one.last)]
    assert ends == sorted(ends)
    for one in found.buckets:
        mine = [value for step, value in expected.items() if one.first <= step <= one.last]
        finite = [value for value in mine if math.isfinite(value)]
        assert (one.count, one.odd) == (len(finite), len(mine) - len(finite))
        assert (one.low, one.high) == (min(finite, default=None), max(finite, default=None))
        if finite:
            assert one.mean is not None
            assert min(finite) <= one.mean <= max(finite)
    last = [(step, v) for step, v in sorted(expected.items()) if math.isfinite(v)]
    assert curves.last(db, 1, "m") == (last[-1] if last else None)
    clashing = {step for step, _, v in rows for other, _, w in rows if other == step and not same(v, w)}
    assert curves.clashes(db, 1, "m") == len(clashing)
    assert curves.overwritten(db, 1, "m") == (len(rows), len(rows) - len(expected))


@pytest.mark.parametrize(
    ("values", "end"),
    [
        ([], curves.End(None, None)),
        ([1.0, math.nan, 2.0], curves.End((2, 2.0), None)),
        ([1.0, math.nan, math.inf], curves.End((0, 1.0), 1)),
        ([math.nan, -math.inf], curves.End(None, 0)),
    ],
)
def test_the_end_of_a_series_shows_where_it_diverged(values: list[float], end: curves.End) -> None:
    """In public reports (wandb #2202, mlflow #15535), a loss that became NaN looks like a good loss."""
    assert curves.end(filled([(step, step, value) for step, value in enumerate(values)]), 1, "m") == end


TIMED = st.lists(st.tuples(STEP, st.integers(0, 50) | st.integers(0, 10**13), VALUE), max_size=80)


@given(TIMED, st.integers(1, 40), st.integers(0, 60), st.none() | st.integers(0, 60))
def test_by_time_no_extreme_is_dropped_either(
    rows: list[tuple[int, int, float]], buckets: int, first: int, until: int | None
) -> None:
    """Contract: the points of the deduplicated series whose time is in the window, each in one bucket, and
    buckets in the order of time.
    """
    best: dict[int, tuple[int, float]] = {}
    for step, time_ms, value in rows:
        if time_ms >= best.get(step, (-1, 0.0))[0]:
            best[step] = time_ms, value
    expected = [(at, v) for at, v in best.values() if at >= first and (until is None or at <= until)]
    found = curves.curve(filled(rows), 1, "m", buckets, first, until, by_time=True)
    assert len(found.buckets) <= buckets
    assert found.points == len(expected) == sum(one.count + one.odd for one in found.buckets)
    ends = [edge for one in found.buckets for edge in (one.first, one.last)]
    assert ends == sorted(ends)
    assert set(ends) <= {at for at, _ in expected}
    finite = [value for _, value in expected if math.isfinite(value)]
    lows, highs = ([one.low for one in found.buckets], [one.high for one in found.buckets])
    assert min((v for v in lows if v is not None), default=None) == min(finite, default=None)
    assert max((v for v in highs if v is not None), default=None) == max(finite, default=None)


@pytest.fixture(scope="module")
def million() -> Iterator[sqlite3.Connection]:
    rows = [(step, step, math.sin(step / 9e4)) for step in range(1_000_000)]
    rows[654_321] = (654_321, 0, 1e6)
    rows[654_322] = (654_322, 0, -1e6)
    db = filled(rows)
    yield db
    db.close()


def test_a_peak_of_a_million_points_is_seen(million: sqlite3.Connection) -> None:
    """Contract: one point of a million is in the picture; a window around it shows each of its steps."""
    found = curves.curve(million, 1, "m", 400)
    assert (found.points, found.exact, len(found.buckets)) == (1_000_000, False, 400)
    assert max(one.high for one in found.buckets if one.high is not None) == 1e6
    assert min(one.low for one in found.buckets if one.low is not None) == -1e6
    window = curves.curve(million, 1, "m", 400, 654_300, 654_350)
    assert window.exact
    assert [one.first for one in window.buckets] == list(range(654_300, 654_351))
    assert [one.high for one in window.buckets if one.high is not None and one.high > 10] == [1e6]


@pytest.mark.parametrize(
    ("steps", "kept"),
    [
        ([*range(20), 2**40], (0, 20)),
        ([0, *range(10**6, 10**6 + 100)], (1, 101)),
        ([0, 0, *range(10**9, 10**9 + 100), 2**62], (2, 102)),
        ([0, 1, 2, 2**63 - 1], (0, 3)),
        (list(range(20)), None),
        ([0, 1, 2, 3, 4, 1000], None),
        ([1, 10, 100, 1000, 10_000, 100_000, 1_000_000], None),
        ([0, 2**40], None),
        ([0, 1, 2**40], None),
        ([], None),
    ],
)
def test_few_steps_far_from_all_others_are_left_out(steps: list[int], kept: tuple[int, int] | None) -> None:
    assert curves.fitted(array("q", steps)) == kept
