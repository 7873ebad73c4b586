"""A rank's ground truth, and whether it is the rank's whole word."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from harness.evidence.objects import mapping, termination
from harness.evidence.reader import Bundle
from harness.evidence.schema import TruthBlock, TruthClient, TruthEnd, TruthGap, TruthRow
from harness.judge.case import Case
from harness.workers.truth_frames import row_bytes

Rows = dict[str, dict[int, float]]
"""metric → step → value."""


@dataclass
class Truth:
    """What one rank logged. `incomplete` says why this may not be all of it."""

    rank: int
    rows: Rows = field(default_factory=dict)
    blocks: list[TruthBlock] = field(default_factory=list)
    end: TruthEnd | None = None
    client: TruthClient | None = None
    row_count: int = 0
    overwritten: int = 0
    """Rows that the rank itself logged again, for the same metric and step: Pluto keeps the latest."""
    incomplete: str = ""
    known_silent: bool = False
    """The termination message says that the rank logged nothing."""

    @property
    def count(self) -> int:
        return self.row_count + sum(block.count for block in self.blocks)

    @property
    def path(self) -> str:
        return f"truth/{self.rank}.jsonl"


def _in_message(case: Case, rank: int) -> dict[str, object]:
    """The rank's digest in its pod's termination message, or {}."""
    pod = case.pods.get(rank // case.per_node)
    ended = pod.container(case.launch.container, "terminated") if pod else None
    return mapping(termination(ended[1])[1], "truth", str(rank)) if ended else {}


def read(case: Case, rank: int) -> Truth:
    """One pass over truth/<rank>.jsonl."""
    truth = Truth(rank)
    root, gaps, after_end = hashlib.sha256(), 0, False
    times: dict[str, dict[int, int]] = {}
    damaged_before = len(case.bundle.damaged)
    for _, line in case.bundle.truth(rank):
        if isinstance(line, TruthRow):
            root.update(row_bytes(line.metric, line.step, line.value))
            truth.row_count += 1
            rows, when = truth.rows.setdefault(line.metric, {}), times.setdefault(line.metric, {})
            if line.step in rows:
                truth.overwritten += 1
                if line.time_ms < when[line.step]:
                    continue
            rows[line.step], when[line.step] = line.value, line.time_ms
        elif isinstance(line, TruthBlock):
            truth.blocks.append(line)
        elif isinstance(line, TruthClient):
            truth.client = line
        elif isinstance(line, TruthGap):
            gaps += 1
        else:
            after_end = truth.end is not None
            truth.end = line
    said = _in_message(case, rank)
    truth.known_silent = said.get("count") == 0
    damage = len(case.bundle.damaged) > damaged_before
    truth.incomplete = _why_incomplete(case.bundle, truth, root.hexdigest(), gaps + after_end, damage, said)
    return truth


def _why_incomplete(
    bundle: Bundle, truth: Truth, root: str, gaps: int, damage: bool, said: dict[str, object]
) -> str:
    if not bundle.has(truth.path):
        return "nothing of what it recorded reached the harness"
    end = truth.end
    if damage or gaps or end is None:
        reasons = ["its file is damaged"] * damage + [f"{gaps} gaps in its frames"] * bool(gaps)
        return " and ".join(reasons) or f"its last word is missing after {truth.count} rows"
    message = (said.get("count"), said.get("sha256"))
    fits = _metrics_fit(bundle, truth, end) if truth.blocks else root == end.sha256
    why = ""
    if truth.count != end.count:
        why = f"it recorded {end.count} rows, {truth.count} are here"
    elif not fits:
        why = "its rows do not fit its own counts and digests"
    elif said and message != (end.count, end.sha256):
        why = f"its termination message ({message[0]} rows) and its log ({end.count} rows) do not agree"
    return why


def _metrics_fit(bundle: Bundle, truth: Truth, end: TruthEnd) -> bool:
    """With blocks the rows are not all here: counts by metric must fit, and digests where all rows are."""
    counts: dict[str, int] = {}
    digests: dict[str, hashlib._Hash] = {}
    for _, line in bundle.truth(truth.rank):
        if isinstance(line, TruthRow):
            counts[line.metric] = counts.get(line.metric, 0) + 1
            digest = digests.setdefault(line.metric, hashlib.sha256())
            digest.update(row_bytes(line.metric, line.step, line.value))
    in_blocks = {block.metric for block in truth.blocks}
    for block in truth.blocks:
        counts[block.metric] = counts.get(block.metric, 0) + block.count
    if not end.metrics:
        return True
    if counts != {metric: count for metric, (count, _) in end.metrics.items()}:
        return False
    whole = [metric for metric in digests if metric not in in_blocks]
    return all(digests[metric].hexdigest() == end.metrics[metric][1] for metric in whole)
