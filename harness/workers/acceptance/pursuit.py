"""Test candidates for a fault that comes and goes: each with more and more different partners."""

from __future__ import annotations

from collections.abc import Sequence

from .older import paired
from .tested import Group, Search, Tested


def challenge(
    tested: Tested, candidates: Sequence[int], witnesses: Sequence[int], needed: int
) -> Search[dict[int, Group]]:
    """Return candidate → the partners that it failed with.

    Each meets `needed` partners, and as many again if it failed with one of them. It is left alone once it
    failed with `needed` of them: so many cannot all be bad.
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
            # The candidate's own place, so that it never meets the same partner twice.
            pairs: dict[int, int] = {}
            for node in chunk:
                witness = witnesses[(candidates.index(node) + turn) % len(witnesses)]
                if witness not in pairs.values():
                    pairs[node] = witness
            asked = list(pairs.items())
            outcomes = yield from tested.ask(asked, again=True)
            for (node, witness), outcome in paired(asked, outcomes):
                if outcome == "bad":
                    failed[node].append(witness)
    return {node: tuple(sorted(partners)) for node, partners in failed.items()}
