"""Run ids as the Pluto client reads them: some strings do not name a new run but resume an old one."""

from __future__ import annotations

import re
from typing import Literal

from harness.core.errors import UsageError

MOST = 255
DISPLAY_ID = re.compile(r"[A-Z0-9]{1,4}-\d+\n?")
"""The client matches with `$`, which lets one newline at the end pass."""

RunIdKind = Literal["external", "resume-numeric", "resume-display"]


def classify_run_id(text: str) -> RunIdKind:
    """Say how the client takes PLUTO_RUN_ID (pluto-ml 0.0.29, sets.py): as a name, or as a run to resume."""
    if text.isdigit():
        return "resume-numeric"
    return "resume-display" if DISPLAY_ID.fullmatch(text) else "external"


def check_run_id(text: str) -> str:
    """Return the id itself. Raises UsageError when no job could share a new run under it."""
    if not text.strip():
        raise UsageError("PLUTO_RUN_ID is empty", hint="unset it, and the harness makes one")
    if len(text) > MOST:
        raise UsageError(f"PLUTO_RUN_ID has {len(text)} characters", hint=f"Pluto takes at most {MOST}")
    if not text.isprintable():
        raise UsageError(f"PLUTO_RUN_ID {text!r} has unprintable characters", hint="remove them")
    kind = classify_run_id(text)
    if kind != "external":
        what = "a run's number" if kind == "resume-numeric" else "a run's display id"
        raise UsageError(
            f"PLUTO_RUN_ID {text!r} is read by the Pluto client as {what}, so it would resume that run",
            hint=f"use a name, e.g. run-{text.lower()}",
        )
    return text


def make_run_id(nonce: str) -> str:
    """Return a run id that no other launch has. Raises UsageError when `nonce` cannot be part of one."""
    return check_run_id(f"e2e-run-{nonce}")
