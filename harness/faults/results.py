"""The result of a fault, as a line in a ledger: the expected result, the actual result and the duration."""

from __future__ import annotations

import re

from pydantic import BaseModel

from harness.core.clock import seconds
from harness.evidence.io.reader import Bundle
from harness.evidence.schema.bundle import Verdict
from harness.faults.fault_file import Fault
from harness.faults.random.oracle import Word


class Row(BaseModel):
    """The result of injecting one fault. `right` is true if the result is the expected one."""

    fault: str
    target: str
    about: str
    expected: str
    got: str
    right: bool
    wrong: str = ""
    """The reason why the result is not the expected one."""
    cause: str | None = None
    ranks: list[int] = []
    explanation: str = ""
    exit_code: int | None = None
    seconds: float = 0.0
    """The duration of the harness process in seconds."""
    visible_seconds: float | None = None
    """The number of seconds from the first recorded sign of the fault to the verdict. None if there is no
    sign."""
    bundle: str | None = None
    oracle: Word | None = None
    """The oracle's decision on a random fault. `borne` means a PASS for which no point is missing."""
    lost: str = ""
    """A description of the logged points that are missing from the tracker."""
    control: str | None = None
    """The verdict of the first control after the fault."""
    control_bundle: str | None = None


def expected(fault: Fault) -> str:
    """Return a short description of the expected result."""
    expectation = fault.expect
    if expectation is None:
        return "cannot be injected"
    if expectation.named is not None:
        return "a PASS that is right, or named"
    if expectation.verdict is None:
        return f"refused, exit code {expectation.exit}"
    return _words(expectation.verdict, expectation.cause, expectation.ranks or [])


def _words(verdict: str, cause: str | None, ranks: list[int]) -> str:
    rank_text = f" ({'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))})" if ranks else ""
    return f"{verdict}{' ' + cause if cause else ''}{rank_text}"


def judge_row(fault: Fault, verdict: Verdict | None, exit_code: int | None, output: str) -> Row:
    """Compare the actual result with the expected one. `output` is the harness's stderr.

    If an oracle judges the fault, the actual result is recorded but not compared.
    """
    expectation = fault.expect
    assert expectation is not None
    if verdict is None:
        outcome = f"refused, exit code {exit_code}"
        explanation = "\n".join(line for line in output.splitlines() if not line.startswith("["))
    else:
        outcome, explanation = _words(verdict.verdict, verdict.cause, verdict.ranks), verdict.explanation
    differences = []
    if expectation.exit is not None and exit_code != expectation.exit:
        differences.append(f"exit code {exit_code}")
    if expectation.verdict is not None and (
        verdict is None or (verdict.verdict, verdict.cause) != (expectation.verdict, expectation.cause)
    ):
        differences.append("verdict or cause")
    if expectation.ranks is not None and verdict is not None and verdict.ranks != expectation.ranks:
        differences.append(f"ranks {verdict.ranks}")
    message = explanation
    if verdict is not None and verdict.verdict == "PASS":
        # A PASS mentions a disturbance only in its checks' explanations.
        message = "\n".join(check.explanation for check in verdict.checks)
    if expectation.message_pattern and not re.search(expectation.message_pattern, message, re.DOTALL):
        differences.append(f"its explanation does not match {expectation.message_pattern!r}")
    return Row(
        fault=fault.name,
        target=fault.target,
        about=fault.about,
        expected=expected(fault),
        got=outcome,
        right=not differences,
        wrong="; ".join(differences),
        cause=verdict.cause if verdict else None,
        ranks=verdict.ranks if verdict else [],
        explanation=explanation[:1000],
        exit_code=exit_code,
    )


def visible_seconds(bundle: Bundle, verdict: Verdict) -> float | None:
    """Return the seconds from the earliest evidence of the fault in the cluster to the end of the run.

    Evidence from the tracker and the ground truth is dated to the end of the job, because a missing point
    could still arrive until then. Returns None for a PASS, and for a fault that no object or log line shows.
    """
    manifest = bundle.manifest
    end = seconds(manifest.ended_at) if manifest else None
    if manifest is None or end is None or verdict.verdict == "PASS":
        return None
    moments = [_moment(bundle, ref) for ref in verdict.evidence]
    times = [moment for moment in moments if moment is not None]
    return round(end - min(times), 2) if times else None


def _moment(bundle: Bundle, ref: str) -> float | None:
    path, _, line = ref.partition(":")
    if path.startswith(("truth/", "tracker/")):
        return _job_end(bundle)
    if path == "manifest.json" and bundle.manifest is not None:
        failed = [stage for stage in bundle.manifest.stages if not stage.ok]
        start = seconds(failed[0].started_at) if failed else None
        return start + failed[0].seconds if start is not None else None
    for number, raw in bundle.lines(path):
        if str(number) == line:
            text = raw.decode(errors="replace")
            match = re.search(r'"(?:received_)?at": ?"([^"]+)"', text) if path.endswith(".jsonl") else None
            return seconds(match[1] if match else text.partition(" ")[0])
    return None


def _job_end(bundle: Bundle) -> float | None:
    for observation in bundle.history("jobset"):
        if (observation.object.get("status") or {}).get("terminalState"):
            return seconds(observation.received_at)
    return None
