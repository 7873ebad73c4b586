"""What a rank's last log lines say about its end. Logs only explain: no verdict rests on them alone."""

from __future__ import annotations

import re
from dataclasses import dataclass

from workers.truth_frames import MARK

_WARNING = re.compile(r"\[[WI]\d{4}|^[WI]\d{4} |Warning:")
_CLUES = (
    (
        "rendezvous.dns",
        r"(Error|failed).*(Name or service not known|Temporary failure in name resolution)"
        r"|(Error|failed).*(gai error|getaddrinfo)",
    ),
    ("rendezvous.dns", r"socket\.gaierror"),
    (
        "rendezvous.unreachable",
        r"client socket has (timed out|failed to connect)"
        r"|DistNetworkError.*(timed out|refused|failed to connect)",
    ),
    (
        "rendezvous.timeout",
        r"RendezvousTimeoutError|waiting for clients|RendezvousClosedError"
        r"|(TCPStore|[Rr]endezvous|init_process_group|DistStoreError).*[Tt]imed? ?out",
    ),
    ("rank.tracker_unreachable", r"Failed to create run|(httpx\.|pluto.*)(Connect|Read)(Error|Timeout)"),
)
_OF_A_PEER = re.compile(
    r"Connection (closed|reset) by peer|RendezvousConnectionError|SignalException|Broken pipe"
    r"|remote process exited|Received 15 death signal|Socket closed"
)
_REPORT = re.compile(
    r"ChildFailedError|Sending process \d+ closing signal|failed \(exitcode: |elastic/multiprocessing/api\.py"
)
_EXIT = re.compile(r"rank\s*:\s*(\d+) \(local_rank: \d+\).*?exitcode\s*:\s*(-?\d+)", re.DOTALL)
_FAILED = re.compile(r"failed \(exitcode: (-?\d+)\)")
_TIME = re.compile(r"^\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:\d\d) ?")
_NOISE = re.compile(r"^\s*$|^[=\-]{5,}|torch/distributed/elastic|^Traceback|^\s+File |^\s+\^+")


@dataclass(frozen=True)
class Clues:
    """`rank` and `exit_code` are those of the worker that torchrun names as the first to fail."""

    cause: str | None = None
    line: str = ""
    line_number: int = 0
    last: str = ""
    last_number: int = 0
    rank: int | None = None
    exit_code: int | None = None
    of_a_peer: bool = False


def read(tail: list[tuple[int, str]]) -> Clues:
    """Clues from numbered last lines of a log."""
    lines = [(number, _TIME.sub("", text)) for number, text in tail if MARK not in text]
    cause, clue, clue_number = None, "", 0
    for number, text in reversed(lines):
        if _WARNING.search(text):
            continue
        cause = next((cause for cause, pattern in _CLUES if re.search(pattern, text)), None)
        if cause:
            clue, clue_number = text.strip(), number
            break
    last, last_number = _last_own(lines)
    whole = "\n".join(text for _, text in lines)
    report = whole.rpartition("Root Cause")[2] if "Root Cause" in whole else ""
    worker = _EXIT.search(report)
    failed = _FAILED.search(whole)
    return Clues(
        cause=cause,
        line=clue[:300],
        line_number=clue_number,
        last=last[:300],
        last_number=last_number,
        rank=int(worker[1]) if worker else None,
        exit_code=int(worker[2]) if worker else int(failed[1]) if failed else None,
        of_a_peer=any(_OF_A_PEER.search(text) for _, text in lines[-80:]),
    )


def _last_own(lines: list[tuple[int, str]]) -> tuple[str, int]:
    """The last line before torchrun's own report that says something."""
    own = lines
    for position, (_, text) in enumerate(lines):
        if _REPORT.search(text) and position:
            own = lines[:position]
            break
    for number, text in reversed(own):
        if not _NOISE.search(text):
            return text.strip(), number
    return "", 0
