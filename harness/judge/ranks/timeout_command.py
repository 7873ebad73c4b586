"""Use recorded commands and start times to find out whether a `timeout N` in a run script ended a rank."""

from __future__ import annotations

import re
import signal

from harness.evidence.worlds import ProcessRecord
from harness.judge.case import Case
from harness.judge.ranks import exit_masking

TIMED_OUT = 124
"""The exit code of `timeout` after its limit has expired, unless it sends KILL or uses --preserve-status."""
_ENDED_BY_IT = (TIMED_OUT, 128 + signal.SIGKILL, 128 + signal.SIGTERM)
SLACK = 1.5
"""Tolerance, in seconds, for a process that appears to end too early. Kubernetes truncates times to
seconds."""
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)$")
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_IN_SCRIPT = re.compile(r"\btimeout\s+(?:-\S+\s+(?:(?:KILL|TERM|INT|HUP|\d+\w?)\s+(?=\d))?)*\d+[smhd]?(?=\s)")


def reached(process: ProcessRecord | None, at: float) -> str:
    """Return the `timeout N` command around a process if its limit had expired by the time `at`, or ""."""
    start = process.start if process is not None else None
    if start is None or start.limit_since_ms is None:
        return ""
    return f"`{start.limit}`" if at - start.limit_since_ms / 1000 >= _seconds(start.limit) - SLACK else ""


def of_pod(case: Case, index: int, at: float, exit_code: int | None) -> str:
    """Return the `timeout N` command that terminated a node's ranks, or "".

    `at` is the time at which the node's rank container ended, in seconds since the epoch.
    """
    if exit_code not in _ENDED_BY_IT:
        return ""
    of_node = case.processes.get(index)
    processes = list(of_node.processes.values()) if of_node is not None else []
    limits = [reached(one, at) for one in processes if one.end is None or one.end.code]
    if limit := next(filter(None, limits), ""):
        return limit
    in_script = _IN_SCRIPT.search(exit_masking.script(case, index)) if exit_code == TIMED_OUT else None
    return f"`{in_script[0]}`" if in_script else ""


def before_any(script: str, duration: float) -> str:
    """Return the script's `timeout N` command if the container ran for at least that time, or "".

    `duration` is the run time of the container, in seconds.
    """
    limit = _IN_SCRIPT.search(script)
    return f"`{limit[0]}`" if limit and duration >= _seconds(limit[0]) - SLACK else ""


def _seconds(limit: str) -> float:
    match = _DURATION.search(limit)
    return float(match[1]) * _UNITS[match[2]] if match else float("inf")
