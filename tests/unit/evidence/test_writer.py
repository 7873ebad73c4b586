"""The bundle is written as it happens, whole record by whole record, without secrets."""

import base64
import errno
import os
import threading
from datetime import UTC, datetime

import pytest

from harness.core.clock import Clock
from harness.core.errors import HarnessError, WaitError
from harness.evidence import Bundle, BundleWriter, Redactor
from harness.evidence.io.files import DISK_FULL
from harness.evidence.schema.bundle import Manifest, Observation, Verdict
from harness.evidence.schema.ground_truth import TruthRow
from harness.evidence.schema.tracker import Point

SECRET = "hunter2-and-more"


@pytest.fixture
def writer(tmp_path):
    return BundleWriter.create(tmp_path / "runs", "abcd1234", Redactor([SECRET]))


def observation(n=0, **extra):
    return Observation(received_at="t", type="ADDED", object={"metadata": {"name": f"p{n}"}, **extra})


def test_latest_points_to_the_newest(writer, tmp_path):
    """Contract: runs/<utc>-<nonce>/ with a readable manifest, and runs/latest leading there."""
    assert writer.path.name.endswith("Z-abcd1234")
    assert Bundle.open(tmp_path / "runs" / "latest").manifest.nonce == "abcd1234"
    newer = BundleWriter.create(tmp_path / "runs", "ffff0000", Redactor())
    assert (tmp_path / "runs" / "latest").resolve() == newer.path.resolve()


def test_a_record_is_on_disk_when_the_call_returns(writer):
    """Contract: no record waits in a buffer, so that a harness cut off loses nothing."""
    writer.observe("pod", observation())
    writer.observe("event", observation())
    writer.truth(3, TruthRow(metric="m", step=1, value=float("nan"), time_ms=1))
    with writer.log_file("p", "c") as log:
        log.write("one\ntwo")
        assert (writer.path / "logs/p-c.log").read_text() == "one\n"
    assert (writer.path / "logs/p-c.log").read_text() == "one\ntwo\n"
    bundle = Bundle.open(writer.path)
    assert [seen.ref for seen in bundle.history("pod")] == ["objects/pod.jsonl:1"]
    assert bundle.history("event")[0].name == "p0"
    assert bundle.has("truth/3.jsonl")


def test_threads_do_not_mix_their_lines(writer):
    """Contract: many followers write at once, and every line is whole."""

    def work(n):
        for _ in range(50):
            writer.observe("pod", observation(n, filler="x" * 500))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    bundle = Bundle.open(writer.path)
    assert len(bundle.history("pod")) == 400
    assert bundle.damaged == []


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_no_secret_is_in_any_file(writer, size):
    """Contract: objects, logs in chunks of any size, tracker rows, texts and the manifest are redacted."""
    encoded = base64.b64encode(SECRET.encode()).decode()
    writer.observe("pod", observation(env=[{"name": "KEY", "value": SECRET}], nested={"message": [encoded]}))
    text = f"start {SECRET} middle {encoded} Bearer abcdefgh1234\n" * 3
    with writer.log_file("p", "c") as log:
        for at in range(0, len(text), size):
            log.write(text[at : at + size])
    writer.tracker("points", Point(run_id=1, metric=SECRET, step=1, value=1, time_ms=1, received_at="t"))
    writer.text("launch/konduktor.log", f"--env X={SECRET}")
    writer.manifest(Manifest(nonce="n", started_at="t", command=["harness", f"--key={SECRET}"]))
    everything = "".join(p.read_text() for p in writer.path.rglob("*") if p.is_file())
    assert "***" in everything
    assert SECRET not in everything
    assert encoded not in everything
    assert "abcdefgh1234" not in everything
    assert Bundle.open(writer.path).history("pod")[0].object["env"][0]["value"] == "***"


def test_a_line_without_end_keeps_its_secret_too(writer):
    """Contract: a line too long to wait for is written in parts, and no secret lies across two of them."""
    with writer.log_file("p", "c") as log:
        for _ in range(40):
            log.write("y" * 4093 + SECRET[:8])
            log.write(SECRET[8:])
    text = (writer.path / "logs/p-c.log").read_text()
    assert SECRET not in text
    assert text.count("***") == 40
    assert text.count("y") == 40 * 4093


def test_a_stage_is_timed_and_its_failure_named(writer):
    """Contract: the manifest has each stage; what ended one is there with its cause, and goes on rising."""
    with writer.stage("cluster"):
        assert Bundle.open(writer.path).manifest.in_stage == "cluster"
    with pytest.raises(WaitError), writer.stage("controllers"):
        raise WaitError("Kueue", "0 of 1", 9, cause="controllers.kueue_not_ready")
    with pytest.raises(KeyboardInterrupt), writer.stage("observe"):
        raise KeyboardInterrupt
    manifest = Bundle.open(writer.path).manifest
    assert [(s.name, s.ok, s.cause) for s in manifest.stages] == [
        ("cluster", True, None),
        ("controllers", False, "controllers.kueue_not_ready"),
        ("observe", False, None),
    ]
    assert "waited 9 s for Kueue" in manifest.stages[1].error
    assert manifest.interrupted == "SIGINT"
    assert manifest.in_stage is None


def test_times_are_those_of_the_clock_passed_in(tmp_path):
    """Contract: the folder's name, the start and the length of a stage come from one clock."""
    measured = iter((10.0, 12.5))
    clock = Clock(utc=lambda: datetime(2026, 1, 2, 3, 4, 5, 6, UTC), monotonic=lambda: next(measured))
    writer = BundleWriter.create(tmp_path, "n", Redactor([]), clock)
    with writer.stage("cluster"):
        pass
    writer.release()
    (stage,) = writer.current.stages
    assert writer.path.name == "20260102T030405Z-n"
    assert (stage.started_at, stage.seconds) == ("2026-01-02T03:04:05.000006Z", 2.5)


def test_a_signal_at_stage_start_belongs_to_that_stage(writer):
    """Contract: from the moment on when a stage can be seen, what ends it is recorded."""

    class Interrupting:
        def manifest(self, manifest):
            if manifest.in_stage == "launch":
                raise KeyboardInterrupt("SIGINT")

    writer.listener = Interrupting()
    with pytest.raises(KeyboardInterrupt), writer.stage("launch"):
        pass
    writer.listener = None
    (stage,) = writer.current.stages
    assert (stage.name, stage.ok, stage.error) == ("launch", False, "SIGINT")


def test_stages_of_several_threads_overlap(writer):
    """Contract: the manifest is in the stage that began last of those that have not ended."""
    with writer.stage("images to nodes"):
        with writer.stage("controllers"):
            assert Bundle.open(writer.path).manifest.in_stage == "controllers"
        assert Bundle.open(writer.path).manifest.in_stage == "images to nodes"
    first, second = writer.stage("images to nodes"), writer.stage("controllers")
    first.__enter__(), second.__enter__()
    first.__exit__(None, None, None)
    assert Bundle.open(writer.path).manifest.in_stage == "controllers"
    second.__exit__(None, None, None)
    assert Bundle.open(writer.path).manifest.in_stage is None


def test_a_manifest_made_elsewhere_keeps_the_stages(writer):
    """Contract: replacing the manifest cannot lose a recorded stage, nor write one twice."""
    with writer.stage("cluster"):
        pass
    writer.manifest(Manifest(nonce="n", started_at="t"))
    writer.manifest(writer.current.model_copy(update={"ended_at": "t2"}))
    manifest = Bundle.open(writer.path).manifest
    assert [stage.name for stage in manifest.stages] == ["cluster"]
    assert manifest.ended_at == "t2"


def test_full_disk_says_so_and_keeps_what_was_written(writer, monkeypatch):
    """Contract: run.evidence_disk_full, no half record, and no more records: one with a hole before it proves
    nothing."""
    writer.observe("pod", observation(0))
    real, left = os.write, [10]

    def full(fd, data):
        if left[0] == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        left[0] = 0
        return real(fd, bytes(data)[:10])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(HarnessError) as raised:
        writer.observe("pod", observation(1))
    assert raised.value.cause == "run.evidence_disk_full"
    monkeypatch.setattr(os, "write", real)
    for refused in (lambda: writer.observe("pod", observation(2)), lambda: writer.text("launch/x", "")):
        with pytest.raises(HarnessError, match="No space left"):
            refused()
    assert writer.full is raised.value
    bundle = Bundle.open(writer.path)
    assert [seen.name for seen in bundle.history("pod")] == ["p0"]
    assert bundle.damaged == []


def test_the_last_words_fit_on_a_full_disk(small_disk):
    """Contract: a disk that fills up in the middle leaves a manifest and a verdict that say so."""
    writer = BundleWriter.create(small_disk / "runs", "abcd1234", Redactor())

    def fill():
        with writer.stage("observe"):
            for n in range(10_000):
                writer.observe("pod", observation(n, filler="x" * 5000))

    with pytest.raises(HarnessError):
        fill()
    writer.update(ended_at="t")
    writer.verdict(Verdict(verdict="UNKNOWN", cause=DISK_FULL, explanation="x" * 50_000))
    bundle = Bundle.open(writer.path)
    assert [stage.cause for stage in bundle.manifest.stages] == [DISK_FULL]
    assert bundle.manifest.ended_at == "t"
    assert bundle.recorded_verdict.cause == DISK_FULL
    assert len(bundle.history("pod")) > 50
    assert bundle.damaged == []
    assert not [path for path in writer.path.iterdir() if path.name.startswith(".")]


def test_nothing_is_left_where_not_even_first_words_fit(small_disk):
    """Contract: it is refused by name and place, and `latest` stays where it was."""
    first = BundleWriter.create(small_disk / "runs", "aaaa0000", Redactor())
    first.verdict(Verdict(verdict="PASS", explanation=""))
    (small_disk / "other").write_bytes(bytes(900 * 1024))
    with pytest.raises(HarnessError, match=r"No space left on device at .*-bbbb0000") as raised:
        BundleWriter.create(small_disk / "runs", "bbbb0000", Redactor())
    assert raised.value.cause == DISK_FULL
    assert (small_disk / "runs" / "latest").resolve() == first.path.resolve()
    assert sorted(path.name for path in (small_disk / "runs").iterdir()) == [first.path.name, "latest"]


def test_no_path_leads_out_of_the_bundle(writer):
    """Contract: a relative path stays inside."""
    for path in ("/etc/x", "../x", "a/../../x"):
        with pytest.raises(ValueError, match="outside the bundle"):
            writer.text(path, "")


def test_files_of_other_programs_are_redacted_in_place(tmp_path):
    """Contract: kind's export of pod logs holds no secret; bytes that are no text stay."""
    writer = BundleWriter(tmp_path, "n", Redactor(["hunter2hunter2"]))
    folder = tmp_path / "kind" / "node"
    folder.mkdir(parents=True)
    (folder / "pod.log").write_bytes(b"\xff password is hunter2hunter2\n")
    (folder / "other.log").write_bytes(b"\xff nothing\n")
    writer.clean("kind")
    writer.clean("not-there")
    assert (folder / "pod.log").read_bytes() == b"\xff password is ***\n"
    assert (folder / "other.log").read_bytes() == b"\xff nothing\n"


def test_bundle_that_is_discarded_leaves_one_before_it(tmp_path):
    """Contract: `latest` points at the newest bundle that is there, or is not there."""
    first = BundleWriter.create(tmp_path, "aa", Redactor())
    second = BundleWriter.create(tmp_path, "bb", Redactor())
    second.discard()
    assert (tmp_path / "latest").resolve() == first.path.resolve()
    first.discard()
    assert list(tmp_path.iterdir()) == []


def test_an_attempt_that_failed_is_no_stage(writer):
    """What is done again where it fails must not look as if the run had failed."""
    with pytest.raises(HarnessError), writer.attempt("early"):
        raise HarnessError("not yet")
    assert writer.current.stages == []
    with writer.attempt("early"):
        pass
    (stage,) = Bundle.open(writer.path).manifest.stages
    assert (stage.name, stage.ok) == ("early", True)
