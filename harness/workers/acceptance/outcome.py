"""Judge what a group gave: good, bad or unknown, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median_high
from typing import Any

from .tested import Group, Outcome

FIGURES = 4
"""Groups of one size from which on their median says something."""
SHARE = 0.67
"""Of the median: nccl-tests calls a rank slow that takes 1.5 times as long."""
CPU_SHARE = 0.02
"""The same on CPUs, which other work shares: healthy trials were seen at 0.14 of the median there."""
_BAD = ("wrong", "died", "hung")


@dataclass(frozen=True)
class Result:
    """What the nodes of one group said of one trial."""

    group: Group
    said: Mapping[int, Mapping[str, Any]]
    """Node → state (ok, wrong, died, hung, unknown) and text; at a good end also seconds and busbw (GB/s)."""
    number: int = 0
    """Of its round."""

    @property
    def complete(self) -> bool:
        """Whether every node said that its data was right."""
        return all(self.said.get(node, {}).get("state") == "ok" for node in self.group)

    @property
    def busbw(self) -> float | None:
        """Return the slowest node's figure in GB/s; None where not every node has one."""
        return min(float(self.said[node]["busbw"]) for node in self.group) if self.complete else None


def reference(results: Iterable[Result], size: int) -> float | None:
    """Return the median bus bandwidth of the groups of one size; None of fewer than four.

    Each group counts once, with its best figure. Of two middles it is the high one: half of them may be slow.
    """
    best: dict[Group, float] = {}
    for result in results:
        if len(result.group) == size and result.busbw is not None:
            best[result.group] = max(result.busbw, best.get(result.group, 0.0))
    return median_high(best.values()) if len(best) >= FIGURES else None


def judge(
    result: Result, usual: float | None, *, limit: float | None = None, share: float = SHARE
) -> tuple[Outcome, str]:
    """Return the outcome of a group, and the reason.

    `usual` is what groups of its size give (reference); `limit` the least that is accepted, in GB/s.
    """
    for state in _BAD:
        for node, said in sorted(result.said.items()):
            if said.get("state") == state:
                return "bad", f"node {node} {state}: {said.get('text', '')}"
    figure = result.busbw
    if figure is None:
        silent = [node for node in result.group if result.said.get(node, {}).get("state") != "ok"]
        return "unknown", f"no answer from {', '.join(map(str, silent))}"
    if limit is not None and figure < limit:
        return "bad", f"{figure:.3f} GB/s is below the limit of {limit:.3f} GB/s"
    if usual is not None and figure < share * usual:
        return "bad", f"{figure:.3f} GB/s is slow: groups of this size give {usual:.3f} GB/s"
    return "good", f"{figure:.3f} GB/s"
