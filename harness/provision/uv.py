"""Find uv, a package installer that is several times faster than pip."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path


def uv() -> str | None:
    """Return the path of uv, or None if it is not installed. The search starts next to this Python
    interpreter and continues on PATH."""
    candidate = Path(sys.executable).with_name("uv")
    return str(candidate) if candidate.is_file() else shutil.which("uv")
