"""Networks as public bug reports describe them. Each test names the report."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from dns_server import Server, Zone
from namespaces import DOMAIN, World, run
from test_netcheck import PORT, play, said, together

from harness.workers.netcheck import dns_client
from harness.workers.netcheck.name_resolution import Configuration, Names

pytestmark = pytest.mark.nightly

ENVOY = """import socket
listening = socket.create_server(("", 15006))
print("ready", flush=True)
while True:
    listening.accept()[0].close()"""
"""A sidecar that accepts every connection and closes those without its own protocol."""


def test_lost_dns_packets_are_sent_again(pods: World) -> None:
    """kubernetes/kubernetes#56903: a race in conntrack drops some DNS packets, and names take 5 s."""
    rule = "INPUT -i p2 -p udp --dport 53 -m statistic --mode nth --every 2 --packet 0 -j DROP"
    pods.iptables(pods.gateway, f"-A {rule}")
    results = play(pods, deadline=60)
    assert [one["verdict"] for one in results.values()] == ["ok"] * 4, results[0]["findings"]


def test_a_sidecar_that_closes_connections_is_named(pods: World) -> None:
    """kubeflow/trainer#1636: the Istio sidecar of one pod closes connections that are not its own."""
    sidecar = pods.start(2, ENVOY, module=("-c",))
    together([sidecar])
    pods.iptables(pods.pod(2), f"-t nat -A PREROUTING -p tcp --dport {PORT} -j REDIRECT --to-port 15006")
    results = play(pods, deadline=30)
    sidecar.kill()
    sidecar.communicate()
    for result in results.values():
        assert (result["cause"], result["ranks"]) == ("tcp.reset", [2]), result["findings"]
        assert "sidecar" in said(result, "tcp.reset")["do"]


def test_a_pod_without_a_route_says_so(pods: World) -> None:
    """GoogleCloudPlatform/scientific-computing-examples#118: gloo gets "Network is unreachable"."""
    run("ip", "-n", pods.pod(1), "route", "del", "default")
    run("ip", "-n", pods.pod(1), "-6", "route", "del", "default")
    try:
        results = play(pods, deadline=8)
    finally:
        run("ip", "-n", pods.pod(1), "route", "add", "default", "via", "10.77.1.1")
        run("ip", "-n", pods.pod(1), "-6", "route", "add", "default", "via", "fd77:1::1")
    assert (results[1]["cause"], results[1]["whole"]) == ("tcp.no_route", False), results[1]["findings"]
    assert "Network is unreachable" in said(results[1], "tcp.no_route")["text"]
    assert (results[0]["cause"], results[0]["ranks"]) == ("tcp.filtered", [1]), results[0]["findings"]


def test_a_host_name_that_only_rank_0_can_resolve_is_named(pods: World) -> None:
    """pytorch/pytorch#65992: MASTER_ADDR is the output of `hostname`, which other nodes cannot resolve."""
    results = play(pods, deadline=20, all={"variables": {"MASTER_ADDR": "job-0"}})
    for result in results.values():
        assert (result["cause"], result["ranks"]) == ("dns.search_path", [1, 2, 3]), result["findings"]
        assert f"job-0.{DOMAIN}" in said(result, "dns.search_path")["text"]


def resolver(server: Server, tmp_path: Path) -> Names:
    def ask(address: str, name: str, kind: int, *, seconds: float) -> dns_client.Answer:
        return dns_client.ask(address, name, kind, port=server.port, seconds=seconds)

    return Names(Configuration(("127.0.0.1",)), str(tmp_path / "hosts"), str(tmp_path / "none"), ask)


def test_a_dns_server_that_takes_seconds_is_waited_for(tmp_path: Path) -> None:
    """coredns/coredns#3163 and kubernetes/dns#480: a name resolves, but sometimes only after seconds."""
    server = Server(Zone({f"job-0.{DOMAIN}.": ["10.0.0.7"]}, delay=1.3))
    try:
        found = resolver(server, tmp_path).look_up(f"job-0.{DOMAIN}.")
    finally:
        server.close()
    assert (found.cause, found.addresses) == (None, ("10.0.0.7",)), found.text


def test_one_failing_dns_replica_of_two_fails_no_name(tmp_path: Path) -> None:
    """kubernetes/kubernetes#113080: with several CoreDNS pods, some answers are SERVFAIL."""
    good, bad = Server(Zone({f"job-0.{DOMAIN}.": ["10.0.0.7"]})), Server(Zone(code=2))
    turns = itertools.cycle([good, good, bad])

    def ask(address: str, name: str, kind: int, *, seconds: float) -> dns_client.Answer:
        return dns_client.ask(address, name, kind, port=next(turns).port, seconds=seconds)

    names = Names(Configuration(("127.0.0.1",)), str(tmp_path / "hosts"), str(tmp_path / "none"), ask)
    try:
        found = [names.look_up(f"job-0.{DOMAIN}.") for _ in range(6)]
    finally:
        good.close()
        bad.close()
    assert ("10.0.0.7",) in [each.addresses for each in found], found
    assert {each.cause for each in found} <= {None, "dns.server_failed"}
