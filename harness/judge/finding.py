"""A finding: what one check found, as data, and the one place where it becomes a sentence."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property

from harness.core.causes import CauseId
from harness.core.checks import CheckId
from harness.evidence.schema.bundle import Check, VerdictWord
from harness.judge.catalogue import CAUSES, END, REGISTRY

LIMIT = 4
"""How many details an explanation lists."""
LATE = float("inf")
Texts = list[str] | tuple[str, ...]


@dataclass(frozen=True)
class Finding:
    """A check's result, and where in a run its cause lies."""

    name: str
    result: VerdictWord
    head: str
    """One sentence: what is so, or what is wrong."""
    cause: str | None = None
    ranks: Collection[int] = ()
    evidence: Texts = ()
    """file:line inside the bundle."""
    details: Texts = ()
    """What the head is about, one entry each. LIMIT of them are shown."""
    why: Texts = ()
    """Further sentences."""
    phase: float = END
    at: float = LATE
    """Seconds since the epoch when the cause showed. It orders causes that race with each other."""
    advice: str = ""
    """What to do, where that differs from the action of the cause."""
    verbatim: Check | None = None
    """The check of a user's judge. It is shown as it is."""

    @cached_property
    def check(self) -> Check:
        """Return the finding as the verdict holds it."""
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
    """Return the findings that did not pass. The one that gives the verdict comes first."""
    return sorted(
        (f for f in findings if f.result != "PASS"),
        key=lambda f: (f.result != "FAIL", f.cause is None, f.phase, f.at),
    )


def explanation(head: str, details: Texts = (), why: Texts = ()) -> str:
    """Return sentences: the head with its details, then each of `why`.

    Every sentence begins with a capital letter. No full stop follows the last one, because it often ends
    with what somebody else wrote: a log line, a message of Kubernetes.
    """
    text = ""
    for sentence in (head + ": " * bool(details) + listed(details), *why):
        if sentence:
            end = "" if not text else " " if text[-1] in ".!?" else ". "
            text += end + sentence[0].upper() + sentence[1:]
    return text


def listed(details: Texts) -> str:
    """Return the first LIMIT entries of a list as text, and how many more there are."""
    more = len(details) - LIMIT
    return "; ".join([*details[:LIMIT], *([f"and {more} more"] if more > 0 else [])])


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number of things as text: "1 run", "2 runs". `plural` is for a noun that takes no -s."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def passed(
    name: CheckId, head: str, evidence: Texts = (), *, details: Texts = (), why: Texts = ()
) -> Finding:
    """Return a check that passed."""
    return Finding(name, "PASS", head, evidence=evidence, details=details, why=why)


def found(
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
    """Return a check that did not pass: FAIL or UNKNOWN, as its cause says, in the check's own phase."""
    if phase is None:
        # Causes run.* say how the run ended: whatever they explain came before the end.
        phase = END if CAUSES[cause].family == "run" else REGISTRY[name].at
    at = LATE if at is None else at
    return Finding(name, CAUSES[cause].result, head, cause, ranks, evidence, details, why, phase, at, advice)


def unknown(
    name: CheckId, head: str, *, details: Texts = (), ranks: Collection[int] = (), evidence: Texts = ()
) -> Finding:
    """Return a check that could not be made because of something that another check already names."""
    return Finding(name, "UNKNOWN", head, None, ranks, evidence, details)
