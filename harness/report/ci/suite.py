"""Convert a launch to a test suite for `ctrf.json` and `junit.xml` (junit.py) in its bundle.

The first test is the verdict. The suite is therefore never empty. CI would show an empty suite as green. Each
check is another test, and so is each acceptance test on each node. UNKNOWN never looks like a PASS or a
skipped test:

| | JUnit | CTRF |
|---|---|---|
| PASS | no child | `passed` |
| FAIL | `failure` | `failed` |
| WARN from an acceptance test | no child, the text contains WARN | `passed`, tagged `WARN` |
| UNKNOWN | `error`: the test did not complete | `other`, the verdict `failed` |

All JUnit viewers show errors in red. CTRF has no error status, and a viewer that counts only failures would
overlook `other`. Therefore, an UNKNOWN verdict is `failed` in CTRF, and only checks are `other`. `rawStatus`
contains the harness's own status.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.core.clock import now, seconds
from harness.evidence.io.reader import Bundle
from harness.evidence.io.runs_folder import Past
from harness.evidence.schema.bundle import Check, Verdict, VerdictWord
from harness.report.amounts import ranges
from harness.report.ci import ctrf
from harness.report.ci.launch_properties import Launched, launched
from harness.report.html import acceptance
from harness.report.html.page import REPORT

CTRF = "ctrf.json"
MAX_SECONDS = 10 * 365 * 86_400
"""Maximum duration of an acceptance test in ctrf.json, in seconds. Longer durations occur only in damaged
bundles."""
_STATUS: dict[VerdictWord, ctrf.Status] = {"PASS": "passed", "FAIL": "failed", "UNKNOWN": "other"}


@dataclass(frozen=True)
class Suite:
    """A test suite. `start` and `stop` are in seconds.

    `name` is the job's name, so that CI can show the history of each test.
    """

    name: str
    launch: Launched
    verdict: Check
    checks: list[Check]
    accepted: list[tuple[Check, str, float]]
    """The acceptance tests, as (check, the acceptance test's own verdict, duration in seconds)."""
    started_at: str
    start: float
    stop: float


def suite(bundle: Bundle, verdict: Verdict) -> Suite:
    """Return the suite for a redacted bundle and its verdict.

    The suite contains the bundle's name instead of its path, because the files are part of the bundle and can
    be moved with it.
    """
    launch = launched(verdict, bundle.path)
    manifest = bundle.manifest
    start = (seconds(manifest.started_at) if manifest else None) or 0.0
    stop = (seconds(manifest.ended_at) if manifest else None) or start
    return Suite(
        name=Past(bundle.path).job or "harness",
        launch=launch.model_copy(update={"bundle": bundle.path.name, "report": launch.report and REPORT}),
        verdict=Check(
            name="verdict",
            result=verdict.verdict,
            cause=verdict.cause,
            ranks=verdict.ranks,
            explanation=verdict.explanation,
            evidence=verdict.evidence,
        ),
        checks=verdict.checks,
        accepted=acceptance.tests(bundle),
        started_at=manifest.started_at if manifest else "",
        start=start,
        stop=max(start, stop),
    )


def as_ctrf(bundle: Bundle, verdict: Verdict) -> str:
    """Return the text of ctrf.json.

    The first test's `extra` field describes the launch, as in the CTRF file for a pytest session.
    """
    launch_suite = suite(bundle, verdict)
    start, stop = round(launch_suite.start * 1000), round(launch_suite.stop * 1000)
    report = ctrf.Attachment(name="report", content_type="text/html", path=REPORT)
    first = _test(launch_suite.verdict, launch_suite.name, start, stop).model_copy(
        update={
            "status": "passed" if verdict.verdict == "PASS" else "failed",
            "tags": ["retried"] if launch_suite.launch.retries else None,
            "attachments": [report] if launch_suite.launch.report else None,
            "extra": {"launches": [launch_suite.launch.model_dump()]},
        }
    )
    tests = [first, *(_test(check, launch_suite.name, stop, stop) for check in launch_suite.checks)]
    tests += [
        _accepted(check, own, duration, launch_suite.name, stop)
        for check, own, duration in launch_suite.accepted
    ]
    return ctrf.document(tests, ctrf.Tool(name="pluto-e2e-harness"), start, stop, now()).text()


def _test(check: Check, name: str, start: int, stop: int) -> ctrf.Test:
    return ctrf.Test(
        name=check.name,
        status=_STATUS[check.result],
        raw_status=check.result,
        duration=stop - start,
        start=start,
        stop=stop,
        suite=[name],
        message=message(check) or None,
        trace=evidence_lines(check) or None,
        extra=check.model_dump(include={"cause", "ranks", "evidence"}, exclude_defaults=True) or None,
    )


def _accepted(check: Check, own: str, seconds: float, name: str, stop: int) -> ctrf.Test:
    """Convert an acceptance test. Its duration was recorded, but not its start."""
    test = _test(check, name, stop, stop)
    return test.model_copy(
        update={
            "duration": round(min(seconds, MAX_SECONDS) * 1000) if seconds > 0 else 0,
            "raw_status": own,
            "tags": ["WARN"] if own == "WARN" else None,
        }
    )


def message(check: Check) -> str:
    """Return the check's cause and explanation on one line."""
    return ": ".join(filter(None, [check.cause, check.explanation]))


def evidence_lines(check: Check) -> str:
    """Return the ranks on one line, followed by one line per evidence reference."""
    ranks = [f"ranks: {ranges(check.ranks)}"] if check.ranks else []
    return "\n".join([*ranks, *check.evidence])
