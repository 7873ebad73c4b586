"""Rows in columns become the same evidence as a record for each row."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness.evidence.point_columns import AT_ONCE, PointColumns, of_points
from harness.evidence.redaction import Redactor
from harness.evidence.tracker_records import Point
from harness.evidence.writer import BundleWriter

SECRET = 's3cret-"quoted"-ü'
WORDS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.sampled_from(["loss/node0", "tokens/s", f"a {SECRET} b", "WANDB_API_KEY=abcdef123", "http://u:pw@h"]),
)
WHOLE = st.integers(-(2**63), 2**63 - 1)
ROW = st.tuples(WORDS, WHOLE, st.floats(), WHOLE, st.sampled_from(["2026-01-01T00:00:00Z", "later", ""]))


@st.composite
def columns(draw: st.DrawFn) -> PointColumns:
    rows = draw(st.lists(ROW, max_size=8))
    metrics, steps, values, times, received = (
        (list(column) for column in zip(*rows, strict=True)) if rows else [[]] * 5
    )
    who = [draw(st.none() | WORDS) for _ in range(3)]
    return PointColumns(draw(WHOLE), metrics, steps, values, times, received, *who)


def written(rows: PointColumns, redactor: Redactor, *, at_once: bool) -> bytes:
    with TemporaryDirectory() as folder:
        writer = BundleWriter(Path(folder), "nonce", redactor)
        if at_once:
            writer.points(rows)
        else:
            for record in rows.records():
                writer.tracker("points", record)
        writer.close()
        path = Path(folder) / "tracker/points.jsonl"
        return path.read_bytes() if path.exists() else b""


@given(columns())
@example(PointColumns(1, ["a", "b"], [0, 1], [1e-5, -0.0], [1, 2], ["t", "t"], "node0"))
@settings(max_examples=200, deadline=None)
def test_lines_are_those_of_records(rows: PointColumns) -> None:
    """Contract: without a secret the same bytes, with one the same values, redacted."""
    redactor = Redactor([SECRET])
    one_by_one = written(rows, redactor, at_once=False)
    together = written(rows, redactor, at_once=True)
    assert [json.loads(line) for line in together.splitlines()] == [
        json.loads(line) for line in one_by_one.splitlines()
    ]
    plain = b"".join(f"{record.model_dump_json()}\n".encode() for record in rows.records())
    if redactor.clean(plain.decode()):
        assert together == plain


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
