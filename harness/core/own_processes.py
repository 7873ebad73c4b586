"""Shell functions with which a script in a container finds the container's own processes."""

from __future__ import annotations

from pathlib import Path

_FILE = Path(__file__).parents[1] / "workers" / "own_processes.sh"


def without_comments(script: str) -> str:
    """Return a shell script with blank lines and comment lines removed."""
    lines = (line for line in script.splitlines() if line.strip() and not line.lstrip().startswith("#"))
    return "".join(f"{line}\n" for line in lines)


OWN_PROCESSES = without_comments(_FILE.read_text())
"""A shell script that defines the functions own_has, own_runs and own_each, and the variables own and
own_cgroups."""
