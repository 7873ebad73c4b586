"""What the recorder writes, the harness reads back: every row, its digest, and nothing forged."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.evidence import extract
from harness.evidence.schema.ground_truth import TruthEnd, TruthGap
from harness.judge.points.series import Series
from harness.workers.ground_truth import point_recorder as ground_truth
from harness.workers.ground_truth import truth_frames as frames
from harness.workers.ground_truth.kept_rows import KeptRows
from harness.workers.ground_truth.point_recorder import Recorder

ROWS = st.lists(
    st.tuples(st.sampled_from(["loss", "lr/é", "x" * 200]), st.integers(0, 2**40), st.floats()), max_size=120
)


def written(rows: list[tuple[str, int, float]], limit: int = 10**6) -> tuple[list[str], dict[str, object]]:
    """Record rows through a real pipe-like descriptor; returns the lines and the digest."""
    fd = os.memfd_create("truth")
    recorder = Recorder("abc123", 1, row_limit=limit, fd=fd)
    for row in rows:
        recorder.record(*row)
    summary = recorder.end(output_dir="")
    text = os.pread(fd, 10**8, 0).decode()
    os.close(fd)
    return text.splitlines(), summary


@given(ROWS)
def test_rows_come_back_in_order_with_their_digest(rows: list[tuple[str, int, float]]) -> None:
    lines, summary = written(rows)
    assert all(len(line) < frames.MAX_LINE for line in lines)
    payloads = list(frames.decode("abc123", lines))
    assert [p["q"] for p in payloads] == list(range(len(payloads)))
    back = [(m, s, frames.decode_value(v)) for p in payloads if p["k"] == "rows" for m, s, v, _ in p["rows"]]
    assert frames.digest(back) == frames.digest(rows) == summary["sha256"] == payloads[-1]["sha256"]
    assert payloads[-1]["count"] == len(rows) == len(back)


def test_rows_past_the_limit_are_told_by_blocks() -> None:
    rows = [("loss", step, step / 7) for step in range(2500)]
    payloads = list(frames.decode("abc123", written(rows, limit=100)[0]))
    blocks = [p for p in payloads if p["k"] == "block"]
    assert sum(b["count"] for b in blocks) == 2400
    assert blocks[0]["sha256"] == frames.digest(rows[100:1100])


@pytest.mark.parametrize("metrics", [1, 300])
def test_past_the_limit_every_metric_has_its_digest(metrics: int) -> None:
    """Contract: however many there are. Threads may log in another order to two recorders of one rank."""
    rows = [(f"a metric with a long name/{n}", step, n / 7) for step in range(4) for n in range(metrics)]
    lines, summary = written(rows, limit=2)
    assert all(len(line) < frames.MAX_LINE for line in lines)
    payloads = list(frames.decode("abc123", lines))
    digests = [entry for p in payloads if p["k"] == "metrics" for entry in p["metrics"]]
    wanted = {name: [row for row in rows if row[0] == name] for name, _, _ in rows}
    assert digests == [[name, len(own), frames.digest(own)] for name, own in wanted.items()]
    (truth,) = extract(lines, "abc123").values()
    assert truth[-1] == TruthEnd(count=len(rows), sha256=str(summary["sha256"]))
    assert not any(isinstance(line, TruthGap) for line in truth)


def test_a_frame_of_another_nonce_is_no_truth() -> None:
    lines = written([("loss", 1, 2.0)])[0]
    assert list(frames.decode("other", lines)) == []
    assert len(list(frames.decode("abc123", [f"noise {line}" for line in lines]))) == 3


def test_local_ranks_share_one_result_file(tmp_path: Path) -> None:
    for rank in (0, 1):
        Recorder("n", rank, fd=os.open(os.devnull, os.O_WRONLY)).end(output_dir=str(tmp_path))
    result = json.loads((tmp_path / "result.json").read_text())
    assert set(result["truth"]) == {"0", "1"}


def test_without_a_nonce_nothing_is_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HARNESS_NONCE", raising=False)
    with pytest.raises(RuntimeError, match="HARNESS_NONCE"):
        Recorder.from_env(0)


def reported(monkeypatch: pytest.MonkeyPatch, facts: list[list[str]] | Exception) -> list[dict[str, object]]:
    """Return the payloads of a recorder that reports this code, with one row."""

    def code_facts(last: bool = False) -> list[list[str]]:
        if isinstance(facts, Exception):
            raise facts
        return [[*fact] for fact in (facts[:1] if last else facts)]

    monkeypatch.setattr(ground_truth.code_digest, "facts", code_facts)
    fd = os.memfd_create("truth")
    recorder = Recorder("abc123", 1, fd=fd)
    recorder.code()
    recorder.record("loss", 0, 1.0)
    recorder.end(output_dir="")
    lines = os.pread(fd, 10**8, 0).decode().splitlines()
    os.close(fd)
    assert all(len(line) < frames.MAX_LINE for line in lines)
    return list(frames.decode("abc123", lines))


NAME = st.text(max_size=ground_truth.code_digest.LONGEST)
FACTS = st.lists(st.tuples(st.just("file"), NAME, NAME).map(list), min_size=1, max_size=60)


@given(FACTS)
def test_code_facts_precede_the_rows_and_the_end(facts: list[list[str]]) -> None:
    """Contract: every fact arrives, in as many frames as it takes, before the rows and before the end."""
    with pytest.MonkeyPatch.context() as patch:
        payloads = reported(patch, facts)
    kinds = [payload["k"] for payload in payloads]
    assert kinds[0] == "start"
    assert kinds[-2:] == ["code", "end"]
    rows = kinds.index("rows")
    assert [fact for p in payloads[:rows] if p["k"] == "code" for fact in p["facts"]] == facts
    assert payloads[-2]["facts"] == facts[:1]


def test_program_goes_on_when_its_code_cannot_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract: the reason is told in place of the code, and nothing is raised."""
    payloads = reported(monkeypatch, PermissionError("not allowed"))
    assert payloads[1]["facts"] == [["error", "PermissionError", "not allowed"]]


def test_a_recorder_of_the_environment_tells_its_code() -> None:
    """Contract: nobody has to ask for it."""
    program = "from ground_truth import Recorder; Recorder.from_env(0)"
    environment = {**os.environ, "HARNESS_NONCE": "abc123", "PYTHONPATH": "harness/workers"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    payloads = list(frames.decode("abc123", done.stdout.splitlines()))
    facts = [fact for payload in payloads if payload["k"] == "code" for fact in payload["facts"]]
    assert {"python", "packages", "pluto"} <= {name for what, name, _ in facts if what == "stack"}
    assert any(what == "ran" and name.endswith("/ground_truth/point_recorder.py") for what, name, _ in facts)


def test_blocks_hold_the_last_value_of_repeated_steps() -> None:
    """Contract: past the row limit too, the latest time of a step stays, and of equal times the last row."""
    rows = [("loss", step, step / 7) for step in range(3000)]
    rows += [("loss", step, step / 3) for step in range(500, 1500)]
    rows += [("rising", step, 0.5) for step in range(1200)]
    payloads = list(frames.decode("abc123", written(rows, limit=100)[0]))
    blocks = [p for p in payloads if p["k"] == "block"]
    kept = [p for p in blocks if p.get("kept")]
    assert {p["metric"] for p in kept} == {"loss"}
    assert sum(p["count"] for p in kept) == 3000
    assert sum(p["again"] for p in kept) == 1000
    wanted = {step: value for metric, step, value in rows if metric == "loss"}
    assert kept[0]["sha256"] == frames.digest(("loss", step, wanted[step]) for step in range(1000))
    assert {p["ordered"] for p in blocks if p["metric"] == "rising"} == {True}


@given(st.lists(st.tuples(st.integers(-3, 6), st.floats(), st.integers(0, 4)), max_size=40))
def test_kept_rows_are_those_of_the_tracker(rows: list[tuple[int, float, int]]) -> None:
    """Contract: the recorder's rule for rows that replace others is the judges' own."""
    kept, series = KeptRows(), Series()
    for step, value, time_ms in rows:
        kept.put(step, value, time_ms)
        series.put(step, value, time_ms)
    assert {step: repr(value) for step, value, *_ in kept.kept()} == {s: repr(v) for s, v in series.items()}
