"""Judge the result of testing a group of nodes: good, bad or unknown, with the reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median_high
from typing import Any

from .group_outcomes import Group, Outcome

FIGURES = 4
"""Minimum number of groups of the same size for which their median is meaningful."""
SHARE = 0.67
"""A group is slow if its bandwidth is below this fraction of the median. nccl-tests considers 1.5 times the
usual time slow."""
CPU_SHARE = 0.02
"""On CPUs, this fraction is used instead of SHARE. It is lower because other processes also use the CPUs.

Some trials on healthy nodes reached only 0.14 of the median.
"""
_BAD_STATES = ("wrong", "died", "hung")


@dataclass(frozen=True)
class Result:
    """The responses from a group's nodes to one trial."""

    group: Group
    responses: Mapping[int, Mapping[str, Any]]
    """Maps each node to its response: `state` (ok, wrong, died, hung or unknown), `text` and, if the state is
    ok, `seconds` and `busbw` (GB/s)."""
    number: int = 0
    """The number of the round in which the trial was run."""

    @property
    def complete(self) -> bool:
        """Return whether every node reported that its data was correct."""
        return all(self.responses.get(node, {}).get("state") == "ok" for node in self.group)

    @property
    def busbw(self) -> float | None:
        """Return the slowest node's bus bandwidth in GB/s, or None if the result is not complete."""
        return min(float(self.responses[node]["busbw"]) for node in self.group) if self.complete else None


def reference(results: Iterable[Result], size: int) -> float | None:
    """Return the median bus bandwidth of the groups of one size in GB/s, or None if there are too few groups.

    Each group counts once, with its best result. For an even number of groups, the higher of the two middle
    values is used, because half of the groups may be slow.
    """
    best: dict[Group, float] = {}
    for result in results:
        if len(result.group) == size and result.busbw is not None:
            best[result.group] = max(result.busbw, best.get(result.group, 0.0))
    return median_high(best.values()) if len(best) >= FIGURES else None


def judge(
    result: Result, usual: float | None, *, limit: float | None = None, share: float = SHARE
) -> tuple[Outcome, str]:
    """Return a group's outcome, and the reason.

    `usual` is the median over groups of the same size (see `reference`), and `limit` is the minimum accepted
    value, both in GB/s.
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
        return "unknown", f"no result from {', '.join(map(str, without_result))}"
    if limit is not None and figure < limit:
        return "bad", f"{figure:.3f} GB/s is below the limit of {limit:.3f} GB/s"
    if usual is not None and figure < share * usual:
        return "bad", f"{figure:.3f} GB/s is slow: the median of groups of this size is {usual:.3f} GB/s"
    return "good", f"{figure:.3f} GB/s"
