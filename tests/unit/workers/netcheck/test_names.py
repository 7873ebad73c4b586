"""How a name is found, and why it is not: asked of a real DNS server on loopback."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from dns_server import AAAA, A, Server, Zone
from hypothesis import given
from hypothesis import strategies as st

from harness.workers.netcheck import dns_client
from harness.workers.netcheck.name_resolution import Configuration, Names

NAME = "job-0.pods.team.svc.cluster.local"
SEARCH = ("team.svc.cluster.local", "svc.cluster.local", "cluster.local")


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server(Zone({f"{NAME}.": ["10.0.0.7"], "six.": ["fd00::7"], "both.": ["10.0.0.8", "fd00::8"]}))
    yield made
    made.close()


@pytest.fixture
def names(server: Server, tmp_path: Path) -> Callable[..., Names]:
    """Make a resolver that asks the server."""

    def make(search: tuple[str, ...] = SEARCH, hosts: str = "", ndots: int = 5) -> Names:
        (tmp_path / "hosts").write_text(hosts)
        return Names(
            Configuration(("127.0.0.1",), search, ndots),
            str(tmp_path / "hosts"),
            str(tmp_path / "namespace"),
            partial(dns_client.ask, port=server.port),
            seconds=0.3,
        )

    return make


@pytest.mark.parametrize(
    ("asked", "addresses"),
    [
        (NAME, ("10.0.0.7",)),
        (f"{NAME}.", ("10.0.0.7",)),
        ("job-0.pods", ("10.0.0.7",)),
        ("six.", ("fd00::7",)),
        ("both.", ("10.0.0.8", "fd00::8")),
        ("10.1.2.3", ("10.1.2.3",)),
        ("[fd00::1]", ("fd00::1",)),
    ],
)
def test_a_name_resolves_to_its_addresses(
    names: Callable[..., Names], asked: str, addresses: tuple[str, ...]
) -> None:
    assert names().look_up(asked).addresses == addresses


def test_pods_own_name_is_asked_for_where_others_ask(names: Callable[..., Names]) -> None:
    """Contract: /etc/hosts always has a pod's own name, and proves nothing of what others are told."""
    own = names(hosts="10.9.9.9 job-7.pods job-7\n")
    own.written = False
    assert own.look_up("job-7.pods").cause == "dns.no_record"


def test_the_hosts_file_comes_first(names: Callable[..., Names], server: Server) -> None:
    assert names(hosts=f"# own\n10.9.9.9 {NAME} job-0\n").look_up("job-0").addresses == ("10.9.9.9",)
    assert server.asked == []


@given(st.from_regex(r"[a-z]{1,5}(\.[a-z]{1,5}){0,4}\.?", fullmatch=True), st.integers(0, 6))
def test_candidates_follow_ndots_and_the_search_list(name: str, ndots: int) -> None:
    """Contract: as resolv.conf(5) says: as it is first with enough dots, alone with a last dot."""
    tried = Configuration((), SEARCH, ndots).candidates(name)
    whole = name.rstrip(".") + "."
    if name.endswith("."):
        assert tried == [whole]
    else:
        searched = [f"{name}.{domain}." for domain in SEARCH]
        assert tried == ([whole, *searched] if name.count(".") >= ndots else [*searched, whole])


def test_no_address_query_is_sent_before_the_record_exists(
    names: Callable[..., Names], server: Server
) -> None:
    """Contract: no A and no AAAA question before the name exists."""
    server.zone = Zone(cache="type")
    assert names().look_up(NAME).cause == "dns.no_record"
    assert not {kind for _, kind in server.asked} & {A, AAAA}


def test_late_record_is_found_although_absence_is_cached(names: Callable[..., Names], server: Server) -> None:
    full, resolver = server.zone, names()
    server.zone = Zone(cache="type")
    for _ in range(3):
        assert resolver.look_up(NAME).cause == "dns.no_record"
    server.zone = replace(full, cache="type")
    assert resolver.look_up(NAME).addresses == ("10.0.0.7",)


def test_somebody_else_asked_too_early(names: Callable[..., Names], server: Server) -> None:
    """The name exists, and the answer about its address is an old one: how long it is kept is said."""
    full, port = server.zone, server.port
    server.zone = Zone(cache="type", ttl=30)
    dns_client.ask("127.0.0.1", NAME, A, port=port)
    server.zone = replace(full, cache="type", ttl=30)
    found = names().look_up(NAME)
    assert found.cause == "dns.negative_cached"
    assert 25 < found.again - names().clock() <= 30


def test_a_negative_cache_is_not_queried_until_it_expires(
    names: Callable[..., Names], server: Server
) -> None:
    """Contract: it is known by its TTL, which counts down, and then not asked before its time."""
    server.zone = Zone(cache="shared", ttl=30)
    time = [1000.0]
    resolver = names()
    resolver.clock = lambda: time[0]
    assert resolver.look_up(f"{NAME}.").cause == "dns.no_record"  # one look shows no countdown
    server._kept = {key: until - 5 for key, until in server._kept.items()}
    found = resolver.look_up(f"{NAME}.")
    assert found.cause == "dns.negative_cached"
    assert 20 < found.again - time[0] < 26
    asked = len(server.asked)
    resolver.look_up(f"{NAME}.")
    assert len(server.asked) == asked
    time[0] += 26
    resolver.look_up(f"{NAME}.")
    assert len(server.asked) > asked


@pytest.mark.parametrize(
    ("zone", "cause"),
    [
        (Zone(silent=True), "dns.server_silent"),
        (Zone(code=2), "dns.server_failed"),
        (Zone(code=5), "dns.server_failed"),
        (Zone({f"{NAME}.": []}), "dns.no_record"),
        (Zone(), "dns.no_record"),
    ],
    ids=["silent", "servfail", "refused", "no-address", "absent"],
)
def test_a_failed_lookup_names_its_cause(
    names: Callable[..., Names], server: Server, zone: Zone, cause: str
) -> None:
    server.zone = zone
    assert names().look_up(NAME).cause == cause


def test_no_server_there(names: Callable[..., Names], unused_tcp_port: int) -> None:
    resolver = names()
    resolver.ask = partial(dns_client.ask, port=unused_tcp_port)
    assert resolver.look_up(NAME).cause == "dns.server_refused"


def test_no_server_named() -> None:
    assert Names(Configuration(())).look_up(NAME).cause == "dns.no_server"


@pytest.mark.parametrize("how", ["namespace", "own name"])
def test_a_wrong_search_path_is_named_as_the_cause(
    names: Callable[..., Names], tmp_path: Path, how: str
) -> None:
    """Contract: where this pod's own namespace has the name, the search path is at fault."""
    (tmp_path / "namespace").write_text("team" if how == "namespace" else "")
    own = "" if how == "namespace" else "10.0.0.9 job-1.pods.team.svc.cluster.local job-1\n"
    found = names(search=("other.svc.cluster.local",), hosts=own).look_up("job-0.pods")
    assert found.cause == "dns.search_path"
    assert f"{NAME}." in found.text


def test_a_long_answer_comes_over_tcp(names: Callable[..., Names], server: Server) -> None:
    server.zone = replace(
        server.zone, records={f"{NAME}.": [f"10.0.{i}.1" for i in range(100)]}, truncate=True
    )
    assert len(names().look_up(NAME).addresses) == 100


@given(st.binary(max_size=200))
def test_any_bytes_are_no_surprise(reply: bytes) -> None:
    """Contract: a message is understood, or an error is raised that `ask` takes for a failure."""
    try:
        found = dns_client.parse(reply, A)
    except (ValueError, IndexError, dns_client.struct.error):
        return
    assert found is None or found.kind in ("answer", "nodata", "nxdomain", "failed")


def test_a_server_that_talks_nonsense() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as liar:
        liar.bind(("127.0.0.1", 0))

        def lie() -> None:
            question, client = liar.recvfrom(512)
            liar.sendto(question[:2] + b"\x81" + bytes(9) + b"\xff", client)

        threading.Thread(target=lie, daemon=True).start()
        assert dns_client.ask("127.0.0.1", NAME, A, port=liar.getsockname()[1]).kind in ("nodata", "failed")


def test_nameservers_search_and_ndots_come_from_resolv_conf(tmp_path: Path) -> None:
    (tmp_path / "r").write_text(
        "# c\nnameserver 10.0.0.1\nnameserver fd00::1 ; x\nsearch a.b c.\noptions ndots:5 x\n"
    )
    assert Configuration.read(str(tmp_path / "r")) == Configuration(("10.0.0.1", "fd00::1"), ("a.b", "c"), 5)
    assert Configuration.read(str(tmp_path / "absent")) == Configuration(())


def test_one_of_two_servers_learns_of_the_record_late(server: Server, tmp_path: Path) -> None:
    """Contract: until every server knows the name, none is asked for its address, and so keeps nothing.

    The address of a cluster's DNS stands for several servers. Here they take turns.
    """
    known, late = server, Server(Zone(cache="type"))
    turns = itertools.cycle([known, late])

    def ask(address: str, name: str, kind: int, *, seconds: float) -> dns_client.Answer:
        return dns_client.ask(address, name, kind, port=next(turns).port, seconds=seconds)

    looking = Names(Configuration(("127.0.0.1",)), str(tmp_path / "hosts"), str(tmp_path / "none"), ask)
    try:
        for _ in range(5):
            assert looking.look_up(f"{NAME}.").cause == "dns.no_record"
        assert not {A, AAAA} & {kind for _, kind in late.asked}
        late.zone = known.zone
        assert looking.look_up(f"{NAME}.").addresses == ("10.0.0.7",)
    finally:
        late.close()
