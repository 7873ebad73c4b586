"""`harness attach` with the reports of recorders in the tracker: blocks, contradictions, and dead ranks.

The ranks are real programs with the unmodified client. Their summaries merge blocks, like those of a long
training. A forger changes the tracker's database or the logs of the pods.
"""

from __future__ import annotations

import sqlite3
import zlib
from pathlib import Path

import attached_jobs as jobs
import pytest
from bundle_api import BundleApi
from mounting import lay_out
from test_attach_recorded import Recorded, check, encoded, not_passed
from tracker_server import KEY, Server

from harness.evidence import Bundle
from harness.judge.engine import judge
from harness.launch.mounts import recorder
from harness.tracker.shared.keys import project_key

BEGIN = """
    import functools, os, pathlib, signal, time, pluto
    from _harness_recorder.ground_truth import client_state
    from _harness_recorder.recorder import digest_recording, client_calls, digest_reports, point_digests
    digest_recording.LINE_SECONDS, digest_reports.END_SECONDS = 0.0, 60.0
    digest_recording.Digests = functools.partial(point_digests.Digests, 30)
    point_digests.MAX_NODES = 4
    rank = os.environ["RANK"]
    run = pluto.init(name=f"node{rank}")
    folder = pathlib.Path(run._sync_manager.db_path).parent
    def until(condition):
        end = time.monotonic() + 60
        while not condition() and time.monotonic() < end:
            time.sleep(0.02)
        assert condition()
    def log(*steps):
        for step in steps:
            run.log({f"loss/{rank}": 1 / (step + 1), f"lr/{rank}": step}, step=step)
        until(lambda: not client_state.read(str(folder))["unsent"])
    log(*range(0, 10_000, 100))
"""
"""Ten blocks of ten points each, of two metrics. The summary contains one digest per four blocks."""
TRAIN = f"{BEGIN}    run.finish()\n"
LOSING = f"""{BEGIN}
    os.kill(run._sync_manager._process.pid, signal.SIGKILL)
    run.log({{f"loss/{{rank}}": 7.5}}, step=10_500)
    run.finish()
"""
"""The uploader dies before the last point, which is the only one in its block."""
DYING = f"""{BEGIN}
    until(lambda: not client_calls._recording.lines.reports.state(0)["unsent"])
    log(10_000)
    os.kill(os.getpid(), signal.SIGKILL)
"""
LATE = f"""{BEGIN}
    os.kill(run._sync_manager._process.pid, signal.SIGKILL)
    for step in (10_500, 11_500):
        run.log({{f"loss/{{rank}}": 7.5}}, step=step)
    until(lambda: not client_calls._recording.lines.reports.state(0)["unsent"])
    run.log({{f"loss/{{rank}}": 7.5}}, step=11_501)
    os.kill(os.getpid(), signal.SIGKILL)
"""
"""The tracker has the digest of a block whose point the client has not sent."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the recorder's folder, with the same files as the ConfigMap in a container."""
    return lay_out(recorder.MOUNTED, tmp_path_factory.mktemp("recorder"))


@pytest.fixture
def recorded(server: Server, folder: Path, api: BundleApi, tmp_path: Path) -> Recorded:
    return Recorded.of(server, folder, api, tmp_path)


@pytest.mark.nightly
def test_lost_point_in_long_run_names_its_block(recorded: Recorded) -> None:
    """Contract: the verdict is FAIL and names the block, and so is the verdict when the bundle is judged
    again."""
    recorded.train(0, program=TRAIN)
    recorded.train(1, program=LOSING)
    recorded.serve()
    outcome = recorded.attach()
    verdict = outcome.verdict
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "unification.lost_points", [1])
    assert "rank 1: loss/1: 1 of 101 points, in steps 10000–10999" in verdict.explanation
    assert judge(Bundle.open(outcome.bundle)).explanation == verdict.explanation


@pytest.mark.nightly
def test_a_forged_report_or_line_is_never_a_pass(recorded: Recorded) -> None:
    recorded.train(0, 1, program=TRAIN)
    recorded.serve()
    verdict = recorded.attach().verdict
    assert verdict.verdict == "PASS", not_passed(verdict)
    lines = recorded.log(1).read_text()
    changed = lines.replace("@rec2", "@rec9", 1)
    recorded.log(1).write_text(changed)
    recorded.serve()
    assert recorded.attach().verdict.verdict == "UNKNOWN"
    recorded.log(1).write_text(lines)
    recorded.serve()
    with sqlite3.connect(recorded.server.db) as db:
        rows = "SELECT d.id, packed FROM digests d JOIN runs r ON r.id = run_id WHERE external_id = ?"
        (first, packed), *rest = db.execute(f"{rows} ORDER BY d.id DESC", (recorded.run_id,)).fetchall()
        report = zlib.decompress(packed)
        other = report.replace(b'"entries": [["loss', b'"entries": [["lass', 1)
        assert other != report
        db.execute("UPDATE digests SET packed = ? WHERE id = ?", (zlib.compress(other), first))
    verdict = recorded.attach().verdict
    assert (verdict.verdict, verdict.cause, verdict.ranks) == (
        "UNKNOWN",
        "unification.digests_contradict",
        [1],
    )
    assert "rank 1" in verdict.explanation
    assert "one of them was changed" in verdict.explanation
    with sqlite3.connect(recorded.server.db) as db:
        db.execute("DELETE FROM digests WHERE id = ?", (first,))
    verdict = recorded.attach().verdict
    assert (verdict.verdict, verdict.cause) == ("UNKNOWN", "unification.digests_contradict")
    assert "they were lost or deleted, or its log is forged" in verdict.explanation
    assert rest


@pytest.mark.nightly
def test_the_blocks_of_a_dead_rank_are_judged(recorded: Recorded) -> None:
    """Contract: the rank's exit is the cause. Its blocks up to its last line are judged, and later ones are
    UNKNOWN."""
    recorded.train(0, program=TRAIN)
    recorded.train(1, program=DYING)
    failed = jobs.job("train", 2, jobs.condition("Failed", "BackoffLimitExceeded", "limit"))
    recorded.serve(recorded.pod(0), recorded.pod(1, 137), job=failed)
    verdict = recorded.attach().verdict
    assert verdict.verdict != "PASS"
    complete = check(verdict, "ground-truth-complete")
    assert complete.result == "UNKNOWN"
    assert "blocks of its points up to its recorder's last line are in the run" in complete.explanation
    assert {check(verdict, name).result for name in ("no-lost-points", "values")} == {"UNKNOWN"}


@pytest.mark.nightly
def test_unsent_point_is_lost_only_after_rank_ended(recorded: Recorded) -> None:
    recorded.train(0, program=TRAIN)
    recorded.train(1, program=LATE)
    recorded.serve(recorded.pod(0), recorded.pod(1, None))  # The Job is Complete.
    verdict = recorded.attach().verdict
    assert (verdict.verdict, check(verdict, "no-lost-points").result) == ("UNKNOWN", "UNKNOWN")
    complete = check(verdict, "ground-truth-complete").explanation
    assert "in steps 10000–10999; its client may still send them" in complete
    failed = jobs.job("train", 2, jobs.condition("Failed", "BackoffLimitExceeded", "limit"))
    recorded.serve(recorded.pod(0), recorded.pod(1, 137), job=failed)
    assert check(recorded.attach().verdict, "no-lost-points").result == "FAIL"


@pytest.mark.nightly
def test_key_of_project_judges_by_summary_alone(recorded: Recorded) -> None:
    """Contract: with a key that has no access to the audit view, the reports cannot be read, so only the name
    of the block is missing."""
    recorded.train(0, 1, program=TRAIN)
    recorded.serve()
    recorded.api.secrets["own"] = {"api-key": encoded(project_key(KEY, "e2e"))}
    verdict = recorded.attach().verdict
    assert verdict.verdict == "PASS", not_passed(verdict)
