"""Which pair is measured when, what is slow, and what a server does with a stream that is none."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.workers.netcheck import bandwidth
from harness.workers.netcheck.bandwidth import BUDGET, BUSY, Measured, all_pairs, judge, rounds, seconds_each
from harness.workers.netcheck.finding import verdict
from harness.workers.netcheck.greeting import Hello, Server
from harness.workers.netcheck.messages import Stream

FAST, SLOW = 1e9, 1e7


@given(st.integers(0, 40))
@settings(max_examples=41)
def test_each_pair_is_measured_once_without_overlapping_ranks(number: int) -> None:
    turns = list(rounds(range(number)))
    assert sorted(pair for pairs in turns for pair in pairs) == sorted(permutations(range(number), 2))
    for pairs in turns:
        assert len({rank for pair in pairs for rank in pair}) == 2 * len(pairs)
    assert len(turns) * 2 * seconds_each(number) <= BUDGET + 1e-6


def found(ranks: int, slow: set[tuple[int, int]], usual: float = FAST) -> dict[tuple[int, int], Measured]:
    return {pair: Measured(SLOW if pair in slow else usual) for pair in permutations(range(ranks), 2)}


def row(rank: int, ranks: int) -> set[tuple[int, int]]:
    return {(rank, other) for other in range(ranks) if other != rank}


def column(rank: int, ranks: int) -> set[tuple[int, int]]:
    return {(other, rank) for other in range(ranks) if other != rank}


@pytest.mark.parametrize(
    ("ranks", "slow", "accused", "text"),
    [
        (2, {(1, 0)}, (0, 1), "the link rank 1 → rank 0 is slow"),
        (3, row(2, 3) | column(2, 3), (2,), "all traffic of rank 2 is slow"),
        (4, row(1, 4), (1,), "traffic from rank 1 is slow"),
        (8, column(5, 8), (5,), "traffic to rank 5 is slow"),
        (4, {(0, 3), (3, 0)}, (0, 3), "the link rank 0 ↔ rank 3 is slow"),
        (
            8,
            {(a, b) for a in (0, 1, 2) for b in (5, 6, 7)},
            (0, 1, 2, 5, 6, 7),
            "ranks 0, 1, 2 → ranks 5, 6, 7",
        ),
    ],
)
def test_what_is_slow_is_named(
    ranks: int, slow: set[tuple[int, int]], accused: tuple[int, ...], text: str
) -> None:
    (finding,) = judge(found(ranks, slow), {})
    assert (finding.cause, finding.ranks) == ("tcp.slow", accused)
    assert text in finding.text
    assert "10 MB/s, but other links carry 1000 MB/s" in finding.text


def test_pairs_on_one_node_are_compared_separately() -> None:
    """Contract: a network that is slower than the memory of a node is no failure."""
    machines = {0: "a", 1: "a", 2: "b", 3: "b"}
    pairs = found(4, set())
    rates = {pair: Measured(FAST * (30 if machines[pair[0]] == machines[pair[1]] else 1)) for pair in pairs}
    (finding,) = judge(rates, machines)
    assert finding.status == "ok"


def test_what_was_not_measured_is_never_ok() -> None:
    (finding,) = judge({**found(2, set()), (0, 1): Measured(error="gone")}, {})
    assert (finding.status, finding.ranks) == ("unknown", (0,))
    assert verdict([finding]) == "unknown"


def test_a_pair_that_was_slow_once_is_measured_again() -> None:
    """A busy processor makes a stream slow. The fastest counts; what stays slow is measured 3 times more."""
    asked: list[tuple[int, int]] = []

    def ask(pair: tuple[int, int], seconds: float) -> Measured:
        asked.append(pair)
        first = asked.count(pair) == 1
        return Measured(SLOW if pair == (1, 2) or (pair == (0, 3) and first) else FAST)

    rates = all_pairs(range(4), {}, ask)
    assert [pair for pair, each in rates.items() if each.rate == SLOW] == [(1, 2)]
    assert (asked.count((1, 2)), asked.count((0, 3)), asked.count((2, 1))) == (4, 2, 1)


@pytest.mark.parametrize(("busy", "asked_again", "error"), [(2, 3, ""), (20, 10, BUSY)])
def test_end_that_waits_for_cpu_shows_no_slow_link(busy: int, asked_again: int, error: str) -> None:
    """Contract: the pair is measured again until its ends have a CPU, and is unknown if they never do."""
    asked: Counter[tuple[int, int]] = Counter()

    def ask(pair: tuple[int, int], _: float) -> Measured:
        asked[pair] += 1
        starved = pair == (0, 1) and asked[pair] <= 1 + busy
        return Measured(SLOW, waited=0.9) if starved else Measured(FAST)

    measured = all_pairs(range(4), {}, ask)
    assert (asked[0, 1] - 1, measured[0, 1].error) == (asked_again, error)
    assert [one.cause for one in judge(measured, {}) if one.cause] == []


def test_a_machine_that_becomes_busy_accuses_no_pair() -> None:
    """Contract: a slow pair is compared with another pair under the same load."""
    asked: list[tuple[int, int]] = []

    def ask(pair: tuple[int, int], _: float) -> Measured:
        asked.append(pair)
        return Measured((FAST if len(asked) <= 9 else FAST / 10) / (100 if pair == (3, 1) else 1))

    rates = all_pairs(range(4), {}, ask)
    assert list(bandwidth.slow(rates, {})) == [(3, 1)]


@pytest.mark.parametrize("share", [0.04, 0.1, 0.19])
@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_slow_moment_of_reference_does_not_excuse_link(share: float, ranks: int) -> None:
    """Contract: every second measurement of a healthy pair is slow, and the slow link is named."""
    asked: dict[tuple[int, int], int] = {}

    def ask(pair: tuple[int, int], _: float) -> Measured:
        asked[pair] = asked.get(pair, 0) + 1
        return Measured(FAST * (share if pair == (0, 1) else 0.2 if asked[pair] % 2 == 0 else 1))

    rates = all_pairs(range(ranks), {}, ask)
    assert list(bandwidth.slow(rates, {})) == [(0, 1)]


@pytest.mark.parametrize(
    ("share", "load", "status"),
    [
        (0.1, 0.6, "failed"),
        (0.04, 0.4, "failed"),
        (0.1, 0.4, "unknown"),
        (0.1, 0.1, "ok"),
        (0.25, 0.4, "ok"),
    ],
)
def test_slow_link_beside_faster_ones_never_passes(share: float, load: float, status: str) -> None:
    """Contract: the machine becomes busy after the first measurements, and does not calm down."""
    pairs = list(permutations(range(4), 2))
    asked: list[tuple[int, int]] = []

    def ask(pair: tuple[int, int], _: float) -> Measured:
        asked.append(pair)
        return Measured(FAST * (share if pair == (0, 1) else load if len(asked) > len(pairs) else 1))

    found = judge(all_pairs(range(4), {}, ask), {})
    assert {finding.status for finding in found} == {status}, found


def hello() -> Hello:
    return Hello("run", 0, 2, "job-0", "one")


def test_a_stream_over_loopback() -> None:
    with Server(0, hello(), handlers={b"FLOW": bandwidth.take}) as server:
        done = bandwidth.measure("127.0.0.1", server.port, 0.2)
    assert (done.error, done.rate > 1e6, 0 < done.p50 <= done.p99) == ("", True, True)


def test_a_receiver_that_does_not_answer_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "PATIENCE", 0.3)
    done = threading.Event()
    with Server(0, hello(), handlers={b"FLOW": lambda *_: done.wait(120)}) as server:
        began = time.monotonic()
        measured = bandwidth.measure("127.0.0.1", server.port, 0.1)
        assert time.monotonic() - began < 60
        done.set()
    assert "no answer within" in measured.error


def test_a_port_that_nobody_has() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    assert "Connection refused" in bandwidth.measure("127.0.0.1", port, 0.1).error


@pytest.mark.parametrize("body", [b"-1", b"0", b"1e9", b"NaN", b"x", b"[]", b""])
def test_a_time_that_is_none_is_refused(body: bytes) -> None:
    """Contract: whatever a stranger asks for, no thread of the server stays with it."""
    before = set(threading.enumerate())
    with (
        Server(0, hello(), handlers={b"FLOW": bandwidth.take}) as server,
        socket.create_connection(("127.0.0.1", server.port), 2) as connection,
        pytest.raises((OSError, ValueError)),
    ):
        Stream(connection).call(b"FLOW", body, 2)
    for thread in set(threading.enumerate()) - before:  # other tests of this process have threads, too
        thread.join(10)
        assert not thread.is_alive()


def test_an_answer_of_sixteen_bytes_is_an_answer() -> None:
    """16 bytes are as long as the head of a message, which has to begin with a mark."""
    server = Server(0, hello(), handlers={b"FLOW": lambda *_: "x" * 14})
    with server, socket.create_connection(("127.0.0.1", server.port), 2) as connection:
        assert Stream(connection).call(b"FLOW", b"", 2)[1] == b'"xxxxxxxxxxxxxx"'
