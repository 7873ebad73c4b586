"""The ids of all checks, as a Literal type, so that the type checker reports an unknown id.

harness/judge/checks.toml describes each check. Judges written by users define their own checks, whose ids
begin with `user.`.
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
    "world",
    "exits",
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
    "processes",
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
    "training-upload",
    "tracker-kept",
    "evidence",
    "disturbances",
]
