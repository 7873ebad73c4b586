"""Judges of users: checks beside the harness's own. They can make no verdict better.

A judge is called with a bundle of its own when there was a job to judge, and yields checks that `passed`,
`failed` and `unknown` make. Names and causes are in the family `user.*`, which docs/causes.md leaves to them.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from pathlib import Path

from harness.evidence.reader import Bundle
from harness.evidence.schema import Check, VerdictWord
from harness.judge.case import Finding, found

Judge = Callable[[Bundle], Iterable[Check]]
Named = tuple[str, Judge]
"""A judge and what it is called in messages."""
FAMILY = "user"
_SHAPE = re.compile(rf"{FAMILY}\.[a-z0-9]+([-_][a-z0-9]+)*")


def passed(name: str, explanation: str, *, evidence: Iterable[str] = ()) -> Check:
    """What the judge looked for is so. `name`: e.g. loss-falls; `evidence`: file:line in the bundle."""
    return _made("PASS", name, None, explanation, (), evidence)


def failed(
    name: str,
    explanation: str,
    *,
    cause: str | None = None,
    ranks: Iterable[int] = (),
    evidence: Iterable[str] = (),
) -> Check:
    """It is not so, and the cause is `user.<cause>`, or `user.<name>`."""
    return _made("FAIL", name, cause or name, explanation, ranks, evidence)


def unknown(
    name: str,
    explanation: str,
    *,
    cause: str | None = None,
    ranks: Iterable[int] = (),
    evidence: Iterable[str] = (),
) -> Check:
    """The evidence does not tell. A PASS becomes UNKNOWN."""
    return _made("UNKNOWN", name, cause or name, explanation, ranks, evidence)


def _made(
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
    """What each judge says of the bundle at `path`; one that fails is an UNKNOWN that names it."""
    return [finding for name, judge in judges for finding in _asked(name, judge, Bundle(path))]


def _asked(name: str, judge: Judge, bundle: Bundle) -> list[Finding]:
    """What it said before it failed counts too. Of BaseException pytest's fail() is one, and sys.exit().

    What it prints goes to stderr: stdout is for the verdict.
    """
    said: list[Finding] = []
    try:
        with redirect_stdout(sys.stderr):
            for check in judge(bundle):
                said.append(Finding(_checked(check)))
        if not said:
            raise ValueError("it said nothing; a judge that finds nothing wrong says passed()")
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        why = traceback.format_exception_only(error)[-1].strip()
        text = f"The judge {name} failed: {why}"
        said.append(found(f"{FAMILY}.{name}", "run.judge_error", text))
    if damaged := bundle.damaged:
        text = f"What the judge {name} read is damaged: {'; '.join(damaged[:3])}"
        said.append(found(f"{FAMILY}.{name}", "run.evidence_damaged", text))
    return said


def _checked(check: object) -> Check:
    """Raises TypeError or ValueError for what is no check of a user's judge."""
    if not isinstance(check, Check):
        raise TypeError(f"expected checks, made by passed(), failed() or unknown(); seen {check!r:.80}")
    whole = Check.model_validate(check.model_dump())
    if not _SHAPE.fullmatch(whole.name):
        raise ValueError(f"a check's name is small letters, digits and hyphens; seen {whole.name!r:.80}")
    if whole.result == "PASS" and whole.cause is not None:
        raise ValueError(f"{whole.name} passed, and has the cause {whole.cause!r:.80}")
    if whole.result != "PASS" and not _SHAPE.fullmatch(whole.cause or ""):
        raise ValueError(f"the causes of {whole.name} are {FAMILY}.…; seen {whole.cause!r:.80}")
    return whole
