"""If another job wrote to the run, the verdict is not PASS, whatever it wrote, and even if its rows are
equal."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import bundles
import pytest
from bundles import at
from hypothesis import given
from hypothesis import strategies as st
from sample_jobs import slow

from harness.evidence import Bundle
from harness.evidence.schema.bundle import Verdict
from harness.evidence.schema.tracker import Attachment, RunWriter
from harness.faults.fault_file import catalogue
from harness.faults.recorded_bundles import extract
from harness.judge import judge

NONCE = bundles.NONCE
HEALTHY = [
    name
    for name, fault in catalogue().items()
    if fault.expect is not None
    and fault.expect.verdict == "PASS"
    and Path(f"tests/recorded/{name}.tar.xz").is_file()
]
MOMENTS = {"before": -100.0, "during": 20.0, "after": 44.0}


def keyed(job: bundles.Job) -> bundles.Job:
    """Return the job's data from a tracker that identifies launches by their keys."""
    assert job.attachments is not None
    name = {"name": "rank", "peer": "10.244.1.7", "launch": NONCE}
    job.attachments = [one.model_copy(update=name) for one in job.attachments]
    sender = {"sender": "rank", "peer": "10.244.1.7", "launch": NONCE}
    job.points = [point.model_copy(update=sender) for point in job.points]
    job.writers = [written("metrics", launch=NONCE), written("claim", launch=NONCE, sender=None, peer=None)]
    return job


def written(kind: str, **more: Any) -> RunWriter:
    values = {"sender": "rank", "peer": "10.244.1.7", "requests": 1, "rows": 1, "first": at(9), "last": at(9)}
    return RunWriter(**{"run_id": 1, "kind": kind, **values, **more})


def by_other(job: bundles.Job, moment: float, **more: Any) -> Attachment:
    """Return the attachment of another launch's process, which differs from ours only in the launch."""
    assert job.attachments is not None
    return job.attachments[1].model_copy(update={"at": at(moment, True), "launch": "0ther", **more})


def stranger(verdict: Verdict) -> str:
    assert (verdict.verdict, verdict.cause) == ("FAIL", "unification.foreign_job"), verdict
    return verdict.explanation


def test_a_healthy_job_is_alone(judged: Callable[[bundles.Job], Verdict]) -> None:
    """Contract: if only this launch wrote to the run, the verdict is PASS, and the check states how this is
    known."""
    verdict = judged(keyed(bundles.healthy()))
    assert verdict.verdict == "PASS"
    explanation = next(check.explanation for check in verdict.checks if check.name == "only-our-job")
    assert "According to the key of each request" in explanation


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_equal_process_of_another_launch(judged: Callable[[bundles.Job], Verdict], moment: str) -> None:
    """Contract: the other launch is detected even if its name, host, rank, job and address are equal."""
    job = keyed(bundles.healthy())
    assert job.attachments is not None
    job.attachments.append(by_other(job, MOMENTS[moment]))
    explanation = stranger(judged(job))
    assert f"job {bundles.JOBSET} of launch 0ther, rank 1: 1 attached process" in explanation
    assert "by 'rank' at 10.244.1.7" in explanation


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("launch", ["0ther", None])
def test_equal_rows_of_another_launch(
    judged: Callable[[bundles.Job], Verdict], moment: str, launch: str | None
) -> None:
    """Contract: a row of another launch is detected even if its metric, step, value, sender and address are
    equal to ours."""
    job = keyed(bundles.healthy())
    for one in job.points[:3]:
        job.points.append(one.model_copy(update={"launch": launch, "received_at": at(MOMENTS[moment])}))
    assert "3 rows" in stranger(judged(job))


@pytest.mark.parametrize("kind", ["files", "status", "logs", "data", "tags", "config", "heartbeat", "graph"])
def test_any_request_of_another_launch(judged: Callable[[bundles.Job], Verdict], kind: str) -> None:
    """Contract: every kind of request that writes to the run counts, even without an attachment."""
    job = keyed(bundles.healthy())
    job.writers.append(written(kind, launch="0ther"))
    assert "launch 0ther" in stranger(judged(job))


def test_a_status_report_of_another_launch(judged: Callable[[bundles.Job], Verdict]) -> None:
    """Contract: a status report in the history counts, even if it had no effect."""
    job = keyed(bundles.healthy())
    event = {"source": "api", "toStatus": "COMPLETED", "applied": False, "createdAt": at(20)}
    ours = {**event, "peer": "10.244.1.7", "sender": "rank", "launch": NONCE}
    job.runs[0] = job.runs[0].model_copy(update={"status_history": [ours, {**ours, "launch": "0ther"}]})
    assert "1 status report, by 'rank' at 10.244.1.7" in stranger(judged(job))


def test_a_launch_that_has_not_written_yet(judged: Callable[[bundles.Job], Verdict]) -> None:
    """Contract: a claim of the run id is enough, because the other launch may send its data after our last
    row."""
    job = keyed(bundles.healthy())
    job.writers.append(written("claim", launch="0ther", sender=None, peer=None))
    assert "launch 0ther: 1 claim of its id" in stranger(judged(job))


def test_the_job_is_named_by_its_attachment(judged: Callable[[bundles.Job], Verdict]) -> None:
    """Contract: rows, files and attachments of one launch are one job, named with its ranks and senders."""
    job = keyed(bundles.healthy())
    assert job.attachments is not None
    job.attachments.append(by_other(job, 20, job_name="theirs", name="b", peer="10.0.0.9"))
    more = {"launch": "0ther", "sender": "b", "peer": "10.0.0.9"}
    job.points.append(job.points[0].model_copy(update=more))
    job.writers.append(written("files", **more))
    explanation = stranger(judged(job))
    assert "job theirs of launch 0ther, rank 1: 1 attached process, 1 file, 1 row (loss/node0" in explanation
    assert explanation.count("by 'b' at 10.0.0.9") == 1


def test_without_launches_names_and_addresses_tell(judged: Callable[[bundles.Job], Verdict]) -> None:
    """Contract: with an earlier version of the tracker, the job's name, the sender and the address are
    compared."""
    job = bundles.healthy()
    assert job.attachments is not None
    job.attachments.append(job.attachments[0].model_copy(update={"job_name": "theirs", "rank": 5}))
    assert "job theirs, rank 5: 1 attached process" in stranger(judged(job))


def test_hosted_pluto_tells_nothing(judged: Callable[[bundles.Job], Verdict]) -> None:
    """Contract: if the tracker does not record senders, the check states this."""
    job = bundles.healthy()
    job.attachments = None
    verdict = judged(job)
    explanation = next(check.explanation for check in verdict.checks if check.name == "only-our-job")
    assert verdict.verdict == "PASS"
    assert "does not report who sent what" in explanation


def test_writers_that_are_missing_from_the_bundle(judged: Callable[[bundles.Job], Verdict]) -> None:
    """Contract: a truncated writers.jsonl proves nothing."""
    job = keyed(bundles.healthy())
    job.summary = {"writers": 9}
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause) == ("UNKNOWN", "tracker.incomplete")


# -- recorded bundles of real launches, and any added sender ---------------------------------------------


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="strangers-"))


@cache
def _extracted(name: str) -> Path:
    return extract(Path(f"tests/recorded/{name}.tar.xz"), _folder() / name)


@pytest.fixture(scope="module", autouse=True)
def _removed() -> Any:
    yield
    shutil.rmtree(_folder(), ignore_errors=True)


NAMES = st.sampled_from(["equal", "visitor", "rank0", None])
ADDRESSES = st.sampled_from(["10.99.0.7", "192.0.2.3"])


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def _attachment(draw: Any, tracker: Path, run: dict[str, Any], who: dict[str, Any]) -> None:
    host = draw(st.sampled_from(["their-host", None]))
    job = {"job_name": "theirs", "hostname": host, "rank": draw(st.integers(0, 9) | st.none())}
    record = {"run_id": run["run_id"], "at": run["created_at"], "resumed": True, **job}
    _append(tracker, "attachments", {**record, "name": who["sender"], **who})


def _row(draw: Any, tracker: Path, run: dict[str, Any], who: dict[str, Any]) -> None:
    rows = [one for one in _lines(tracker / "points.jsonl") if one["run_id"] == run["run_id"]]
    _append(tracker, "points", {**draw(st.sampled_from(rows)), "launch": None, **who})


def _status(draw: Any, tracker: Path, run: dict[str, Any], who: dict[str, Any]) -> None:
    event = {"source": "api", "toStatus": "COMPLETED", "applied": draw(st.booleans()), "createdAt": "x"}
    at_ = draw(st.integers(0, len(run["status_history"])))
    run["status_history"].insert(at_, {**event, **who})
    runs = [run if one["run_id"] == run["run_id"] else one for one in _lines(tracker / "runs.jsonl")]
    (tracker / "runs.jsonl").write_text("".join(json.dumps(one) + "\n" for one in runs))


def _file(draw: Any, tracker: Path, run: dict[str, Any], who: dict[str, Any]) -> None:
    times = {"first": run["created_at"], "last": run["created_at"]}
    kind = draw(st.sampled_from(["files", "logs", "data", "status", "metrics", "config"]))
    _append(
        tracker, "writers", {"run_id": run["run_id"], "kind": kind, "requests": 1, "rows": 1, **times, **who}
    )


def _append(tracker: Path, kind: str, record: dict[str, Any]) -> None:
    with (tracker / f"{kind}.jsonl").open("a") as file:
        file.write(json.dumps(record) + "\n")
    summary = json.loads((tracker / "summary.json").read_text())
    summary[kind] = len(_lines(tracker / f"{kind}.jsonl"))
    (tracker / "summary.json").write_text(json.dumps(summary))


@given(st.data())
@slow
def test_any_added_sender_makes_no_pass(data: st.DataObject) -> None:
    """Property: if anything from another sender is added to a healthy recorded bundle, the verdict is a FAIL
    that names it."""
    source = _extracted(data.draw(st.sampled_from(HEALTHY)))
    manifest = json.loads((source / "manifest.json").read_text())
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(source, Path(folder) / "bundle"))
        tracker = copy / "tracker"
        expected = manifest["expected"]
        run = next(
            one
            for one in _lines(tracker / "runs.jsonl")
            if (one["external_id"], one["project"]) == (expected["run_id"], expected["project"])
        )
        name = data.draw(NAMES)
        equal = next(iter(_lines(tracker / "attachments.jsonl")))["name"]
        who = {"sender": equal if name == "equal" else name, "peer": data.draw(ADDRESSES)}
        data.draw(st.sampled_from([_attachment, _row, _status, _file]))(data.draw, tracker, run, who)
        verdict = judge(Bundle.open(copy))
    assert (verdict.verdict, verdict.cause) == ("FAIL", "unification.foreign_job"), verdict.explanation
    assert who["peer"] in verdict.explanation


@pytest.mark.parametrize("name", HEALTHY)
def test_recorded_bundles_keep_their_pass(name: str) -> None:
    """Contract: no data of a healthy launch is attributed to another launch."""
    assert judge(Bundle.open(_extracted(name))).verdict == "PASS"
