"""The inits: the first process of a rank's container, a shell that starts the command and outlives it.

An init passes SIGTERM on to every process of the container and waits until they have ended. It never signals
another one, also where the pod shares the node's process ids (decision 005).
"""

from __future__ import annotations

from pathlib import Path

from harness.core.own_processes import OWN_PROCESSES, without_comments

_FILES = Path(__file__).parent / "files"
_TRAP = "ended=''\ntrap 'ended=1; terminate_own' TERM\n"
"""As process 1 a shell does not hear SIGTERM without a trap, so this comes first."""


def _init(name: str) -> str:
    scripts = ((_FILES / file).read_text() for file in ("init_processes.sh", name))
    return "".join([_TRAP, OWN_PROCESSES, *map(without_comments, scripts)])


WORKER = _init("worker_init.sh")
"""For manifests, as `sh -c WORKER sh COMMAND…`."""
KONDUKTOR = _init("konduktor_init.sh")
"""For konduktor's jobs, as `bash -c KONDUKTOR SCRIPT`."""
