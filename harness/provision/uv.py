"""Find uv, an installer that is several times faster than pip."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path


def uv() -> str | None:
    """Return the path of uv, from this interpreter's folder or PATH. If uv is missing, return None."""
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.is_file() else shutil.which("uv")
