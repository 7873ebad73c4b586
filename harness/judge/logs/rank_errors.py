"""Find the rank whose own error came first in a container with several ranks.

All ranks in a container write to the same log, which mixes the error of the rank that failed first with the
errors of the ranks that lost this peer. torchrun names the process whose termination it detected first, but
another process may have failed earlier. Since PyTorch 2.4, each line of an exception that ends a rank begins
with "[rankN]: ".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

Lines = Sequence[tuple[int, str]]
OF_A_RANK = re.compile(r"^\[rank(\d+)\]: ?")
_LOGGED = re.compile(r"^\[?[EWIF]\d{0,4} ")
"""Pattern for a line from a C++ or torchrun logger, which is not part of an exception's message."""
_TRACEBACK = re.compile(r"^(╭─+ )?Traceback \(most recent call last\)")
"""Pattern for the first line of a traceback, including tracebacks that Rich draws in a box."""
_RAISED_FROM = ("During handling of the above exception", "The above exception was the direct cause")


@dataclass(frozen=True)
class RankError:
    """The exception that ended a rank. `rank` is None if the log does not show the number of this rank."""

    rank: int | None
    number: int
    text: str
    process: str = ""
    """The prefix that identifies the process in this line, or ""."""


@dataclass
class _Chain:
    """A chain of exceptions, each raised from the previous one. `error` is the message of the last one."""

    error: tuple[int, str] | None = None
    lines: list[str] = field(default_factory=list)
    raised_from: bool = False
    continued: bool = False
    """Whether the program continued after the exception, as shown by further output."""


def first(
    lines: Lines,
    is_error: Callable[[str], bool],
    is_noise: Callable[[str], bool],
    is_of_a_peer: Callable[[str], bool],
    processes: Mapping[int, str],
) -> RankError | None:
    """Return the first exception that ended a rank and was not caused by a lost peer, or None.

    `lines` are the lines before torchrun's report. `is_noise` returns whether a line contains no information,
    such as a line in a stack. A program can print an exception and continue. Therefore, an exception with a
    rank's label counts only if it is the last exception of that rank, and an exception without a label counts
    only if no other output follows it. `processes` maps line numbers to the prefixes that identify the
    processes of lines without a label.
    """
    chains: dict[int | str, list[_Chain]] = {}
    for number, text in lines:
        match = OF_A_RANK.match(text)
        own = text[match.end() :] if match else text
        rank_chains = chains.setdefault(int(match[1]) if match else processes.get(number, ""), [])
        if _TRACEBACK.match(own) and not (rank_chains and rank_chains[-1].raised_from):
            rank_chains.append(_Chain())
        if not rank_chains:
            rank_chains.append(_Chain())
        chain = rank_chains[-1]
        if chain.error is not None and _LOGGED.match(own):
            continue
        chain.lines.append(own)
        chain.raised_from = is_chained(own) or (chain.raised_from and not own.strip())
        if is_error(own):
            chain.error, chain.continued = (number, text), False
        elif chain.error is not None and not is_noise(own):
            chain.continued = True
    labelled = {rank: each[-1:] for rank, each in chains.items() if isinstance(rank, int)}
    others = {
        process: [one for one in each if not one.continued]
        for process, each in chains.items()
        if isinstance(process, str)
    }
    has_labels = any(one.error for each in labelled.values() for one in each)
    if has_labels:
        others.pop("", None)
    errors = [*_own_errors(labelled, is_of_a_peer), *_own_errors(others, is_of_a_peer)]
    return min(errors, key=lambda error: error.number, default=None)


def is_logged(text: str) -> bool:
    """Return whether a C++ or torchrun logger wrote a line."""
    return _LOGGED.match(OF_A_RANK.sub("", text)) is not None


def is_chained(text: str) -> bool:
    """Return whether a line states that the next exception was raised from the previous one."""
    return OF_A_RANK.sub("", text).startswith(_RAISED_FROM)


def _own_errors(
    chains: Mapping[int, list[_Chain]] | Mapping[str, list[_Chain]], is_of_a_peer: Callable[[str], bool]
) -> list[RankError]:
    """Return the exceptions that were not caused by a lost peer."""
    return [
        RankError(key, *chain.error) if isinstance(key, int) else RankError(None, *chain.error, key)
        for key, of_one in chains.items()
        for chain in of_one
        if chain.error is not None and not any(map(is_of_a_peer, chain.lines))
    ]
