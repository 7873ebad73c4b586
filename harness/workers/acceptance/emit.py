"""Print each check immediately, and write reports for people, the harness and Kubernetes at the end.

[COMPUTE] PASS GPU 0 compute.gemm.bf16: …       a log line for each check
@accept1 …                                      the check as a frame, which the harness trusts (frames.py),
                                                if HARNESS_NONCE is set
REPORT_DIR/summary.json                         the report, with the fields of AcceptanceReport
/dev/termination-log                            the verdict and the failed checks, for `kubectl describe pod`
"""

from __future__ import annotations

import json
import math
import os
import socket
import sys
import threading
import time
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from . import frames
from .check import VERSION, Check, Verdict, worst

MARK = "@accept1 "
FILES = {"node": "summary.json", "ddp": "ddp_tests_result.json"}
"""Maps each kind of report to its file name."""
EXIT: dict[Verdict, int] = {"PASS": 0, "WARN": 0, "FAIL": 1, "UNKNOWN": 2}
TERMINATION_LOG = Path("/dev/termination-log")
TERMINATION_BYTES = 3500
"""Maximum size of the termination log in bytes. Kubernetes keeps only 4096 bytes."""


class Emitter:
    """Collects the checks for one report, and prints them. Thread-safe.

    `framed` is true if this process prints frames. Only one rank of a job does so.
    """

    def __init__(
        self,
        kind: Literal["node", "ddp"],
        device: str,
        mode: str,
        report_dir: Path | str | None,
        *,
        framed: bool = True,
        termination_log: Path = TERMINATION_LOG,
    ) -> None:
        self.kind, self.device, self.mode = kind, device, mode
        self.report_dir = None if report_dir is None else Path(report_dir)
        self.framed = framed
        self.checks: list[Check] = []
        self._nonce = os.environ.get("HARNESS_NONCE", "")
        self._termination_log = termination_log
        self._started_at, self._clock = datetime.now(timezone.utc), time.monotonic()
        self._lock = threading.RLock()
        self._code: int | None = None

    def say(self, check: Check, *, shown: bool = True) -> None:
        """Add a check to the report, and print its frame. Unless `shown` is false, also print its line."""
        with self._lock:
            self.checks.append(check)
            if shown:
                _print(check.line())
            self._frame({"check": finite(check.as_dict())})

    def finish(self, **extra: Any) -> int:
        """Write the report, and return the exit code. `extra` contains additional fields of AcceptanceReport.

        The exit code is 0 for PASS or WARN, 1 for FAIL, and 2 for UNKNOWN. Only the first call writes the
        report. If the report cannot be written, exit code 0 becomes 2, so that nobody mistakes an older file
        for this report.
        """
        with self._lock:
            if self._code is not None:
                return self._code
            report = self.report(**extra)
            verdict: Verdict = report["verdict"]
            self._code = EXIT[verdict]
            _print(f"[RESULT] {verdict} {self._counts_text()} in {report['seconds']:.0f} s{self._remark()}")
            self._frame({"report": report})
            try:
                self._write(report)
            except OSError as error:
                _print(f"[RESULT] UNKNOWN {FILES[self.kind]} was not written to {self.report_dir}: {error}")
                self._code = self._code or EXIT["UNKNOWN"]
            self._terminate(verdict)
            return self._code

    def report(self, **extra: Any) -> dict[str, Any]:
        """Return the report with the checks so far. Without checks, the verdict is UNKNOWN."""
        with self._lock:
            report = {
                "version": VERSION,
                "kind": self.kind,
                "node": os.environ.get("NODE_NAME") or socket.gethostname(),
                "pod": os.environ.get("POD_NAME") or socket.gethostname(),
                "device": self.device,
                "mode": self.mode,
                "started": self._started_at.isoformat(),
                "seconds": round(time.monotonic() - self._clock, 3),
                "checks": [check.as_dict() for check in self.checks],
                "verdict": worst(check.verdict for check in self.checks),
                **extra,
            }
        cleaned: dict[str, Any] = finite(report)
        return cleaned

    def _counts_text(self) -> str:
        count = Counter(check.verdict for check in self.checks)
        by_verdict = ", ".join(f"{count[verdict]} {verdict}" for verdict in EXIT if count[verdict])
        return f"{len(self.checks)} checks: {by_verdict}" if self.checks else "no checks were run"

    def _remark(self) -> str:
        return "" if self.device == "cuda" else "; no GPU was tested, so no GPU is accepted"

    def _frame(self, document: dict[str, Any]) -> None:
        if self._nonce and self.framed:
            for line in frames.encode(self._nonce, document, MARK):
                _print(line)

    def _write(self, report: dict[str, Any]) -> None:
        """Write the report atomically, so that nobody reads an incomplete file."""
        if self.report_dir is None:
            return
        self.report_dir.mkdir(parents=True, exist_ok=True)
        path = self.report_dir / FILES[self.kind]
        part = path.with_name(f".{path.name}.{os.getpid()}")
        part.write_text(json.dumps(report, indent=1, allow_nan=False) + "\n")
        part.replace(path)

    def _terminate(self, verdict: Verdict) -> None:
        """Write the termination log for Kubernetes, if the file exists."""
        if not self._termination_log.exists():
            return
        failed = sorted((c for c in self.checks if c.verdict != "PASS"), key=lambda c: -EXIT_ORDER[c.verdict])
        text = "\n".join(
            [f"{verdict} {self._counts_text()}{self._remark()}", *(check.line() for check in failed)]
        )
        try:
            self._termination_log.write_bytes(
                text.encode()[:TERMINATION_BYTES].decode(errors="ignore").encode()
            )
        except OSError as error:
            _print(f"[RESULT] the termination log was not written: {error}")


EXIT_ORDER: dict[Verdict, int] = {"PASS": 0, "WARN": 1, "UNKNOWN": 2, "FAIL": 3}
"""Maps each verdict to its severity, for sorting."""


def finite(value: Any) -> Any:
    """Return the value with None in place of NaN and infinite floats, which JSON cannot represent."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


def one_line(text: str) -> str:
    """Return the text as a single log line."""
    return text.replace("\n", " ")


def _print(line: str) -> None:
    """Print a line in one write, because several ranks share stdout. If stdout is closed, do nothing."""
    try:
        sys.stdout.write(one_line(line) + "\n")
        sys.stdout.flush()
    except (BrokenPipeError, ValueError):
        pass
