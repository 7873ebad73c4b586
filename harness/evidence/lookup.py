"""Find a bundle by what a user calls it: a folder, its name, or a part of its name."""

from __future__ import annotations

from pathlib import Path

from harness.core.errors import UsageError
from harness.evidence.reader import Bundle

MANIFEST = "manifest.json"


def opened(path: Path, runs_dir: Path = Path("runs")) -> Bundle:
    """Open the bundle. Raises UsageError when none or more than one fits."""
    for folder in (path, runs_dir / path):
        if (folder / MANIFEST).is_file():
            return Bundle.open(folder)
    parts = [] if len(path.parts) > 1 else sorted(runs_dir.glob(f"*{path.name}*/{MANIFEST}"))
    found = [part.parent for part in parts if not part.parent.is_symlink()]
    if len(found) == 1:
        return Bundle.open(found[0])
    if found:
        raise UsageError(f"{path} is more than one bundle: {', '.join(p.name for p in found)}")
    seen = (
        f"{path} is not a bundle: it has no {MANIFEST}"
        if path.exists() or len(path.parts) > 1
        else f"no bundle in {runs_dir} has {path} in its name"
    )
    raise UsageError(seen, hint="`harness runs` lists them")
