"""Look at the checkpoints of a training that has ended: one pod with the same volumes, which only reads.

What it prints (harness/workers/training/audit.py) is evidence: training-audit.json.
"""

from __future__ import annotations

import json

from harness.core.progress import Progress
from harness.launch.workloads import training_pod
from harness.launch.workloads.base import Surroundings
from harness.launch.workloads.training import Training
from harness.launch.workloads.training_pod import Program

FILE = "training-audit.json"
NAME = "training-audit"
SECONDS = 240.0
"""Longest time until its pod runs, and of the audit."""


def audit(trained: Training, surroundings: Surroundings, progress: Progress) -> str:
    """Return what the audit printed: one JSON document. Where it failed, that says so: {"error": …}."""
    progress("auditing the checkpoints")
    volumes = trained.of_pods(surroundings)
    document = training_pod.printed(program(trained), volumes, surroundings, progress)
    if why := json.loads(document).get("error"):
        progress(f"the checkpoints could not be audited: {why}")
    return document


def program(trained: Training) -> Program:
    """Return what its pod runs."""
    words = ("python3", "-m", "training.audit", "--run-dir", f"/out/{trained.asked.run}")
    return Program(NAME, (*words, "--data-dir", "/data"), "the audit of the checkpoints", SECONDS, SECONDS)
