"""Find the rank that failed if all ranks raise an exception about a distributed checkpoint.

torch.distributed.checkpoint collects the exceptions of all ranks, and then every rank raises the same
CheckpointException (torch/distributed/checkpoint/api.py). The exception lists the ranks that failed, and
contains a traceback for each of them. Therefore, the first rank that logs the exception is not necessarily a
rank that failed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from harness.core.causes import CauseId
from harness.judge.case import Case, names
from harness.judge.logs import error_patterns as log_clues
from harness.judge.logs import known_errors
from harness.judge.pod_end import End, explained

TAIL_LINES = 5000
"""Number of lines at the end of a log that are searched for the exception, which contains a stack for each
failed rank."""
_QUOTED = 200
"""Number of leading characters of an error to compare. An `End` quotes only the beginning of an error."""
_MAX_ERROR = 300
"""Maximum number of characters of an error that the finding quotes."""
_LABEL = re.compile(r"^\[rank(\d{1,9})\]: ?")
_EXCEPTION = re.compile(r"CheckpointException ranks:dict_keys\(\[([\d, ]+)\]\)")
_OF_A_RANK = re.compile(r"Traceback \(most recent call last\): \(RANK (\d{1,9})\)")


@dataclass(frozen=True)
class _Raised:
    """A CheckpointException in the log of one rank. `failed` contains the ranks that the exception lists."""

    rank: int | None
    """The rank that logged the exception, or None if it is unknown."""
    failed: tuple[int, ...]
    errors: tuple[str, ...]
    """The errors of the listed ranks, in the order of their tracebacks."""
    ref: str


def diagnose(case: Case, cause: End, ends: Collection[End]) -> End | None:
    """Return the `End` for the ranks that failed to save or load a distributed checkpoint, or None.

    `cause` is the first failure, and `ends` contains all failures, including `cause`. Returns None if `cause`
    has another reason. If some of the listed ranks did not raise the exception, the exception probably
    numbers the ranks within a smaller process group. The `End` then has no ranks.
    """
    if not (cause.follows or cause.cause in ("rank.crashed", *log_clues.AT_ANY_TIME)):
        return None
    candidates = [cause, *(ends if cause.follows else ())]
    quoted = (each for end in candidates for each in _raised(case, end) if _is_quoted(end, each.errors))
    own = next(quoted, None)
    if own is None:
        return None
    error = own.errors[0]
    same = [(end, each) for end in ends for each in _raised(case, end) if each.failed == own.failed]
    raising = {rank for end, each in same for rank in ([each.rank] if each.rank is not None else end.ranks)}
    raising &= set(case.ranks)
    subject = (
        case.place_of(own.failed[0])
        if len(own.failed) == 1 and own.failed[0] in case.ranks
        else names(own.failed)
    )
    ranks = list(own.failed)
    if not raising.issuperset(own.failed):
        subject, ranks = f"{names(own.failed)} of the process group that saves or loads the checkpoint", []
    text = f"{subject} failed in a distributed checkpoint, and {names(raising)} raised the error: {error}"
    clue = log_clues.read([(1, error)]).cause
    id_: CauseId = "rank.crashed" if clue is None or clue not in log_clues.AT_ANY_TIME else clue
    refs = tuple(each.ref for end, each in same if set(own.failed).intersection(end.ranks))[:1] or (own.ref,)
    refs = (*refs, *cause.evidence[:1])
    return explained(cause, id_, ranks, text, refs, known_errors.advice(error))


def _is_quoted(end: End, errors: Sequence[str]) -> bool:
    """Return whether the `End` quotes one of the errors. If not, the program probably caught the exception.

    An error that consists only of a class name does not match a quote in which a message follows the class
    name.
    """
    text = f"{end.text} {end.log_quote}"
    return any(re.search(rf"(?<!\w){re.escape(error[:_QUOTED])}(?!:)", text) for error in errors)


def _raised(case: Case, end: End) -> list[_Raised]:
    """Return the last CheckpointException of each rank in a pod's log."""
    log = case.bundle.log(case.pods[end.index].name, case.launch.container)
    tail = case.bundle.tail(log, TAIL_LINES)
    if not any("CheckpointException" in text for _, text in tail):
        return []
    lines = log_clues.of_last_attempt(tail)
    of_pod = case.ranks_of(end.index)
    by_rank: dict[int | None, list[tuple[int, str]]] = {}
    for number, text in lines:
        label = _LABEL.match(text)
        rank = int(label[1]) if label else of_pod[0] if len(of_pod) == 1 else None
        by_rank.setdefault(rank, []).append((number, text[label.end() :] if label else text))
    found = (_last(rank, log, own) for rank, own in by_rank.items())
    return [each for each in found if each is not None]


def _last(rank: int | None, log: str, lines: Sequence[tuple[int, str]]) -> _Raised | None:
    """Return the last CheckpointException in one rank's lines, or None."""
    begins = [position for position, (_, text) in enumerate(lines) if _EXCEPTION.search(text)]
    if not begins:
        return None
    number, text = lines[begins[-1]]
    match = _EXCEPTION.search(text)
    failed = tuple(sorted(int(each) for each in re.findall(r"\d{1,9}", match[1]))) if match else ()
    sections: list[list[str]] = []
    for _, line in lines[begins[-1] + 1 :]:
        if _OF_A_RANK.match(line):
            sections.append([])
        if sections:
            sections[-1].append(line)
    firsts = (next(filter(log_clues.is_error, section), "") for section in sections)
    errors = tuple(error.strip()[:_MAX_ERROR] for error in firsts if error)
    return _Raised(rank, failed, errors, f"{log}:{number}") if failed and errors else None
