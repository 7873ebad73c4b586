"""The last line of a rank container's init: its command has ended, and the container may stay."""

from __future__ import annotations

import re

from harness.evidence.schema.bundle import ContainerExit
from harness.observe.logs import Life
from harness.workers.truth_frames import EXIT_MARK

_EXIT = re.compile(rf"(?P<at>\S+) {EXIT_MARK}(?P<nonce>\w+) (?P<code>\d+)$")


def exit_of(life: Life, line: str, nonce: str) -> ContainerExit | None:
    """Return what a line of this container's log says of its end; None for another line or launch."""
    found = _EXIT.match(line)
    if not found or found["nonce"] != nonce:
        return None
    of = {"pod": life.pod, "uid": life.uid, "container": life.container}
    return ContainerExit(at=found["at"], **of, exit_code=int(found["code"]))
