"""Mount the recorder around Pluto's client into the ranks' containers (harness/workers/outside.py).

A ConfigMap of the launch contains the files. The init around the command prepends their folder to PYTHONPATH
in the container, where the image's own value is known. So the recorder works in any image that has Python and
the client. For programs that are started with a clean environment, `setup.sh` writes a .pth file that points
to the folder, if the image's file system is writable.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from harness.launch.mounts.folder import MountedFolder

FOLDER = "/opt/harness/recorder"
"""The mount path, repeated in files/init_processes.sh and torchrun_job.py."""
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
    "ground_truth",
    "kept_rows",
    "client_rules",
    "code_digest",
    "truth_frames",
    "client_state",
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
