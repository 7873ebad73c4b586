"""Compute limits from nodes that are known to be good, in the format of workers/acceptance/limits.toml.

A check's baseline is the mean of its measured values. Values that differ too much from the mean are dropped
and the mean is recomputed, until no more values are dropped. The limit is SHARE times the baseline.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, median

from harness.judge.acceptance.fleet import Fleet
from harness.judge.acceptance.results import Cell, NodeResult
from harness.workers.acceptance.limits import MARGIN

SHARE = 0.9
"""Default limit as a fraction of the baseline. The fraction can be high, because good nodes differ less from
each other than from the vendor's peak values."""
FROM_NODES = 4
"""Minimum number of nodes for a calibration. With fewer, a bad node cannot be distinguished from a good
one."""
LEAST = 2 / 3
"""Minimum fraction of a check's values that must be close to their mean. If fewer values are close to it, the
nodes are not equally fast, and the check gets no baseline."""


@dataclass(frozen=True)
class Baseline:
    """A check's baseline for one GPU model. `dropped` is the number of outliers."""

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
    """The baselines for a set of nodes. `refused` lists the checks without a baseline, with the reasons."""

    rows: tuple[Baseline, ...]
    refused: tuple[str, ...]


def baselines(fleet: Fleet, share: float = SHARE) -> Calibration:
    """Return one baseline for each GPU model and each check with measured values.

    Nodes that did not report, and nodes with several GPU models, are ignored. Raises ValueError if `share` is
    out of range.
    """
    if not 0 < share * (1 + MARGIN) <= 1:
        raise ValueError(f"share must be above 0 and at most {1 / (1 + MARGIN):.2f}; got {share}")
    measured: dict[tuple[str, str, str, str], list[tuple[str, float]]] = defaultdict(list)
    for node in fleet.nodes:
        model = _model(node)
        if model is None:
            continue
        for cell in node.cells:
            if _is_figure(cell) and cell.measured is not None:
                place = (model, cell.id, cell.unit, cell.relation)
                measured[place].append((node.node, cell.measured))
    rows, refused = [], []
    for (model, check, unit, relation), figures in sorted(measured.items()):
        nodes = {name for name, _ in figures}
        subject = f"{check} on {model}"
        values = [value for _, value in figures]
        if len(nodes) < FROM_NODES:
            refused.append(
                f"{subject}: at least {FROM_NODES} nodes must measure it, but only {len(nodes)} did"
            )
            continue
        agreeing = stable(values, share)
        if len(agreeing) < LEAST * len(values):
            refused.append(f"{subject}: only {len(agreeing)} of {len(values)} values are close to each other")
            continue
        rows.append(
            Baseline(
                model,
                check,
                unit,
                mean(agreeing),
                relation,
                len(nodes),
                len(values),
                len(values) - len(agreeing),
            )
        )
    return Calibration(tuple(rows), tuple(refused))


def stable(values: Sequence[float], share: float) -> list[float]:
    """Return the values that are at least `share` and at most 1 / `share` times their common mean.

    The first pass uses the median instead of the mean, because outliers distort the mean. Each further pass
    uses the mean of the values that the previous pass selected, until the selection no longer changes.
    """
    centre, agreeing = median(values), list(values)
    while True:
        candidates = [value for value in values if centre * share <= value <= centre / share]
        if not candidates or candidates == agreeing:
            return candidates
        agreeing, centre = candidates, mean(candidates)
        if len(candidates) == len(values):
            return candidates


def toml(calibration: Calibration, *, bundle: str, date: str, share: float = SHARE) -> str:
    """Return the limits as the text of a TOML file for --limits.

    The `source` field of each limit contains the bundle, the date and the number of nodes. Raises ValueError
    if there are no baselines, because an empty file would silently apply the built-in limits.
    """
    if not calibration.rows:
        raise ValueError("; ".join(calibration.refused) or "the nodes did not report any measured values")
    lines = [f"# Calibrated from {_plain(bundle)} on {date}: {share:g} × the mean of the values that agree."]
    lines += [f"# No limit: {_plain(reason)}" for reason in calibration.refused]
    for row in calibration.rows:
        note = f", {row.dropped} of {row.figures} values dropped" if row.dropped else ""
        source = f"calibrated from {bundle} on {date}, {row.nodes} nodes{note}"
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
    """Return the node's GPU model as named in limits.toml, or None if it has no GPU or several models."""
    if not node.answered or node.kind is None:
        return None
    if node.kind.device == "cpu":
        return "cpu"
    return node.kind.models[0] if len(node.kind.models) == 1 else None


def _is_figure(cell: Cell) -> bool:
    """Return whether the result is a rate that the node measured by itself. Error counts have no baseline."""
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
    """Return a pattern that matches only this model name."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in model)


def _plain(text: str) -> str:
    return " ".join(text.split())


def summary(calibration: Calibration) -> Iterable[str]:
    """Yield one line for each baseline and one for each check without a baseline."""
    for row in calibration.rows:
        note = f", {row.dropped} dropped" if row.dropped else ""
        figures = f"{row.figures} values from {row.nodes} nodes{note}"
        yield f"{row.check} on {row.model}: {row.value:.4g} {row.unit} ({figures})"
    yield from (f"no limit: {reason}" for reason in calibration.refused)
