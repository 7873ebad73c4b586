"""Check run ids.

The Pluto client interprets some run ids not as the name of a new run, but as an existing run to resume.
"""

from __future__ import annotations

import re
from typing import Literal

from harness.core.errors import UsageError

MAX_LENGTH = 255
DISPLAY_ID = re.compile(r"[A-Z0-9]{1,4}-\d+\n?")
"""Matches a display id. A final newline is permitted, because the `$` at the end of the client's pattern also
matches before a final newline."""

RunIdKind = Literal["external", "resume-numeric", "resume-display"]


def classify_run_id(text: str) -> RunIdKind:
    """Return how the Pluto client interprets a value of PLUTO_RUN_ID (pluto-ml 0.0.29, sets.py).

    The result is "external" if the value is the name of a run. All other results mean that the client resumes
    an existing run.
    """
    if text.isdigit():
        return "resume-numeric"
    return "resume-display" if DISPLAY_ID.fullmatch(text) else "external"


def check_run_id(text: str) -> str:
    """Return the run id unchanged.

    Raises UsageError if the ranks of a job could not create and share a new run with this id.
    """
    if not text.strip():
        raise UsageError("PLUTO_RUN_ID is empty", hint="unset it, and the harness generates a run id")
    if len(text) > MAX_LENGTH:
        raise UsageError(
            f"PLUTO_RUN_ID has {len(text)} characters", hint=f"Pluto accepts at most {MAX_LENGTH} characters"
        )
    if not text.isprintable():
        raise UsageError(f"PLUTO_RUN_ID {text!r} contains non-printable characters", hint="remove them")
    kind = classify_run_id(text)
    if kind != "external":
        meaning = "a run's number" if kind == "resume-numeric" else "a run's display id"
        raise UsageError(
            f"the Pluto client interprets PLUTO_RUN_ID {text!r} as {meaning}, so it would resume that run",
            hint=f"use a name, e.g. run-{text.lower()}",
        )
    return text


def make_run_id(nonce: str) -> str:
    """Return a run id that no other launch uses. Raises UsageError if `nonce` cannot be part of a run id."""
    return check_run_id(f"e2e-run-{nonce}")
