"""Find uv, an installer that is several times faster than pip."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path


def uv() -> str | None:
    """Return the path of uv in this interpreter's folder or on PATH, or None if uv is not installed."""
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.is_file() else shutil.which("uv")
