"""Run the users' judges. Their checks are added to those of the harness and cannot improve a verdict.

Judges are called only if the launch created a job, each with its own `Bundle` object. A judge yields checks
that it creates with `passed`, `failed` and `unknown`. The names and causes of these checks begin with
`user.`, a prefix that docs/causes.md reserves for them.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from pathlib import Path

from harness.core.causes import CauseId
from harness.evidence.io.reader import Bundle
from harness.evidence.schema.bundle import Check, VerdictWord
from harness.judge.catalogue import CAUSES
from harness.judge.finding import Finding, listed

Judge = Callable[[Bundle], Iterable[Check]]
Named = tuple[str, Judge]
"""A user's judge, as a pair of (name for messages, judge)."""
FAMILY = "user"
_SHAPE = re.compile(rf"{FAMILY}\.[a-z0-9]+([-_][a-z0-9]+)*")
_RULE = f"must begin with {FAMILY}. and consist of a-z and 0-9, separated by single hyphens or underscores"
"""The rule that _SHAPE implements, as a clause of an error message."""


def passed(name: str, explanation: str, *, evidence: Iterable[str] = ()) -> Check:
    """Return a passed check named `user.<name>`, such as `user.loss-falls`.

    `name` consists of a-z and 0-9, separated by single hyphens or underscores. `evidence` lists references
    into the bundle, in the form file:line.
    """
    return _check("PASS", name, None, explanation, (), evidence)


def failed(
    name: str,
    explanation: str,
    *,
    cause: str | None = None,
    ranks: Iterable[int] = (),
    evidence: Iterable[str] = (),
) -> Check:
    """Return a failed check with the cause `user.<cause>`, or `user.<name>` if `cause` is not given."""
    return _check("FAIL", name, cause or name, explanation, ranks, evidence)


def unknown(
    name: str,
    explanation: str,
    *,
    cause: str | None = None,
    ranks: Iterable[int] = (),
    evidence: Iterable[str] = (),
) -> Check:
    """Return a check that the evidence cannot decide. Such a check turns a PASS into UNKNOWN."""
    return _check("UNKNOWN", name, cause or name, explanation, ranks, evidence)


def _check(
    result: VerdictWord,
    name: str,
    cause: str | None,
    explanation: str,
    ranks: Iterable[int],
    evidence: Iterable[str],
) -> Check:
    return _checked(
        Check(
            name=f"{FAMILY}.{name}",
            result=result,
            cause=cause and f"{FAMILY}.{cause}",
            ranks=sorted(set(ranks)),
            explanation=explanation,
            evidence=list(evidence),
        )
    )


def findings(path: Path, judges: Iterable[Named]) -> list[Finding]:
    """Return the findings of all judges for the bundle at `path`.

    If a judge raises an exception, the findings include an UNKNOWN finding that names the judge.
    """
    return [finding for name, judge in judges for finding in _run_judge(name, judge, Bundle(path))]


def _run_judge(name: str, judge: Judge, bundle: Bundle) -> list[Finding]:
    """Run one judge and return its checks, including those that it yielded before it raised an exception.

    BaseException is caught, because pytest.fail() and sys.exit() raise exceptions that are not subclasses of
    Exception. The judge's output goes to stderr, because stdout is reserved for the verdict.
    """
    checks: list[Finding] = []
    try:
        with redirect_stdout(sys.stderr):
            for check in judge(bundle):
                validated = _checked(check)
                checks.append(
                    Finding(validated.name, validated.result, "", validated.cause, verbatim=validated)
                )
        if not checks:
            raise ValueError("it yielded no check; a judge that finds no problem yields passed()")
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        reason = traceback.format_exception_only(error)[-1].strip()
        checks.append(_failed(name, "run.judge_error", f"The judge {name} failed: {reason}"))
    if damaged := bundle.damaged:
        text = f"The judge {name} read damaged evidence: {listed(damaged)}"
        checks.append(_failed(name, "run.evidence_damaged", text))
    return checks


def _failed(name: str, cause: CauseId, text: str) -> Finding:
    return Finding(f"{FAMILY}.{name}", CAUSES[cause].result, text, cause)


def _checked(check: object) -> Check:
    """Validate and return the check.

    Raises TypeError or ValueError for an object that a user's judge must not yield.
    """
    if not isinstance(check, Check):
        raise TypeError(f"a judge yields checks from passed(), failed() or unknown(), not {check!r:.80}")
    # A judge can create a check without validation, so all checks are validated here.
    validated = Check.model_validate(check.model_dump())
    if not _SHAPE.fullmatch(validated.name):
        raise ValueError(f"a check's name {_RULE}; got {validated.name!r:.80}")
    if validated.result == "PASS" and validated.cause is not None:
        raise ValueError(f"{validated.name} passed, but has the cause {validated.cause!r:.80}")
    if validated.result != "PASS" and not _SHAPE.fullmatch(validated.cause or ""):
        raise ValueError(f"the cause of {validated.name} {_RULE}; got {validated.cause!r:.80}")
    return validated
