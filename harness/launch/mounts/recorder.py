"""Mount the recorder around Pluto's client into the ranks' containers (harness/workers/outside.py).

The files travel in a ConfigMap of the launch, into a folder of their own. The init around the command puts
that folder at the front of PYTHONPATH, where the image's own value is known. So it works in any image that
has Python and the client. A program with a clean environment is led to the folder by a .pth file, which
`setup.sh` writes where the image lets it.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from harness.launch.mounts.folder import MountedFolder

FOLDER = "/opt/harness/recorder"
"""Named by files/init_processes.sh and torchrun_job.py too."""
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
