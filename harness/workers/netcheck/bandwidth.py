"""Measure the bandwidth and latency between each pair of ranks, several pairs at a time, within a time limit.

Rank 0 requests the measurements in rounds. In each round, a rank is in at most one pair, as in a round-robin
tournament, so that no two measurements share a pod. The receiver decides when a stream ends. It ignores the
start of the stream, during which TCP still increases its window, and counts the bytes that arrive afterwards.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from .finding import Finding, failed, ok, unknown
from .greeting import PATIENCE
from .matrix import classify
from .messages import Stream, header
from .reach import connect

BUDGET = 30.0
"""Maximum number of seconds for measuring all pairs. The measurement takes longer if ranks do not respond."""
LONGEST = 0.5
"""Maximum duration of a stream in seconds. Even a 10 Gbit/s link across a continent reaches its full rate
within this time."""
WARM_UP = 0.3
"""The fraction of a stream's duration that serves as warm-up. Bytes received during the warm-up are not
counted."""
PINGS = 100
SLOW = 0.2
"""A link is slow if its rate is below this fraction of the usual rate. A busy CPU alone does not reduce the
rate below this limit."""
COMPARABLE = 0.5
"""If the reference pairs reach less than this fraction of their usual rates, the machine is busy. A slow
pair's rate is then divided by the fraction that they reach, and the pair counts as fast if the result is at
least COMPARABLE times its usual rate."""
REFERENCES = 2
"""Number of reference pairs with which a slow pair is compared. A single one could be slow for a moment."""
BUSY = "the machine was too busy to tell a slow link from a slow machine: measure again"
WAITED = 0.2
"""If the sender or the receiver of a stream waited for a CPU for more than this fraction of the time, a low
rate proves nothing."""
AGAIN, AGAIN_IF_BUSY = 3, 10
"""Maximum number of repetitions for a pair: AGAIN if it is slow, or AGAIN_IF_BUSY if the machine is too
busy."""
_CHUNK = 1 << 20


Pair = tuple[int, int]
"""A pair of ranks as (sending rank, receiving rank)."""


@dataclass(frozen=True)
class Measured:
    """The measurement from a pair's sender to its receiver. `error` is set if the measurement failed.

    `rate` is the payload throughput of one TCP stream in bytes per second. `p50` and `p99` are percentiles of
    the round-trip time of a 16-byte message, in seconds. `waited` is the fraction of the time that the
    stream's sender or receiver spent waiting for a CPU, whichever is higher.
    """

    rate: float = 0.0
    p50: float = 0.0
    p99: float = 0.0
    error: str = ""
    waited: float = 0.0

    @classmethod
    def of(cls, data: Any) -> Measured:
        """Return a measurement from JSON data. If the data is not in the expected format, `error` is set."""
        try:
            return cls(**data)
        except TypeError:
            return cls(error="no answer")

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


Ask = Callable[[Pair, float], Measured]
"""A function that measures one pair with a stream of the given length in seconds."""


def rounds(ranks: Sequence[int]) -> Iterator[list[Pair]]:
    """Yield rounds of (sender, receiver) pairs. Together they contain each pair once per direction."""
    places: list[int | None] = [*ranks, *([None] if len(ranks) % 2 else [])]
    half = len(places) // 2
    for _ in range(max(0, len(places) - 1)):
        opposite = list(zip(places[:half], reversed(places[half:])))  # noqa: B905 - Python 3.9
        pairs = [(a, b) for a, b in opposite if a is not None and b is not None]
        yield pairs
        yield [(b, a) for a, b in pairs]
        places = [places[0], places[-1], *places[1:-1]]


def seconds_each(ranks: int, budget: float = BUDGET) -> float:
    """Return the duration of each stream in seconds, chosen so that measuring all pairs takes at most
    `budget`."""
    number = ranks - 1 if ranks % 2 == 0 else ranks
    return min(LONGEST, budget / max(1, 2 * number) / 2)


def all_pairs(ranks: Sequence[int], machines: Mapping[int, str], ask: Ask) -> dict[Pair, Measured]:
    """Measure every pair, and return the measurements. `machines` maps each rank to the name of its node.

    A pair that is slow or failed is measured again on its own up to AGAIN times, because another process may
    have used the CPU. The fastest measurement counts. Before and after these repetitions, pairs with the
    usual rate are measured to detect a busy machine (`_under_load`).
    """
    seconds, deadline = seconds_each(len(ranks)), time.monotonic() + BUDGET
    measurements: dict[Pair, Measured] = {}
    with ThreadPoolExecutor(max(1, len(ranks) // 2)) as pool:
        for pairs in rounds(ranks):
            measurements.update(zip(pairs, pool.map(lambda pair: ask(pair, seconds), pairs)))  # noqa: B905
    usual = slow(measurements, machines)
    for turn in range(AGAIN_IF_BUSY):
        if turn >= AGAIN and not any(measurements[pair].error == BUSY for pair in usual):
            break
        doubtful = {pair: rate for pair, rate in usual.items() if _doubtful(measurements[pair], rate)}
        failed_pairs = [pair for pair, each in measurements.items() if each.error and pair not in usual]
        references = {
            rate: _references(measurements, {*doubtful, *failed_pairs}, rate) for rate in {*doubtful.values()}
        }
        loads = {rate: _load(measurements, pairs, seconds, ask) for rate, pairs in references.items()}
        repeats: dict[Pair, Measured] = {}
        for pair in [*sorted(doubtful), *failed_pairs]:
            if time.monotonic() >= deadline:
                break
            repeats[pair] = ask(pair, seconds)
        for rate, pairs in references.items():
            loads[rate] = max(loads[rate], _load(measurements, pairs, seconds, ask))
        for pair, each in repeats.items():
            if pair in doubtful:
                now = _under_load(each, doubtful[pair], loads[doubtful[pair]])
                measurements[pair] = (
                    now if turn == 0 and not each.error else _better(measurements[pair], now, doubtful[pair])
                )
            else:
                measurements[pair] = max(measurements[pair], each, key=lambda one: one.rate)
    return measurements


def _doubtful(measured: Measured, usual: float) -> bool:
    return measured.error != "" or measured.rate < SLOW * usual


def _better(first: Measured, second: Measured, usual: float) -> Measured:
    """Return the better measurement. Fast is better than slow, and slow is better than undecided."""
    return max(first, second, key=lambda one: (not _doubtful(one, usual), not one.error, one.rate))


def _under_load(measured: Measured, usual: float, load: float) -> Measured:
    """Return a slow pair's measurement, adjusted for the load on the machine.

    `load` is the fraction of their usual rates that the reference pairs reached at the same time. If it is
    below COMPARABLE, the machine is busy. The pair's own fraction is then divided by `load`. If the result is
    at least COMPARABLE, the pair counts as fast. If it is between SLOW and COMPARABLE, it is unknown whether
    the link or the machine is slow.
    """
    if measured.error or measured.rate >= SLOW * usual:
        return measured
    if measured.waited > WAITED:
        return replace(measured, error=BUSY)
    if load >= COMPARABLE:
        return measured
    share = measured.rate / (usual * load)
    if SLOW <= share < COMPARABLE:
        return replace(measured, error=BUSY)
    return replace(measured, rate=measured.rate / load)


def _references(measurements: Mapping[Pair, Measured], bad: Set[Pair], usual: float) -> list[Pair]:
    """Return pairs whose rates are close to the usual rate, with different senders if possible."""
    candidates = sorted(
        measurements.keys() - bad, key=lambda pair: (abs(measurements[pair].rate - usual), pair)
    )
    first: dict[int, Pair] = {}
    for pair in candidates:
        first.setdefault(pair[0], pair)
    return [*first.values(), *(pair for pair in candidates if first[pair[0]] != pair)][:REFERENCES]


def _load(measurements: Mapping[Pair, Measured], pairs: Sequence[Pair], seconds: float, ask: Ask) -> float:
    """Measure `pairs` again. Return the highest ratio of a pair's rate to its usual rate, at most 1."""
    measured = {pair: ask(pair, seconds) for pair in pairs}
    shares = [each.rate / measurements[pair].rate for pair, each in measured.items() if not each.error]
    return max(1e-3, min(1.0, max(shares))) if shares else 1.0


def slow(measurements: Mapping[Pair, Measured], machines: Mapping[int, str]) -> dict[Pair, float]:
    """Return the slow pairs and their usual rates. A slow pair's rate is below SLOW times its usual rate.

    Pairs within a node and pairs across two nodes have separate usual rates.
    """
    groups: dict[bool, dict[Pair, float]] = {True: {}, False: {}}
    for (sender, receiver), measured in measurements.items():
        on_same_node = machines.get(sender) == machines.get(receiver)
        if not measured.error:
            groups[on_same_node][sender, receiver] = measured.rate
    bad: dict[Pair, float] = {}
    for rates in groups.values():
        # If one of three nodes is bad, two thirds of the pairs include it, so the median is too low.
        usual = sorted(rates.values())[len(rates) * 3 // 4] if rates else 0.0
        bad.update({pair: usual for pair, rate in rates.items() if rate < SLOW * usual})
    return bad


def judge(measurements: Mapping[Pair, Measured], machines: Mapping[int, str]) -> list[Finding]:
    """Return findings about slow nodes and links. If there are none, return one ok finding.

    For each pair without a measurement, there is an unknown finding.
    """
    findings = [
        unknown("bandwidth", f"the link {sender} → {receiver} was not measured: {each.error}", [sender])
        for (sender, receiver), each in measurements.items()
        if each.error
    ]
    bad = slow(measurements, machines)
    for pattern in classify(
        bad, {pair for pair in measurements if pair not in bad and not measurements[pair].error}
    ):
        worst = min(
            (pair for pair in bad if pair in pattern.cells()), key=lambda pair: measurements[pair].rate
        )
        words = {
            "isolated": f"all traffic of rank {pattern.senders[0]} is slow",
            "egress": f"traffic from rank {pattern.senders[0]} is slow",
            "ingress": f"traffic to rank {pattern.receivers[0]} is slow",
        }
        text = words.get(pattern.kind, f"the link {pattern} is slow")
        rate_text = f"{worst[0]} → {worst[1]} carries {megabytes(measurements[worst].rate)}"
        message = f"{text}: {rate_text}, but other links carry {megabytes(bad[worst])}"
        findings.append(failed("tcp.slow", message, pattern.accused, pattern.kind))
    if not bad and measurements and not findings:
        rates, trips = (
            [each.rate for each in measurements.values()],
            [each.p99 for each in measurements.values()],
        )
        text = f"{len(measurements)} pairs carry between {megabytes(min(rates))} and {megabytes(max(rates))}"
        findings.append(
            ok("bandwidth", f"{text}; 99 % of the round trips take at most {max(trips) * 1e3:.2f} ms")
        )
    return findings


def megabytes(rate: float) -> str:
    """Return a rate, given in bytes per second, as text in MB/s."""
    return f"{rate / 1e6:.1f} MB/s" if rate < 1e7 else f"{rate / 1e6:.0f} MB/s"


def measure(address: str, port: int, seconds: float) -> Measured:
    """Measure the link from this rank to a greeting server.

    The stream and the pings each take up to `seconds`.
    """
    result = connect(address, port, PATIENCE)
    if result.connection is None:
        return Measured(error=f"{address} port {port}: {result.text}")
    with result.connection as connection:
        try:
            trips = _ping(connection, seconds)
            rate, waiting_share = _stream(connection, seconds)
        except (OSError, ValueError) as error:
            return Measured(error=f"{address} port {port}: {error or type(error).__name__}")
        finally:
            # Without a reset, data buffered for a slow link would delay the next measurement.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return Measured(rate, _percentile(trips, 50), _percentile(trips, 99), waited=waiting_share)


def take(connection: socket.socket, body: bytes) -> tuple[float, float]:
    """Receive a stream for the number of seconds in `body`.

    Return its bytes per second after the warm-up, and the fraction of the time in which this thread waited
    for a CPU.

    Raises ValueError if the seconds are out of range, and OSError if the stream ends early.
    """
    seconds = float(json.loads(body))
    if not 0 < seconds <= 2 * LONGEST:
        raise ValueError(f"a stream must last more than 0 s and at most {2 * LONGEST:.0f} s, not {seconds} s")
    buffer, received = bytearray(_CHUNK), 0
    start, waited_before = time.monotonic(), _waiting_seconds()
    warm_at, deadline = start + seconds * WARM_UP, start + seconds
    counted_from = start
    while (now := time.monotonic()) < deadline:
        connection.settimeout(max(0.001, deadline - now))
        try:
            size = connection.recv_into(buffer)
        except TimeoutError:
            break
        except socket.timeout:  # noqa: UP041 - a different class before Python 3.10
            break
        if not size:
            raise ConnectionResetError("the stream ended early")
        if time.monotonic() < warm_at:
            received, counted_from = 0, time.monotonic()
        else:
            received += size
    now = time.monotonic()
    return received / max(1e-6, now - counted_from), (_waiting_seconds() - waited_before) / (now - start)


def _waiting_seconds() -> float:
    """Return the number of seconds for which this thread has waited for a CPU, or 0 if this is unknown."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _ping(connection: socket.socket, seconds: float) -> list[float]:
    trips: list[float] = []
    stream = Stream(connection)
    deadline = time.monotonic() + seconds
    while len(trips) < PINGS and (not trips or time.monotonic() < deadline):
        start = time.monotonic()
        stream.call(b"PING", b"", PATIENCE)
        trips.append(time.monotonic() - start)
    return sorted(trips)


def _stream(connection: socket.socket, seconds: float) -> tuple[float, float]:
    """Send data until the receiver responds with the result of `take`.

    Return the rate and the waiting fraction. The waiting fraction is the sender's or the receiver's,
    whichever is higher. Raises TimeoutError if the receiver does not respond.
    """
    start, waited_before = time.monotonic(), _waiting_seconds()
    chunk, deadline = memoryview(bytes(_CHUNK)), time.monotonic() + seconds + 2 * PATIENCE
    body = json.dumps(seconds).encode()
    connection.settimeout(PATIENCE)
    connection.sendall(header(b"FLOW", len(body)) + body)
    connection.setblocking(False)
    while time.monotonic() < deadline:
        is_readable, writable, _ = select.select([connection], [connection], [], 0.5)
        if is_readable:
            _, response = Stream(connection).receive(time.monotonic() + PATIENCE)
            rate, share = map(float, json.loads(response))
            return rate, max(share, (_waiting_seconds() - waited_before) / (time.monotonic() - start))
        if writable:
            try:
                connection.send(chunk)
            except BlockingIOError:
                continue
    raise TimeoutError(f"no answer within {seconds + 2 * PATIENCE:.0f} s")


def _percentile(ordered: Sequence[float], percent: int) -> float:
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] if ordered else 0.0
