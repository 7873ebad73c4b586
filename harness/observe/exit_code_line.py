"""Parse the log line in which the init process of a rank's container reports the command's exit code."""

from __future__ import annotations

import re

from harness.evidence.schema.bundle import ContainerExit
from harness.observe.logs import Life
from harness.workers.ground_truth.truth_frames import EXIT_MARK

_EXIT = re.compile(rf"(?P<at>\S+) {EXIT_MARK}(?P<nonce>\w+) (?P<code>\d+)$")


def exit_of(life: Life, line: str, nonce: str) -> ContainerExit | None:
    """Return the exit that a log line reports for a command of this launch, or None if the line reports
    none."""
    match = _EXIT.match(line)
    if not match or match["nonce"] != nonce:
        return None
    identity = {"pod": life.pod, "uid": life.uid, "container": life.container}
    return ContainerExit(at=match["at"], **identity, exit_code=int(match["code"]))
