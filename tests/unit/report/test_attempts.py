"""Of a rank that ran more than once, the report shows each attempt: rows, times, and why it began."""

from __future__ import annotations

import io
from pathlib import Path

import bundles
import pytest
from bundles import at
from rich.console import Console

from harness.evidence import Bundle
from harness.evidence.schema.bundle import Verdict
from harness.evidence.schema.ground_truth import TruthRow, TruthStart
from harness.faults.recorded_bundles import extract
from harness.judge import judge
from harness.report.ci.launch_properties import launched, properties
from harness.report.html.attempts import HEADINGS, attempts
from harness.report.html.curves import metrics
from harness.report.html.page import render
from harness.report.terminal import verdict as terminal

RECORDED = Path(__file__).parents[2] / "recorded"


def recorded(name: str, folder: Path) -> tuple[Bundle, Verdict]:
    bundle = Bundle.open(extract(RECORDED / f"{name}.tar.xz", folder / name))
    return bundle, judge(bundle)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("rank-restarted-by-torchrun", "torchrun started rank 1 again"),
        ("rank-job-recreated", "was deleted at"),
        ("rank-jobset-suspended", "suspended JobSet"),
    ],
)
def test_recorded_restarts_are_shown_attempt_by_attempt(tmp_path: Path, name: str, reason: str) -> None:
    """Contract: rows of each attempt add up to the rank's ground truth; each later one says why it began."""
    bundle, verdict = recorded(name, tmp_path)
    seen = attempts(bundle, verdict)
    assert {one.rank for one in seen} == {0, 1}
    for rank in (0, 1):
        own = [one for one in seen if one.rank == rank]
        assert [one.number for one in own] == list(range(1, len(own) + 1))
        assert [one.of for one in own] == [len(own)] * len(own)
        rows = [line for _, line in bundle.truth(rank) if isinstance(line, TruthRow)]
        assert sum(one.rows for one in own) == len(rows)
        assert [one.ended for one in own] == [False] * (len(own) - 1) + [True]
        assert [bool(one.reason) for one in own] == [False] + [True] * (len(own) - 1)
        assert sorted(one.start for one in own) == [one.start for one in own]
        assert all(one.last and one.last >= one.start for one in own)
    assert any(reason in one.reason for one in seen)


def test_html_and_terminal_and_ci_show_them(tmp_path: Path) -> None:
    """Contract: a table of attempts in the page and on the terminal; for CI, who ran again and why."""
    bundle, verdict = recorded("rank-job-recreated", tmp_path)
    page = render(bundle, verdict)
    assert "Attempts of ranks that ran more than once" in page
    for heading in HEADINGS:
        assert f"<th>{heading}</th>" in page
    assert "4 + 20" in page
    console = Console(file=io.StringIO(), width=200, color_system=None)
    terminal.render(verdict, [], bundle.path, console, attempts(bundle, verdict))
    assert isinstance(console.file, io.StringIO)
    assert "0     1 of 2   workers-0-0-vzzdl  09:35:09 – 09:35:17  12, cut off" in console.file.getvalue()
    restarts = dict(properties(launched(verdict, bundle.path)))["harness.restarts"]
    assert "rank 0 got pod" in restarts
    assert "was deleted" in restarts


def test_ranks_that_ran_once_have_no_attempts(tmp_path: Path) -> None:
    """Contract: nothing more is shown, and nothing more is read."""
    bundle = bundles.healthy().write(tmp_path / "bundle")
    verdict = judge(bundle)
    assert attempts(bundle, verdict) == []
    page = render(bundle, verdict)
    assert 'id="attempts"' not in page
    assert "more than once" not in page
    assert dict(properties(launched(verdict, bundle.path)))["harness.restarts"] == ""


def test_a_rank_beside_one_that_ran_twice(tmp_path: Path) -> None:
    """Contract: only the rank that ran twice is listed; a step of both attempts counts once in the matrix; an
    attempt without a row says so."""
    job = bundles.healthy()
    pod = job.pod_name(1)
    began = 1_795_237_200_000
    starts = [
        TruthStart(attempt=f"{n}", time_ms=began + 4000 * n, pod=pod, restart=n, max_restarts=2)
        for n in range(3)
    ]
    first = [row.model_copy(update={"time_ms": began + 10}) for row in job.rows(1)[:4]]
    job.truth[1] = [starts[0], *first, starts[1], starts[2], *job.truth[1]]
    job.logs[pod].insert(1, f"{at(0, True)} failed (exitcode: 1) local_rank: 0 (pid: 50)")
    bundle = job.write(tmp_path / "bundle")
    seen = attempts(bundle, judge(bundle))
    assert [(one.rank, one.number, one.rows, one.ended) for one in seen] == [
        (1, 1, 4, False),
        (1, 2, 0, False),
        (1, 3, 12, True),
    ]
    assert [one.last is None for one in seen] == [False, True, False]
    assert "restart 1 of at most 2" in seen[1].reason
    assert "restart 2 of at most 2" in seen[2].reason
    assert seen[1].cells()[3].startswith("from ")
    cells = metrics(bundle, bundles.RUN_ID)["loss/node1"].cells
    assert (cells[1].logged, cells[1].attempts) == (6, [2, 0, 6])
    assert metrics(bundle, bundles.RUN_ID)["loss/node0"].cells[0].attempts == []
