"""Mount the recorder around Pluto's client into the ranks' containers (harness/workers/outside.py).

The files travel in a ConfigMap of the launch, into a folder of their own. The init around the command puts
that folder at the front of PYTHONPATH, where the image's own value is known. So it works in any image that
has Python and the client.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from harness.core.kubernetes import Object

NAME = "recorder"
FOLDER = "/opt/harness/recorder"
"""Named by the inits too: harness/launch/files/worker_init.sh and harness/launch/konduktor/config.py."""
PACKAGE = "_harness_recorder"
_WORKERS = Path(str(resources.files("harness"))) / "workers"
_SITE = "outside_sitecustomize.py"
_MODULES = (
    "__init__",
    "outside",
    "outside_client",
    "ground_truth",
    "client_rules",
    "code_digest",
    "truth_frames",
    "client_state",
)


def files() -> dict[str, str]:
    """Return what is mounted: path below FOLDER → content."""
    modules = {f"{PACKAGE}/{name}.py": (_WORKERS / f"{name}.py").read_text() for name in _MODULES}
    return {"sitecustomize.py": (_WORKERS / _SITE).read_text(), **modules}


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


def _key(path: str) -> str:
    """Return a key for a ConfigMap: no slashes."""
    return path.replace("/", ".")
