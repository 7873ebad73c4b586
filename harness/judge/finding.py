"""The result of one check, and functions that render it as text."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property

from harness.core.causes import CauseId
from harness.core.checks import CheckId
from harness.evidence.schema.bundle import Check, VerdictWord
from harness.judge.catalogue import CAUSES, END, REGISTRY

LIMIT = 4
"""Maximum number of details listed in an explanation."""
LATE = float("inf")
Texts = list[str] | tuple[str, ...]


@dataclass(frozen=True)
class Finding:
    """The result of a check, and the run phase in which its cause occurred."""

    name: str
    result: VerdictWord
    head: str
    """One sentence that states the proven fact or the problem."""
    cause: str | None = None
    ranks: Collection[int] = ()
    evidence: Texts = ()
    """References into the bundle, in the form file:line."""
    details: Texts = ()
    """Examples of the problem in `head`, or the individual items that `head` counts. Only the first LIMIT are
    shown."""
    why: Texts = ()
    """Additional sentences for the explanation."""
    phase: float = END
    at: float = LATE
    """The time at which the cause occurred, in seconds since the epoch. Causes within a phase are ordered by
    it."""
    advice: str = ""
    """The action that the user should take, if it differs from the action of the cause in the catalogue."""
    verbatim: Check | None = None
    """A check from a user's judge, which the verdict lists unchanged."""

    @cached_property
    def check(self) -> Check:
        """Return the finding as a Check, the form in which the verdict lists it."""
        return self.verbatim or Check(
            name=self.name,
            result=self.result,
            cause=self.cause,
            ranks=sorted(set(self.ranks)),
            explanation=explanation(self.head, self.details, self.why),
            evidence=list(self.evidence),
            advice=self.advice,
        )


def decisive(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that did not pass, in order of importance. The first one decides the verdict."""
    return sorted(
        (f for f in findings if f.result != "PASS"),
        key=lambda f: (f.result != "FAIL", f.cause is None, f.phase, f.at),
    )


def in_phases(findings: Iterable[Finding]) -> list[Finding]:
    """Return an attached job's findings that did not pass. The first one decides the verdict.

    Findings from earlier phases come first, even if they are UNKNOWN and a later finding is FAIL, because the
    FAIL may be a consequence.
    """
    return sorted(
        (f for f in findings if f.result != "PASS"),
        key=lambda f: (f.cause is None, f.phase, f.result != "FAIL", f.at),
    )


def explanation(head: str, details: Texts = (), why: Texts = ()) -> str:
    """Return an explanation: the sentence `head` with its details, followed by the sentences in `why`.

    Every sentence begins with a capital letter. The last sentence has no full stop, because it often ends
    with a quoted log line or a Kubernetes message.
    """
    text = ""
    for sentence in (head + ": " * bool(details) + listed(details), *why):
        if sentence:
            end = "" if not text else " " if text[-1] in ".!?" else ". "
            text += end + sentence[0].upper() + sentence[1:]
    return text


def listed(details: Texts) -> str:
    """Join the first LIMIT entries of a list as text, followed by the number of remaining entries."""
    remaining = len(details) - LIMIT
    return "; ".join([*details[:LIMIT], *([f"and {remaining} more"] if remaining > 0 else [])])


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun, such as "1 run" or "2 runs". Pass irregular plurals as `plural`."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def passed(
    name: CheckId, head: str, evidence: Texts = (), *, details: Texts = (), why: Texts = ()
) -> Finding:
    """Return a finding for a check that passed."""
    return Finding(name, "PASS", head, evidence=evidence, details=details, why=why)


def not_passed(
    name: CheckId,
    cause: CauseId,
    head: str,
    *,
    details: Texts = (),
    why: Texts = (),
    ranks: Collection[int] = (),
    evidence: Texts = (),
    phase: float | None = None,
    at: float | None = None,
    advice: str = "",
) -> Finding:
    """Return a finding for a check that did not pass.

    The cause determines whether the result is FAIL or UNKNOWN. `phase` defaults to the check's phase.
    """
    if phase is None:
        # Causes in the `run` family describe the end of the run. All other causes occur earlier.
        phase = END if CAUSES[cause].family == "run" else REGISTRY[name].at
    at = LATE if at is None else at
    return Finding(name, CAUSES[cause].result, head, cause, ranks, evidence, details, why, phase, at, advice)


def unknown(
    name: CheckId, head: str, *, details: Texts = (), ranks: Collection[int] = (), evidence: Texts = ()
) -> Finding:
    """Return an UNKNOWN finding without a cause, for a check that cannot be decided."""
    return Finding(name, "UNKNOWN", head, None, ranks, evidence, details)
