"""Steps one after another: what raises is UNKNOWN, and an early end leaves a report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.workers.acceptance.check import Check
from harness.workers.acceptance.emit import Emitter
from harness.workers.acceptance.runner import Runner, Section, Step

ROOT = Path(__file__).parents[4]
STUCK = """
import ctypes, sys
from pathlib import Path
from harness.workers.acceptance.check import Check
from harness.workers.acceptance.emit import Emitter
from harness.workers.acceptance.runner import Runner, Section, Step

def good():
    yield Check(id="a", tag="ENV", verdict="PASS", text="x")

def stuck():
    print("stuck", flush=True)
    # As a wait for a GPU: in C, and no signal brings it back to Python.
    while True:
        ctypes.CDLL(None).sleep(60)

emitter = Emitter("node", "cuda", "quick", Path(sys.argv[1]))
runner = Runner(emitter, float(sys.argv[2]))
runner.extra["versions"] = {"torch": "2"}
runner.at_end.append(lambda: print("ended", flush=True))
steps = [Step("a", "ENV", good), Step("b", "COMPUTE", stuck), Step("c", "COMPUTE", good)]
sys.exit(runner.run([Section("all", "ENV", lambda: steps), Section("later", "TRAIN", lambda: steps)]))
"""


def good() -> Iterator[Check]:
    yield Check(id="good", tag="ENV", verdict="PASS", text="x")


def half() -> Iterator[Check]:
    yield Check(id="half", tag="ENV", verdict="PASS", text="x")
    raise RuntimeError("CUDA error: uncorrectable ECC error encountered")


def no_steps() -> Iterator[Step]:
    raise ImportError("No module named torch")
    yield


def run(folder: Path, *sections: Section) -> tuple[int, dict[str, str]]:
    emitter = Emitter("node", "cuda", "quick", folder)
    code = Runner(emitter, 60).run(sections)
    report = json.loads((folder / "summary.json").read_text())
    return code, {check["id"]: check["verdict"] for check in report["checks"]}


def test_what_raises_is_unknown_and_the_others_go_on(tmp_path: Path) -> None:
    """Contract: what was said before the error stays, and the error's words are in the text."""
    sections = (
        Section(
            "one", "ENV", lambda: [Step("b", "ENV", half), Step("e", "ENV", list), Step("a", "ENV", good)]
        ),
        Section("two", "COMPUTE", no_steps),
        Section("three", "TRAIN", lambda: [Step("last", "TRAIN", good)]),
    )
    code, verdicts = run(tmp_path, *sections)
    assert code == 2
    assert verdicts == {"half": "PASS", "b": "UNKNOWN", "e": "UNKNOWN", "good": "PASS", "two": "UNKNOWN"}
    text = (tmp_path / "summary.json").read_text()
    assert "RuntimeError: CUDA error: uncorrectable ECC error" in text
    assert "No module named torch" in text


def test_nothing_to_run_is_unknown(tmp_path: Path) -> None:
    assert run(tmp_path) == (2, {})


@pytest.mark.parametrize("end", ["SIGTERM", "deadline"])
def test_an_early_end_leaves_a_report(tmp_path: Path, end: str) -> None:
    """Contract: also while the main thread waits in C, what was made is kept and the rest is UNKNOWN."""
    process = subprocess.Popen(
        [sys.executable, "-c", STUCK, str(tmp_path), "60" if end == "SIGTERM" else "1"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout
    while "stuck" not in process.stdout.readline():
        assert process.poll() is None
    if end == "SIGTERM":
        process.send_signal(signal.SIGTERM)
    started = time.monotonic()
    out, _ = process.communicate(timeout=30)
    assert time.monotonic() - started < 20
    assert process.returncode == 2
    assert "ended" in out
    report = json.loads((tmp_path / "summary.json").read_text())
    assert [(check["id"], check["verdict"]) for check in report["checks"]] == [
        ("a", "PASS"),
        ("b", "UNKNOWN"),
        ("c", "UNKNOWN"),
        ("later", "UNKNOWN"),
    ]
    assert report["versions"] == {"torch": "2"}
    assert ("received a termination signal" if end == "SIGTERM" else "deadline") in report["checks"][1][
        "text"
    ]


def test_the_handlers_are_as_they_were(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    run(tmp_path, Section("one", "ENV", lambda: [Step("a", "ENV", good)]))
    assert signal.getsignal(signal.SIGTERM) is before
