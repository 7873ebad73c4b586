"""Say whether a verdict about a drawn fault is wrong, without any judge.

A PASS is wrong when the tracker's database, read directly, lacks a point that a worker's own file on its node
holds (harness/workers/witness.py). Any other verdict is wrong when neither its cause nor its text names what
was disturbed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

from harness.core import processes
from harness.core.errors import HarnessError, ToolError
from harness.evidence.reader import Bundle
from harness.evidence.schema import Verdict
from harness.provision.cluster import Ready

FILES = "/var/harness-witness"
"""The folder on a node that harness/faults/files/witness.yaml mounts."""
SECONDS = 60.0
_POINTS = """
import json, sqlite3, sys
db = sqlite3.connect("file:/data/tracker.db?mode=ro", uri=True)
rows = db.execute("SELECT name, step, value FROM points JOIN runs ON runs.id = run_id "
                  "WHERE project = ? AND external_id = ?", sys.argv[1:])
for row in rows:
    print(json.dumps(row))
"""
Point = tuple[str, int, float | None]
"""Metric, step and value. None: not a number."""


def wrong_pass(ready: Ready, bundle: Bundle) -> str:
    """Return what a PASS wrongly promises, or "". Raises HarnessError where the oracle cannot see."""
    manifest = bundle.manifest
    expected = manifest.expected if manifest else None
    if manifest is None or expected is None or expected.run_id is None:
        raise HarnessError("the oracle found no run id in the manifest of a PASS")
    meant = dict(_files(ready, manifest.nonce))
    silent = [rank for rank in range(expected.ranks or 0) if not meant.get(rank)]
    if silent:
        raise HarnessError(f"the oracle found no file of ranks {silent} in {FILES}/{manifest.nonce}")
    there = set(_points(ready, expected.project or "", expected.run_id))
    return lacks(meant, there)


def lacks(meant: dict[int, set[Point]], there: set[Point]) -> str:
    """Return in words which meant points of which ranks are not there, or ""."""
    lost = {rank: sorted(points - there, key=str) for rank, points in sorted(meant.items())}
    return "; ".join(
        f"the tracker lacks {len(points)} of {len(meant[rank])} points of rank {rank}, such as {points[0]}"
        for rank, points in lost.items()
        if points
    )


def names(verdict: Verdict | None, said: str, named: str) -> bool:
    """Return whether the cause or the text of a verdict (or of a refusal) matches the regex."""
    if verdict is None:
        return re.search(named, said) is not None
    only = f"rank {verdict.ranks[0]}" if len(verdict.ranks) == 1 else ""
    return re.search(named, "\n".join([verdict.cause or "", only, verdict.explanation])) is not None


def forget(ready: Ready, nonce: str) -> None:
    """Remove the files of a launch from the nodes."""
    for node in ready.kind.nodes():
        processes.run(["docker", "exec", node, "rm", "-rf", f"{FILES}/{nonce}"], timeout=SECONDS, check=False)


def _files(ready: Ready, nonce: str) -> Iterator[tuple[int, set[Point]]]:
    """Yield each rank with the points in all its files."""
    meant: dict[int, set[Point]] = {}
    script = f"cd {FILES}/{nonce} 2>/dev/null && cat *.jsonl || true"
    for node in ready.kind.nodes():
        text = processes.run(["docker", "exec", node, "sh", "-c", script], timeout=SECONDS).stdout
        for rank, *point in _rows(text.splitlines()):
            meant.setdefault(rank, set()).add(_point(*point))
    yield from meant.items()


@retry(
    stop=stop_after_delay(SECONDS), wait=wait_fixed(2), retry=retry_if_exception_type(ToolError), reraise=True
)
def _points(ready: Ready, project: str, run_id: str) -> Iterable[Point]:
    """Return the points of a run, out of the tracker's database."""
    kubectl = ["kubectl", "--kubeconfig", str(ready.kind.kubeconfig), "--context", ready.kind.context]
    program = ["exec", "-n", "harness-system", "deployment/tracker", "--", "python3", "-c", _POINTS]
    done = processes.run([*kubectl, *program, project, run_id], timeout=SECONDS)
    return [_point(*row) for row in _rows(done.stdout.splitlines())]


def _rows(lines: Iterable[str]) -> Iterator[Any]:
    """Yield rows of JSON lines. A line that a killed process left unfinished is none."""
    for line in lines:
        try:
            yield json.loads(line)
        except ValueError:
            continue


def _point(metric: str, step: int, value: float | None) -> Point:
    return metric, int(step), None if value is None or math.isnan(value) else float(value)
