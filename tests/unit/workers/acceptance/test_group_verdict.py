"""A group is good where every node was right and fast enough; no answer is never good."""

from __future__ import annotations

import pytest

from harness.workers.acceptance.group_verdict import Result, judge, reference


def result(*figures: float | str | None, first: int = 0) -> Result:
    """Return what a group said: a figure for each node, or how it failed, or None for no answer."""
    responses = {}
    for node, figure in enumerate(figures, first):
        if isinstance(figure, str):
            responses[node] = {"state": figure, "text": "why"}
        elif figure is not None:
            responses[node] = {"state": "ok", "busbw": figure}
    return Result(tuple(range(first, first + len(figures))), responses)


def test_the_slowest_node_is_the_group() -> None:
    """Its figure is the group's."""
    assert result(10.0, 8.0).busbw == 8.0
    assert judge(result(10.0, 8.0), None) == ("good", "8.000 GB/s")


@pytest.mark.parametrize("state", ["wrong", "died", "hung"])
def test_one_failed_node_makes_the_group_bad(state: str) -> None:
    """Whatever the others said, and also when one of them said nothing."""
    outcome, reason = judge(result(10.0, state, None), None)
    assert (outcome, reason) == ("bad", f"node 1 {state}: why")


def test_no_answer_is_unknown() -> None:
    """Neither good nor bad, also when all others were right."""
    assert judge(result(None, None), None) == ("unknown", "no result from node 0, node 1")
    assert judge(result(10.0, None), 1.0) == ("unknown", "no result from node 1")
    assert judge(result(10.0, "unknown"), 1.0) == ("unknown", "no result from node 1")


@pytest.mark.parametrize(("figure", "outcome"), [(6.6, "bad"), (6.7, "good"), (10.0, "good")])
def test_slow_beside_others_of_its_size(figure: float, outcome: str) -> None:
    """Below 0.67 of the median it is bad."""
    assert judge(result(figure, figure), 10.0)[0] == outcome


@pytest.mark.parametrize(("figure", "outcome"), [(4.9, "bad"), (5.0, "good")])
def test_the_limit_applies_without_results_to_compare(figure: float, outcome: str) -> None:
    """It holds without others to compare with."""
    assert judge(result(figure, figure), None, limit=5.0)[0] == outcome


def test_the_median_takes_four_groups_of_one_size() -> None:
    """Fewer say nothing. Groups of another size and failed ones do not count; each group counts once."""
    pairs = [result(float(node), float(node), first=2 * node) for node in range(1, 4)]
    others = [result(1.0, 1.0, 1.0, first=20), result("died", 1.0, first=30), pairs[0]]
    assert reference([*pairs, *others], 2) is None
    assert reference([*pairs, *others, result(9.0, 9.0, first=40)], 2) == 3.0
