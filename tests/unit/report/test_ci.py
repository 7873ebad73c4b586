"""What CI is told: annotations and summaries agree with the verdict, and none of their text is read as
markup.
"""

from __future__ import annotations

import math

import bundles
import pytest
from pydantic import ValidationError

from harness.evidence import BundleWriter, Redactor
from harness.evidence.schema.bundle import Check
from harness.judge import judge
from harness.report.ci import github, suite, summary
from harness.report.ci.ctrf import Test, Tool, document
from harness.report.ci.launch_properties import Launched, from_properties, launched, properties

FAIL = Launched(verdict="FAIL", cause="rank.hung", ranks=[1, 2], explanation="rank 1\nhangs", bundle="runs/a")
PASS = Launched(verdict="PASS", bundle="runs/b", report="runs/b/report.html", retries=["a watch: gone, 410"])


def a_test(**changes) -> Test:
    given = {"name": "t.py::t", "status": "passed", "duration": 5, "start": 10, "stop": 15} | changes
    return Test(**given)


def test_launch_is_told_with_its_retries_and_its_report(tmp_path):
    """Contract: it has verdict, cause, ranks and where to look. Retries are never left out."""
    job = bundles.healthy()
    bundles.crash(job, 1)
    bundle = job.write(tmp_path / "bundle")
    writer = BundleWriter(bundle.path, bundles.NONCE, Redactor())
    writer.manifest(bundle.manifest)
    writer.retry("the API server", "connection refused")
    (bundle.path / "report.html").touch()
    verdict = judge(bundle)
    launch = launched(verdict, bundle.path)
    assert (launch.verdict, launch.cause, launch.ranks) == (verdict.verdict, verdict.cause, verdict.ranks)
    assert launch.report == f"{bundle.path}/report.html"
    assert launch.retries == ["the API server: connection refused"]


def test_properties_hold_every_launch_of_a_test():
    """Contract: the properties in JUnit can be read back, in order, among other properties."""
    found = [("other", 1), ("harness.bundle", "before any"), *properties(FAIL), *properties(PASS)]
    found += [("harness.got", "x")]
    assert from_properties(found) == [FAIL, PASS]
    assert from_properties([]) == []


@pytest.mark.parametrize(
    ("message", "where", "line"),
    [
        ("plain", {}, "::error::plain"),
        ("100% of\r\nit: a, b", {}, "::error::100%25 of%0D%0Ait: a, b"),
        (
            "m",
            {"title": "a: b, c%\n", "file": "t.py", "line": 3},
            "::error title=a%3A b%2C c%25%0A,file=t.py,line=3::m",
        ),
        ("m", {"title": "t", "line": None}, "::error title=t::m"),
        ("::set-output name=x::y", {"title": "::"}, "::error title=%3A%3A::::set-output name=x::y"),
    ],
)
def test_an_annotation_is_one_line_whatever_it_says(message, where, line):
    """Contract: percent, line ends, and in properties colon and comma are escaped, percent only once."""
    assert github.annotation("error", message, **where) == line


def test_summary_is_cut_to_what_job_may_have(tmp_path):
    """Contract: a long summary is cut at a line and says so, because GitHub refuses it as a whole."""
    file = tmp_path / "summary.md"
    github.append(file, "first\n")
    github.append(file, "line é\n" * 200_000)
    assert file.stat().st_size <= github.SUMMARY_BYTES
    text = file.read_text()
    assert text.startswith("first\nline é\n")
    assert text.endswith("line é" + github.CUT)
    github.append(file, "more\n" * 10)
    assert file.read_text() == text


def test_the_summary_lists_failures_first_and_retries():
    """Contract: verdict, cause, ranks, report; "tried again" with what and why."""
    text = summary.launches([summary.Row(PASS), summary.Row(FAIL)])
    lines = text.splitlines()
    assert lines[2] == "| ❌ | FAIL `rank.hung` | 1, 2 | rank 1<br>hangs | runs/a |"
    assert lines[3].startswith("| ✅ | PASS |")
    assert "runs/b/report.html" in lines[3]
    assert "- runs/b: a watch: gone, 410" in lines


@pytest.mark.parametrize(
    "evil", ["a | b", "<img src=x>", "[x](http://y)", "`code`", "**b**", "@team", "a\n\n# b"]
)
def test_nothing_of_a_job_is_markup_in_a_summary(evil):
    """Contract: a cell stays a cell, text stays text."""
    cell = summary.text(evil)
    assert not set(cell.replace("<br>", "")) & set("|<>[]`*@\n")


def test_a_flaky_test_is_told_as_one():
    """Contract: it counts as passed at a later attempt, is in a list of its own, and is a warning."""
    attempt = {
        "attempt": 1,
        "status": "failed",
        "duration": 1,
        "start": 1,
        "stop": 2,
        "message": "lost: 3",
    }
    flaky = a_test(retries=1, flaky=True, retry_attempts=[attempt], file_path="t.py", line=4)
    text = summary.session([flaky, a_test(name="u")], [])
    assert "**2 passed, 1 flaky**" in text
    assert "- t.py::t (2 attempts): lost: 3" in text
    assert list(summary.of_test(flaky)) == [
        "::warning title=flaky%3A t.py%3A%3At,file=t.py,line=4::passed on attempt 2; "
        "an earlier attempt failed: lost: 3"
    ]
    assert list(summary.of_test(a_test())) == []


def test_annotations_of_launches():
    """Contract: FAIL and UNKNOWN are errors. A PASS has no annotation, except for retries."""
    unknown = Launched(verdict="UNKNOWN", cause="run.interrupted", explanation="SIGINT", bundle="runs/c")
    assert list(summary.of_launch(summary.Row(unknown))) == [
        "::error title=UNKNOWN run.interrupted::SIGINT%0Aruns/c"
    ]
    assert list(summary.of_launch(summary.Row(PASS))) == [
        "::notice title=tried again%3A runs/b::a watch: gone, 410"
    ]


def test_a_ctrf_document_counts_tests_and_rejects_invalid_ones():
    """Contract: the sums are those of the tests."""
    tests = [a_test(), a_test(name="u", status="failed"), a_test(name="v", flaky=True, retries=1)]
    made = document(tests, Tool(name="pytest"), 0, 20, "2026-01-01T00:00:00Z")
    counted = made.results.summary
    assert (counted.tests, counted.passed, counted.failed, counted.flaky, counted.duration) == (
        3,
        2,
        1,
        1,
        20,
    )
    assert '"rawStatus"' not in made.text()
    assert '"specVersion": "1.0.0"' in made.text()
    for wrong in ({"status": "error"}, {"duration": 1.5}, {"name": ""}, {"verdict": "PASS"}, {"suite": []}):
        with pytest.raises(ValidationError):
            a_test(**wrong)


@pytest.mark.parametrize("seconds", [0.0, 1.5, -1.0, 1e308, math.inf, math.nan])
def test_acceptance_test_of_any_claimed_duration_is_in_document(seconds: float) -> None:
    """Contract: a damaged bundle does not stop the report for CI."""
    check = Check(name="c", result="PASS", cause=None, ranks=[], explanation="", evidence=[])
    assert suite._accepted(check, "PASS", seconds, "e2e", 0).duration in (
        0,
        1500,
        suite.MAX_SECONDS * 1000,
    )
