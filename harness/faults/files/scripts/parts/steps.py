"""A module in a subfolder, which reads a file from a nested folder."""

from __future__ import annotations

from pathlib import Path


def text() -> str:
    """Return the content of deep/note.txt."""
    return (Path(__file__).parent / "deep" / "note.txt").read_text().strip()
