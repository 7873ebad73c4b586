"""The end of every run: a verdict, and a report that cannot change it."""

from __future__ import annotations

from pathlib import Path

import bundles
import pytest

from harness.context import RecordedContext
from harness.core.errors import HarnessError
from harness.evidence import Bundle, BundleWriter, Redactor
from harness.evidence.io.files import DISK_FULL
from harness.evidence.schema.bundle import Check, Expected, Manifest, Verdict
from harness.faults.recorded_bundles import extract, record
from harness.judge import judge
from harness.report.finalize import finish
from harness.report.report_files import FILES
from harness.settings import Settings

SECRET = "t0p-s3cret-value"


@pytest.fixture
def writer(tmp_path: Path) -> BundleWriter:
    """A writer of a healthy launch that was recorded to its end."""
    bundle = bundles.healthy().write(tmp_path / "bundle")
    writer = BundleWriter(bundle.path, bundles.NONCE, Redactor([SECRET]))
    assert bundle.manifest is not None
    writer.manifest(bundle.manifest)
    return writer


def test_a_run_with_a_report_keeps_its_verdict(writer):
    """Contract: report.html is not evidence; `harness judge` does not see it."""
    outcome = finish(RecordedContext(settings=Settings(), progress=pytest.fail, writer=writer))
    assert outcome.report == writer.path / "report.html"
    assert "<title>PASS" in outcome.report.read_text()
    assert judge(Bundle.open(writer.path)) == outcome.verdict == Bundle.open(writer.path).recorded_verdict


def test_what_is_beside_the_evidence_is_none(writer):
    """Contract: whatever stands in the report and CI's files, the verdict is the same, and no record of the
    bundle for the judges' tests has them."""
    outcome = finish(RecordedContext(settings=Settings(), progress=pytest.fail, writer=writer))
    archive = writer.path.parent / "small.tar.xz"
    record(writer.path, archive, {})
    assert not {path.name for path in extract(archive, writer.path.parent / "small").iterdir()} & FILES.keys()
    for name in FILES:
        assert (writer.path / name).is_file()
        (writer.path / name).write_bytes(b'{"verdict": "FAIL", \xff')
    assert judge(Bundle.open(writer.path)) == outcome.verdict


@pytest.mark.parametrize("name", FILES)
def test_a_report_that_cannot_be_written_changes_no_verdict(writer, name):
    """Contract: one line says so, with what to do. Verdict, evidence and the other files stay."""
    (writer.path / name).mkdir()
    messages: list[str] = []
    outcome = finish(RecordedContext(settings=Settings(), progress=messages.append, writer=writer))
    assert outcome.verdict.verdict == "PASS"
    assert (outcome.report is None) == (name == "report.html")
    assert Bundle.open(writer.path).recorded_verdict == outcome.verdict
    assert len(messages) == 1
    assert messages[0].startswith(f"could not write {name} (")
    assert f"harness report {writer.path}`" in messages[0]
    assert all((writer.path / other).is_file() for other in FILES if other != name)
    assert not [path for path in writer.path.iterdir() if path.name.startswith(".")]


def test_a_page_that_fails_changes_no_verdict(writer, monkeypatch):
    """Contract: no error of the report changes the verdict."""

    def fail(*_):
        raise RecursionError(f"no more, {SECRET}")

    for name in FILES:
        monkeypatch.setitem(FILES, name, fail)
    messages: list[str] = []
    outcome = finish(RecordedContext(settings=Settings(), progress=messages.append, writer=writer))
    assert (outcome.verdict.verdict, outcome.report) == ("PASS", None)
    assert messages[0].startswith("could not write report.html, ctrf.json, junit.xml (no more, ***)")
    assert SECRET not in messages[0]


def test_a_secret_is_in_no_report(tmp_path):
    """Contract: log, event, stage, command: the report and CI's files are made of what was redacted, and of
    nothing else."""
    writer = BundleWriter.create(tmp_path / "runs", "abcd1234", Redactor([SECRET]))
    writer.update(command=["harness", "run", SECRET], versions={"x": SECRET}, log_gaps=[SECRET])
    writer.retry("a watch", f"said {SECRET}")
    with writer.log_file("pod-0", "main") as log:
        log.write(f"2026-01-01T00:00:00Z PLUTO_API_KEY={SECRET} & <{SECRET}>\n")
    with pytest.raises(HarnessError), writer.stage("launch"):
        raise HarnessError(f"refused {SECRET}")
    outcome = finish(RecordedContext(settings=Settings(), progress=pytest.fail, writer=writer))
    text = outcome.report.read_text()
    assert "&lt;***&gt;" in text
    for name in FILES:
        text = (writer.path / name).read_text()
        assert SECRET not in text
        assert "refused ***" in text


def test_what_judge_of_user_says_is_redacted_everywhere(writer, monkeypatch):
    """Contract: a user's judge may know more than the bundle. The verdict that is returned and printed has
    no secret.
    """
    check = Check(name="user.own", result="FAIL", cause="user.own", explanation=f"asked with {SECRET}")
    verdict = Verdict(verdict="FAIL", cause="user.own", explanation=check.explanation, checks=[check])
    monkeypatch.setattr("harness.judge.users.judge", lambda _: verdict)
    outcome = finish(RecordedContext(settings=Settings(), progress=pytest.fail, writer=writer))
    assert outcome.verdict.explanation == "asked with ***"
    assert outcome.verdict == Bundle.open(writer.path).recorded_verdict
    for name in FILES:
        text = (writer.path / name).read_text()
        assert SECRET not in text
        assert "asked with ***" in text


def test_a_secret_equal_to_pass_changes_no_verdict(writer):
    """Contract: redaction changes no decision."""
    writer.redactor.add("PASS")
    outcome = finish(RecordedContext(settings=Settings(), progress=pytest.fail, writer=writer))
    assert (outcome.verdict.verdict, outcome.report) == ("PASS", writer.path / "report.html")


def test_a_full_disk_yields_a_verdict_without_report(small_disk):
    """Contract: the report does not use the rest of the disk, and leaves no half file."""
    writer = BundleWriter.create(small_disk / "runs", "abcd1234", Redactor())

    def fill() -> None:
        with writer.stage("observe"), writer.log_file("pod-0", "main") as log:
            while True:
                log.write("x" * 5000 + "\n")

    with pytest.raises(HarnessError):
        fill()
    messages: list[str] = []
    outcome = finish(RecordedContext(settings=Settings(), progress=messages.append, writer=writer))
    assert (outcome.verdict.cause, outcome.report) == (DISK_FULL, None)
    assert Bundle.open(writer.path).recorded_verdict == outcome.verdict
    assert "No space left" in messages[0]
    assert not [name for name in FILES if (writer.path / name).exists()]


def test_report_that_does_not_fit_leaves_nothing_of_itself(small_disk):
    """Contract: evidence that just fits is judged. Small files still fit."""
    writer = BundleWriter.create(small_disk / "runs", "abcd1234", Redactor())
    writer.manifest(
        Manifest(nonce="n", started_at="t", expected=Expected(num_nodes=1, ranks=1, run_id="r", project="p"))
    )
    line = "2026-01-01T00:00:00Z " + "<&>" * 60
    with writer.log_file("pod-0", "main") as log:
        log.write(f"{line}\n" * 2000)  # each character is four or five in the page
    messages: list[str] = []
    outcome = finish(RecordedContext(settings=Settings(), progress=messages.append, writer=writer))
    assert outcome.report is None
    assert "No space left" in messages[0]
    assert Bundle.open(writer.path).recorded_verdict == outcome.verdict
    left = ["ctrf.json", "junit.xml", "logs", "manifest.json", "verdict.json"]
    assert sorted(path.name for path in writer.path.iterdir()) == left
