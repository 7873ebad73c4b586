"""Judge the result of testing a group of nodes: good, bad or unknown, with the reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median_high
from typing import Any

from .group_outcomes import Group, Outcome

FIGURES = 4
"""Minimum number of groups of the same size. With fewer groups, their median is not meaningful."""
SHARE = 0.67
"""A group is slow if its bandwidth is below this fraction of the median. It corresponds to 1.5 times the
usual time, which counts as slow in nccl-tests."""
CPU_SHARE = 0.02
"""Replaces SHARE on CPUs. It is lower because other processes also use the CPUs.

In some trials, healthy nodes reached only 0.14 of the median.
"""
_BAD_STATES = ("wrong", "died", "hung")


@dataclass(frozen=True)
class Result:
    """The responses from a group's nodes to one trial."""

    group: Group
    responses: Mapping[int, Mapping[str, Any]]
    """Maps each node to its response. A response contains `state` (ok, wrong, died, hung or unknown) and
    `text`. If the state is ok, it also contains `seconds` and `busbw` (in GB/s)."""
    number: int = 0
    """The number of the trial's round."""

    @property
    def complete(self) -> bool:
        """Return whether every node reported that its data was correct."""
        return all(self.responses.get(node, {}).get("state") == "ok" for node in self.group)

    @property
    def busbw(self) -> float | None:
        """Return the bus bandwidth of the slowest node in GB/s, or None if the result is not complete."""
        return min(float(self.responses[node]["busbw"]) for node in self.group) if self.complete else None


def reference(results: Iterable[Result], size: int) -> float | None:
    """Return the median bus bandwidth of all groups of one size in GB/s, or None if there are too few groups.

    For each group, only its best result counts. If the number of groups is even, the higher of the two middle
    values is returned, because half of the groups may be slow.
    """
    best: dict[Group, float] = {}
    for result in results:
        if len(result.group) == size and result.busbw is not None:
            best[result.group] = max(result.busbw, best.get(result.group, 0.0))
    return median_high(best.values()) if len(best) >= FIGURES else None


def judge(
    result: Result, usual: float | None, *, limit: float | None = None, share: float = SHARE
) -> tuple[Outcome, str]:
    """Return a group's outcome with the reason.

    `usual` is the median of the groups of the same size (see `reference`), and `limit` is the minimum
    bandwidth, both in GB/s. A group is slow if it reaches less than `share` times the median.
    """
    for state in _BAD_STATES:
        for node, response in sorted(result.responses.items()):
            if response.get("state") == state:
                return "bad", f"node {node} {state}: {response.get('text', '')}"
    figure = result.busbw
    if figure is None:
        without_result = [
            node for node in result.group if result.responses.get(node, {}).get("state") != "ok"
        ]
        return "unknown", "no result from " + ", ".join(f"node {node}" for node in without_result)
    if limit is not None and figure < limit:
        return "bad", f"{figure:.3f} GB/s is below the limit of {limit:.3f} GB/s"
    if usual is not None and figure < share * usual:
        return "bad", f"{figure:.3f} GB/s is slow: the median of groups of this size is {usual:.3f} GB/s"
    return "good", f"{figure:.3f} GB/s"
