"""Factors of bandwidth as nccl-tests has them, percentiles, who is slow, and who keeps the others waiting."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.workers.acceptance.collective_tests import FREE_SHARE
from harness.workers.acceptance.collectives import (
    ELEMENTS,
    NAMES,
    bandwidth,
    factor,
    need,
    percentiles,
    size_of,
    total_weight,
)
from harness.workers.acceptance.hang_detection import Position, diagnose
from harness.workers.acceptance.slow_pairs import suspects


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("all_reduce", 2 * 7 / 8),
        ("all_gather", 7 / 8),
        ("reduce_scatter", 7 / 8),
        ("all_to_all", 7 / 8),
        ("broadcast", 1),
        ("send_recv", 1),
    ],
)
def test_the_factor_of_bus_bandwidth(name: str, expected: float):
    """Contract: nccl-tests' own (doc/PERFORMANCE.md); one rank has nobody to talk to."""
    assert factor(name, 8) == pytest.approx(expected)
    assert factor(name, 1) == (1 if name in ("broadcast", "send_recv") else 0)


def test_a_gigabyte_is_a_thousand_millions():
    """Contract: a GiB in a second is 1.07 GB/s, and the size is what nccl-tests counts."""
    assert bandwidth("broadcast", 2**30, 1.0, 8) == pytest.approx((1.073741824, 1.073741824))
    assert size_of("all_reduce", 1000, 8) == 4000
    assert size_of("all_gather", 1001, 8) == 4000, "each rank gives as much as the others"


def test_the_largest_payload_fits_where_its_limits_are_from():
    """Contract: 16 GiB, from which most limits hold, fit into a GPU of 80 GB, and 8 GiB into one of 40 GB."""
    assert need(max(ELEMENTS["cuda", "full"])) <= 79e9 * FREE_SHARE
    assert max(ELEMENTS["cuda", "full"]) * 4 == 16 << 30
    assert need(1 << 31) <= 39e9 * FREE_SHARE


@given(st.integers(1, 4096))
def test_sums_over_ranks_are_exact(ranks: int):
    """Contract: float32 holds every sum of the pattern and the iteration without rounding."""
    assert 250 * total_weight(ranks) + 20 * ranks < 2**24


@given(st.lists(st.floats(1e-6, 10), min_size=1, max_size=200))
def test_percentiles_are_values_that_were_seen(times: list[float]):
    """Contract: each is one of the values, and they do not fall."""
    found = percentiles(times)
    assert set(found.values()) <= set(times)
    assert found["p50"] <= found["p90"] <= found["p99"] <= found["max"] == max(times)
    assert sum(one <= found["p50"] for one in times) * 2 >= len(times)


def pairs_of(count: int, rng: random.Random) -> dict[tuple[int, int], float]:
    return {pair: 40 * rng.uniform(0.9, 1.1) for pair in combinations(range(count), 2)}


@given(st.integers(4, 16), st.randoms(use_true_random=False), st.floats(0.05, 0.4), st.data())
def test_one_slow_node_is_named_and_no_other(
    count: int, rng: random.Random, share: float, data: st.DataObject
):
    """Contract: whatever node it is, and however slow below the threshold."""
    node = data.draw(st.integers(0, count - 1))
    pairs = {pair: rate * (share if node in pair else 1) for pair, rate in pairs_of(count, rng).items()}
    seen = suspects(pairs)
    assert (seen.nodes, seen.links, seen.open) == ((node,), (), ())


@given(st.integers(4, 16), st.randoms(use_true_random=False), st.floats(0.05, 0.4), st.data())
def test_one_slow_link_is_a_link_and_no_node(
    count: int, rng: random.Random, share: float, data: st.DataObject
):
    """Contract: the two nodes are named as a link, and neither is accused."""
    link = data.draw(st.sampled_from(list(combinations(range(count), 2))))
    pairs = pairs_of(count, rng)
    pairs[link] *= share
    seen = suspects(pairs)
    assert (seen.nodes, seen.links, seen.open) == ((), (link,), ())


@given(st.integers(4, 16), st.randoms(use_true_random=False))
def test_healthy_pairs_accuse_nobody(count: int, rng: random.Random):
    seen = suspects(pairs_of(count, rng))
    assert (seen.nodes, seen.links, seen.open) == ((), (), ())


def at(
    step: int, inside: bool = True, beat: int = 9, error: str = "", where: str = "all_reduce (c10d)"
) -> Position:
    return Position(step, f"exchange {step}", inside, beat, error, where)


BEFORE = {rank: at(4, beat=1) for rank in range(4)}


@pytest.mark.parametrize(
    ("now", "cause", "ranks"),
    [
        ({0: at(5), 1: at(5), 2: at(4, inside=False), 3: at(5)}, "collective.hung", (2,)),
        ({0: at(5), 1: at(5), 2: at(5, beat=1), 3: at(5)}, "collective.failed", (2,)),
        ({0: at(5), 1: at(5), 3: at(5)}, "collective.failed", (2,)),
        ({0: at(5), 1: at(5), 2: at(5, where="sleep"), 3: at(5)}, "collective.hung", (2,)),
        ({0: at(5), 1: at(5), 2: at(5), 3: at(5)}, "collective.hung", ()),
        ({0: at(5), 1: at(5, where="x"), 2: at(5), 3: at(5, where="x")}, "collective.hung", ()),
        ({0: at(5), 1: at(5, error="reset"), 2: at(5), 3: at(5)}, "collective.failed", ()),
    ],
)
def test_who_keeps_the_others_waiting(now: dict[int, Position], cause: str, ranks: tuple[int, ...]):
    """Contract: who is gone, then who is behind, then who is elsewhere; nobody without a reason."""
    diagnosis = diagnose(BEFORE, now, 4)
    assert (diagnosis.cause, diagnosis.ranks) == (cause, ranks), diagnosis.text
    assert "exchange 5" in diagnosis.text


def test_every_collective_has_a_factor():
    assert all(factor(name, 4) > 0 for name in NAMES)
