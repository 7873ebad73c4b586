"""Small bundles of seven endings: what the properties of the judges start from."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import bundles
from hypothesis import HealthCheck, settings


def _crashed() -> bundles.Job:
    job = bundles.healthy()
    bundles.crash(job, 1)
    return job


def _lost() -> bundles.Job:
    job = bundles.healthy()
    del job.points[5]
    return job


def _silent() -> bundles.Job:
    job = bundles.healthy()
    job.retell(1, [])
    job.points = [p for p in job.points if p.metric.endswith("node0")]
    job.refresh()
    return job


def _split() -> bundles.Job:
    job = bundles.healthy()
    job.runs.append(job.runs[0].model_copy(update={"run_id": 2, "external_id": "mine"}))
    job.attachments[1] = job.attachments[1].model_copy(update={"run_id": 2})
    job.points = [p.model_copy(update={"run_id": 2}) if p.metric.endswith("node1") else p for p in job.points]
    return job


def _stale() -> bundles.Job:
    job = bundles.healthy()
    job.runs = [job.runs[0].model_copy(update={"created_at": bundles.at(-99)})]
    return job


def _cut_off() -> bundles.Job:
    job = bundles.healthy()
    job.manifest = job.manifest.model_copy(update={"ended_at": None})
    return job


JOBS: dict[str, Callable[[], bundles.Job]] = {
    "healthy": bundles.healthy,
    "crashed": _crashed,
    "lost": _lost,
    "silent": _silent,
    "split": _split,
    "stale": _stale,
    "cut off": _cut_off,
}
ROOT = tempfile.TemporaryDirectory(prefix="bundles-")
"""Removed when the interpreter ends."""
NIGHTLY = settings.get_current_profile_name() == "nightly"
slow = settings(
    max_examples=300 if NIGHTLY else 20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@cache
def written(name: str) -> Path:
    """One bundle of each kind, never changed; tests copy it."""
    path = Path(ROOT.name) / name
    JOBS[name]().write(path)
    return path
