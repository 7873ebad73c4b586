"""Probes share few threads, and a peer that does not respond keeps no other peer from being probed."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from harness.workers.netcheck import dns_client
from harness.workers.netcheck.pool import FIRST, STUCK, Pool

LONG = 60.0


@pytest.fixture
def pool() -> Iterator[Pool]:
    stop = threading.Event()
    made = Pool(stop, lambda _: 0.0)
    yield made
    stop.set()
    made.close()


def until(seen: Callable[[], bool]) -> None:
    ends = time.monotonic() + LONG
    while not seen():
        assert time.monotonic() < ends
        time.sleep(0.01)


def test_ended_attempts_leave_no_threads(pool: Pool) -> None:
    threads: list[int] = []
    for _ in range(50):
        pool.add(lambda: threads.append(threading.get_ident()))
    until(lambda: len(threads) == 50)
    assert len({*threads}) <= FIRST


def test_unresponsive_peers_do_not_block_other_probes(pool: Pool) -> None:
    """Contract: with 20 attempts that do not end, the 21st runs all the same."""
    over, ran = threading.Event(), threading.Event()
    for _ in range(20):
        pool.add(lambda: over.wait(LONG) and None)
    pool.add(ran.set)
    assert ran.wait(LONG)
    over.set()


def test_attempts_that_end_after_a_timeout_get_more_threads(pool: Pool) -> None:
    """Contract: if few threads time out one after the other, the last of many peers is probed too late."""
    threads: list[int] = []

    def timing_out() -> None:
        time.sleep(1.2 * STUCK)
        threads.append(threading.get_ident())

    for _ in range(40):
        pool.add(timing_out)
    until(lambda: len(threads) == 40)
    assert len({*threads}) > 4 * FIRST


def test_attempt_runs_again_at_time_that_it_returns(pool: Pool) -> None:
    times: list[float] = []

    def attempt() -> float | None:
        times.append(time.monotonic())
        return times[0] + 0.2 if len(times) == 1 else None

    pool.add(attempt)
    until(lambda: len(times) == 2)
    assert times[1] - times[0] >= 0.2


def test_an_error_ends_one_attempt_and_no_thread(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[object] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: errors.append(args.exc_value))
    ran: list[int] = []

    def broken() -> None:
        raise KeyError("missing")

    for _ in range(2 * FIRST):
        pool.add(broken)
    for number in range(10):
        pool.add(lambda number=number: ran.append(number))  # type: ignore[misc]
    until(lambda: len(ran) == 10)
    assert [type(error) for error in errors] == [KeyError] * 2 * FIRST


def test_queries_of_one_flow_have_one_source_port() -> None:
    """Contract: kube-proxy sends them to the same replica of the DNS server. A nested block is a new flow."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(LONG)

        def source() -> int:
            dns_client.ask("127.0.0.1", "job-0.pods.", port=server.getsockname()[1], seconds=0.05)
            port: int = server.recvfrom(512)[1][1]
            return port

        with dns_client.one_flow():
            first = source()
            with dns_client.one_flow():
                other = source()
            assert source() == first != other
