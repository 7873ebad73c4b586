"""Rows in columns are the rows that were written, and what is not is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.evidence import Bundle, BundleWriter, Redactor
from harness.evidence.io import column_files
from harness.evidence.schema.columns import Columns, of_rows
from harness.evidence.schema.ground_truth import TruthEnd, TruthLine, TruthRow, TruthStart
from harness.evidence.schema.point_rows import of_points
from harness.evidence.schema.tracker import Point, TrackerSummary

WORDS = st.integers(-(2**63), 2**63 - 1)
ROWS = st.lists(
    st.tuples(st.sampled_from(["loss", "a/é\n", '"x"', ""]), WORDS, st.floats(), WORDS),
    min_size=1,
    max_size=40,
)


def row(step: int, metric: str = "loss", value: float = 0.5) -> TruthRow:
    return TruthRow(metric=metric, step=step, value=value, time_ms=1000 + step)


def point(step: int, sender: str = "s0", metric: str = "loss", value: float = 0.5, **more: object) -> Point:
    fields = {"run_id": 1, "received_at": f"2026-11-21T05:00:{step % 60:02d}Z", "time_ms": step, **more}
    return Point.model_validate({**fields, "metric": metric, "step": step, "value": value, "sender": sender})


def texts(lines: list[TruthLine]) -> list[str]:
    return [repr(line) for line in lines]


@given(ROWS)
def test_rows_come_back_in_their_order(rows: list[tuple[str, int, float, int]]) -> None:
    """Contract: metric, step, value (bit for bit) and time of each row, also by metric."""
    columns = of_rows(rows)
    assert columns is not None
    assert [repr(one) for one in columns.rows()] == [repr(one) for one in rows]
    by_metric = {
        name: list(zip(steps, map(repr, values), times, strict=True))
        for name, steps, values, times in columns.series()
    }
    expected: dict[str, list[tuple[int, str, int]]] = {}
    for name, step, value, time in rows:
        expected.setdefault(name, []).append((step, repr(value), time))
    assert by_metric == expected


def test_step_of_more_than_64_bits_stays_line(tmp_path: Path) -> None:
    """Contract: what columns cannot hold is not lost."""
    rows = [row(step) for step in (1, 2**70, 3)]
    assert of_rows([(one.metric, one.step, one.value, one.time_ms) for one in rows]) is None
    assert list(column_files.in_columns(rows, "x", lambda _: 0, least=1)) == rows


def test_many_rows_of_a_rank_are_read_like_lines(tmp_path: Path) -> None:
    """Contract: whoever reads `truth` gets the lines that were written, and needs not know of columns."""
    many = column_files.TRUTH_LINES + 10
    lines: list[TruthLine] = [
        TruthStart(attempt="a", time_ms=5),
        *(row(step, f"m{step % 3}", float("nan") if step == 7 else step / 3) for step in range(many)),
        TruthEnd(count=many, sha256="0"),
        TruthStart(attempt="b", time_ms=6),
        *(row(step) for step in range(5)),
    ]
    writer = BundleWriter(tmp_path, "n", Redactor())
    writer.truths(0, lines)
    writer.truths(0, lines[-6:], ".outside")
    writer.close()
    bundle = Bundle.open(tmp_path)
    assert texts([line for _, line in bundle.truth(0)]) == texts(lines)
    assert texts([line for _, line in bundle.truth(0, ".outside")]) == texts(lines[-6:])
    parts = [part for _, part in bundle.truth_parts(0)]
    assert [len(part) for part in parts if isinstance(part, Columns)] == [many]
    assert bundle.damaged == []
    assert len((tmp_path / "truth/0.jsonl").read_text().splitlines()) == 9


@pytest.mark.parametrize("at_once", [1, 20])
def test_points_of_many_requests_share_columns(tmp_path: Path, at_once: int) -> None:
    """Contract: however few points come at once, past the first ones there is no line for each of them."""
    writer = BundleWriter(tmp_path, "n", Redactor())
    writer.points.lines = 100
    points = [
        point(step, f"s{sender}", f"of {sender}", launch="n") for step in range(500) for sender in (0, 1)
    ]
    for first in range(0, len(points), at_once):
        for rows in of_points(points[first : first + at_once]):
            writer.point_rows(rows)
    writer.points.flush()
    writer.close()
    lines = (tmp_path / "tracker/points.jsonl").read_text().splitlines()
    assert len(lines) == 100 + 2, "the first ones, and one of columns for each sender"
    assert [one for _, one in Bundle.open(tmp_path).points() if one.metric == "of 1"] == points[1::2]


def test_many_points_of_the_tracker_are_read_like_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract: every point, those of one metric in arrival order, also where two senders send one metric."""
    monkeypatch.setattr(column_files, "MOST_BUFFERED", 25)
    points = [point(step, f"s{step % 2}", f"of {step % 2}", launch="n") for step in range(60)]
    points += [point(7, f"s{number % 3}", "shared", number, time_ms=9) for number in range(12)]
    points += [point(2**65, "s0", "shared"), point(8, "s1", "shared")]
    writer = BundleWriter(tmp_path, "n", Redactor())
    writer.points.lines = 3
    for one in points:
        writer.tracker("points", one)
    writer.tracker_summary(
        TrackerSummary(source="embedded", fetched_at="", runs=1, attachments=None, points=len(points))
    )
    bundle = Bundle.open(tmp_path)
    seen = [one for _, one in bundle.points()]
    for metric in {one.metric for one in points}:
        assert [o for o in seen if o.metric == metric] == [o for o in points if o.metric == metric]
    assert len(seen) == len(points)
    assert bundle.damaged == []
    assert any(not isinstance(part, Point) for _, part in bundle.point_parts())
    writer.close()


@pytest.mark.parametrize("harm", ["cut", "changed", "gone", "elsewhere"])
def test_columns_that_were_harmed_are_damage(tmp_path: Path, harm: str) -> None:
    """Contract: nothing is read of columns whose checksum does not fit, and `damaged` names their line."""
    writer = BundleWriter(tmp_path, "n", Redactor())
    writer.truths(0, [row(step) for step in range(column_files.TRUTH_LINES)])
    writer.close()
    file, lines = tmp_path / "truth/0.columns", tmp_path / "truth/0.jsonl"
    data = file.read_bytes()
    if harm == "cut":
        file.write_bytes(data[:-1])
    elif harm == "changed":
        file.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    elif harm == "gone":
        file.unlink()
    else:
        (tmp_path.parent / "0.columns").write_bytes(data)
        lines.write_text(lines.read_text().replace("truth/0.columns", "../0.columns"))
    bundle = Bundle.open(tmp_path)
    assert list(bundle.truth(0)) == []
    assert len(bundle.damaged) == 1
    assert bundle.damaged[0].startswith("truth/0.jsonl:1 ")


def test_secrets_in_names_are_replaced(tmp_path: Path) -> None:
    """Contract: the names of metrics are redacted as in lines; numbers are not touched."""
    writer = BundleWriter(tmp_path, "n", Redactor(["hunter2secret"]))
    writer.truths(0, [row(step, "loss/hunter2secret") for step in range(column_files.TRUTH_LINES)])
    writer.close()
    assert all(b"hunter2secret" not in path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file())
    assert {line.metric for _, line in Bundle.open(tmp_path).truth(0) if isinstance(line, TruthRow)} == {
        "loss/***"
    }
