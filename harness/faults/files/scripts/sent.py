"""The main job's worker in several files and folders: what HARNESS_SCRIPTS must bring whole."""

from __future__ import annotations

import sys

import multinode
from parts import steps

if __name__ == "__main__":
    multinode.say(-1, steps.text())
    sys.exit(multinode.main())
