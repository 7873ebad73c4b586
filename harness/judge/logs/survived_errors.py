"""Find out whether a rank survived the errors of the network that are in its log.

A program can try again after such an error, or not need the connection. It then prints more output, and ends
for another reason. If a pod has several ranks, rank_errors.py compares the exceptions of each rank.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from harness.judge.logs import rank_errors

CAUSES = ("rendezvous.", "address.", "variables.", "port.")
"""Beginnings of the causes that a rank can survive."""
MIN_LINES = 10
"""Minimum number of ordinary lines after an error that prove that the rank survived it."""
_TRACEBACK = re.compile(r"^(\[rank\d+\]: ?)?Traceback \(most recent call last\):$")


def end(
    lines: Sequence[tuple[int, str]],
    last_number: int,
    is_ordinary: Callable[[str], bool],
    is_of_a_peer: Callable[[str], bool],
) -> int:
    """Return the number of the first line about a rank's end if the rank survived all earlier errors, or 0.

    `last_number` is the number of the rank's own last error, with whose traceback the end begins, or of its
    last line. Returns 0 if the ordinary lines above the end are too few.
    """
    at = next((at for at, (number, _) in enumerate(lines) if number == last_number), 0)
    texts = [text for _, text in lines[:at]]
    while (begin := _traceback(texts[:at], is_ordinary)) is not None:
        at = begin
        if not any(map(rank_errors.is_chained, texts[max(0, begin - 2) : begin])):
            break
    ordinary = 0
    for text in reversed(texts[:at]):
        if is_of_a_peer(text):
            return 0
        ordinary += is_ordinary(text)
        if ordinary == MIN_LINES:
            return lines[at][0]
    return 0


def was_survived(
    texts: Iterable[str],
    is_ordinary: Callable[[str], bool],
    is_error: Callable[[str], bool],
    is_report: Callable[[str], bool],
) -> bool:
    """Return whether the lines below an error show that another error ended the program later."""
    ordinary = 0
    for text in texts:
        if is_report(text):
            return False
        if ordinary >= MIN_LINES and is_error(text):
            return True
        ordinary += is_ordinary(text)
    return False


def _traceback(texts: Sequence[str], is_ordinary: Callable[[str], bool]) -> int | None:
    """Return the position of the traceback's first line above an error, or None if there is no traceback."""
    for at in reversed(range(len(texts))):
        if _TRACEBACK.match(texts[at]):
            return at
        if is_ordinary(texts[at]):
            return None
    return None
