"""Judge whether the verdict on a random fault is wrong, without using the judges.

Each worker writes its points to a file on its node (harness/workers/witness.py, program.py). A PASS is wrong
if one of these points is missing from the tracker's database, which is read directly, or if a rank that ran a
generated program did not exit with 0. Any other verdict is wrong if neither its cause nor its text names the
disturbance.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

from harness.core import processes
from harness.core.errors import HarnessError, ToolError
from harness.evidence.io.reader import Bundle
from harness.evidence.schema.bundle import Manifest, Verdict
from harness.faults.programs import journal as program_journal
from harness.provision.cluster import Ready

FILES = "/var/harness-witness"
"""The folder on each node that the ranks' pods mount (harness/faults/files/witness.yaml)."""
SECONDS = 60.0
DATABASE = "/data/tracker.db"
POINTS = """
import array, json, sqlite3, sys
db = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True)
rows = db.execute("SELECT names, last_id - first_id + 1, packed FROM blocks "
                  "JOIN shapes ON shapes.id = shape_id "
                  "JOIN runs ON runs.id = blocks.run_id WHERE project = ? AND external_id = ?", sys.argv[2:])
for names, count, packed in rows:
    names, end = json.loads(names), 8 * count
    steps, values = array.array("q", packed[:end]), array.array("d", packed[2 * end:3 * end])
    which = array.array("I", packed[3 * end:]) or [at % len(names) for at in range(count)]
    for of, step, value in zip(which, steps, values):
        print(json.dumps([names[of], step, value if value == value else None]))
"""
"""Python code that prints the name, step and value of each point in a run as JSON.

Its arguments are the database, the project and the run id. The code decodes the blocks
(harness/tracker/shared/blocks.py) itself, without the tracker's queries.
"""
Point = tuple[str, int, float | None]
"""A metric's name, a step and a value. The value None means NaN."""


Word = Literal["borne", "named", "wrong PASS", "not named", "unseen", "not struck"]


@dataclass(frozen=True)
class Decision:
    """The oracle's decision about a verdict.

    `wrong` is the reason why a verdict is wrong, and `missing` describes points that are not in the tracker.
    """

    word: Word
    wrong: str = ""
    missing: str = ""


def ask(ready: Ready, bundle: Bundle | None, verdict: Verdict | None, output: str, pattern: str) -> Decision:
    """Judge whether a verdict is right.

    `output` is the harness's stderr, and `pattern` is a regex that matches the disturbance. For a PASS, the
    decision is `unseen` if the oracle cannot read the points. Afterwards, the workers' files are removed.
    """
    manifest = bundle.manifest if bundle else None
    missing, obstacle = "", "there is no bundle"
    if manifest is not None:
        try:
            missing, obstacle = _missing(ready, manifest), ""
        except HarnessError as error:
            obstacle = str(error)
        finally:
            _forget(ready, manifest.nonce)
    if verdict is not None and verdict.verdict == "PASS":
        if obstacle:
            return Decision("unseen", obstacle)
        return Decision("wrong PASS", missing, missing) if missing else Decision("borne")
    if names(verdict, output, pattern):
        return Decision("named", missing=missing)
    return Decision("not named", f"neither its cause nor its text matches {pattern!r}", missing)


def _missing(ready: Ready, manifest: Manifest) -> str:
    """Describe the points that are missing from the tracker and the ranks that did not exit with 0, or return
    "".

    Raises HarnessError if the points cannot be read.
    """
    expected = manifest.expected
    if expected is None:
        raise HarnessError("the manifest does not record the run to which the ranks log")
    expected_points, end_messages = _files(ready, manifest.nonce)
    without_points = [rank for rank in range(expected.ranks) if not expected_points.get(rank)]
    if without_points:
        raise HarnessError(f"ranks {without_points} have no file in {FILES}/{manifest.nonce}")
    return "; ".join(
        filter(
            None,
            [lacks(expected_points, set(_points(ready, expected.project, expected.run_id))), *end_messages],
        )
    )


def lacks(expected: dict[int, set[Point]], stored: set[Point]) -> str:
    """Describe the logged points (`expected`) that are missing from `stored`. Return "" if none are
    missing."""
    absent = {rank: sorted(points - stored, key=str) for rank, points in sorted(expected.items())}
    return "; ".join(
        f"the tracker lacks {len(points)} of {len(expected[rank])} points of rank {rank}, such as {points[0]}"
        for rank, points in absent.items()
        if points
    )


def names(verdict: Verdict | None, output: str, pattern: str) -> bool:
    """Return whether the regex `pattern` matches a verdict's cause or text.

    If there is no verdict, the regex is matched against the harness's stderr (`output`).
    """
    if verdict is None:
        return re.search(pattern, output) is not None
    rank_text = f"rank {verdict.ranks[0]}" if len(verdict.ranks) == 1 else ""
    return re.search(pattern, "\n".join([verdict.cause or "", rank_text, verdict.explanation])) is not None


def _forget(ready: Ready, nonce: str) -> None:
    """Remove the files that a launch's workers wrote on the nodes."""
    for node in ready.kind.nodes():
        processes.run(["docker", "exec", node, "rm", "-rf", f"{FILES}/{nonce}"], timeout=SECONDS, check=False)


def _files(ready: Ready, nonce: str) -> tuple[dict[int, set[Point]], list[str]]:
    """Return the points from each rank's files, and messages about ranks that did not exit with 0."""
    points_by_rank: dict[int, set[Point]] = {}
    end_messages: list[str] = []
    script = f"cd {FILES}/{nonce} 2>/dev/null && cat *.jsonl || true"
    for node in ready.kind.nodes():
        text = processes.run(["docker", "exec", node, "sh", "-c", script], timeout=SECONDS).stdout
        for row in _rows(text.splitlines()):
            if isinstance(row, list):
                points_by_rank.setdefault(row[0], set()).add(point(*row[1:]))
        for journal in program_journal.read(text.splitlines()):
            points = points_by_rank.setdefault(journal.rank or 0, set())
            points |= {point(*one) for one in journal.points}
            if journal.role.startswith("rank") and journal.wrong_end:
                end_messages.append(f"rank {journal.rank} {journal.wrong_end}")
    return points_by_rank, end_messages


@retry(
    stop=stop_after_delay(SECONDS), wait=wait_fixed(2), retry=retry_if_exception_type(ToolError), reraise=True
)
def _points(ready: Ready, project: str, run_id: str) -> Iterable[Point]:
    """Return a run's points from the tracker's database."""
    kubectl = ["kubectl", "--kubeconfig", str(ready.kind.kubeconfig), "--context", ready.kind.context]
    program = ["exec", "-n", "harness-system", "deployment/tracker", "--", "python3", "-c", POINTS, DATABASE]
    result = processes.run([*kubectl, *program, project, run_id], timeout=SECONDS)
    return [point(*row) for row in _rows(result.stdout.splitlines())]


def _rows(lines: Iterable[str]) -> Iterator[Any]:
    """Yield the values of JSON lines. Incomplete lines, which a killed process can leave, are skipped."""
    for line in lines:
        try:
            yield json.loads(line)
        except ValueError:
            continue


def point(metric: str, step: int, value: float | None) -> Point:
    """Return a Point from values that were read from a file or the database, with NaN as None."""
    return metric, int(step), None if value is None or math.isnan(value) else float(value)
