"""A Series equals a dictionary that follows the tracker's rule, and columns have the same bytes as their
rows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harness.evidence.schema.columns import of_rows
from harness.judge.points.series import Series, bytes_of_rows
from harness.workers.ground_truth import truth_frames

STEPS = st.one_of(st.integers(-5, 5), st.integers(-(2**63), 2**63 - 1))
PUTS = st.lists(st.tuples(STEPS, st.floats(), st.integers(0, 3), st.integers(0, 2)), max_size=30)
HUGE = st.lists(st.tuples(st.integers(-(2**70), 2**70), st.floats(), st.integers(0, 2**70)), max_size=8)


def by_rule(rows: list[tuple[int, float, int]]) -> dict[int, float]:
    """A simple implementation of the tracker's rule: the latest client time wins, and for equal times the
    last row."""
    values: dict[int, float] = {}
    times: dict[int, int] = {}
    for step, value, time in rows:
        if step not in values or time >= times[step]:
            values[step], times[step] = value, time
    return values


@given(PUTS)
def test_the_row_that_counts_is_the_trackers(puts: list[tuple[int, float, int, int]]) -> None:
    """Property: the values, order, length, membership and marks equal those of a dictionary."""
    series, known = Series(), 0
    for step, value, time, mark in puts:
        known += series.put(step, value, time, mark)
    expected = by_rule([put[:3] for put in puts])
    assert [(step, repr(value)) for step, value in series.items()] == [
        (step, repr(value)) for step, value in expected.items()
    ]
    assert known == len(puts) - len(expected)
    assert all(step in series and repr(series[step]) == repr(value) for step, value in expected.items())
    assert all((step in series) == (step in expected) for step in range(-6, 7))
    marks: dict[int, tuple[int, int]] = {}
    for step, _, time, mark in puts:
        if step not in marks or time >= marks[step][0]:
            marks[step] = time, mark
    assert all(series.mark(step) == mark for step, (_, mark) in marks.items())


@given(st.lists(PUTS, max_size=4))
def test_columns_are_taken_as_rows_are(parts: list[list[tuple[int, float, int, int]]]) -> None:
    """Property: however rows are divided into columns, the series is the same as after adding one row at a
    time."""
    together, apart, known = Series(), Series(), [0, 0]
    for part in parts:
        columns = of_rows([("m", step, value, time) for step, value, time, _ in part]) if part else None
        if columns is not None:
            known[0] += together.extend(columns.steps, columns.values, columns.times)
        for step, value, time, _ in part:
            known[1] += apart.put(step, value, time)
    assert repr(together) == repr(apart)
    assert together.same_as(apart)
    assert known[0] == known[1]


@given(HUGE)
def test_numbers_of_more_than_64_bits_are_kept(rows: list[tuple[int, float, int]]) -> None:
    """Contract: numbers of more than 64 bits do not raise an error."""
    series = Series()
    for step, value, time in rows:
        series.put(step, value, time)
    assert repr(dict(series.items())) == repr(by_rule(rows))


def test_the_same_is_bit_for_bit() -> None:
    """Contract: `same_as` returns True only for identical series. NaN equals itself, and 0.0 differs from
    -0.0."""
    nan, zero = Series([(1, float("nan"))]), Series([(1, 0.0)])
    assert nan.same_as(Series([(1, float("nan"))]))
    assert not zero.same_as(Series([(1, -0.0)]))
    assert not zero.same_as(Series([(2, 0.0)]))
    assert not zero.same_as(Series([(1, 0.0), (2, 0.0)]))
    assert zero.same_steps(nan)


METRICS = st.one_of(st.sampled_from(["loss", "é", '"],["', "\x7f\u2028\n"]), st.text(max_size=3))


@given(
    st.lists(
        st.tuples(METRICS, STEPS, st.one_of(st.floats(), st.floats(1e-6, 1e-3))), min_size=1, max_size=20
    )
)
def test_rows_in_columns_have_the_bytes_of_rows(rows: list[tuple[str, int, float]]) -> None:
    """Property: columns have the same bytes, and therefore the same digest, as their rows."""
    columns = of_rows([(metric, step, value, 0) for metric, step, value in rows])
    assert columns is not None
    assert bytes_of_rows(columns) == b"".join(truth_frames.row_bytes(*one) for one in rows)
