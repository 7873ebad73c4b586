"""The order of the data is a function of seed, epoch and place: for any number of ranks the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.workers.training import data_order

COUNTS = st.integers(1, 200)
WORLDS = st.integers(1, 16)
SEEDS = st.integers(0, 5)


@given(SEEDS, SEEDS, COUNTS, st.integers(1, 50))
def test_an_epoch_takes_each_sequence_once(seed: int, epoch: int, count: int, batch: int) -> None:
    """Contract: the steps of an epoch are the sequences, each once, also with a shorter step at the end."""
    firsts = range(0, count, batch)
    assert len(firsts) == data_order.steps(count, batch)
    taken = [one for first in firsts for one in data_order.batch_of(seed, epoch, count, first, batch)]
    assert sorted(taken) == list(range(count))


@given(SEEDS, COUNTS, st.integers(1, 50), WORLDS)
def test_the_ranks_share_a_step_and_nothing_is_lost(seed: int, count: int, batch: int, world: int) -> None:
    """Contract: the ranks' parts in their order are the step, and they differ by one sequence at most."""
    step = data_order.batch_of(seed, 0, count, 0, batch)
    parts = [data_order.share(step, rank, world) for rank in range(world)]
    assert [one for part in parts for one in part] == list(step)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_seeds_and_epochs_have_orders_of_their_own() -> None:
    orders = {tuple(data_order.permutation(seed, epoch, 50)) for seed in range(4) for epoch in range(4)}
    assert len(orders) == 16


@given(st.integers(1, 500), st.integers(0, 40))
def test_the_learning_rate(steps: int, warmup: int) -> None:
    """Contract: it rises to the highest, falls to a tenth of it, and is never 0."""
    rates = [data_order.rate(step, steps, warmup, 2.0) for step in range(steps)]
    assert all(0 < rate <= 2.0 for rate in rates)
    assert rates[:warmup] == sorted(rates[:warmup])
    assert rates[warmup:] == sorted(rates[warmup:], reverse=True)
    assert data_order.rate(warmup + steps, warmup + steps, warmup, 2.0) == pytest.approx(0.2)
