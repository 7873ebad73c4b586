"""How every run ends: a verdict, and a report that can add nothing to it and take nothing from it."""

from __future__ import annotations

from pathlib import Path

import bundles
import pytest

from harness.errors import HarnessError
from harness.evidence import Bundle, BundleWriter, Redactor
from harness.evidence.files import DISK_FULL
from harness.evidence.schema import Expected, Manifest
from harness.finish import finish
from harness.verdict import judge

SECRET = "t0p-s3cret-value"


@pytest.fixture
def writer(tmp_path: Path) -> BundleWriter:
    """Of a healthy launch that was recorded to its end."""
    bundle = bundles.healthy().write(tmp_path / "bundle")
    writer = BundleWriter(bundle.path, bundles.NONCE, Redactor([SECRET]))
    assert bundle.manifest is not None
    writer.manifest(bundle.manifest)
    return writer


def test_a_finished_run_has_a_report_and_is_judged_the_same_afterwards(writer):
    """Contract: report.html is no evidence; `harness judge` does not see it."""
    outcome = finish(writer, pytest.fail)
    assert outcome.report == writer.path / "report.html"
    assert "<title>PASS" in outcome.report.read_text()
    assert judge(Bundle.open(writer.path)) == outcome.verdict == Bundle.open(writer.path).recorded_verdict


def test_a_report_that_cannot_be_written_changes_no_verdict(writer):
    """Contract: it is said in one line, with what to do; verdict and evidence stay."""
    (writer.path / "report.html").mkdir()
    told: list[str] = []
    outcome = finish(writer, told.append)
    assert (outcome.verdict.verdict, outcome.report) == ("PASS", None)
    assert Bundle.open(writer.path).recorded_verdict == outcome.verdict
    assert len(told) == 1
    assert f"harness report {writer.path} --output FILE" in told[0]
    assert not [path for path in writer.path.iterdir() if path.name.startswith(".")]


def test_a_page_that_fails_changes_no_verdict(writer, monkeypatch):
    """Contract: nor does an error of the report's own, whatever it is."""

    def fail(*_):
        raise RecursionError(f"no more, {SECRET}")

    monkeypatch.setattr("harness.report.page.render", fail)
    told: list[str] = []
    outcome = finish(writer, told.append)
    assert (outcome.verdict.verdict, outcome.report) == ("PASS", None)
    assert SECRET not in told[0]


def test_a_secret_is_in_no_report(tmp_path):
    """Contract: log, event, stage, command: the report is made of what was redacted, and of nothing else."""
    writer = BundleWriter.create(tmp_path / "runs", "abcd1234", Redactor([SECRET]))
    writer.update(command=["harness", "run", SECRET], versions={"x": SECRET}, log_gaps=[SECRET])
    writer.retry("a watch", f"said {SECRET}")
    writer.log_line("pod-0", "main", f"2026-01-01T00:00:00Z PLUTO_API_KEY={SECRET} & <{SECRET}>")
    with pytest.raises(HarnessError), writer.stage("launch"):
        raise HarnessError(f"refused {SECRET}")
    outcome = finish(writer, pytest.fail)
    text = outcome.report.read_text()
    assert SECRET not in text
    assert "refused ***" in text
    assert "&lt;***&gt;" in text


def test_where_the_evidence_filled_the_disk_there_is_a_verdict_and_no_report(small_disk):
    """Contract: the report does not take the room that is left, and no half of it stays."""
    writer = BundleWriter.create(small_disk / "runs", "abcd1234", Redactor())

    def fill() -> None:
        with writer.stage("observe"):
            while True:
                writer.log_line("pod-0", "main", "x" * 5000)

    with pytest.raises(HarnessError):
        fill()
    told: list[str] = []
    outcome = finish(writer, told.append)
    assert (outcome.verdict.cause, outcome.report) == (DISK_FULL, None)
    assert Bundle.open(writer.path).recorded_verdict == outcome.verdict
    assert "No space left" in told[0]


def test_a_report_that_does_not_fit_leaves_nothing_of_itself(small_disk):
    """Contract: evidence that just fitted is judged as it is."""
    writer = BundleWriter.create(small_disk / "runs", "abcd1234", Redactor())
    writer.manifest(
        Manifest(nonce="n", started_at="t", expected=Expected(num_nodes=1, ranks=1, run_id="r", project="p"))
    )
    line = "2026-01-01T00:00:00Z " + "<&>" * 60
    for _ in range(2000):  # each character is four or five in the page
        writer.log_line("pod-0", "main", line)
    told: list[str] = []
    outcome = finish(writer, told.append)
    assert outcome.report is None
    assert "No space left" in told[0]
    assert Bundle.open(writer.path).recorded_verdict == outcome.verdict
    assert sorted(path.name for path in writer.path.iterdir()) == ["logs", "manifest.json", "verdict.json"]
