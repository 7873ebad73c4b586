"""One launch as a suite of tests: ctrf.json and junit.xml agree with the verdict."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import bundles
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.evidence import Bundle, BundleWriter, Redactor
from harness.evidence.schema.bundle import Check, Verdict
from harness.judge import judge
from harness.report import report_files
from harness.report.ci.ctrf import Document
from harness.report.ci.junit import Case, document, legal
from harness.report.ci.launch_properties import from_properties, launched

FAIL = Check(
    name="no-lost-points",
    result="FAIL",
    cause="unification.lost_points",
    ranks=[0, 1],
    explanation="rank 1: <3 of 4>",
    evidence=["truth/1.jsonl:4", "tracker/points.jsonl"],
)
PASS = Check(name="launched", result="PASS", explanation="JobSet x exists")
UNKNOWN = Check(name="logs", result="UNKNOWN", cause="run.evidence_missing", explanation="no log of rank 0")


def verdict(*checks: Check, **changes: Any) -> Verdict:
    first = next((check for check in checks if check.result != "PASS"), checks[0])
    fields = first.model_dump(exclude={"name", "result"}) | {"verdict": first.result, "checks": checks}
    return Verdict.model_validate(fields | changes)


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    """A bundle of a launch with a retry."""
    job = bundles.healthy()
    made = job.write(tmp_path / "20261121T050000Z-n0nce7f3a")
    writer = BundleWriter(made.path, bundles.NONCE, Redactor())
    writer.manifest(job.manifest.model_copy(update={"job": "train"}))
    writer.retry("a watch", "410 Gone")
    return Bundle.open(made.path)


def reports(bundle: Bundle, result: Verdict) -> tuple[ET.Element, dict[str, Any]]:
    """Return the suite of junit.xml, and ctrf.json, as they are read back."""
    assert report_files.write(bundle, result) == {}
    root = ET.parse(bundle.path / "junit.xml").getroot()
    assert root.tag == "testsuites"
    (suite,) = root
    text = (bundle.path / "ctrf.json").read_text()
    assert json.loads(Document.model_validate_json(text).text()) == json.loads(text)
    return suite, json.loads(text)


def cases(suite: ET.Element) -> dict[str, str]:
    """Test → the tag of its problem, "" where there is none."""
    return {
        str(case.get("name")): next((child.tag for child in case if child.tag != "system-out"), "")
        for case in suite.iter("testcase")
    }


def test_the_suite_lists_the_verdict_before_its_checks(bundle):
    """Contract: in both files, in the order of the verdict; the counts are those of the tests."""
    result = verdict(PASS, FAIL, UNKNOWN)
    suite, ctrf = reports(bundle, result)
    expected = {"verdict": "failure", "launched": "", "no-lost-points": "failure", "logs": "error"}
    assert list(cases(suite).items()) == list(expected.items())
    counts = [suite.get(name) for name in ("tests", "failures", "errors", "skipped")]
    assert counts == ["4", "2", "1", "0"]
    tests = ctrf["results"]["tests"]
    assert {test["name"]: (test["status"], test["rawStatus"]) for test in tests} == {
        "verdict": ("failed", "FAIL"),
        "launched": ("passed", "PASS"),
        "no-lost-points": ("failed", "FAIL"),
        "logs": ("other", "UNKNOWN"),
    }
    summary = ctrf["results"]["summary"]
    assert (summary["tests"], summary["passed"], summary["failed"], summary["other"]) == (4, 1, 2, 1)
    assert {case.get("classname") for case in suite.iter("testcase")} == {"train"} == {suite.get("name")}
    assert {tuple(test["suite"]) for test in tests} == {("train",)}


def test_what_failed_says_why_and_where(bundle):
    """Contract: cause, explanation, ranks and evidence of a check; a check that passed says what it saw."""
    suite, ctrf = reports(bundle, verdict(PASS, FAIL))
    failure = suite.find("testcase[@name='no-lost-points']/failure")
    assert failure is not None
    message = "unification.lost_points: rank 1: <3 of 4>"
    where = "ranks: 0, 1\ntruth/1.jsonl:4\ntracker/points.jsonl"
    assert (failure.get("type"), failure.get("message")) == ("unification.lost_points", message)
    assert failure.text == f"{message}\n{where}"
    assert suite.findtext("testcase[@name='launched']/system-out") == "JobSet x exists"
    _, launched_, lost = ctrf["results"]["tests"]
    assert (lost["message"], lost["trace"]) == (message, where)
    assert lost["extra"] == {"cause": FAIL.cause, "ranks": FAIL.ranks, "evidence": FAIL.evidence}
    assert launched_["message"] == "JobSet x exists"
    assert not {"trace", "extra"} & launched_.keys()


def test_launch_is_told_in_words_of_session(bundle):
    """Contract: JUnit's properties and CTRF's `extra` are those that `launched` gives a test of pytest; the
    bundle's place is told by name, so that the files say the same wherever it is brought."""
    result = verdict(FAIL)
    suite, ctrf = reports(bundle, result)
    expected = launched(result, bundle.path).model_copy(
        update={"bundle": "20261121T050000Z-n0nce7f3a", "report": "report.html"}
    )
    assert expected.retries == ["a watch: 410 Gone"]
    found = [(str(each.get("name")), each.get("value")) for each in suite.iter("property")]
    assert from_properties(found) == [expected]
    first = ctrf["results"]["tests"][0]
    assert first["extra"] == {"launches": [expected.model_dump()]}
    assert first["tags"] == ["retried"]
    assert [each["path"] for each in first["attachments"]] == ["report.html"]
    assert str(bundle.path) not in json.dumps(ctrf) + ET.tostring(suite, encoding="unicode")


def test_a_launch_takes_its_time_and_a_check_none(bundle):
    """Contract: from start to end of the manifest: 110 s."""
    suite, ctrf = reports(bundle, verdict(PASS))
    assert suite.get("timestamp") == bundle.manifest.started_at
    assert suite.get("time") == "110.000"
    assert [case.get("time") for case in suite.iter("testcase")] == ["110.000", "0.000"]
    assert [test["duration"] for test in ctrf["results"]["tests"]] == [110_000, 0]
    assert ctrf["results"]["summary"]["duration"] == 110_000


@pytest.mark.parametrize("checks", [(UNKNOWN,), (PASS, UNKNOWN), ()])
def test_unknown_never_looks_like_a_pass(bundle, checks):
    """Contract: JUnit shows an error and no skipped test. CTRF shows `failed`, also to a reader that counts
    only failures.
    """
    result = Verdict(verdict="UNKNOWN", cause="run.evidence_missing", explanation="no log", checks=checks)
    suite, ctrf = reports(bundle, result)
    assert cases(suite)["verdict"] == "error"
    assert int(suite.get("errors", "")) == 1 + sum(check.result == "UNKNOWN" for check in checks)
    assert suite.find(".//skipped") is None
    summary = ctrf["results"]["summary"]
    assert (summary["failed"], summary["skipped"]) == (1, 0)
    assert summary["passed"] == sum(check.result == "PASS" for check in checks)


def test_bundle_of_which_nothing_is_known_has_them_too(tmp_path):
    """Contract: without a manifest there is no job and no time. The verdict is there, and the suite is not
    green.
    """
    empty = tmp_path / "empty"
    empty.mkdir()
    suite, ctrf = reports(Bundle.open(empty), judge(Bundle.open(empty)))
    assert cases(suite) == {"verdict": "error", "manifest": "error"}
    assert (suite.get("name"), suite.get("timestamp"), suite.get("time")) == ("harness", None, "0.000")
    assert ctrf["results"]["tests"][0]["status"] == "failed"


def test_a_pass_is_green(bundle):
    suite, ctrf = reports(bundle, judge(bundle))
    assert set(cases(suite).values()) == {""}
    assert len(cases(suite)) > 20
    assert {test["status"] for test in ctrf["results"]["tests"]} == {"passed"}


ANYTHING = st.text() | st.text(st.sampled_from("\0\x1b[31m\r\n\t \x7f\x85\ufffe\uffff<&>\"']]>é😀"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ANYTHING)
def test_no_text_of_a_job_breaks_the_files(bundle, text):
    """Contract: what a rank printed, colours and control characters too, comes back out of CTRF as it was,
    and out of JUnit with what XML cannot hold written as its escape."""
    check = Check(name="c", result="FAIL", cause="rank.crashed", explanation=text, evidence=[text])
    passed = Check(name="p", result="PASS", explanation=text)
    suite, ctrf = reports(bundle, verdict(check, passed))
    failure = suite.find("testcase[@name='c']/failure")
    assert failure.get("message") == f"rank.crashed: {legal(text)}" or not text
    assert (suite.findtext("testcase[@name='p']/system-out") or "") == legal(text)
    assert suite.find("properties/property[@name='harness.explanation']").get("value") == legal(text)
    _, first, second = ctrf["results"]["tests"]
    assert first["message"] == f"rank.crashed: {text}" or not text
    assert second.get("message", "") == text


def test_what_xml_cannot_hold_is_written_as_its_escape():
    """Contract: names, kinds and properties too; what XML can hold stays."""
    assert legal("a\x1b[31m\0\r\n\tb\ufffe\ud800é😀") == "a\\x1b[31m\\x00\\r\n\tb\\ufffe\\ud800é😀"
    text = document("s\0", [Case("n\1", problem="error", kind="k\2", message="\3")], [("p\4", "\5")], "", 0)
    assert "\\x05" in ET.tostring(ET.fromstring(text.encode()), encoding="unicode")
