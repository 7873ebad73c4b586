"""Document the closed list of causes: `python -m harness.reference.causes > docs/causes.md`."""

from __future__ import annotations

import sys

from harness.faults.fault import catalogue
from harness.judge.catalogue import CAUSES, FAMILIES


def markdown() -> str:
    """Return the text of docs/causes.md."""
    parts = [
        "# Causes",
        "",
        "Every verdict other than PASS has one of these causes. The list is closed.",
        "Your own judges can add causes that begin with `user.` ([how to](how-to/own-judges.md)).",
        "Faults are injected into real launches ([faults.md](faults.md)). A cause without a fault is tested",
        "in the unit tests of its check, if at all.",
        "Written by `python -m harness.reference.causes > docs/causes.md`. A test compares the two.",
        "",
        "A cause makes the verdict FAIL. Causes marked UNKNOWN mean that the evidence does not decide.",
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
    """Return the names of the faults that are expected to have each cause, keyed by cause."""
    found: dict[str, list[str]] = {}
    for name, fault in catalogue().items():
        if fault.expect is not None and fault.expect.cause is not None:
            found.setdefault(fault.expect.cause, []).append(f"`{name}`")
    return found


if __name__ == "__main__":
    sys.stdout.write(markdown())
