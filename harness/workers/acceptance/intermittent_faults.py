"""Search for intermittent faults: test each suspected node with several different partners."""

from __future__ import annotations

from collections.abc import Sequence

from .compat import paired
from .group_outcomes import Group, Search, Tested


def challenge(
    tested: Tested, candidates: Sequence[int], witnesses: Sequence[int], needed: int
) -> Search[dict[int, Group]]:
    """Return the partners with which each candidate failed, keyed by candidate.

    Each candidate is tested with `needed` partners. A candidate that fails with one of them is tested with up
    to `needed` more, and stops when it has failed with `needed` partners. `needed` is so large that at least
    one of these partners must be good.
    """
    failed: dict[int, list[int]] = {node: [] for node in candidates}
    if not witnesses:
        return {}
    for turn in range(min(2 * needed, len(witnesses))):
        open_ = [
            node for node in candidates if len(failed[node]) < needed and (turn < needed or failed[node])
        ]
        for start in range(0, len(open_), len(witnesses)):
            chunk = open_[start : start + len(witnesses)]
            # A candidate gets a different witness in each turn, so no pair is tested twice.
            pairs: dict[int, int] = {}
            for node in chunk:
                witness = witnesses[(candidates.index(node) + turn) % len(witnesses)]
                if witness not in pairs.values():
                    pairs[node] = witness
            requested = list(pairs.items())
            outcomes = yield from tested.ask(requested, again=True)
            for (node, witness), outcome in paired(requested, outcomes):
                if outcome == "bad":
                    failed[node].append(witness)
    return {node: tuple(sorted(partners)) for node, partners in failed.items()}
