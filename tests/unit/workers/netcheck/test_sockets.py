"""Connections and greetings on loopback: every way in which somebody else can answer."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.workers.netcheck.finding import CAUSES
from harness.workers.netcheck.greeting import Hello, Server, greet
from harness.workers.netcheck.interfaces import (
    addresses,
    check,
    infiniband,
    route_to,
    setup_networking,
)
from harness.workers.netcheck.messages import MARK, Stream
from harness.workers.netcheck.name_resolution import Configuration, Names
from harness.workers.netcheck.peers import Peer, derive, parse
from harness.workers.netcheck.probe import PENDING, Probe
from harness.workers.netcheck.reach import cause_of, connect
from harness.workers.netcheck.waiting import wait_for_master

OWN = Hello("run-1", 1, 2, "job-1", "me")
JOB = {"MASTER_PORT": "29500", "NNODES": "2", "NODE_RANK": "1", "RDZV_ID": "run-1"}


@contextlib.contextmanager
def answering(answer: Callable[[socket.socket], object]) -> Iterator[int]:
    """A server that does this with each connection. Yields its port."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                with listening.accept()[0] as connection, contextlib.suppress(OSError):
                    answer(connection)

    threading.Thread(target=serve, daemon=True).start()
    yield listening.getsockname()[1]
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def greeted(port: int) -> str | None:
    reached = connect("127.0.0.1", port)
    if reached.connection is None:  # a reset may come before the greeting
        return reached.cause
    with reached.connection as connection:
        return greet(Stream(connection), OWN, 0.5).cause


def saying(words: bytes) -> Callable[[socket.socket], None]:
    def say(connection: socket.socket) -> None:
        connection.sendall(words)
        time.sleep(0.2)

    return say


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (lambda connection: None, "tcp.reset"),
        (reset, "tcp.reset"),
        (lambda connection: time.sleep(2), "peer.silent"),
        (saying(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "peer.not_netcheck"),
        (saying(b"SSH-2.0\n"), "peer.not_netcheck"),
        (saying(MARK + b"HELO\0\0\0\2[]"), "peer.not_netcheck"),
        (saying(MARK + b"HELO\xff\xff\xff\xff"), "peer.not_netcheck"),
    ],
    ids=["closes", "resets", "silent", "http", "short", "no hello", "too long"],
)
def test_who_else_may_answer(answer: Callable[[socket.socket], object], cause: str) -> None:
    with answering(answer) as port:
        assert greeted(port) == cause


def test_a_greeting_exchanges_rank_instance_and_clock_offset() -> None:
    with Server(0, Hello("run-1", 0, 2, "job-0", "you")) as server:
        connection = connect("127.0.0.1", server.port).connection
        assert connection
        with connection:
            stream = Stream(connection)
            found = greet(stream, OWN)
            assert found.hello
            assert (found.hello.rank, found.hello.instance, abs(found.offset) < 0.5) == (0, "you", True)
            assert stream.call(b"FILL", bytes(100), 1)[1] == b"100"
        assert server.greetings["me"][0].rank == 1


@given(st.binary(max_size=64))
def test_any_bytes_leave_the_server_up(noise: bytes) -> None:
    """Contract: another program's bytes end its connection, and nothing else."""
    with Server(0, OWN) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(noise)
        assert greeted(server.port) is None


def test_a_port_that_is_taken() -> None:
    with Server(0, OWN) as server, pytest.raises(OSError, match="in use"):
        Server(server.port, OWN)


@pytest.mark.parametrize("number", sorted(errno.errorcode))
def test_every_errno_has_a_cause(number: int) -> None:
    assert cause_of(OSError(number, os.strerror(number))) in CAUSES


def test_a_port_without_a_listener_is_tcp_refused(unused_tcp_port: int) -> None:
    assert connect("127.0.0.1", unused_tcp_port).cause == "tcp.refused"


# -- wait_for_master


def test_the_master_comes_late(unused_tcp_port: int) -> None:
    """Contract: it waits, and says what it saw on the way."""
    late: list[Server] = []
    hello = Hello("run-1", 0, 2, "job-0", "you")
    threading.Timer(0.7, lambda: late.append(Server(unused_tcp_port, hello))).start()
    done = wait_for_master("127.0.0.1", unused_tcp_port, deadline=120, variables=JOB)
    late[0].close()
    assert (done.ready, done.cause, [cause for _, cause in done.history]) == (True, None, ["tcp.refused"])
    assert done.seconds < 60


@pytest.mark.parametrize(
    ("hello", "cause"),
    [
        (("run-2", 0, 2), "peer.other_job"),
        (("run-1", 3, 2), "peer.other_rank"),
        (("run-1", 0, 4), "peer.other_size"),
    ],
)
def test_a_wrong_master(hello: tuple[str, int, int], cause: str) -> None:
    with Server(0, Hello(*hello, "job-9", "you")) as server:
        done = wait_for_master("127.0.0.1", server.port, deadline=0.4, variables=JOB)
    assert (bool(done), done.cause) == (False, cause)


def test_the_port_of_the_training(unused_tcp_port: int) -> None:
    """TCP alone: whoever listens there counts, and nothing is said of who it is."""
    asked = {"deadline": 0.3, "greeting": False, "variables": JOB}
    assert wait_for_master("127.0.0.1", unused_tcp_port, **asked).cause == "tcp.refused"  # type: ignore[arg-type]
    with answering(lambda connection: time.sleep(0.1)) as port:
        assert wait_for_master("127.0.0.1", port, **asked)  # type: ignore[arg-type]


def test_no_master_is_named() -> None:
    with pytest.raises(ValueError, match="MASTER_ADDR"):
        wait_for_master(variables=JOB)


# -- interfaces and peers


def test_loopback_is_no_way_to_others() -> None:
    assert route_to("127.0.0.1").interface == "lo"
    assert check("127.0.0.1").cause == "address.loopback"
    assert check("127.0.0.1", alone=True).status == "ok"


def test_setup_sets_only_what_is_not_set(tmp_path: object) -> None:
    own, interface = next((a, i) for a, i in addresses().items() if i != "lo" and "." in a)
    variables = {"GLOO_SOCKET_IFNAME": interface}
    done, messages = setup_networking(own, variables)
    assert done == {"NCCL_SOCKET_IFNAME": f"={interface}"}
    assert variables == {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"}
    assert "stays" in messages[0]
    assert own in messages[1]


@pytest.mark.parametrize("given", [None, "1", "0"])
def test_infiniband_is_never_turned_off(tmp_path: os.PathLike[str], given: str | None) -> None:
    """sysfs as the kernel lays it out: one device with an active port, one without."""
    for device, state in (("mlx5_0", "4: ACTIVE"), ("mlx5_1", "1: DOWN")):
        port = os.path.join(tmp_path, device, "ports", "1")
        os.makedirs(port)
        with open(os.path.join(port, "state"), "w") as file:
            file.write(state)
    assert infiniband(str(tmp_path)) == ("mlx5_0",)
    variables = {} if given is None else {"NCCL_IB_DISABLE": given}
    done, messages = setup_networking(None, variables, folder=str(tmp_path))
    assert variables.get("NCCL_IB_DISABLE") == given
    assert done == {}
    assert ("unset it" in messages[-1]) == (given == "1")


def test_peers_are_parsed_with_ranges_and_ports() -> None:
    assert parse("a-{0..2}.b, c:5,[::1]:4,fd00::1") == [
        *(Peer(f"a-{i}.b") for i in range(3)),
        Peer("c", 5),
        Peer("::1", 4),
        Peer("fd00::1"),
    ]


@pytest.mark.parametrize("text", ["", ",", ":x:y]", "a:b", "a:99999", "a b", "10.0.0.300", "[x"])
def test_an_invalid_list_of_peers_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"peers|host"):
        parse(text)


@pytest.mark.parametrize(
    ("master", "own", "rank", "found"),
    [
        ("job-0.pods", "", 1, ["job-0.pods", "job-1.pods"]),
        (
            "js-workers-0-0.js",
            "js-workers-0-1.js.ns.svc.cluster.local",
            1,
            ["js-workers-0-0.js", "js-workers-0-1.js"],
        ),
        ("master", "job-1.pods", 1, ["job-0.pods", "job-1.pods"]),
        ("master.ns", "job-2.pods", 1, []),
        ("10.0.0.1", "pod", 1, []),
        ("job-0.pods", "", None, []),
    ],
)
def test_peers_by_name(master: str, own: str, rank: int | None, found: list[str]) -> None:
    assert [str(peer) for peer in derive(master, rank, 2, own)] == found


def test_refused_before_it_came_and_then_filtered(unused_tcp_port: int) -> None:
    """Contract: an old failure does not hide a newer one. A full queue leaves a SYN without an answer."""
    stop = threading.Event()
    probe = Probe(Peer("127.0.0.1"), unused_tcp_port, OWN, Names(Configuration(())), stop).start()
    try:
        until(lambda: probe.cell.outcome == "tcp.refused")
        with contextlib.ExitStack() as stack:
            listening = stack.enter_context(socket.socket())
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(("127.0.0.1", unused_tcp_port))
            listening.listen(0)
            for _ in range(3):  # fills the queue; what comes later gets no answer
                full = stack.enter_context(socket.socket())
                full.setblocking(False)
                full.connect_ex(("127.0.0.1", unused_tcp_port))
            seen: list[str] = []
            until(lambda: seen.append(probe.cell.outcome) or seen[-1] == "tcp.filtered")  # type: ignore[func-returns-value]
            assert "pending" in seen[:-1]
    finally:
        stop.set()


def until(seen: Callable[[], bool], seconds: float = 10) -> None:
    """Wait until something is so. Raises AssertionError."""
    ends = time.monotonic() + seconds
    while not seen():
        assert time.monotonic() < ends
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("before", "now"),
    [("tcp.refused", PENDING), ("tcp.filtered", "tcp.filtered"), ("tcp.no_route", "tcp.no_route")],
)
def test_a_second_silence_does_not_hide_the_first(before: str, now: str) -> None:
    """Contract: while a connection waits for an answer again, what was silent stays known."""
    probe = Probe(Peer("127.0.0.1"), 1, OWN, Names(Configuration(())), threading.Event())
    probe._cell = probe._of(before, "")
    probe._calling = "127.0.0.1", time.monotonic() - 0.5
    assert probe.cell.outcome == now
