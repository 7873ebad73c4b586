"""Audit a training job's checkpoints, in a pod that mounts the same volumes read-only.

The audit's output (harness/workers/training/audit.py) becomes training-audit.json in the bundle.
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
"""The time limit for starting the pod, and then again for the audit itself, in seconds."""


def audit(trained: Training, surroundings: Surroundings, progress: Progress) -> str:
    """Run the audit. Return the JSON document that it prints, or {"error": …} if it fails."""
    progress("auditing the checkpoints")
    volumes = trained.of_pods(surroundings)
    document = training_pod.printed(program(trained), volumes, surroundings, progress)
    if error := json.loads(document).get("error"):
        progress(f"the checkpoints could not be audited: {error}")
    return document


def program(trained: Training) -> Program:
    """Return the command for the pod that audits the checkpoints."""
    words = ("python3", "-m", "training.audit", "--run-dir", f"/out/{trained.spec.run}")
    return Program(NAME, (*words, "--data-dir", "/data"), "the audit of the checkpoints", SECONDS, SECONDS)
