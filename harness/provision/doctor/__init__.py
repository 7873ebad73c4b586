"""Check what a machine needs for a run, and repair it.

checks(settings)          every check, in the order a person would repair them
fix(context)              repairs what it can, then checks again
render(checks)            for a terminal
as_json(checks)           for a program
exit_code(checks)         0, or 2 when a required check fails
"""

from __future__ import annotations

from harness.provision.doctor.check import Check, as_json, exit_code, render
from harness.provision.doctor.checks import checks
from harness.provision.doctor.repair import fix

__all__ = ["Check", "as_json", "checks", "exit_code", "fix", "render"]
