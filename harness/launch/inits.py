"""Shell scripts that run as the first process (init) in a rank's container and start the command.

An init forwards SIGTERM to every process in the container and waits until all of them have exited. It never
signals processes in other containers, even if the pod uses the node's PID namespace (decision 005).
"""

from __future__ import annotations

from pathlib import Path

from harness.core.own_processes import OWN_PROCESSES, without_comments

_FILES = Path(__file__).parent / "files"
_TRAP = "ended=''\ntrap 'ended=1; terminate_own' TERM\n"
"""The SIGTERM trap. It is set first, because without a trap, a shell with PID 1 ignores SIGTERM."""


def _init(name: str) -> str:
    scripts = ((_FILES / file).read_text() for file in ("init_processes.sh", name))
    return "".join([_TRAP, OWN_PROCESSES, *map(without_comments, scripts)])


WORKER = _init("worker_init.sh")
"""The init for manifests, used as `sh -c WORKER sh COMMAND…`."""
KONDUKTOR = _init("konduktor_init.sh")
"""The init for konduktor's jobs, used as `bash -c KONDUKTOR SCRIPT`."""
