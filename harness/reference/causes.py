"""Write the closed list of causes as a document: `python -m harness.reference.causes > docs/causes.md`."""

from __future__ import annotations

import sys

from harness.faults.fault import catalogue
from harness.judge.catalogue import CAUSES, FAMILIES


def markdown() -> str:
    """Return docs/causes.md."""
    parts = [
        "# Causes",
        "",
        "Every verdict that is not a PASS names one of these. The list is closed: a check names no other.",
        "Your own judges name others, all of which begin with `user.` ([how to](how-to/own-judges.md)).",
        "Faults are injected into real launches ([faults.md](faults.md)). A cause that names none was not",
        "provoked there: tests of the part that finds it show it, or nothing but its words does.",
        "Written by `python -m harness.reference.causes > docs/causes.md`; a test holds the two together.",
        "",
        "A cause makes the verdict FAIL; where UNKNOWN is written, something could not be known.",
        "",
    ]
    faults = _faults()
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
                    *([f"- Faults: {', '.join(faults[cause.id])}"] if cause.id in faults else []),
                    "",
                ]
    return "\n".join(parts).rstrip() + "\n"


def _faults() -> dict[str, list[str]]:
    """Return cause → the faults that must end in it."""
    found: dict[str, list[str]] = {}
    for name, fault in catalogue().items():
        if fault.expect is not None and fault.expect.cause is not None:
            found.setdefault(fault.expect.cause, []).append(f"`{name}`")
    return found


if __name__ == "__main__":
    sys.stdout.write(markdown())
