"""Mount the recorder that wraps the Pluto client into the ranks' containers (harness/workers/recorder).

The launch's ConfigMap contains the files. The init prepends their folder to the container's PYTHONPATH and
keeps the image's own value. Therefore the recorder works in any image with Python and the client. For
processes that start with a clean environment, `setup.sh` writes a .pth file with the folder's path, if the
image's file system is writable.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from harness.launch.mounts.folder import MountedFolder

FOLDER = "/opt/harness/recorder"
"""The path at which the recorder is mounted. It is repeated in files/init_processes.sh and
torchrun_job.py."""
PACKAGE = "_harness_recorder"
_WORKERS = Path(str(resources.files("harness"))) / "workers"
_FILES = Path(__file__).parents[1] / "files"
_MODULES = (
    "__init__",
    "recorder/__init__",
    "recorder/hooks",
    "recorder/client_calls",
    "recorder/logged_values",
    "recorder/queued_values",
    "recorder/process_events",
    "recorder/exit_status",
    "recorder/rank_stacks",
    "recorder/digest_recording",
    "recorder/digest_lines",
    "recorder/point_digests",
    "recorder/digest_reports",
    "ground_truth/__init__",
    "ground_truth/point_recorder",
    "ground_truth/kept_rows",
    "ground_truth/client_rules",
    "ground_truth/code_digest",
    "ground_truth/truth_frames",
    "ground_truth/client_state",
)
MOUNTED = MountedFolder(
    "recorder",
    FOLDER,
    {
        "sitecustomize.py": _WORKERS / "recorder" / "sitecustomize.py",
        "setup.sh": _FILES / "recorder_setup.sh",
        "harness_recorder.pth": _FILES / "harness_recorder.pth",
        **{f"{PACKAGE}/{name}.py": _WORKERS / f"{name}.py" for name in _MODULES},
    },
)
