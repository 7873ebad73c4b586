"""Build bundles of jobs whose ranks were restarted."""

from __future__ import annotations

from typing import Any

import bundles

from harness.evidence.schema.bundle import Check, Verdict
from harness.evidence.schema.ground_truth import TruthStart

BEGAN = 1_795_237_210_000


def restarts(verdict: Verdict) -> Check:
    return next(check for check in verdict.checks if check.name == "restarts")


def twice(job: bundles.Job, kept: int = 4, **second: Any) -> None:
    """Make every rank record `kept` rows, be cut off, and record its whole truth in a second attempt."""
    for rank in range(job.ranks):
        pod = job.pod_name(rank // job.per_node)
        whole = job.truth[rank]
        starts = [
            TruthStart(attempt=f"{n}", time_ms=BEGAN - 5000 + 4000 * n, pod=pod, restart=n, max_restarts=1)
            for n in range(2)
        ]
        first = [row.model_copy(update={"time_ms": row.time_ms - 4000}) for row in job.rows(rank)[:kept]]
        job.truth[rank] = [starts[0], *first, starts[1].model_copy(update=second), *whole]
