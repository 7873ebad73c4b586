"""What the recorder writes, the harness reads back: every row, its digest, and nothing forged."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.workers import truth_frames as frames
from harness.workers.ground_truth import Recorder

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
