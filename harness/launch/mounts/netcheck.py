"""Mount netcheck into the ranks' containers (harness/workers/netcheck).

The launch's ConfigMap contains the files and a script that runs them (files/netcheck.sh). Therefore, netcheck
works in any image with a shell and Python 3.9 or later. With `harness run --netcheck`, the init runs netcheck
before the command. netcheck_job.py launches a job that runs only netcheck.
"""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

from harness.launch.mounts.folder import MountedFolder

FOLDER = "/opt/harness/netcheck"
"""The path at which netcheck is mounted. It is repeated in files/netcheck.yaml, files/worker_init.sh and
files/konduktor_init.sh.

If netcheck fails, the init does not start the command, and the container exits with code 90.
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
    """Return the environment variables with rank 0's address and port for netcheck.

    The values come from torchrun's options in the command. If there is no address option, `first_host` is the
    address. Options that contain shell variables are ignored.
    """
    addr, port = _ADDR.search(command), _PORT.search(command)
    host = addr[1] if addr else first_host
    return {
        **({"HARNESS_MASTER_ADDR": host} if host else {}),
        **({"HARNESS_MASTER_PORT": port[1]} if port else {}),
    }
