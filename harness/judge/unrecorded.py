"""Say why nothing of a rank's ground truth is known, as far as its log tells."""

from __future__ import annotations

import re

from harness.evidence.objects import Pod
from harness.judge import log_clues
from harness.judge.case import Case

_TOLD = re.compile(rb"\[harness\] the recorder around Pluto's client (.*)")

_WAITING = re.compile(r"\[c10d\].*(cannot be retrieved|failed to connect|has timed out)")
"""How torch says that it tries again to reach the rendezvous."""


def why(case: Case, rank: int) -> str:
    """Return the end of a sentence: what the recorder around the client said, or what kept it away."""
    pod = case.pods.get(case.node_of(rank))
    log = case.bundle.log(pod.name, case.launch.container) if pod else ""
    told = [found for _, line in (case.bundle.lines(log) if log else ()) if (found := _TOLD.search(line))]
    if told:
        return f": the recorder around Pluto's client {told[0][1].decode(errors='replace').strip()}"
    if not case.launch.recorder or not case.started(case.node_of(rank)):
        return ""
    tail = case.bundle.tail(log)
    if tail and _WAITING.search(tail[-1][1]):
        return ". It never came to log anything: it still looked for the other ranks"
    cause = log_clues.read(tail, log).cause or ""
    if cause.startswith(("rendezvous.", "image.")):
        return f". It never came to log anything: it ended before ({cause})"
    if not _came_to_its_end(case, pod):
        return ""
    return (
        ". No recorder spoke: did it call pluto.init()? Is PYTHONPATH replaced, or Python run with -I or -E?"
    )


def _came_to_its_end(case: Case, pod: Pod | None) -> bool:
    """Return whether the rank's container ended with 0. One that did not may never have come to log."""
    ended = pod.container(case.launch.container, "terminated") if pod else None
    return ended is not None and ended[1].get("exitCode") == 0
