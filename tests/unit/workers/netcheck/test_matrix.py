"""Where the failures are in the matrix: every failing pair is explained, and nobody wrongly accused."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.workers.netcheck.matrix import classify

Pairs = set[tuple[int, int]]


def pairs(ranks: range) -> Pairs:
    return {(s, r) for s in ranks for r in ranks if s != r}


@st.composite
def matrices(draw: st.DrawFn) -> tuple[Pairs, Pairs]:
    """(bad, good) over up to 7 ranks; the rest is unknown."""
    everything = sorted(pairs(range(draw(st.integers(2, 7)))))
    seen = {pair: draw(st.sampled_from("bbggu")) for pair in everything}
    return {p for p in everything if seen[p] == "b"}, {p for p in everything if seen[p] == "g"}


@given(matrices())
def test_every_failing_pair_is_explained_and_no_other(matrix: tuple[Pairs, Pairs]) -> None:
    bad, good = matrix
    explained = {cell for pattern in classify(bad, good) for cell in pattern.cells()}
    assert bad <= explained
    assert not explained & good


@given(matrices())
def test_a_rank_accused_alone_fails_in_its_whole_direction(matrix: tuple[Pairs, Pairs]) -> None:
    bad, good = matrix
    for pattern in classify(bad, good):
        for rank in pattern.accused if pattern.kind in ("egress", "ingress", "isolated") else ():
            if pattern.kind != "ingress":
                assert not any(pair[0] == rank for pair in good)
            if pattern.kind != "egress":
                assert not any(pair[1] == rank for pair in good)


@given(matrices(), st.permutations(range(7)))
def test_names_of_ranks_do_not_matter(matrix: tuple[Pairs, Pairs], new: list[int]) -> None:
    bad, good = ({(new[s], new[r]) for s, r in side} for side in matrix)
    there = Counter((p.kind, frozenset((new[s], new[r]) for s, r in p.cells())) for p in classify(*matrix))
    assert there == Counter((p.kind, frozenset(p.cells())) for p in classify(bad, good))


@given(st.integers(3, 8), st.data())
def test_one_fault_is_one_pattern(size: int, data: st.DataObject) -> None:
    """Contract: a fault of one rank, one boundary or one pair in a matrix that is known is named as such."""
    ranks = range(size)
    everything = pairs(ranks)
    rank = data.draw(st.sampled_from(ranks))
    row, column = {p for p in everything if p[0] == rank}, {p for p in everything if p[1] == rank}
    for kind, bad in (("egress", row), ("ingress", column), ("isolated", row | column)):
        (pattern,) = classify(bad, everything - bad)
        assert (pattern.kind, pattern.accused) == (kind, (rank,))
    sender, receiver = data.draw(st.sampled_from(sorted(everything)))
    (pattern,) = classify({(sender, receiver)}, everything - {(sender, receiver)})
    assert (pattern.kind, pattern.one_way, pattern.accused) == (
        "pair",
        True,
        tuple(sorted((sender, receiver))),
    )
    if size > 3:
        left = set(data.draw(st.lists(st.sampled_from(ranks), min_size=2, max_size=size - 2, unique=True)))
        there = {(s, r) for s, r in everything if s in left and r not in left}
        (pattern,) = classify(there, everything - there)
        assert (pattern.kind, pattern.one_way) == ("boundary", True)
        both = there | {(r, s) for s, r in there}
        (pattern,) = classify(both, everything - both)
        assert (pattern.kind, pattern.one_way) == ("boundary", False)


@pytest.mark.parametrize("size", [3, 4, 6])
def test_failure_of_all_pairs_is_one_everywhere_pattern(size: int) -> None:
    (pattern,) = classify(pairs(range(size)), set())
    assert pattern.kind == "everywhere"


def test_a_matrix_without_failures_has_no_pattern() -> None:
    assert classify(set(), pairs(range(4))) == []


def test_what_is_unknown_accuses_nobody_alone() -> None:
    """Of rank 2's row one pair is known: a failing pair proves no egress."""
    assert [p.kind for p in classify({(2, 0)}, {(0, 1), (1, 0)})] == ["pair"]


@pytest.mark.parametrize("size", [4, 16, 64])
@pytest.mark.parametrize("within", [True, False], ids=["also within the node", "only across nodes"])
@pytest.mark.parametrize(("kind", "side"), [("isolated", None), ("egress", 0), ("ingress", 1)])
def test_node_that_all_bad_pairs_share_is_accused_alone(
    size: int, within: bool, kind: str, side: int | None
) -> None:
    """Contract: a firewall on one of four nodes accuses the ranks on that node, and no other rank."""
    machines = {rank: f"node-{rank % 4}" for rank in range(size)}
    near = {rank for rank in machines if machines[rank] == "node-1"}
    everything = pairs(range(size))
    bad = {p for p in everything if (near & {*p} if side is None else p[side] in near)}
    if not within:
        bad = {p for p in bad if not near >= {*p}}
    (pattern,) = classify(bad, everything - bad, machines)
    assert (pattern.kind, set(pattern.accused), pattern.machine) == (kind, near, "node-1")
    assert pattern.where == (" (all on node node-1)" if size > 4 else "")


@pytest.mark.parametrize("size", [4, 16, 64])
def test_of_two_nodes_neither_is_accused_alone(size: int) -> None:
    """Contract: without a third node, the boundary itself is the cause."""
    machines = {rank: f"node-{rank % 2}" for rank in range(size)}
    everything = pairs(range(size))
    bad = {(s, r) for s, r in everything if machines[s] != machines[r]}
    (pattern,) = classify(bad, everything - bad, machines)
    assert (pattern.kind, pattern.accused, pattern.machine) == ("boundary", tuple(range(size)), "")
