"""The Pythons of this machine, with which programs of ranks are tried."""

from __future__ import annotations

import shutil
import subprocess
import sys


def pythons() -> list[str]:
    """Return each Python of this machine. From 3.12 on, the interpreter itself tells how a program leaves."""
    found = filter(None, (shutil.which(f"python3.{minor}") for minor in range(9, 15)))
    runs = [
        path
        for path in found
        if not subprocess.run([path, "-c", ""], check=False, capture_output=True).returncode
    ]
    return [sys.executable, *runs]


PYTHONS = pythons()
