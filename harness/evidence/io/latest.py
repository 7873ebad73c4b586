"""The link `latest` beside the bundles, and the names of bundles."""

from __future__ import annotations

import re
from pathlib import Path

LATEST = "latest"
NAME = re.compile(r"(\d{8}T\d{6}Z)-(\w+)", re.ASCII)
"""Names as `BundleWriter.create` gives them: time and nonce."""


def name_latest(bundle: Path) -> None:
    """Point `latest` beside the bundle to it.

    The link is replaced atomically, so it always leads somewhere.
    """
    link = bundle.with_name(f".{LATEST}-{bundle.name}")
    link.unlink(missing_ok=True)
    link.symlink_to(bundle.name)
    link.replace(bundle.with_name(LATEST))


def mend_latest(runs_dir: Path) -> None:
    """Point `latest` to the newest bundle when its own is gone. Remove it when no bundle is left."""
    latest = runs_dir / LATEST
    if latest.is_symlink() and not latest.exists():
        others = [path for path in runs_dir.glob("*") if NAME.fullmatch(path.name) and not path.is_symlink()]
        if others:
            name_latest(max(others))
        else:
            latest.unlink(missing_ok=True)
