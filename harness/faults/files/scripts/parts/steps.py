"""A module in a folder, which reads a file in a folder below it."""

from __future__ import annotations

from pathlib import Path


def text() -> str:
    """Return what deep/note.txt says."""
    return (Path(__file__).parent / "deep" / "note.txt").read_text().strip()
