"""The main job's worker, split into several files and folders. HARNESS_SCRIPTS must mount all of them."""

from __future__ import annotations

import sys

import multinode
from parts import steps

if __name__ == "__main__":
    multinode.say(-1, steps.text())
    sys.exit(multinode.main())
