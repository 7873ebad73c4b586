"""The circle method pairs all nodes in as few rounds as there can be."""

from __future__ import annotations

from itertools import combinations

import pytest

from harness.workers.acceptance.round_robin import rounds


@pytest.mark.parametrize("count", range(65))
def test_every_pair_stands_in_one_round(count: int) -> None:
    """All pairs are there, and none twice."""
    pairs = [pair for one in rounds(count) for pair in one]
    assert sorted(pairs) == list(combinations(range(count), 2))


@pytest.mark.parametrize("count", range(65))
def test_the_pairs_of_a_round_share_no_node(count: int) -> None:
    """The pairs of a round can be tested at the same time."""
    for one in rounds(count):
        nodes = [node for pair in one for node in pair]
        assert len(nodes) == len(set(nodes))


@pytest.mark.parametrize(
    ("count", "expected"), [(0, 0), (1, 0), (2, 1), (3, 3), (4, 3), (7, 7), (8, 7), (64, 63)]
)
def test_the_number_of_rounds(count: int, expected: int) -> None:
    """n − 1 rounds where n is even, n where it is odd."""
    assert len(rounds(count)) == expected
