"""The matrix of netcheck in the terminal, on the page and in Markdown."""

from __future__ import annotations

from pathlib import Path

import bundles
from netcheck_bundles import diagnosis, everywhere, job
from rich.console import Console

from harness.judge import judge
from harness.report.ci.launch_properties import from_properties, launched, properties
from harness.report.ci.summary import Row, launches
from harness.report.html.netcheck import lines, matrix
from harness.report.html.page import render
from harness.report.terminal import verdict

BLIND = {"c01": "tcp.filtered", "c21": "tcp.filtered", "c31": "tcp.filtered"}


def test_without_netcheck_there_is_no_matrix(tmp_path: Path) -> None:
    bundle = bundles.healthy().write(tmp_path / "b")
    assert matrix(bundle) is None
    assert 'id="netcheck"' not in render(bundle, judge(bundle))


def test_the_matrix_is_in_page_terminal_and_markdown(tmp_path: Path) -> None:
    """Contract: a column of failures is seen as one, each square with its cause."""
    bundle = job(everywhere(diagnosis("tcp.filtered", 1, **BLIND))).write(tmp_path / "b")
    found = matrix(bundle)
    assert found is not None
    assert [[square.text for square in row.squares] for row in found.rows] == [
        ["–", "silent", "ok", "ok"],
        ["ok", "–", "ok", "ok"],
        ["ok", "silent", "–", "ok"],
        ["ok", "silent", "ok", "–"],
    ]
    page = render(bundle, judge(bundle))
    assert page.count('class="square bad" title="tcp.filtered') == 3
    with (console := Console(width=160)).capture() as capture:
        verdict.render(judge(bundle), [], bundle.path, console, netcheck=found)
    assert capture.get().count("silent") == 3
    assert lines(found)[2].startswith("| 0 | – | silent | ok | ok |")


def test_ci_s_summary_shows_the_matrix_of_what_failed(tmp_path: Path) -> None:
    """Contract: it comes through a test's properties unchanged. A PASS needs none."""
    for name, launch in (
        ("bad", job(everywhere(diagnosis("tcp.filtered", 1, **BLIND)))),
        ("good", job(everywhere(diagnosis()))),
    ):
        bundle = launch.write(tmp_path / name)
        one = launched(judge(bundle), bundle.path)
        assert from_properties(properties(one)) == [one]
        summary = launches([Row(one)])
        assert ("| 0 | – | silent | ok | ok |" in summary) is (name == "bad"), summary


def test_a_pod_without_a_report_has_no_squares(tmp_path: Path) -> None:
    """Contract: what nobody saw is not drawn as fine."""
    alone = diagnosis("peer.never_came", 3)
    alone = alone.model_copy(update={"rows": {k: v for k, v in alone.rows.items() if k != 3}})
    bundle = job(dict.fromkeys(range(3), alone)).write(tmp_path / "b")
    found = matrix(bundle)
    assert found is not None
    assert found.rows[3].squares == []
    assert "not heard" in render(bundle, judge(bundle))
    assert "not heard" in lines(found)[5]


def test_rows_of_self_explanatory_ranks_are_merged(tmp_path: Path) -> None:
    """Contract: without a verdict of rank 0, each pod's own row is drawn."""
    whole = diagnosis("tcp.no_route", **{"c23": "tcp.no_route"})
    diagnoses = {
        index: whole.model_copy(update={"whole": False, "rows": {index: whole.rows[index]}})
        for index in range(3)
    }
    found = matrix(job(diagnoses).write(tmp_path / "b"))
    assert found is not None
    assert [bool(row.squares) for row in found.rows] == [True, True, True, False]


def test_what_pod_cannot_know_comes_from_api_server(tmp_path: Path) -> None:
    """Contract: the steps `pods` and `service` are filled in, and only from evidence."""
    one = diagnosis()
    unknown = [
        one.findings[0].model_copy(update={"step": step, "status": "unknown"}) for step in ("pods", "service")
    ]
    one = one.model_copy(update={"findings": [*one.findings, *unknown]})
    with_service = matrix(job(everywhere(one)).write(tmp_path / "a"))
    ill = one.model_copy(update={"verdict": "failed"})
    without = matrix(job(everywhere(ill), service=False).write(tmp_path / "b"))
    assert with_service is not None
    assert without is not None
    steps = {step.step: (step.status, step.text) for step in with_service.steps}
    assert steps["pods"] == ("ok", "every pod's container started (4 pods)")
    assert steps["service"][0] == "ok"
    assert "selects every pod of the job" in steps["service"][1]
    assert {step.step: step.status for step in without.steps}["service"] == "failed"
