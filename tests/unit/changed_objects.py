"""Build Kubernetes objects that were changed during a launch, for test bundles."""

from __future__ import annotations

from typing import Any

import bundles
from bundles import at

from harness.evidence.schema.bundle import Check, Verdict

NODE = "e2e-worker2"


def disturbances(verdict: Verdict) -> Check:
    return next(check for check in verdict.checks if check.name == "disturbances")


def by(manager: str, when: float) -> list[dict[str, Any]]:
    return [{"manager": manager, "operation": "Update", "time": at(when)}]


def thing(kind: str, name: str, spec: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"kind": kind, "metadata": {"name": name, "uid": f"{kind}-{name}", **metadata}}
    return found if spec is None else {**found, "spec": spec}


def never_ends(job: bundles.Job) -> None:
    """Let the job run until the deadline, with all its ranks alive."""
    for kind in ("jobset", "workload"):
        job.drop(kind, 2)
    for index in range(job.nodes):
        job.drop_pod(index, after=10)
    error = "the job did not end within 33 s"
    stages = [
        s.model_copy(update={"ok": False, "cause": "run.timed_out", "error": error})
        for s in job.manifest.stages[-1:]
    ]
    job.manifest = job.manifest.model_copy(
        update={"stages": [*job.manifest.stages[:-1], *stages], "interrupted": f"deadline of 33 s; {error}"}
    )
