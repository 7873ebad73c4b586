"""Define the steps of a search: halve failed groups, join good groups, and pair the remaining nodes.

Each step is a generator that yields rounds of tests (group_outcomes.py). Only search.py decides which nodes
are bad.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from . import round_robin
from .compat import neighbours, paired
from .group_outcomes import Group, Search, Tested


def split(nodes: Sequence[int]) -> list[Group]:
    """Split the nodes, in their order, into groups of about √N nodes. Each group has at least two nodes.

    Adjacent nodes are in the same group. So if the nodes are ordered by rack, the first groups are racks.
    """
    size = max(2, math.isqrt(max(len(nodes) - 1, 0)) + 1)
    count = max(1, len(nodes) // size)
    edges = [len(nodes) * number // count for number in range(count + 1)]
    return [tuple(nodes[start:end]) for start, end in neighbours(edges)]


def halve(tested: Tested, groups: Sequence[Group]) -> Search[tuple[list[Group], list[int]]]:
    """Test groups, and halve the groups that fail until single nodes remain.

    Return the good groups and these nodes.
    """
    good_groups: list[Group] = []
    remaining: list[int] = []
    while groups:
        halves: list[Group] = []
        for group, outcome in paired(groups, (yield from tested.ask(groups))):
            if outcome == "good":
                good_groups.append(group)
                continue
            middle = len(group) // 2
            for half in (group[:middle], group[middle:]):
                if len(half) > 1:
                    halves.append(half)
                else:
                    remaining += half
        groups = halves
    return good_groups, remaining


def join(tested: Tested, parts: Sequence[Group]) -> Search[list[Group]]:
    """Merge good groups that pass together. Return the merged groups, of which no two pass together.

    If all groups pass together, a single test is sufficient. Otherwise, merge the groups within each half of
    the list, and then merge the results.
    """
    if len(parts) < 2:
        return list(parts)
    outcomes = yield from tested.ask([_union(parts)])
    if outcomes == ["good"]:
        return [_union(parts)]
    if len(parts) == 2:
        return list(parts)
    middle = len(parts) // 2
    classes = yield from join(tested, parts[:middle])
    for part in (yield from join(tested, parts[middle:])):
        for number, other in enumerate(classes):
            union = _union([part, other])
            outcomes = yield from tested.ask([union])
            if outcomes == ["good"]:
                classes[number] = union
                break
        else:
            classes.append(part)
    return classes


def meet(
    tested: Tested, nodes: Sequence[int], witnesses: Sequence[int], limit: int
) -> Search[dict[int, dict[int, str]]]:
    """Test each node with one witness after another, up to `limit`, until the node passes.

    Return the outcomes for each node, keyed by witness.
    """
    outcomes: dict[int, dict[int, str]] = {node: {} for node in nodes}
    limit = min(limit, len(witnesses))
    for turn in range(limit):
        waiting = [node for node in nodes if "good" not in outcomes[node].values()]
        for start in range(0, len(waiting), len(witnesses)):
            pairs: dict[int, int | None] = {}
            for place, node in enumerate(waiting[start : start + len(witnesses)]):
                # Each turn starts at a different witness. `_witness` skips the witnesses that the node has
                # already had.
                pairs[node] = _witness(witnesses, pairs.values(), outcomes[node], place + turn)
            ready = {node: witness for node, witness in pairs.items() if witness is not None}
            requested = list(ready.items())
            for (node, witness), outcome in paired(requested, (yield from tested.ask(requested))):
                outcomes[node][witness] = outcome
    return outcomes


def pair_up(tested: Tested, nodes: Sequence[int], max_rounds: int | None = None) -> Search[list[Group]]:
    """Search for a partner for each node, and return the good pairs. No two pairs have a node in common.

    If all nodes pass together, return them as one group. Otherwise, test pairs in rounds until every node has
    passed in a pair. Give up if there is no good pair in the first `max_rounds` rounds.
    """
    if len(nodes) < 2:
        return []
    outcomes = yield from tested.ask([nodes])
    if outcomes == ["good"]:
        return [tuple(nodes)]
    unpaired = set(nodes)
    good_pairs: list[Group] = []
    for number, places in enumerate(round_robin.rounds(len(nodes))):
        if number == max_rounds and not good_pairs:
            break
        pairs = [(nodes[a], nodes[b]) for a, b in places if {nodes[a], nodes[b]} & unpaired]
        outcomes = yield from tested.ask(pairs)
        passed = [pair for pair, outcome in paired(pairs, outcomes) if outcome == "good"]
        unpaired -= {node for pair in passed for node in pair}
        good_pairs += [
            pair for pair in passed if not {*pair} & {node for other in good_pairs for node in other}
        ]
    return good_pairs


def across(tested: Tested, one: Group, other: Group) -> Search[tuple[int, int] | None]:
    """Return two nodes that fail together. Each of them is from one of two good sets that fail together.

    To find them, halve the set `one` until a single node is left, and then the set `other`. Return None if
    the two nodes do not fail together when they are tested again.
    """
    while len(one) > 1:
        half = one[: len(one) // 2]
        outcomes = yield from tested.ask([half + other])
        one = half if outcomes == ["bad"] else one[len(half) :]
    while len(other) > 1:
        half = other[: len(other) // 2]
        outcomes = yield from tested.ask([one + half])
        other = half if outcomes == ["bad"] else other[len(half) :]
    outcomes = yield from tested.ask([one + other], again=True)
    return (one[0], other[0]) if outcomes == ["bad"] else None


def _witness(
    witnesses: Sequence[int], taken: Iterable[int | None], met: Iterable[int], first: int
) -> int | None:
    """Return the first witness from index `first` on that is neither in `taken` nor in `met`, or None."""
    unavailable = {*taken, *met}
    rotated = (witnesses[(first + step) % len(witnesses)] for step in range(len(witnesses)))
    return next((witness for witness in rotated if witness not in unavailable), None)


def _union(parts: Iterable[Group]) -> Group:
    return tuple(sorted({node for part in parts for node in part}))
