"""The report of many ranks: a row for each metric, few curves, and no more lines than a browser can show."""

from __future__ import annotations

from pathlib import Path

import bundles
import pytest

from harness.judge import judge
from harness.judge.points.series import Series
from harness.report.html import page, points_table
from harness.report.html.curves import MAX_CURVES, Cell, Metric, plot

RANKS = points_table.MOST_COLUMNS + 8


def metric(ranks: int, lost: int | None = None) -> Metric:
    """Return a metric that all ranks logged, and of which the run lacks a point of rank `lost`."""
    rows = {rank: Series([(step, float(rank)) for step in range(5)]) for rank in range(ranks)}
    cells = {rank: Cell(logged=5, missing=[3] if rank == lost else []) for rank in rows}
    return Metric("loss", cells=cells, truth=rows, recorded=Series([(step, 0.0) for step in (0, 1, 2, 4)]))


def test_few_ranks_have_a_column_each() -> None:
    assert points_table.wide([metric(4)], points_table.MOST_COLUMNS) is None


def test_many_ranks_are_one_row_with_missing_ones_named() -> None:
    """Contract: points, missing ones and those in the run of a metric; the ranks and steps that miss."""
    found = points_table.wide([metric(RANKS, lost=17), *[metric(RANKS)] * points_table.MOST_ROWS], RANKS)
    assert found is not None
    first = found.rows[0]
    assert (first.logged, first.recorded, first.missing_count, first.more) == (5 * RANKS, 4, 1, 0)
    assert [(rank, cell.missing) for rank, cell in first.missing] == [(17, [3])]
    assert (len(found.rows), found.others, found.others_missing) == (points_table.MOST_ROWS, 1, 0)


def test_curve_of_rank_that_misses_points_is_drawn() -> None:
    """Contract: of many ranks few curves are drawn, and never without those that miss points."""
    drawn = plot(metric(RANKS, lost=RANKS - 1))
    assert drawn is not None
    assert len(drawn.truth) == MAX_CURVES
    assert RANKS - 1 in drawn.truth


def test_the_page_of_many_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract: rank, metric and step of a lost point are on the page; logs have their last lines."""
    monkeypatch.setattr(page, "ALL_LINES", 3 * RANKS)
    job = bundles.healthy(nodes=RANKS, steps=4)
    job.points = [point for point in job.points if (point.metric, point.step) != ("loss/node33", 2)]
    bundle = job.write(tmp_path / "bundle")
    verdict = judge(bundle)
    assert verdict.cause == "unification.lost_points"
    text = page.render(bundle, verdict)
    assert "rank 33: step 2" in text
    assert "<th>logged by</th>" in text
    assert text.count('class="line"') == 3 * RANKS
    assert "all-reduce proven, finished" in text
