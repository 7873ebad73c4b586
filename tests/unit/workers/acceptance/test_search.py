"""The search finds each fault that it reckons with, and accuses no good node."""

from __future__ import annotations

from faulty_cluster import Cluster
from hypothesis import example, given
from hypothesis import strategies as st

from harness.workers.acceptance.search import search

SIZES = st.integers(5, 100)
FORCED = st.sampled_from([0, 16])
"""Nodes up to which all pairs are tested: never, and as by default."""


@st.composite
def some_nodes(draw: st.DrawFn, least: int, share: int) -> tuple[int, set[int]]:
    """Return a number of nodes, and some of them: `least` at least, one in `share` at most."""
    count = draw(SIZES)
    most = max(least, count // share)
    return count, draw(st.sets(st.integers(0, count - 1), min_size=least, max_size=most))


@given(some_nodes(0, 4), FORCED)
def test_any_bad_nodes_up_to_the_bound(nodes: tuple[int, set[int]], all_pairs: int) -> None:
    """Exactly the bad nodes are accused, whichever they are, each by two good witnesses."""
    count, bad = nodes
    found = Cluster(bad=dict.fromkeys(bad, 1.0)).run(search(range(count), all_pairs=all_pairs))
    assert {one.node for one in found.accused} == bad
    assert all(len(one.witnesses) >= 2 and not bad & {*one.witnesses} for one in found.accused)
    assert (found.links, found.boundaries, found.unknown) == ((), (), ())


@given(some_nodes(2, 1000), FORCED)
def test_any_single_bad_link(nodes: tuple[int, set[int]], all_pairs: int) -> None:
    """The link is named, and no node."""
    count, ends = nodes
    found = Cluster(links=frozenset([frozenset(ends)])).run(search(range(count), all_pairs=all_pairs))
    assert [{link.a, link.b} for link in found.links] == [ends]
    assert (found.accused, found.boundaries, found.unknown) == ((), (), ())


@given(st.data(), SIZES, FORCED)
def test_a_broken_boundary(data: st.DataObject, count: int, all_pairs: int) -> None:
    """Both sides are named whole, wherever the boundary runs, and no node is accused."""
    side = data.draw(st.sets(st.integers(0, count - 1), min_size=2, max_size=count - 2))
    other = set(range(count)) - side
    found = Cluster(sides=(frozenset(side), frozenset(other))).run(search(range(count), all_pairs=all_pairs))
    assert [{frozenset(one.one), frozenset(one.other)} for one in found.boundaries] == [
        {frozenset(side), frozenset(other)}
    ]
    assert (found.accused, found.links, found.unknown) == ((), (), ())


@given(st.data(), st.integers(20, 120), FORCED)
def test_bad_nodes_and_a_bad_link_together(data: st.DataObject, count: int, all_pairs: int) -> None:
    """The bad nodes are accused; the link is named; neither hides the other."""
    nodes = data.draw(st.lists(st.integers(0, count - 1), min_size=3, max_size=5, unique=True))
    ends, bad = set(nodes[:2]), set(nodes[2:])
    cluster = Cluster(bad=dict.fromkeys(bad, 1.0), links=frozenset([frozenset(ends)]))
    found = cluster.run(search(range(count), all_pairs=all_pairs))
    assert {one.node for one in found.accused} == bad
    assert [{link.a, link.b} for link in found.links] == [ends]


@given(st.data(), SIZES, FORCED)
def test_links_of_different_nodes_accuse_no_node(data: st.DataObject, count: int, all_pairs: int) -> None:
    """Any number of bad links of which no two share an end: no node is accused, and nothing is silent."""
    nodes = data.draw(st.lists(st.integers(0, count - 1), min_size=2, max_size=min(count, 10), unique=True))
    links = frozenset(frozenset(pair) for pair in zip(nodes[::2], nodes[1::2], strict=False))
    found = Cluster(links=links).run(search(range(count), all_pairs=all_pairs))
    assert not found.accused
    assert not found.healthy


@given(some_nodes(1, 2), FORCED)
def test_more_bad_nodes_than_the_bound(nodes: tuple[int, set[int]], all_pairs: int) -> None:
    """No good node is accused, and the cluster does not pass."""
    count, bad = nodes
    found = Cluster(bad=dict.fromkeys(bad, 1.0)).run(search(range(count), bound=1, all_pairs=all_pairs))
    assert {one.node for one in found.accused} <= bad
    assert not found.healthy
    named = {one.node for one in found.accused} | {node for one in found.unknown for node in one.nodes}
    assert bad <= named


@given(some_nodes(1, 4), FORCED)
def test_nodes_that_never_answer(nodes: tuple[int, set[int]], all_pairs: int) -> None:
    """They are unknown: neither accused nor passed; all others pass."""
    count, silent = nodes
    found = Cluster(silent=frozenset(silent)).run(search(range(count), all_pairs=all_pairs))
    assert not found.accused
    assert {node for one in found.unknown for node in one.nodes} == silent


@given(some_nodes(1, 8), st.floats(0.2, 0.9), st.integers(1, 4), st.integers(0, 2**32))
def test_nodes_that_fail_at_times(
    nodes: tuple[int, set[int]], chance: float, repeats: int, seed: int
) -> None:
    """Whatever they do, no good node is accused where tests are repeated."""
    count, bad = nodes
    cluster = Cluster(bad=dict.fromkeys(bad, chance), seed=seed)
    found = cluster.run(search(range(count), bound=max(1, len(bad)), repeats=1 + repeats))
    assert {one.node for one in found.accused} <= bad


@given(st.sets(st.integers(1, 19), min_size=1, max_size=4), FORCED)
@example({1, 2, 3}, 0)
def test_bad_nodes_that_fail_with_one_good_node_alone(bad: set[int], all_pairs: int) -> None:
    """As many bad witnesses as the bound permits do not make the search accuse the good node."""
    cluster = Cluster(links=frozenset(frozenset({0, node}) for node in bad))
    found = cluster.run(search(range(20), bound=len(bad), repeats=2, all_pairs=all_pairs))
    assert 0 not in {one.node for one in found.accused}
    assert not found.healthy


def test_nobody_is_accused_above_the_bound() -> None:
    """Three fail where one may be bad: what they share is to blame."""
    found = Cluster(bad=dict.fromkeys((2, 9, 15), 1.0)).run(search(range(20), bound=1))
    assert not found.accused
    assert (2, 9, 15) in [one.nodes for one in found.unknown]


def test_the_share_of_bad_nodes_that_is_missed() -> None:
    """A node that fails half of its tests is missed in (1 − p) ** repeats of the searches at most."""
    chance, repeats, searches = 0.5, 3, 200
    missed = accused = 0
    for seed in range(searches):
        cluster = Cluster(bad={seed % 64: chance}, seed=seed)
        found = cluster.run(search(range(64), bound=1, repeats=repeats))
        assert {one.node for one in found.accused} <= {seed % 64}
        missed += found.healthy
        accused += bool(found.accused)
    assert missed / searches <= (1 - chance) ** repeats
    assert accused / searches >= 0.9


def test_a_healthy_cluster_takes_few_tests() -> None:
    """64 nodes: one round of groups, and one test of all together."""
    found = Cluster().run(search(range(64)))
    assert found.healthy
    assert (found.tests, found.rounds) == (9, 2)


def test_two_nodes_that_fail_cannot_be_told_apart() -> None:
    """With one pair there is no witness: both are unknown, and neither is accused."""
    found = Cluster(bad={0: 1.0}).run(search(range(2)))
    assert not found.accused
    assert found.unknown[0].nodes == (0, 1)


def test_of_three_nodes_one_is_accused_by_other_two() -> None:
    """Two good witnesses are enough."""
    found = Cluster(bad={1: 1.0}).run(search(range(3)))
    assert [(one.node, one.witnesses) for one in found.accused] == [(1, (0, 2))]


def test_one_node_is_unknown() -> None:
    """A node alone is no pass."""
    assert not Cluster().run(search([0])).healthy
