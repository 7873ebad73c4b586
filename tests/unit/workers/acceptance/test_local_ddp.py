"""What is taken over from a local run of ddp_tests."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.workers.acceptance.check import Check, worst
from harness.workers.acceptance.local_ddp import Ended, LocalDdp, environment, judge, read

GOOD = Check(id="ddp.all_reduce.correct", tag="DDP", verdict="PASS", text="x", ranks=(0, 1))
WELL = Ended(0, ("[RESULT] PASS",))


def report(*checks: Check, **changed: Any) -> dict[str, Any]:
    written = {"kind": "ddp", "ranks": 2, "checks": [check.as_dict() for check in checks], **changed}
    found: dict[str, Any] = json.loads(json.dumps(written))
    return found


def test_a_good_run_is_taken_as_it_is() -> None:
    assert list(judge(report(GOOD), 2, WELL)) == [GOOD]


@pytest.mark.parametrize(
    ("report", "ended", "words"),
    [
        (None, Ended(1, ("Segmentation fault",)), "Segmentation fault"),
        (report(), WELL, "no checks"),
        (report(GOOD), Ended(1, ("RuntimeError: NCCL",)), "RuntimeError: NCCL"),
        (report(GOOD), Ended(None, ()), "stopped at its time limit"),
        (report(GOOD, ranks=1), WELL, "has world size 1"),
        (report(GOOD, checks=[{"id": "x"}]), WELL, "contains an invalid check"),
        (report(GOOD, checks=[{**GOOD.as_dict(), "verdict": "GREAT"}]), WELL, "contains an invalid check"),
        (report(GOOD, checks=[{**GOOD.as_dict(), "more": 1}]), WELL, "contains an invalid check"),
        (report(GOOD, checks=["x"]), WELL, "contains an invalid check"),
    ],
)
def test_what_is_not_the_whole_story_is_unknown(
    report: dict[str, Any] | None, ended: Ended, words: str
) -> None:
    """Contract: no report, an empty one, one of other ranks, and a bad end without a FAIL are UNKNOWN."""
    checks = list(judge(report, 2, ended))
    assert worst(check.verdict for check in checks) == "UNKNOWN"
    assert words in checks[-1].text


def test_an_end_that_the_checks_explain_says_nothing_more() -> None:
    """Contract: ddp_tests ends with 2 for an UNKNOWN check, torchrun with 1; it is no second one."""
    unknown = replace(GOOD, verdict="UNKNOWN")
    assert list(judge(report(GOOD, unknown), 2, Ended(1, ()))) == [GOOD, unknown]


def test_a_failure_stays_a_failure() -> None:
    wrong = replace(GOOD, verdict="FAIL", cause="collective.wrong")
    assert list(judge(report(wrong), 2, Ended(1, ()))) == [wrong]


@given(st.lists(st.sampled_from(["PASS", "WARN", "UNKNOWN", "FAIL"])), st.sampled_from([None, 0, 1, 2, -9]))
def test_it_is_never_better_than_the_report(verdicts: list[Any], code: int | None) -> None:
    """Contract: what comes of it is at most as good as the report, and PASS or WARN needs a good end."""
    checks = list(judge(report(*(replace(GOOD, verdict=one) for one in verdicts)), 2, Ended(code, ())))
    verdict, order = worst(check.verdict for check in checks), ["FAIL", "UNKNOWN", "WARN", "PASS"]
    assert order.index(verdict) <= order.index(worst(verdicts))
    assert verdict not in ("PASS", "WARN") or (code == 0 and verdicts)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"kind": "node", "checks": []}'])
def test_a_file_that_is_no_report(tmp_path: Path, text: str) -> None:
    (tmp_path / "r.json").write_text(text)
    assert read(tmp_path / "r.json") is None
    assert read(tmp_path / "none.json") is None


def test_torchrun_starts_in_an_environment_of_its_own() -> None:
    """Contract: neither the pod's job nor the harness' nonce reaches it."""
    pods = {"RANK": "3", "PET_NNODES": "4", "MASTER_ADDR": "a", "HARNESS_NONCE": "n", "NCCL_DEBUG": "INFO"}
    kept = environment(pods)
    assert not {"RANK", "PET_NNODES", "MASTER_ADDR"} & set(kept)
    assert kept["HARNESS_NONCE"] == ""
    assert kept["NCCL_DEBUG"] == "INFO"


def test_the_command_is_the_contract_of_ddp_tests(tmp_path: Path) -> None:
    run = LocalDdp(8, "cuda", "full", tmp_path, tmp_path / "own.toml")
    words = " ".join(run.command()[1:])
    assert words.startswith(
        "-m torch.distributed.run --standalone --nproc-per-node 8 -m harness.workers.acceptance."
    )
    assert words.endswith(
        f"ddp_tests --full --report-dir {tmp_path} --device cuda --limits {tmp_path}/own.toml"
    )
