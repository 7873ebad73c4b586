"""What several commands share: their options, their progress, their JSON.

An option that two commands have is defined here, so that it means the same in both.
"""

import json
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.core.progress import Progress

ClusterName = Annotated[str | None, typer.Option("--cluster-name", help="kind cluster to use (pluto-e2e)")]
Workers = Annotated[int | None, typer.Option(help="worker nodes; 0 is a single-node cluster (2)")]
Kubernetes = Annotated[str | None, typer.Option(help="version of a new cluster, e.g. 1.35 (1.36)")]
Images = Annotated[str | None, typer.Option(help="auto, registry or source (auto)")]
RunsDir = Annotated[Path | None, typer.Option(help="where bundles go (runs)")]
Json = Annotated[bool, typer.Option("--json", help="one JSON document on stdout, nothing else there")]
Kubeconfig = Annotated[
    Path | None, typer.Option(help="use this cluster of yours, and make none (HARNESS_KUBECONFIG)")
]
Context = Annotated[str | None, typer.Option(help="of that kubeconfig (its current one)")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="show no progress, only the result")]
Keep = Annotated[
    bool | None, typer.Option("--keep-cluster", help="keep the cluster afterwards (KEEP_CLUSTER)")
]
Fresh = Annotated[
    bool | None,
    typer.Option("--fresh", help="have kind create the cluster, and use no template (HARNESS_FRESH)"),
]
Pod = Annotated[
    Path | None,
    typer.Option("--pod", metavar="FILE", help="merge FILE into the pod template: tolerations, resources, …"),
]
Env = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="NAME[=VALUE]",
        help="set a variable in the ranks; without VALUE, copy it from this environment",
    ),
]
KEEP_RUNS = "bundles of launches that passed: all, failed (none of them), last:N (all)"
KeepRuns = Annotated[str | None, typer.Option(help=KEEP_RUNS)]


def expect(ranks: str | None) -> dict[str, Any] | None:
    """Return the setting `expect` for --expect-ranks: the numbers in it, or the text itself for an error."""
    if ranks is None:
        return None
    parts = ranks.split(",")
    return {"ranks": [int(part) if part.strip().isdecimal() else part for part in parts]}


class TimedProgress:
    """Writes lines to stderr, each with the seconds since the start."""

    def __init__(self) -> None:
        self.start = time.monotonic()

    def __call__(self, text: str) -> None:
        with suppress(OSError):  # a terminal or a pipe that is gone must not end a clean-up
            print(f"[{time.monotonic() - self.start:6.1f}s] {text}", file=sys.stderr, flush=True)


def progress(quiet: bool) -> Progress:
    """Return what a command calls with each line of its progress: TimedProgress, or nothing when `quiet`."""
    return (lambda _: None) if quiet else TimedProgress()


def dump(document: Any) -> None:
    """Print the one document of `--json` to stdout."""
    print(json.dumps(document, indent=2, default=str), flush=True)
