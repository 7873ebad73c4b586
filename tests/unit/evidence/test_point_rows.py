"""Rows in columns become the same evidence as a record for each row."""

from __future__ import annotations

import struct
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.evidence.io import column_files
from harness.evidence.io.reader import Bundle
from harness.evidence.io.redaction import Redactor
from harness.evidence.io.writer import BundleWriter
from harness.evidence.schema.point_rows import AT_ONCE, PointRows, of_points
from harness.evidence.schema.tracker import Point

SECRET = 's3cret-"quoted"-ü'
WORDS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.sampled_from(["loss/node0", "tokens/s", f"a {SECRET} b", "WANDB_API_KEY=abcdef123", "http://u:pw@h"]),
)
WHOLE = st.integers(-(2**63), 2**63 - 1)
ROW = st.tuples(WORDS, WHOLE, st.floats(), WHOLE, st.sampled_from(["2026-01-01T00:00:00Z", "later", ""]))


@st.composite
def columns(draw: st.DrawFn) -> PointRows:
    rows = draw(st.lists(ROW, max_size=8))
    metrics, steps, values, times, received = (
        (list(column) for column in zip(*rows, strict=True)) if rows else [[]] * 5
    )
    who = [draw(st.none() | st.sampled_from(["node0", "node1", SECRET])) for _ in range(3)]
    return PointRows(draw(st.integers(1, 2)), metrics, steps, values, times, received, *who)


Rows = dict[tuple[int, str], list[tuple[object, ...]]]
"""Rows of each metric of each run, in their order."""


def written(parts: list[PointRows], folder: Path, lines: int, *, at_once: bool) -> Rows:
    writer = BundleWriter(folder, "nonce", Redactor([SECRET]))
    writer.points.lines = lines
    for rows in parts:
        if at_once:
            writer.point_rows(rows)
        else:
            for record in rows.records():
                writer.tracker("points", record)
    writer.close()
    found: Rows = {}
    for _, point in Bundle(folder).points():
        who = point.sender, point.peer, point.launch, point.received_at
        row = point.step, struct.pack("d", point.value), point.time_ms, *who
        found.setdefault((point.run_id, point.metric), []).append(row)
    return found


@given(st.lists(columns(), max_size=4), st.integers(0, 12), st.integers(1, 12))
@example([PointRows(1, ["a", "b"], [0, 1], [1e-5, -0.0], [1, 2], ["t", "t"], "node0")], 0, 500)
@example([PointRows(1, ["a", "b"], [2**63, 1], [1.0, 2.0], [1, 2], ["t", "u"])], 0, 500)
def test_the_rows_are_those_of_records(parts: list[PointRows], lines: int, buffered: int) -> None:
    """Contract: rows that are taken at once are read back as if each had been a record, in their order."""
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as one, TemporaryDirectory() as other:
        patch.setattr(column_files, "MOST_BUFFERED", buffered)
        assert written(parts, Path(one), lines, at_once=True) == written(
            parts, Path(other), lines, at_once=False
        )


def test_columns_of_records_are_these_records() -> None:
    """Contract: nothing is lost or moved where the run or the sender changes, and after AT_ONCE rows."""
    points = [
        Point(
            run_id=at // 7,
            metric="m",
            step=at,
            value=at / 3,
            time_ms=at,
            received_at=f"{at}",
            sender=f"n{at // 50 % 2}",
        )
        for at in range(200)
    ] + [
        Point(run_id=9, metric="m", step=at, value=0, time_ms=at, received_at="t")
        for at in range(AT_ONCE + 5)
    ]
    found = list(of_points(points))
    assert list(chain.from_iterable(some.records() for some in found)) == points
    assert [len(some) for some in found[-2:]] == [AT_ONCE, 5]
