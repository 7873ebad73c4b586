"""The main job's worker, split into several files and folders, all of which HARNESS_SCRIPTS must mount."""

from __future__ import annotations

import sys

import multinode
from parts import steps

if __name__ == "__main__":
    multinode.say(-1, steps.text())
    sys.exit(multinode.main())
