"""Real pytest sessions with the plugin, and their reports to JUnit, CTRF and GitHub Actions."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from harness.evidence import Bundle
from harness.faults.recorded_bundles import extract
from harness.judge import judge
from harness.report import report_files
from harness.report.ci.ctrf import Document

ROOT = Path(__file__).parents[2]
CTRF = "ctrf@0.3.0"
"""The specification's reference implementation, which contains the official JSON schema."""
SECRET = "s3cret-of-the-user"
SESSION = """
import os, pathlib, pytest
from harness.fixtures.plugin import record
from harness.evidence import Bundle
from harness.report.finalize import Outcome
from harness.judge import judge

def outcome(name):
    path = pathlib.Path(name)
    return Outcome(judge(Bundle.open(path)), path, None)

def test_lost(record_property):
    found = outcome("client-drop-point")
    record(found, record_property)
    assert found.verdict.verdict == "PASS", found.verdict.explanation + " key " + os.environ["MY_API_KEY"]

@pytest.mark.parametrize("way", ["a::b"])
def test_passed(record_property, way):
    record(outcome("tracker-outage"), record_property)

def test_flaky(record_property):
    record(outcome("tracker-outage"), record_property)
    mark = pathlib.Path("tried")
    if not mark.exists():
        mark.touch()
        raise RuntimeError("only 119 of 120, see [x]")

@pytest.fixture
def broken():
    yield
    raise OSError("not removed")

def test_teardown(broken): pass
def test_skipped(): pytest.skip("no GPU")
@pytest.mark.xfail(reason="known")
def test_known(): assert 0
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a user's test suite with two recorded bundles."""
    suite = tmp_path_factory.mktemp("suite")
    for name in ("client-drop-point", "tracker-outage"):
        extract(ROOT / f"tests/recorded/{name}.tar.xz", suite / name)
    manifest = json.loads((suite / "tracker-outage/manifest.json").read_text())
    manifest["retries"] = [{"at": "t", "what": "a watch", "reason": "410 Gone"}]
    (suite / "tracker-outage/manifest.json").write_text(json.dumps(manifest))
    (suite / "test_suite.py").write_text(SESSION)
    (suite / "pytest.ini").write_text("[pytest]\n")
    return suite


def session(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GITHUB_", "PYTEST_"))}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env={**kept, "PYTHONPATH": str(ROOT), "MY_API_KEY": SECRET, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def reports(folder: Path) -> dict[str, Any]:
    """Run one session as in GitHub Actions, and return all of its output."""
    done = session(
        folder,
        *(
            "--ctrf",
            "out/ctrf.json",
            "--junitxml",
            "junit.xml",
            "--reruns",
            "1",
            "--only-rerun",
            "RuntimeError",
        ),
        GITHUB_ACTIONS="true",
        GITHUB_STEP_SUMMARY="summary.md",
    )
    text = (folder / "out/ctrf.json").read_text()
    return {
        "done": done,
        "ctrf": json.loads(text),
        "text": text,
        "junit": ET.parse(folder / "junit.xml"),
        "summary": (folder / "summary.md").read_text(),
    }


def by_name(ctrf: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {test["name"].partition("::")[2]: test for test in ctrf["results"]["tests"]}


def test_ctrf_has_every_test_once_with_its_launches(reports: dict[str, Any]) -> None:
    """Contract: the last attempt determines the result, a failed teardown is a failure, and the verdict is in
    `extra`."""
    tests = by_name(reports["ctrf"])
    assert {name: test["status"] for name, test in tests.items()} == {
        "test_lost": "failed",
        "test_passed[a::b]": "passed",
        "test_flaky": "passed",
        "test_teardown": "failed",
        "test_skipped": "skipped",
        "test_known": "skipped",
    }
    assert tests["test_teardown"]["rawStatus"] == "teardown failed"
    assert tests["test_skipped"]["message"] == "Skipped: no GPU"
    assert tests["test_known"]["rawStatus"] == "xfailed"
    assert tests["test_passed[a::b]"]["suite"] == ["test_suite.py"]
    launch = tests["test_lost"]["extra"]["launches"][0]
    assert (launch["verdict"], launch["cause"], launch["ranks"]) == ("FAIL", "unification.lost_points", [1])
    assert launch["bundle"] == "client-drop-point"
    summary = reports["ctrf"]["results"]["summary"]
    assert (summary["tests"], summary["passed"], summary["failed"], summary["flaky"]) == (6, 2, 2, 1)
    assert all(test["duration"] <= test["stop"] - test["start"] + 2 for test in tests.values())


def test_a_flake_is_reported_as_one(reports: dict[str, Any]) -> None:
    """Contract: a test that passed at its second attempt is reported as flaky everywhere, with the launch of
    each attempt. If requests of a launch were retried, this is reported too."""
    flaky = by_name(reports["ctrf"])["test_flaky"]
    assert (flaky["flaky"], flaky["retries"], flaky["tags"]) == (True, 1, ["retried"])
    (attempt,) = flaky["retryAttempts"]
    assert attempt["status"] == "failed"
    assert "only 119 of 120" in attempt["message"]
    assert flaky["extra"]["launches"][0]["retries"] == ["a watch: 410 Gone"]
    assert not by_name(reports["ctrf"])["test_passed[a::b]"]["flaky"]
    assert "1 flaky" in reports["summary"]
    assert "test&#95;flaky (2 attempts): RuntimeError: only 119 of 120, see &#91;x&#93;" in reports["summary"]
    assert "a watch: 410 Gone" in reports["summary"]
    assert (
        "\n::warning title=flaky%3A test_suite.py%3A%3Atest_flaky,file=test_suite.py"
        in reports["done"].stdout
    )


def test_junit_has_the_verdict_as_properties(reports: dict[str, Any]) -> None:
    """Contract: the test's properties contain the verdict, cause, ranks and bundle of each launch."""
    case = next(case for case in reports["junit"].iter("testcase") if case.get("name") == "test_lost")
    found = {each.get("name"): each.get("value") for each in case.iter("property")}
    assert found["harness.verdict"] == "FAIL"
    assert found["harness.cause"] == "unification.lost_points"
    assert found["harness.ranks"] == "1"
    assert found["harness.bundle"] == "client-drop-point"
    assert {"harness.explanation", "harness.report", "harness.retries"} <= found.keys()


def test_a_person_is_told_every_launch(reports: dict[str, Any]) -> None:
    """Contract: the terminal output names the bundle of each launch, even for a test that passed."""
    lines = reports["done"].stdout.splitlines()
    assert "✗ FAIL unification.lost_points  client-drop-point  test_suite.py::test_lost" in lines
    assert "✓ PASS  tracker-outage  test_suite.py::test_passed[a::b]" in lines


def test_every_failure_is_an_annotation_and_in_the_summary(reports: dict[str, Any]) -> None:
    """Contract: there is one annotation per failure, at the test's own line, and no other output begins with
    `::`."""
    lines = [line for line in reports["done"].stdout.splitlines() if line.startswith("::")]
    assert sorted(line.partition(" ")[0] for line in lines) == ["::error", "::error", "::warning"]
    assert any("title=test_suite.py%3A%3Atest_lost,file=test_suite.py,line=12::" in line for line in lines)
    assert "FAIL `unification.lost_points`" in reports["summary"]
    assert reports["done"].returncode == 1


def test_no_secret_of_the_environment_is_told(reports: dict[str, Any]) -> None:
    """Contract: if an assertion prints a key, the key is not in the files that CI stores."""
    lines = [line for line in reports["done"].stdout.splitlines() if line.startswith("::")]
    for text in (reports["text"], reports["summary"], *lines):
        assert SECRET not in text
    assert "key ***" in reports["text"]


def test_ctrf_is_what_the_specification_says(reports: dict[str, Any]) -> None:
    """Contract: the document can be parsed with the strict model, which follows the specification."""
    assert json.loads(Document.model_validate_json(reports["text"]).text()) == reports["ctrf"]


@pytest.mark.skipif(shutil.which("npm") is None, reason="CTRF's own validator is an npm package")
def test_ctrf_is_valid_by_the_official_schema(reports: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    """Contract: the reference implementation accepts the documents of a session and of a bundle, and rejects
    an invalid one."""
    installed = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(tmp_path), CTRF]
    subprocess.run(installed, check=True, timeout=120, capture_output=True)
    (tmp_path / "check.mjs").write_text(
        "import { validate } from 'ctrf'; import fs from 'fs';"
        "const read = name => JSON.parse(fs.readFileSync(name));"
        "console.log(JSON.stringify(process.argv.slice(2).map(name => validate(read(name)))))"
    )
    wrong = reports["ctrf"] | {"verdict": "PASS"}
    (tmp_path / "wrong.json").write_text(json.dumps(wrong))
    launches = [Bundle.open(folder / name) for name in ("client-drop-point", "tracker-outage")]
    assert [report_files.write(bundle, judge(bundle)) for bundle in launches] == [{}, {}]
    documents = [folder / "out/ctrf.json", *(bundle.path / "ctrf.json" for bundle in launches)]
    done = subprocess.run(
        ["node", "check.mjs", *map(str, documents), "wrong.json"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    *right, refused = json.loads(done.stdout)
    assert [each["valid"] for each in right] == [True] * 3, right
    assert not refused["valid"]


def test_a_file_that_cannot_be_collected_is_a_failure(tmp_path: Path) -> None:
    """Contract: a session that could not collect its tests is not reported as passed."""
    (tmp_path / "test_broken.py").write_text("import no_such_module_here\n")
    done = session(tmp_path, "--ctrf", "ctrf.json", GITHUB_ACTIONS="true")
    (test,) = json.loads((tmp_path / "ctrf.json").read_text())["results"]["tests"]
    assert (test["status"], test["rawStatus"]) == ("failed", "collect failed")
    assert "no_such_module_here" in test["message"]
    assert "::error title=test_broken.py" in done.stdout


def test_an_interrupted_session_has_a_report(tmp_path: Path) -> None:
    """Contract: after Ctrl-C in a test, the report contains the results so far, and is not a pass."""
    (tmp_path / "test_stop.py").write_text("def test_a(): pass\ndef test_b(): raise KeyboardInterrupt\n")
    session(tmp_path, "--ctrf", "ctrf.json")
    found = json.loads((tmp_path / "ctrf.json").read_text())["results"]
    assert [test["status"] for test in found["tests"]] == ["passed", "other"]
    assert found["summary"]["extra"]["exitstatus"] == 2


def test_nothing_is_told_where_nobody_asked(folder: Path) -> None:
    """Contract: outside CI and without options, the plugin writes no reports."""
    done = session(folder, "-k", "skipped")
    assert "::" not in done.stdout.replace("test_suite.py::", "")
    assert "CTRF" not in done.stdout


def test_recorded_bundles_are_summed_up(folder: Path) -> None:
    """Contract: the output is a table. In GitHub Actions, the table is in the job summary, and the
    annotations are on stdout."""
    harness = Path(sys.executable).with_name("harness")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GITHUB_")}

    def summary(**environment: str) -> str:
        command = [str(harness), "summary", "tracker-outage", "client-drop-point"]
        env = {**kept, **environment}
        return subprocess.check_output(command, cwd=folder, env=env, text=True, timeout=60)

    table = summary()
    rows = [line for line in table.splitlines() if line.startswith("|")]
    assert "FAIL `unification.lost_points` | 1 |" in rows[2]
    assert "PASS" in rows[3]
    assert "**Tried again** (1):" in table
    lines = summary(GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY="launches.md").splitlines()
    assert [line.partition("::")[2].split(" ")[0] for line in lines] == ["notice", "error"]
    assert table in (folder / "launches.md").read_text()
