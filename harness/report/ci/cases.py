"""Write one launch as a suite of tests: `ctrf.json` and `junit.xml` of its bundle.

The first test is the verdict, so that a suite is never empty and green. Each check is one more test, and so
is each acceptance test of each node. UNKNOWN never looks like a PASS, nor like a test that was skipped:

| | JUnit | CTRF |
|---|---|---|
| PASS | no child | `passed` |
| FAIL | `failure` | `failed` |
| WARN of an acceptance test | no child, the text says WARN | `passed`, tagged `WARN` |
| UNKNOWN | `error`: the test itself did not come to an end | `other`, the verdict `failed` |

Every reader of JUnit shows an error as red. CTRF has no error, and a reader that counts only failures would
overlook `other`. So an UNKNOWN verdict is `failed` there, and only checks are `other`. `rawStatus` holds the
harness's own status.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.core.clock import now, seconds
from harness.evidence.io.folder import Past
from harness.evidence.io.reader import Bundle
from harness.evidence.schema.bundle import Check, Verdict, VerdictWord
from harness.report.amounts import ranges
from harness.report.ci import ctrf, junit
from harness.report.ci.facts import Launched, launched, properties
from harness.report.html import acceptance
from harness.report.html.page import REPORT

CTRF, JUNIT = "ctrf.json", "junit.xml"
_STATUS: dict[VerdictWord, ctrf.Status] = {"PASS": "passed", "FAIL": "failed", "UNKNOWN": "other"}


@dataclass(frozen=True)
class Suite:
    """One suite. `name` is the job's, so that CI sees a history of the same tests. Start and stop are in
    seconds.
    """

    name: str
    launch: Launched
    verdict: Check
    checks: list[Check]
    accepted: list[tuple[Check, str, float]]
    """The tests of an acceptance: what each says, its own verdict, its seconds."""
    started_at: str
    start: float
    stop: float


def suite(bundle: Bundle, verdict: Verdict) -> Suite:
    """Return the suite of a redacted bundle and its verdict. The bundle is named without its folder, because
    the files travel with it.
    """
    told = launched(verdict, bundle.path)
    manifest = bundle.manifest
    start = (seconds(manifest.started_at) if manifest else None) or 0.0
    stop = (seconds(manifest.ended_at) if manifest else None) or start
    return Suite(
        name=Past(bundle.path).job or "harness",
        launch=told.model_copy(update={"bundle": bundle.path.name, "report": told.report and REPORT}),
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


def as_junit(bundle: Bundle, verdict: Verdict) -> str:
    """Return the text of junit.xml. The launch's properties are those of the suite."""
    told = suite(bundle, verdict)
    took = told.stop - told.start
    cases = [_case(told.verdict, took), *(_case(check) for check in told.checks)]
    cases += [_case(check, seconds) for check, _, seconds in told.accepted]
    return junit.document(told.name, cases, properties(told.launch), told.started_at, took)


def as_ctrf(bundle: Bundle, verdict: Verdict) -> str:
    """Return the text of ctrf.json. The launch is in the verdict's `extra`, as in a pytest session."""
    told = suite(bundle, verdict)
    start, stop = round(told.start * 1000), round(told.stop * 1000)
    report = ctrf.Attachment(name="report", content_type="text/html", path=REPORT)
    first = _test(told.verdict, told.name, start, stop).model_copy(
        update={
            "status": "passed" if verdict.verdict == "PASS" else "failed",
            "tags": ["retried"] if told.launch.retries else None,
            "attachments": [report] if told.launch.report else None,
            "extra": {"launches": [told.launch.model_dump()]},
        }
    )
    tests = [first, *(_test(check, told.name, stop, stop) for check in told.checks)]
    tests += [_accepted(check, own, took, told.name, stop) for check, own, took in told.accepted]
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
        message=_message(check) or None,
        trace=_where(check) or None,
        extra=check.model_dump(include={"cause", "ranks", "evidence"}, exclude_defaults=True) or None,
    )


def _accepted(check: Check, own: str, took: float, name: str, stop: int) -> ctrf.Test:
    """Return an acceptance test. When it began, nobody recorded."""
    test = _test(check, name, stop, stop)
    return test.model_copy(
        update={
            "duration": round(took * 1000),
            "raw_status": own,
            "tags": ["WARN"] if own == "WARN" else None,
        }
    )


def _case(check: Check, took: float = 0.0) -> junit.Case:
    """Return a check as a test. It takes no time, because it is made when everything is recorded."""
    if check.result == "PASS":
        return junit.Case(check.name, took, text=check.explanation)
    return junit.Case(
        name=check.name,
        seconds=took,
        problem="failure" if check.result == "FAIL" else "error",
        kind=check.cause or check.result,
        message=_message(check),
        text="\n".join(filter(None, [_message(check), _where(check)])),
    )


def _message(check: Check) -> str:
    return ": ".join(filter(None, [check.cause, check.explanation]))


def _where(check: Check) -> str:
    """Return ranks and evidence, one line each."""
    ranks = [f"ranks: {ranges(check.ranks)}"] if check.ranks else []
    return "\n".join([*ranks, *check.evidence])
