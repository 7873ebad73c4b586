"""The ids of all checks: a closed set, so that the type checker finds a wrong one.

What each proves is in harness/judge/checks.toml. Users' judges name others, in the family `user.*`.
"""

from __future__ import annotations

from typing import Literal

CheckId = Literal[
    "harness",
    "stages",
    "manifest",
    "expected",
    "launched",
    "queue",
    "admission",
    "scheduling",
    "image",
    "rank-pods",
    "containers",
    "netcheck",
    "nodes",
    "eviction",
    "rendezvous",
    "rank-exit",
    "reports",
    "acceptance",
    "completed",
    "job-status",
    "node-spread",
    "logs",
    "tracker",
    "ground-truth-complete",
    "ranks-logged",
    "recorders-agree",
    "keys",
    "restarts",
    "code",
    "run-exists",
    "one-run",
    "run-not-stale",
    "only-our-job",
    "attached",
    "client-kept",
    "no-lost-points",
    "values",
    "collisions",
    "no-unexpected-points",
    "status",
    "training-checkpoints",
    "training-best",
    "training-curve",
    "training-data",
    "training-resume",
    "tracker-kept",
    "evidence",
    "disturbances",
]
