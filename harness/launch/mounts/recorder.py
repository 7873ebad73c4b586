"""Mount the recorder around Pluto's client into the ranks' containers (harness/workers/outside.py).

The launch's ConfigMap contains the files. The init prepends their folder to the container's PYTHONPATH, which
keeps the image's own value. Therefore the recorder works in any image with Python and the client. For
processes that start with a clean environment, `setup.sh` writes a .pth file with the folder's path, if the
image's file system is writable.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from harness.launch.mounts.folder import MountedFolder

FOLDER = "/opt/harness/recorder"
"""The mount path, which is repeated in files/init_processes.sh and torchrun_job.py."""
PACKAGE = "_harness_recorder"
_WORKERS = Path(str(resources.files("harness"))) / "workers"
_FILES = Path(__file__).parents[1] / "files"
_MODULES = (
    "__init__",
    "outside",
    "outside_client",
    "outside_account",
    "outside_process",
    "outside_exit",
    "outside_stack",
    "ground_truth",
    "kept_rows",
    "client_rules",
    "code_digest",
    "truth_frames",
    "client_state",
    "outside_admitted",
    "admitted_lines",
    "point_digests",
)
MOUNTED = MountedFolder(
    "recorder",
    FOLDER,
    {
        "sitecustomize.py": _WORKERS / "outside_sitecustomize.py",
        "setup.sh": _FILES / "recorder_setup.sh",
        "harness_recorder.pth": _FILES / "harness_recorder.pth",
        **{f"{PACKAGE}/{name}.py": _WORKERS / f"{name}.py" for name in _MODULES},
    },
)
