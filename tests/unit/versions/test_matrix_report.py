"""The files of a matrix: JSON, Markdown, CTRF and HTML, and what GitHub shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sample_matrices import cell, document, outcome

from harness.report.ci.ctrf import Document as Ctrf
from harness.versions import matrix_report
from harness.versions.matrix_results import Document
from harness.versions.matrix_text import grid


@pytest.fixture
def results(tmp_path: Path) -> Document:
    bundle = tmp_path / "cells" / "client #1" / "runs" / "b"
    bundle.mkdir(parents=True)
    (bundle / "report.html").touch()
    fail = outcome("FAIL", "rank.crashed", bundle=str(bundle), explanation="<b>rank 1</b> | crashed")
    return document(
        tmp_path,
        cell(outcome(), versions={"client": "1.0", "launcher": "1"}),
        cell(fail, versions={"client": "1.0", "launcher": "2"}),
        cell(fail, outcome(attempt=2), versions={"client": "1.1", "launcher": "1"}),
        cell(fail, versions={"client": "1.1", "launcher": "2"}, expected="FAIL"),
        cell(outcome(), versions={"client": "1.2", "launcher": "1"}, expected="FAIL"),
    )


def test_the_json_document_can_be_read_again(results: Document, tmp_path: Path) -> None:
    matrix_report.write(results)
    read = json.loads((tmp_path / "matrix.json").read_text())
    assert [each["status"] for each in read["cells"]] == [
        "passed", "failed", "flaky", "expected failure", "unexpected pass",
    ]  # fmt: skip
    assert (read["exit_code"], read["counts"]["failed"]) == (1, 1)


def test_the_table_has_a_row_for_each_version(results: Document) -> None:
    """Contract: the package with more versions is in the rows, and a cell that does not exist is empty."""
    found = grid(results)
    assert found is not None
    assert (found.row_package, found.columns, list(found.rows)) == (
        "client",
        ["1", "2"],
        ["1.0", "1.1", "1.2"],
    )
    text = matrix_report.as_markdown(results)
    assert "| 1.1 | ⚠️ flaky: 1 of 2 FAIL rank.crashed | ✅ FAIL rank.crashed, as expected |" in text
    assert "| 1.2 | ❕ PASS instead of FAIL |  |" in text
    assert "&lt;b&gt;rank 1&lt;/b&gt; &#124; crashed" in text
    assert "not launched: client 0.9 (too old &#124; really)" in text


def test_a_matrix_of_one_package_is_a_list(tmp_path: Path) -> None:
    found = document(tmp_path, cell(outcome()))
    assert grid(found) is None
    assert "| 1.0 | ✅ PASS | 25 |" in matrix_report.as_markdown(found)


def test_each_cell_is_a_test_with_its_attempts(results: Document) -> None:
    """Contract: the file has the fields of CTRF; a flaky cell passes and is marked."""
    found = Ctrf.model_validate_json(matrix_report.as_ctrf(results))
    statuses = [(test.status, test.flaky, test.retries) for test in found.results.tests]
    assert statuses == [
        ("passed", False, 0),
        ("failed", False, 0),
        ("passed", True, 1),
        ("passed", False, 0),
        ("passed", False, 0),
    ]
    failed = found.results.tests[1]
    assert failed.attachments is not None
    assert failed.attachments[0].path == "cells/client #1/runs/b/report.html"
    assert failed.message == "rank.crashed: <b>rank 1</b> | crashed"


def test_github_gets_table_and_error_for_each_unexpected_cell(
    results: Document, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    matrix_report.write(results)
    assert summary.read_text() == matrix_report.as_markdown(results)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" ")[0] for line in lines] == ["::error", "::warning", "::warning"]


def test_the_page_links_reports_and_loads_nothing(results: Document) -> None:
    page = matrix_report.as_html(results)
    assert '<a href="cells/client%20%231/runs/b/report.html">FAIL rank.crashed</a>' in page
    assert "default-src 'none'" in page
    assert "<b>rank 1</b>" not in page
    assert "<script" not in page


def test_the_command_that_finds_the_version_is_shown(results: Document, tmp_path: Path) -> None:
    command = "harness bisect launcher --good 1 --bad 2"
    assert any(" ".join(each).startswith(command) for each in results.bisects)
    assert f"```bash\n{command} --job 'jobs/<multinode>.yaml'" in matrix_report.as_markdown(results)
    assert f"<code>{command} --job &#39;jobs/&lt;multinode&gt;.yaml&#39;" in matrix_report.as_html(results)


def test_controller_that_is_replaced_in_all_cells_is_named(results: Document) -> None:
    results.replace = {"kueue": "v0.19.2"}
    assert "of `jobs/<multinode>.yaml` with kueue v0.19.2\n" in matrix_report.as_markdown(results)
    assert (
        "jobs/&lt;multinode&gt;.yaml with kueue v0.19.2: versions of client and launcher, "
        in matrix_report.as_html(results)
    )
