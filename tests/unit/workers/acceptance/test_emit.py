"""What a test of a node says: lines, frames, a report, the termination log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.evidence.schema.acceptance import AcceptanceCheck, AcceptanceReport
from harness.workers.acceptance import frames
from harness.workers.acceptance.check import Check, Verdict
from harness.workers.acceptance.emit import MARK, TERMINATION_BYTES, Emitter, finite

NONCE = "n1"


def check(verdict: Verdict = "PASS", text: str = "x") -> Check:
    return Check(id="compute.gemm.bf16", tag="COMPUTE", verdict=verdict, text=text)


def emitter(
    folder: Path, kind: Literal["node", "ddp"] = "node", device: str = "cuda", framed: bool = True
) -> Emitter:
    return Emitter(kind, device, "quick", folder, framed=framed, termination_log=folder / "log")


def framed(text: str, nonce: str = NONCE) -> list[dict[str, object]]:
    collector = frames.Collector(nonce, MARK)
    return [found for line in text.splitlines() if (found := collector.feed(line))]


@pytest.mark.parametrize(
    ("verdicts", "verdict", "code"),
    [
        ([], "UNKNOWN", 2),
        (["PASS"], "PASS", 0),
        (["PASS", "WARN"], "WARN", 0),
        (["PASS", "WARN", "UNKNOWN"], "UNKNOWN", 2),
        (["PASS", "UNKNOWN", "FAIL", "WARN"], "FAIL", 1),
    ],
)
def test_the_worst_check_decides(
    tmp_path: Path, verdicts: list[Verdict], verdict: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Contract: no check at all is UNKNOWN, and so is one that could not be made."""
    one = emitter(tmp_path)
    for seen in verdicts:
        one.say(check(seen))
    assert one.finish() == code
    report = AcceptanceReport.model_validate_json((tmp_path / "summary.json").read_text())
    assert (report.verdict, len(report.checks)) == (verdict, len(verdicts))
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"[RESULT] {verdict} ")


def test_the_frames_are_the_lines_and_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract: each check is framed as it is made, the report at the end; only the nonce opens them."""
    monkeypatch.setenv("HARNESS_NONCE", NONCE)
    monkeypatch.setenv("NODE_NAME", "node-7")
    one = emitter(tmp_path, "ddp")
    one.say(check("FAIL", "y\nz" * 3000))
    out = capsys.readouterr().out
    assert out.splitlines()[0].startswith("[COMPUTE] FAIL compute.gemm.bf16: y z")
    (frame,) = framed(out)
    assert AcceptanceCheck.model_validate(frame["check"]).text == "y\nz" * 3000
    one.finish(ranks=4)
    out = capsys.readouterr().out
    (frame,) = framed(out)
    report = AcceptanceReport.model_validate(frame["report"])
    assert report == AcceptanceReport.model_validate_json((tmp_path / "ddp_tests_result.json").read_text())
    assert (report.node, report.ranks, report.kind) == ("node-7", 4, "ddp")
    assert framed(out, "other") == []
    assert [found for line in out.splitlines() if (found := frames.Collector(NONCE).feed(line))] == []


def test_only_the_framed_rank_with_a_nonce_prints_frames(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HARNESS_NONCE", raising=False)
    emitter(tmp_path).say(check())
    monkeypatch.setenv("HARNESS_NONCE", NONCE)
    emitter(tmp_path, framed=False).say(check())
    emitter(tmp_path).say(check(), shown=False)
    lines = capsys.readouterr().out.splitlines()
    assert [line.startswith(MARK) for line in lines] == [False, False, True]


def test_only_the_first_end_counts(tmp_path: Path) -> None:
    """Contract: two threads may end it; the report stays as the first wrote it."""
    one = emitter(tmp_path)
    one.say(check())
    assert one.finish() == 0
    one.say(check("FAIL"))
    assert one.finish() == 0
    assert json.loads((tmp_path / "summary.json").read_text())["verdict"] == "PASS"


def test_a_report_that_cannot_be_written_is_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Contract: who reads the exit code must not look for a report that is not there."""
    (tmp_path / "file").write_text("")
    one = Emitter("node", "cuda", "quick", tmp_path / "file", termination_log=tmp_path / "log")
    one.say(check())
    assert one.finish() == 2
    assert "summary.json was not written" in capsys.readouterr().out


def test_a_cpu_is_no_acceptance_of_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = emitter(tmp_path, device="cpu")
    one.say(check())
    one.finish()
    assert "no GPU is accepted" in capsys.readouterr().out


@given(
    st.lists(
        st.tuples(st.sampled_from(["PASS", "WARN", "FAIL", "UNKNOWN"]), st.text(max_size=400)), max_size=40
    )
)
def test_the_termination_log_is_short_and_worst_first(
    tmp_path_factory: pytest.TempPathFactory, results: list[tuple[Verdict, str]]
) -> None:
    """Contract: Kubernetes cuts at 4096 bytes; what failed comes first, and no character is cut."""
    folder = tmp_path_factory.mktemp("log")
    (folder / "log").touch()
    one = emitter(folder)
    for verdict, text in results:
        one.say(check(verdict, text))
    one.finish()
    written = (folder / "log").read_bytes()
    assert len(written) <= TERMINATION_BYTES
    text = written.decode()
    assert ("FAIL" in text.splitlines()[0]) == any(verdict == "FAIL" for verdict, _ in results)
    if any(verdict == "FAIL" for verdict, _ in results):
        assert text.splitlines()[1].startswith("[COMPUTE] FAIL")


@given(
    st.recursive(
        st.floats() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_every_figure_fits_into_json(value: object) -> None:
    """Contract: a figure that is no number is null, and no report is unreadable for it."""
    json.dumps(finite(value), allow_nan=False)
