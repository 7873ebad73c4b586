"""The closed list of causes as a document: `python -m harness.verdict.causes > docs/causes.md`."""

from __future__ import annotations

import sys

from harness.verdict.catalogue import CAUSES, FAMILIES, Cause

__all__ = ["CAUSES", "FAMILIES", "Cause", "markdown"]


def markdown() -> str:
    """docs/causes.md."""
    parts = [
        "# Causes",
        "",
        "Every verdict that is not a PASS names one of these. The list is closed: a check names no other.",
        "Your own judges name others, all of which begin with `user.` ([how to](how-to/own-judges.md)).",
        "Written by `python -m harness.verdict.causes > docs/causes.md`; a test holds the two together.",
        "",
        "A cause makes the verdict FAIL; where UNKNOWN is written, something could not be known.",
        "",
    ]
    for family, title in FAMILIES.items():
        parts += [f"## {family}.* – {title}", ""]
        for cause in CAUSES.values():
            if cause.family == family:
                parts += [
                    f"### {cause.id}" + (" (UNKNOWN)" if cause.result == "UNKNOWN" else ""),
                    cause.meaning,
                    "",
                    f"- Evidence: {cause.evidence}",
                    f"- What to do: {cause.action}",
                    f"- Provoked by: {cause.provoked_by}",
                    "",
                ]
    return "\n".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
