"""Make limits from a fleet that is known to be good, in the form of workers/acceptance/limits.toml. Pure.

The baseline of a check is the mean of its figures. Figures beyond SHARE of it are dropped and the mean is
taken again, until nothing is dropped any more. The limit is SHARE of the baseline.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, median

from harness.judge.acceptance.cells import Cell, NodeResult
from harness.judge.acceptance.fleet import Fleet
from harness.workers.acceptance.limits import MARGIN

SHARE = 0.9
"""Of the baseline still passes. A fleet's own figures are closer to each other than to a vendor's peak."""
FROM_NODES = 4
"""With fewer nodes nobody can tell a bad one from a good one."""
LEAST = 2 / 3
"""Share of the figures that must be left. Where more are dropped, the fleet is not of one kind."""


@dataclass(frozen=True)
class Baseline:
    """What one check gives on a model of GPU. `dropped`: figures that do not belong to the others."""

    model: str
    check: str
    unit: str
    value: float
    relation: str
    nodes: int
    figures: int
    dropped: int


@dataclass(frozen=True)
class Calibration:
    """The baselines of a fleet, and why there is none for the other checks."""

    rows: tuple[Baseline, ...]
    refused: tuple[str, ...]


def baselines(fleet: Fleet, share: float = SHARE) -> Calibration:
    """Return the baseline of each check with figures, by model of GPU.

    A node that did not answer, or whose GPUs are of several models, gives none.
    Raises ValueError for a share that is no share.
    """
    if not 0 < share * (1 + MARGIN) <= 1:
        raise ValueError(f"share is above 0 and at most {1 / (1 + MARGIN):.2f}, and not {share}")
    given: dict[tuple[str, str, str, str], list[tuple[str, float]]] = defaultdict(list)
    for node in fleet.nodes:
        model = _model(node)
        if model is None:
            continue
        for cell in node.cells:
            if _is_figure(cell) and cell.measured is not None:
                place = (model, cell.id, cell.unit, cell.relation)
                given[place].append((node.node, cell.measured))
    rows, refused = [], []
    for (model, check, unit, relation), figures in sorted(given.items()):
        nodes = {name for name, _ in figures}
        what = f"{check} on {model}"
        values = [value for _, value in figures]
        if len(nodes) < FROM_NODES:
            refused.append(f"{what}: figures of {len(nodes)} nodes, and {FROM_NODES} are needed")
            continue
        kept = stable(values, share)
        if len(kept) < LEAST * len(values):
            refused.append(f"{what}: only {len(kept)} of {len(values)} figures agree with each other")
            continue
        rows.append(
            Baseline(
                model, check, unit, mean(kept), relation, len(nodes), len(values), len(values) - len(kept)
            )
        )
    return Calibration(tuple(rows), tuple(refused))


def stable(values: Sequence[float], share: float) -> list[float]:
    """Return the values that agree: those within `share` of the mean of all that are left.

    It begins beside the median, because far outliers move the first mean so far that good values would go.
    """
    centre, kept = median(values), list(values)
    while True:
        left = [value for value in values if centre * share <= value <= centre / share]
        if not left or left == kept:
            return left
        kept, centre = left, mean(left)
        if len(left) == len(values):
            return left


def toml(calibration: Calibration, *, bundle: str, date: str, share: float = SHARE) -> str:
    """Return the limits as a file for --limits. The source of each says bundle, date and number of nodes.

    Raises ValueError where there is no baseline: an empty file would silently judge by the shipped limits.
    """
    if not calibration.rows:
        raise ValueError("; ".join(calibration.refused) or "the fleet gave no figures")
    lines = [f"# Calibrated from {_plain(bundle)} on {date}: {share:g} of the mean of figures that agree."]
    lines += [f"# No limit: {_plain(reason)}" for reason in calibration.refused]
    for row in calibration.rows:
        dropped = f", {row.dropped} of {row.figures} figures dropped" if row.dropped else ""
        source = f"calibrated from {bundle} on {date}, {row.nodes} nodes{dropped}"
        lines += [
            "",
            "[[row]]",
            f"model = {json.dumps(_literal(row.model))}",
            f"check = {json.dumps(row.check)}",
            f"value = {row.value!r}",
            f"unit = {json.dumps(row.unit, ensure_ascii=False)}",
            'kind = "measured"',
            f"share = {share!r}",
            *([f"relation = {json.dumps(row.relation)}"] if row.relation != ">=" else []),
            f"source = {json.dumps(source)}",
        ]
    return "\n".join(lines) + "\n"


def _model(node: NodeResult) -> str | None:
    """Return the model of a node's GPUs as limits.toml names it."""
    if not node.answered or node.kind is None:
        return None
    if node.kind.device == "cpu":
        return "cpu"
    return node.kind.models[0] if len(node.kind.models) == 1 else None


def _is_figure(cell: Cell) -> bool:
    """Return whether it is a rate of the node itself. Counts of errors have no baseline."""
    return (
        cell.measured is not None
        and math.isfinite(cell.measured)
        and cell.measured > 0
        and cell.unit.endswith("/s")
        and cell.relation == ">="
        and not cell.ranks
        and not cell.id.startswith("ddp.")
    )


def _literal(model: str) -> str:
    """Return a model's name as a pattern that matches it alone."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in model)


def _plain(text: str) -> str:
    return " ".join(text.split())


def told(calibration: Calibration) -> Iterable[str]:
    """Return what was made and what was not, a line each."""
    for row in calibration.rows:
        dropped = f", {row.dropped} dropped" if row.dropped else ""
        figures = f"{row.figures} figures of {row.nodes} nodes{dropped}"
        yield f"{row.check} on {row.model}: {row.value:.4g} {row.unit} ({figures})"
    yield from (f"no limit: {reason}" for reason in calibration.refused)
