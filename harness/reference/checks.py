"""Document every check in the check registry."""

from __future__ import annotations

from harness.judge.catalogue import NEEDS, PHASES, REGISTRY, REQUIREMENTS
from harness.reference.note import WRITTEN


def markdown() -> str:
    """Return the text of docs/reference/checks.md."""
    parts = [
        "# Checks",
        "",
        "A verdict lists these checks, in this order. A PASS requires all of them. A check that does not",
        "pass has a cause from [causes.md](../causes.md), or refers to a check with the cause. Your own",
        "judges can add checks named `user.…` ([how to](../how-to/own-judges.md)).",
        "",
        WRITTEN,
        "",
        "| check | what it proves | phase of its causes | needs |",
        "|---|---|---|---|",
    ]
    for entry in REGISTRY.values():
        requirements = f"`{entry.needs}`" + (f"; `{entry.passes_with}` to pass" if entry.passes_with else "")
        parts.append(f"| `{entry.id}` | {entry.proves} | {entry.phase} | {requirements} |")
    parts += [
        "",
        "If there are several causes, FAIL takes precedence over UNKNOWN, and then the earliest phase",
        f"takes precedence: {', '.join(PHASES)}. Causes `run.*` are in the last phase.",
        "",
        "## Needs",
        "Missing evidence proves nothing. A check whose required evidence is missing is therefore",
        "UNKNOWN, with the reason. Each need includes those above it. If only the evidence that a check",
        "needs *to pass* is missing, the check can still fail, but it cannot pass.",
        "",
        "| need | what it is | without it |",
        "|---|---|---|",
    ]
    for id_ in NEEDS:
        requirement = REQUIREMENTS[id_]
        consequence = requirement.missing.format(ranks="ranks …") or "not listed"
        parts.append(f"| `{id_}` | {requirement.means} | {consequence} |")
    return "\n".join(parts) + "\n"
