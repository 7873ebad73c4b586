"""Write the registry of checks as a document."""

from __future__ import annotations

from harness.judge.catalogue import NEEDS, PHASES, REGISTRY, REQUIREMENTS
from harness.reference.note import WRITTEN


def markdown() -> str:
    """Return docs/reference/checks.md."""
    parts = [
        "# Checks",
        "",
        "A verdict lists these checks, in this order. PASS needs all of them. Each check that does not pass",
        "names a cause of [causes.md](../causes.md), or says which other check does. Your own judges add",
        "more, named `user.…` ([how to](../how-to/own-judges.md)).",
        "",
        WRITTEN,
        "",
        "| check | what it proves | a cause lies in | needs |",
        "|---|---|---|---|",
    ]
    for entry in REGISTRY.values():
        needs = f"`{entry.needs}`" + (f"; `{entry.passes_with}` to pass" if entry.passes_with else "")
        parts.append(f"| `{entry.id}` | {entry.proves} | {entry.phase} | {needs} |")
    parts += [
        "",
        "Of several causes, a FAIL comes before an UNKNOWN, and then the earliest phase:",
        f"{', '.join(PHASES)}. Causes `run.*` lie in the end.",
        "",
        "## Needs",
        "What is missing proves nothing. So a check whose need is missing is UNKNOWN, and says why. Each",
        "need includes those above it. Without a need *to pass*, a check can fail and cannot pass.",
        "",
        "| need | what it is | without it |",
        "|---|---|---|",
    ]
    for id_ in NEEDS:
        need = REQUIREMENTS[id_]
        without = need.missing.format(ranks="ranks …") or "not listed"
        parts.append(f"| `{id_}` | {need.means} | {without} |")
    return "\n".join(parts) + "\n"
