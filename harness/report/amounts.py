"""Format byte counts and lists of ranks as text."""

from __future__ import annotations

from collections.abc import Iterable

MAX_RANGES = 12
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def amount(size: float) -> str:
    """Format a number of bytes, for example as "812 KiB" or "1.4 MiB"."""
    for unit in _UNITS[:-1]:
        if size < 1023.5:
            return f"{size:.0f} {unit}" if size >= 10 or unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} {_UNITS[-1]}"


def ranges(numbers: Iterable[int]) -> str:
    """Format rank numbers as ranges, such as "0, 1", "0-511" or "0-3, 7 and 40 more"."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    texts = [
        text
        for run in runs
        for text in ([f"{run[0]}-{run[-1]}"] if len(run) > 2 else [str(number) for number in run])
    ]
    omitted_count = len(texts) - MAX_RANGES
    return ", ".join(texts[:MAX_RANGES]) + (f" and {omitted_count} more" if omitted_count > 0 else "")
