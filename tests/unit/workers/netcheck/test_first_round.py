"""The first probes of a large job on loopback: a healthy peer succeeds, any other goes to the pool."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from dns_server import Server as DnsServer
from dns_server import Zone

from harness.workers.netcheck import dns_client, first_round
from harness.workers.netcheck.finding import OK
from harness.workers.netcheck.greeting import Hello, Server, greet
from harness.workers.netcheck.messages import Stream, header
from harness.workers.netcheck.name_resolution import Configuration, Names
from harness.workers.netcheck.peers import Peer
from harness.workers.netcheck.probe import PENDING, Probe

OWN = Hello("run-1", 0, 64, "job-0", "me")
PEER = Hello("run-1", 1, 64, "job-1", "you")
NAME = "job-1.pods.team.svc.cluster.local"


@dataclass
class Round:
    """The probes that succeeded, and those that start again in the pool."""

    succeeded: list[Probe] = field(default_factory=list)
    again: list[Probe] = field(default_factory=list)


def probed(*hosts: str, port: int, names: Names | None = None) -> Round:
    """Probe peers, all of which have to be rank 1."""
    probes = [
        Probe(Peer(host), port, OWN, names or Names(Configuration(())), threading.Event(), 1)
        for host in hosts
    ]
    result = Round()
    first_round.run(probes, threading.Event(), result.again.append)
    result.succeeded = [probe for probe in probes if probe.cell.outcome == OK]
    assert len(result.succeeded) + len(result.again) == len(probes)
    return result


@contextlib.contextmanager
def zone(monkeypatch: pytest.MonkeyPatch, content: Zone) -> Iterator[tuple[Names, DnsServer]]:
    server = DnsServer(content)
    monkeypatch.setattr(dns_client, "PORT", server.port)
    try:
        yield Names(Configuration(("127.0.0.1",), ("team.svc.cluster.local",), 5)), server
    finally:
        server.close()


def test_all_healthy_peers_succeed() -> None:
    with Server(0, PEER) as server:
        result = probed(*["127.0.0.1"] * 50, port=server.port)
    assert not result.again
    cell = result.succeeded[0].cell
    assert (cell.rank, cell.instance, cell.address, cell.port) == (1, "you", "127.0.0.1", server.port)
    assert min(cell.rtt, cell.rate) > 0
    assert abs(cell.offset) < 0.5


def test_name_is_queried_in_order_of_search_path(monkeypatch: pytest.MonkeyPatch) -> None:
    with zone(monkeypatch, Zone({f"{NAME}.": ["127.0.0.1"]})) as (names, dns), Server(0, PEER) as server:
        result = probed("job-1.pods", port=server.port, names=names)
        assert [kind for _, kind in dns.asked][-1] == dns_client.A
        assert {name for name, _ in dns.asked} == {f"{NAME}."}
    assert result.succeeded[0].cell.host == "job-1.pods"


@pytest.mark.parametrize(
    "content",
    [
        Zone(),
        Zone({f"{NAME}.": ["::1"]}),
        Zone({f"{NAME}.": ["127.0.0.1"]}, code=2),
        Zone({f"{NAME}.": ["127.0.0.1"]}, truncate=True),
        Zone({f"{NAME}.": ["127.0.0.1"]}, silent=True),
    ],
    ids=["no record", "IPv6 only", "server fails", "truncated", "silent"],
)
def test_another_dns_answer_is_left_to_the_pool(monkeypatch: pytest.MonkeyPatch, content: Zone) -> None:
    """Contract: the round finds no cause, and does not query the address of a name that does not exist."""
    with zone(monkeypatch, content) as (names, dns), Server(0, PEER) as server:
        result = probed(NAME, port=server.port, names=names)
        assert content.records or dns_client.A not in {kind for _, kind in dns.asked}
    assert [probe.cell.outcome for probe in result.again] == [PENDING]


@pytest.mark.parametrize(
    "peer",
    [
        Hello("run-2", 1, 64, "job-1", "you"),
        Hello("run-1", 2, 64, "job-1", "you"),
        Hello("run-1", 1, 32, "job-1", "you"),
        Hello("run-1", 1, 64, "job-1", "me"),
        Hello("run-1", 1, 64, "job-1", "you", bound="10.9.9.9"),
        Hello("run-1", 1, 64, "job-1", "you", published="job-1.example"),
    ],
    ids=["other run", "other rank", "other size", "itself", "bound elsewhere", "published name"],
)
def test_peer_that_needs_further_check_is_left_to_pool(peer: Hello) -> None:
    with Server(0, peer) as server:
        result = probed("127.0.0.1", port=server.port)
    assert [probe.cell.outcome for probe in result.again] == [PENDING]


PUBLISHED_BY_NOBODY = json.dumps({**vars(PEER), "published": None}).encode()


@pytest.mark.parametrize(
    "response",
    [
        b"",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        header(b"HELO", 2) + b"[]",
        header(b"HELO", 50_000) + b"[" * 50_000,
        header(b"HELO", len(PUBLISHED_BY_NOBODY)) + PUBLISHED_BY_NOBODY + header(b"FILL", 5) + b"49152",
    ],
    ids=["nothing", "HTTP", "list", "nested", "no name"],
)
def test_another_program_is_left_to_the_pool(response: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError):
                connection = listening.accept()[0]
                with connection:
                    connection.sendall(response)

        thread = threading.Thread(target=serve)
        thread.start()
        result = probed("127.0.0.1", port=listening.getsockname()[1])
        thread.join()
    assert [probe.cell.outcome for probe in result.again] == [PENDING]


def test_a_nested_response_is_not_netcheck() -> None:
    """Contract: the pool reports the cause, too."""
    here, there = socket.socketpair()
    with here, there:
        there.sendall(header(b"HELO", 50_000) + b"[" * 50_000)
        assert greet(Stream(here), OWN).cause == "peer.not_netcheck"


def test_port_without_listener_does_not_hold_up_others(unused_tcp_port: int) -> None:
    with Server(0, PEER) as server:
        closed = Peer("127.0.0.1", unused_tcp_port)
        names, event = Names(Configuration(())), threading.Event()
        probes = [
            Probe(peer, server.port, OWN, names, event, 1)
            for peer in (closed, Peer("127.0.0.1"))
            for _ in "12345678"
        ]
        again: list[Probe] = []
        first_round.run(probes, event, again.append)
    assert (again, {probe.cell.outcome for probe in probes[8:]}) == (probes[:8], {OK})


def test_a_silent_peer_is_left_to_the_pool() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        result = probed("127.0.0.1", port=listening.getsockname()[1])
    assert [probe.cell.outcome for probe in result.again] == [PENDING]


def test_many_silent_peers_do_not_hold_up_the_others() -> None:
    """Contract: if a filter drops all packets, the pool finds the cause long before netcheck's deadline."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listening:
        start = time.monotonic()
        result = probed(*["127.0.0.1"] * 256, port=listening.getsockname()[1])
        duration = time.monotonic() - start
    assert len(result.again) == 256
    assert duration < 10


def test_the_round_ends_when_the_check_stops() -> None:
    stop, again = threading.Event(), list[Probe]()
    stop.set()
    probe = Probe(Peer("127.0.0.1"), 1, OWN, Names(Configuration(())), stop, 1)
    first_round.run([probe], stop, again.append)
    assert (again, probe.cell.outcome) == ([], PENDING)


# -- the server that responds


def test_messages_that_arrive_together_are_all_answered() -> None:
    hello = b'{"run": "run-1", "rank": 0, "nodes": 64, "host": "job-0", "instance": "me"}'
    messages = header(b"HELO", len(hello)) + hello + header(b"FILL", 3) + b"xyz" + header(b"PING", 0)
    with Server(0, PEER) as server, socket.create_connection(("127.0.0.1", server.port), 5) as connection:
        connection.sendall(messages)
        stream, ends = Stream(connection), time.monotonic() + 30
        kinds = [stream.receive(ends) for _ in range(3)]
    assert [kind for kind, _ in kinds] == [b"HELO", b"FILL", b"PING"]
    assert kinds[1][1] == b"3"


@pytest.mark.parametrize(
    "message",
    [
        header(b"HELO", 50_000) + b"[" * 50_000,
        header(b"HELO", 1 << 20),
        header(b"REPT", 50_000) + b"[" * 50_000,
    ],
    ids=["nested", "too long", "nested report"],
)
def test_an_invalid_message_ends_only_its_connection(message: bytes) -> None:
    with Server(0, PEER) as server:
        with socket.create_connection(("127.0.0.1", server.port), 30) as connection:
            connection.sendall(message)
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(100) == b""
        assert not probed("127.0.0.1", port=server.port).again


def test_a_server_without_threads_still_responds_to_greetings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract: a container may be at its limit of processes, which ends only the connection of a report."""
    with Server(0, PEER) as server:

        def start(_: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start)
            with socket.create_connection(("127.0.0.1", server.port), 30) as connection:
                connection.sendall(header(b"PING", 0))
                with contextlib.suppress(ConnectionResetError):
                    assert connection.recv(100) == b""
        assert not probed("127.0.0.1", port=server.port).again


def test_a_message_may_arrive_byte_by_byte() -> None:
    message = header(b"FILL", 2) + b"ab"
    with Server(0, PEER) as server, socket.create_connection(("127.0.0.1", server.port), 5) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(len(message)):
            connection.sendall(message[at : at + 1])
            time.sleep(0.002)
        assert Stream(connection).receive(time.monotonic() + 30) == (b"FILL", b"2")


def test_a_connection_is_served_after_the_server_was_closed() -> None:
    """Contract: rank 0 closes MASTER_PORT before the verdict, and a probe that has begun still succeeds."""
    server = Server(0, PEER)
    with socket.create_connection(("127.0.0.1", server.port), 5) as connection:
        stream = Stream(connection)
        assert stream.call(b"FILL", b"x", 30)[1] == b"1"
        connection.sendall(header(b"FILL", 4) + b"ab")
        time.sleep(0.1)
        server.close()
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", server.port), 5)
        connection.sendall(b"cd")
        assert stream.receive(time.monotonic() + 30)[1] == b"4"
        assert stream.call(b"PING", b"", 30)[1] == b""
