"""The recorder tells what the client is going to change: in the log, once a metric, and in a frame."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.evidence.io.ground_truth import extract
from harness.evidence.schema.ground_truth import TruthRewrite, TruthRow
from harness.workers.ground_truth.client_rules import sent, sent_name
from harness.workers.ground_truth.point_recorder import Recorder


def recorded(*points: tuple[str, Any, Any]) -> tuple[list[str], list[TruthRow], list[TruthRewrite]]:
    """Record points. Returns the log's lines, and the rows and rewrites that the harness reads from them."""
    fd = os.memfd_create("truth")
    recorder = Recorder("abc", 0, fd=fd)
    for metric, step, value in points:
        recorder.record(metric, step, value)
    recorder.end(output_dir="")
    lines = os.pread(fd, 10**7, 0).decode().splitlines()
    os.close(fd)
    found = extract(lines, "abc")[0]
    rows = [line for line in found if isinstance(line, TruthRow)]
    return lines, rows, [line for line in found if isinstance(line, TruthRewrite)]


def warnings(lines: list[str]) -> list[str]:
    return [line for line in lines if "warning:" in line]


def test_a_renamed_metric_is_told_once() -> None:
    lines, rows, rewrites = recorded(*(("perte/é", step, 0.5) for step in range(5)))
    assert warnings(lines) == ["[rank 0] warning: Pluto's client renames 'perte/é' to 'perte/-'"]
    assert [row.metric for row in rows] == ["perte/é"] * 5
    assert rewrites == []


@pytest.mark.parametrize("value", [True, None, [], [1, 2], (1,), 2**53 + 1, 10**400, "x" * 300])
def test_a_changed_value_is_told_once(value: object) -> None:
    lines, _, rewrites = recorded(*(("flag", step, value) for step in range(3)))
    assert len(warnings(lines)) == 1
    assert [(one.metric, one.step, one.kept) for one in rewrites] == [("flag", "0", sent(value).kept)]


def test_a_refused_step_is_told() -> None:
    lines, rows, rewrites = recorded(("loss", -1, 0.5), ("loss", 2, 0.25))
    assert "Pluto refuses step -1" in warnings(lines)[0]
    assert [row.step for row in rows] == [-1, 2]
    assert len(rewrites) == 1


def test_a_string_is_no_metric() -> None:
    """A state label goes to Pluto's own series of strings: it is no point, and nothing is changed."""
    lines, rows, rewrites = recorded(("phase", 0, "warm-up"))
    assert (warnings(lines), rows, rewrites) == ([], [], [])


@given(st.text(min_size=1, max_size=40))
def test_a_name_stays_or_is_ascii(name: str) -> None:
    """Contract: the new name is as long as the old one, and the rule changes it no further."""
    new = sent_name(name)
    assert len(new) == len(name)
    assert sent_name(new) == new


@given(st.floats(allow_nan=False) | st.integers(-(2**53), 2**53), st.integers(0, 2**60))
def test_plain_numbers_stay(value: float, step: int) -> None:
    outcome = sent(value, step)
    assert (outcome.values, outcome.kept, outcome.why) == ((float(value),), True, "")
