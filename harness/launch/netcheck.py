"""Mount netcheck into the ranks' containers (harness/workers/netcheck).

The files travel in a ConfigMap of the launch, into a folder of their own, with a script that runs them
(files/netcheck.sh). So it works in any image with a shell and Python 3.9 or later. `harness run --netcheck`
runs it before the command, by the init around that; netcheck_job.py launches it alone.
"""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

from harness.core.kubernetes import Object

NAME = "netcheck"
FOLDER = "/opt/harness/netcheck"
"""Named by files/netcheck.yaml and the inits too: files/worker_init.sh and konduktor/config.py.

When netcheck failed before the command, these end the container with code 90, and the command does not run.
"""
_FILES = Path(__file__).parent / "files"
_PACKAGE = Path(str(resources.files("harness"))) / "workers" / "netcheck"
_SCRIPT = "netcheck.sh"
_OPTION = r"--master[_-]{}[= ]([^\s$`\"']+)(?=\s|$)"
_ADDR, _PORT = (re.compile(_OPTION.format(part)) for part in ("addr", "port"))


def files() -> dict[str, str]:
    """Return what is mounted: path below FOLDER → content."""
    modules = {f"netcheck/{path.name}": path.read_text() for path in sorted(_PACKAGE.glob("*.py"))}
    return {_SCRIPT: (_FILES / _SCRIPT).read_text(), **modules}


def config_map(namespace: str) -> Object:
    """Return the files as a ConfigMap of the launch's namespace."""
    metadata = {"name": NAME, "namespace": namespace}
    data = {_key(path): text for path, text in files().items()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def mount() -> Object:
    """Return the volumeMount of a rank's container."""
    return {"name": NAME, "mountPath": FOLDER, "readOnly": True}


def volume() -> Object:
    """Return the volume that `mount` refers to."""
    items = [{"key": _key(path), "path": path} for path in files()]
    return {"name": NAME, "configMap": {"name": NAME, "items": items}}


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


def _key(path: str) -> str:
    """Return a key for a ConfigMap: no slashes."""
    return path.replace("/", ".")
