"""Options, progress output and JSON output shared by several commands.

An option used by two or more commands is defined here, so that it has the same meaning in all of them.
"""

import json
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from harness.core.progress import Progress
from harness.core.terminal_text import printable

ClusterName = Annotated[
    str | None, typer.Option("--cluster-name", help="name of the kind cluster (default: pluto-e2e)")
]
Workers = Annotated[
    int | None, typer.Option(help="number of worker nodes; 0 means a single-node cluster (default: 2)")
]
Kubernetes = Annotated[
    str | None, typer.Option(help="Kubernetes version for a new cluster, e.g. 1.35 (default: 1.36)")
]
Images = Annotated[
    str | None, typer.Option(help="where the images come from: auto, registry or source (default: auto)")
]
RunsDir = Annotated[Path | None, typer.Option(help="folder for bundles (default: runs)")]
Json = Annotated[bool, typer.Option("--json", help="print one JSON document on stdout and nothing else")]
Kubeconfig = Annotated[
    Path | None,
    typer.Option(help="use the cluster in this kubeconfig instead of creating one (env: HARNESS_KUBECONFIG)"),
]
Context = Annotated[str | None, typer.Option(help="context in the kubeconfig (default: its current context)")]
Wait = Annotated[
    float | None, typer.Option("--wait", help="maximum seconds from launch to verdict (default: 600)")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="show no progress, only the result")]
Keep = Annotated[
    bool | None, typer.Option("--keep-cluster", help="keep the cluster afterwards (env: KEEP_CLUSTER)")
]
Fresh = Annotated[
    bool | None,
    typer.Option("--fresh", help="create the cluster with kind, not from a template (env: HARNESS_FRESH)"),
]
Pod = Annotated[
    Path | None,
    typer.Option(
        "--pod", metavar="FILE", help="merge FILE (tolerations, resources, …) into the pod template"
    ),
]
Env = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="NAME[=VALUE]",
        help="set an environment variable in the ranks; without VALUE, copy the value from your environment",
    ),
]
Replace = Annotated[
    list[str] | None,
    typer.Option(
        "--replace",
        metavar="NAME=SPEC",
        help="use another version of konduktor, pluto-ml, jobset, kueue or a package in the worker image. "
        "SPEC is a version, a range, latest, a wheel, an sdist, a folder or git+file:///PATH@REF",
    ),
]
PrintManifests = Annotated[
    bool,
    typer.Option(
        "--print-manifests", help="print manifests for `kubectl apply -f -`, without launching anything"
    ),
]
KEEP_RUNS = (
    "bundles of passed launches to keep: all, failed (keep none) or last:N (keep the newest N); default: all"
)
KeepRuns = Annotated[str | None, typer.Option(help=KEEP_RUNS)]


def expect(ranks: str | None) -> dict[str, Any] | None:
    """Return the `expect` setting for the --expect-ranks option.

    An item that is not a number remains a string, so that the validation of the settings rejects it.
    """
    if ranks is None:
        return None
    parts = ranks.split(",")
    return {"ranks": [int(part) if part.strip().isdecimal() else part for part in parts]}


class TimedProgress:
    """Prints progress lines to stderr, each with the number of seconds since the start."""

    def __init__(self) -> None:
        self.start = time.monotonic()

    def __call__(self, text: str) -> None:
        with suppress(OSError):  # A closed terminal or pipe must not stop a cleanup.
            line = f"[{time.monotonic() - self.start:6.1f}s] {text}"
            print(printable(line), file=sys.stderr, flush=True)


def progress(quiet: bool) -> Progress:
    """Return a function that prints a progress line, or that prints nothing if `quiet` is true."""
    return (lambda _: None) if quiet else TimedProgress()


def dump(document: Any) -> None:
    """Print a document to stdout as JSON."""
    print(json.dumps(document, indent=2, default=str), flush=True)
