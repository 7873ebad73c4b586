"""Write amounts for people."""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def amount(size: float) -> str:
    """Return bytes for people: "812 KiB", "1.4 MiB"."""
    for unit in _UNITS[:-1]:
        if size < 1023.5:
            return f"{size:.0f} {unit}" if size >= 10 or unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} {_UNITS[-1]}"
