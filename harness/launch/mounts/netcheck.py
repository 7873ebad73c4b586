"""Mount netcheck into the ranks' containers (harness/workers/netcheck).

The files travel in a ConfigMap of the launch, into a folder of their own, with a script that runs them
(files/netcheck.sh). So it works in any image with a shell and Python 3.9 or later. `harness run --netcheck`
runs it before the command, by the init around that; netcheck_job.py launches it alone.
"""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

from harness.launch.mounts.folder import MountedFolder

FOLDER = "/opt/harness/netcheck"
"""Named by files/netcheck.yaml and the inits too: files/worker_init.sh and files/konduktor_init.sh.

When netcheck failed before the command, these end the container with code 90, and the command does not run.
"""
_FILES = Path(__file__).parents[1] / "files"
_PACKAGE = Path(str(resources.files("harness"))) / "workers" / "netcheck"
_SCRIPT = "netcheck.sh"
MOUNTED = MountedFolder(
    "netcheck",
    FOLDER,
    {
        _SCRIPT: _FILES / _SCRIPT,
        **{f"netcheck/{path.name}": path for path in sorted(_PACKAGE.glob("*.py"))},
    },
)
_OPTION = r"--master[_-]{}[= ]([^\s$`\"']+)(?=\s|$)"
_ADDR, _PORT = (re.compile(_OPTION.format(part)) for part in ("addr", "port"))


def master(command: str, first_host: str | None) -> dict[str, str]:
    """Return where the ranks will meet: by torchrun's options in a command, else at rank 0's own name.

    An option that the shell in the pod has to expand says nothing here.
    """
    addr, port = _ADDR.search(command), _PORT.search(command)
    host = addr[1] if addr else first_host
    return {
        **({"HARNESS_MASTER_ADDR": host} if host else {}),
        **({"HARNESS_MASTER_PORT": port[1]} if port else {}),
    }
