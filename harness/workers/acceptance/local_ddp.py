"""Run ddp_tests on this container's GPUs (or in two processes on the CPU), and yield its checks."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from .check import Check, worst
from .emit import FILES, one_line

TAG = "DDP"
CPU_RANKS = 2
SECONDS = {"quick": 300.0, "full": 1800.0}
_GRACE_SECONDS = 5.0
_LAST_LINES = 12
_OWN_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)
"""Variables in the pod's environment that describe the job. ddp_tests runs without them, and without the
variables that torchrun itself reads (PET_…)."""
_FIELD_NAMES = {field.name for field in fields(Check)}


@dataclass(frozen=True)
class Ended:
    """The result of running torchrun.

    `code` is its exit code, or None if torchrun was stopped at its time limit.
    """

    code: int | None
    lines: tuple[str, ...]
    """The last lines of torchrun's output."""


class LocalDdp:
    """One run of ddp_tests under torchrun in this container."""

    def __init__(self, ranks: int, device: str, mode: str, report_dir: Path, limits: Path | None) -> None:
        self.ranks, self.device, self.mode = ranks, device, mode
        self.report, self._limits = report_dir / FILES["ddp"], limits
        self._process: subprocess.Popen[str] | None = None
        self._passed_on: set[str] = set()

    def checks(self) -> Iterator[Check]:
        """Run ddp_tests, and yield its checks. Its output is copied to stdout."""
        self.report.unlink(missing_ok=True)
        process_end = self._run()
        yield from judge(read(self.report), self.ranks, process_end)

    def shown(self, check: Check) -> bool:
        """Return whether a check's line is already in the log, because ddp_tests' output is copied."""
        return one_line(check.line()) in self._passed_on

    def collectives(self) -> list[dict[str, Any]]:
        """Return the measurements of collectives in the report. They have the fields of CollectiveRow."""
        rows = (read(self.report) or {}).get("collectives")
        return rows if isinstance(rows, list) else []

    def end(self) -> None:
        """Stop torchrun. It then stops its ranks."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def command(self) -> list[str]:
        """Return the command line that runs ddp_tests under torchrun."""
        package = (__package__ or "acceptance").strip(".")
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(self.ranks)]
        options = ["--report-dir", str(self.report.parent), "--device", self.device]
        options += ["--limits", str(self._limits)] if self._limits else []
        return [sys.executable, *torchrun, "-m", f"{package}.ddp_tests", f"--{self.mode}", *options]

    def _run(self) -> Ended:
        last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        with subprocess.Popen(
            self.command(),
            env=environment(os.environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            self._process = process
            timed_out = threading.Event()

            def stop() -> None:
                timed_out.set()
                self.end()

            timer = threading.Timer(SECONDS[self.mode], stop)
            timer.daemon = True
            timer.start()
            for line in process.stdout or ():
                last_lines.append(line.rstrip())
                self._passed_on.add(line.rstrip("\n"))
                # The verdict of ddp_tests is only a part of this test's result. This process prints its own
                # [RESULT] line at the end.
                print(line.rstrip().replace("[RESULT]", "[DDP] result:"), flush=True)
            code = process.wait()
            timer.cancel()
        return Ended(None if timed_out.is_set() else code, tuple(last_lines))


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for torchrun, without the pod's job variables and with an empty nonce.

    Because of the empty nonce, ddp_tests does not print frames. This process prints a frame for each of its
    checks instead. HARNESS_NONCE is empty rather than unset, because the recorder would otherwise read the
    nonce from an ancestor process (recorder/hooks.py).
    """
    passed = {
        name: value
        for name, value in variables.items()
        if name not in _OWN_VARIABLES and not name.startswith(("PET_", "TORCHELASTIC_"))
    }
    root = Path(__file__).resolve().parents[(__package__ or "").count(".") + 1]
    passed["PYTHONPATH"] = os.pathsep.join(filter(None, (str(root), passed.get("PYTHONPATH"))))
    passed.setdefault("OMP_NUM_THREADS", "1")
    return {**passed, "HARNESS_NONCE": ""}


def read(path: Path) -> dict[str, Any] | None:
    """Return ddp_tests' report, or None if the file is missing or invalid."""
    try:
        report = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return report if isinstance(report, dict) and report.get("kind") == "ddp" else None


def judge(report: dict[str, Any] | None, ranks: int, process_end: Ended) -> Iterator[Check]:
    """Yield the checks in the report.

    Add an UNKNOWN check if the report is missing or incomplete, or if it contradicts torchrun's exit code.
    """
    tail = " | ".join(line for line in process_end.lines if line.strip())[-1200:]
    exit_text = (
        "torchrun was stopped at its time limit"
        if process_end.code is None
        else f"torchrun ended with exit code {process_end.code}"
    )
    defect = "has no checks"
    try:
        checks = [_check(document) for document in (report or {}).get("checks", ())]
    except (TypeError, ValueError, AttributeError) as error:
        checks, defect = [], f"contains an invalid check ({error})"
    yield from checks
    verdict = worst(check.verdict for check in checks)
    if report is None:
        yield _unknown(f"ddp_tests left no report; {exit_text}; last lines: {tail}")
    elif not checks:
        yield _unknown(f"the report of ddp_tests {defect}; {exit_text}; last lines: {tail}")
    elif report.get("ranks") != ranks:
        yield _unknown(f"the report of ddp_tests has world size {report.get('ranks')}; expected {ranks}")
    elif process_end.code != 0 and verdict not in ("FAIL", "UNKNOWN"):
        yield _unknown(f"{exit_text}, but no check in ddp_tests failed; last lines of output: {tail}")


def _check(entry: Mapping[str, Any]) -> Check:
    """Return a check from its JSON object.

    Raises TypeError, ValueError or AttributeError if it is invalid.
    """
    if not set(entry) <= _FIELD_NAMES or entry.get("verdict") not in ("PASS", "WARN", "FAIL", "UNKNOWN"):
        raise ValueError(f"{dict(entry)}"[:200])
    return Check(**{**entry, "ranks": tuple(entry.get("ranks") or ())})


def _unknown(text: str) -> Check:
    return Check(id="ddp.run", tag=TAG, verdict="UNKNOWN", text=text)
