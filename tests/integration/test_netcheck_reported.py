"""Network faults from public bug reports. Each test names its report."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from dns_server import Server, Zone
from namespaces import DOMAIN, World, run
from test_netcheck import FOUR, PORT, SERVICE, Result, finding_of, finished, play, together
from test_netcheck_ports import cluster_ip

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
    """kubernetes/kubernetes#56903: a race condition in conntrack drops some DNS packets, so resolving a name
    takes 5 s."""
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
        assert "sidecar" in finding_of(result, "tcp.reset")["do"]


def test_a_pod_without_a_route_says_so(pods: World) -> None:
    """GoogleCloudPlatform/scientific-computing-examples#118: gloo fails with "Network is unreachable"."""
    run("ip", "-n", pods.pod(1), "route", "del", "default")
    run("ip", "-n", pods.pod(1), "-6", "route", "del", "default")
    try:
        results = play(pods, deadline=8)
    finally:
        run("ip", "-n", pods.pod(1), "route", "add", "default", "via", "10.77.1.1")
        run("ip", "-n", pods.pod(1), "-6", "route", "add", "default", "via", "fd77:1::1")
    assert (results[1]["cause"], results[1]["whole"]) == ("tcp.no_route", False), results[1]["findings"]
    assert "Network is unreachable" in finding_of(results[1], "tcp.no_route")["text"]
    assert (results[0]["cause"], results[0]["ranks"]) == ("tcp.filtered", [1]), results[0]["findings"]


def test_host_name_resolved_only_by_rank_0_is_named(pods: World) -> None:
    """pytorch/pytorch#65992: MASTER_ADDR is the output of `hostname`, which other nodes cannot resolve."""
    results = play(pods, deadline=20, all={"variables": {"MASTER_ADDR": "job-0"}})
    for result in results.values():
        assert (result["cause"], result["ranks"]) == ("dns.search_path", [1, 2, 3]), result["findings"]
        assert f"job-0.{DOMAIN}" in finding_of(result, "dns.search_path")["text"]


def test_the_subdomain_of_another_service_is_named(pods: World) -> None:
    """kubernetes-sigs/jobset#603: MASTER_ADDR has the JobSet's name, and its Service has another one."""
    results = play(pods, deadline=20, all={"variables": {"MASTER_ADDR": "job-0.job"}})
    for result in results.values():
        assert (result["verdict"], result["cause"]) == ("failed", "dns.no_record"), result["findings"]
        assert f".{DOMAIN}. exists" in finding_of(result, "dns.no_record")["text"], result["findings"]


def test_an_exclusion_list_for_gloo_is_named(pods: World) -> None:
    """aws-samples/aws-do-eks#51: GLOO_SOCKET_IFNAME has NCCL's syntax."""
    given = {"GLOO_SOCKET_IFNAME": "^lo,docker,veth,eni", "NCCL_SOCKET_IFNAME": "^lo,docker,veth,eni"}
    results = play(pods, r1={"variables": given})
    for result in results.values():
        assert (result["cause"], result["ranks"]) == ("variables.interface", [1]), result["findings"]


def test_own_name_with_address_of_another_host_is_named(pods: World) -> None:
    """aws-samples/aws-do-eks#69: gloo cannot bind to the address of its name, and falls back to loopback."""
    setup = "echo 10.99.0.9 job-2 >/etc/hosts"
    for result in play(pods, r2={"setup": setup, "variables": {"GLOO_SOCKET_IFNAME": "-"}}).values():
        assert (result["cause"], result["ranks"]) == ("address.advertised", [2]), result["findings"]


def test_ranks_wait_for_master_that_listens_late(pods: World) -> None:
    """kubeflow/pytorch-operator#333: nslookup succeeds 4 to 10 s before a connection does."""
    processes = [pods.start(rank, "--deadline", "60", variables=FOUR) for rank in range(4)]
    together(processes[1:])
    time.sleep(4)
    together(processes[:1])
    results = [finished(process) for process in processes]
    assert [one["verdict"] for one in results] == ["ok"] * 4, results[0]["findings"]


def test_a_run_id_of_each_pods_own_is_named(pods: World) -> None:
    """pytorch/examples#1254: --rdzv_id=$RANDOM. The harness knows that the pods belong to one job."""
    own = {f"r{rank}": {"variables": {"RDZV_ID": str(5000 + rank)}} for rank in range(4)}
    results = play(pods, all={"variables": {"NETCHECK_RUN_ID": "one"}}, **own)
    for result in results.values():
        assert (result["cause"], result["ranks"]) == ("variables.torchrun", [0, 1, 2, 3]), result["findings"]
        assert "5000 on rank 0; 5001 on rank 1" in finding_of(result, "variables.torchrun")["text"]


TORCHRUN = """#!/bin/sh
until [ "$1" = -- ]; do shift; done
shift
"$@"
"""
"""A program in place of the torchrun that starts netcheck. netcheck reads the options of its parent
process."""
C10D = f"--nnodes=4 --rdzv_backend=c10d --rdzv_endpoint=job-0.{DOMAIN}:29500"
SHORT_NAME = "echo 10.77.{0}.2 job-{0} >/etc/hosts"
"""The hosts file of a pod without `subdomain`."""


def under_torchrun(folder: Path, options: str, setup: str = "true") -> str:
    """Return shell commands after which a pod runs its command under torchrun with these options."""
    program = folder / "torchrun"
    program.write_text(TORCHRUN)
    program.chmod(0o755)
    return f'{setup}; set -- {program} {options} -- "$@"'


def play_torchrun(
    pods: World, folder: Path, options: str, of: Mapping[int, str] | None = None, **variables: str
) -> dict[int, Result]:
    """Run netcheck under torchrun in all pods. `of` contains additional setup commands for pods."""
    own: dict[str, Any] = {
        f"r{rank}": {"setup": under_torchrun(folder, options, (of or {}).get(rank, "true"))}
        for rank in range(4)
    }
    return play(pods, deadline=60, all={"variables": variables}, **own)


def test_unresolvable_host_name_from_torchrun_is_named(pods: World, tmp_path: Path) -> None:
    """pytorch/pytorch#150532, meta-pytorch/monarch#1571: torchrun passes socket.getfqdn() to the workers."""
    of = {rank: SHORT_NAME.format(rank) for rank in range(4)}
    for result in play_torchrun(pods, tmp_path, C10D, of).values():
        assert (result["cause"], result["ranks"]) == ("dns.advertised", [0]), result["findings"]
        finding = finding_of(result, "dns.advertised")
        assert "this pod's own name job-0 as MASTER_ADDR; no such name: tried job-0.team" in finding["text"]
        assert "--local-addr" in finding["do"]


@pytest.mark.parametrize(
    ("options", "of"),
    [
        pytest.param(C10D, {}, id="full names"),
        pytest.param(C10D, {3: SHORT_NAME.format(3)}, id="a name that is not the first"),
        pytest.param(f"{C10D} --local-addr=10.77.0.2", {0: SHORT_NAME.format(0)}, id="an address"),
        pytest.param("--nnodes=4", {0: SHORT_NAME.format(0)}, id="static"),
    ],
)
def test_names_that_torchrun_does_not_publish_stop_no_job(
    pods: World, tmp_path: Path, options: str, of: dict[int, str]
) -> None:
    results = play_torchrun(pods, tmp_path, options, of)
    assert [one["verdict"] for one in results.values()] == ["ok"] * 4, results[0]["findings"]


@pytest.mark.parametrize(
    ("conf", "cause"),
    [
        pytest.param("", "variables.torchrun", id="by host names"),
        pytest.param(" --rdzv_conf=is_host=1", None, id="by is_host"),
    ],
)
def test_c10d_store_behind_address_of_service_is_named(
    pods: World, tmp_path: Path, conf: str, cause: str | None
) -> None:
    """pytorch/pytorch#80772 and #73656: every torchrun connects to the store, and none opens it."""
    cluster_ip(pods)
    options = f"--nnodes=4 --rdzv_backend=c10d --rdzv_endpoint={SERVICE}:29500{conf}"
    for result in play_torchrun(pods, tmp_path, options, MASTER_ADDR=SERVICE).values():
        assert result["cause"] == cause, result["findings"]
        if cause:
            assert (result["ranks"], result["missing"]) == ([0, 1, 2, 3], [])
            assert "is_host=1" in finding_of(result, cause)["text"]


def test_a_link_local_address_that_nccl_selects_is_tried(pods: World) -> None:
    """NVIDIA/nccl#1291 and #975: an InfiniBand interface without an IP address has a link-local one.

    NCCL prefers `ib*`, and sends the address with the index of its own interface.
    """
    gpu = "mount -t tmpfs none /dev; mknod -m 666 /dev/null c 1 3; touch /dev/nvidia0"
    pod = pods.pod(2)
    run("ip", "-n", pod, "link", "add", "ib0", "type", "veth", "peer", "name", "ib9")
    for name in ("ib0", "ib9"):
        run("ip", "-n", pod, "link", "set", name, "up")
    run("ip", "-n", pod, "-6", "addr", "add", "fe80::7/64", "dev", "ib0", "nodad")
    try:
        results = play(pods, all={"setup": gpu})
    finally:
        run("ip", "-n", pod, "link", "del", "ib0")
    for result in results.values():
        assert (result["cause"], result["ranks"]) == ("address.advertised", [2]), result["findings"]
        assert "NCCL would listen on fe80::" in finding_of(result, "address.advertised")["text"]


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


@pytest.mark.parametrize("ranks", [[1], [0, 1, 2, 3]])
def test_gloo_with_two_ip_families_is_named(pods: World, ranks: list[int]) -> None:
    """pytorch/pytorch#135355, pytorch/gloo#399: the own names of these ranks resolve to IPv6 addresses."""
    own = {f"r{rank}": {"setup": f"echo fd77:{rank}::2 job-{rank} >/etc/hosts"} for rank in ranks}
    for result in play(pods, all={"variables": {"GLOO_SOCKET_IFNAME": "-"}}, **own).values():
        cause = None if len(ranks) == 4 else "address.family"
        assert (result["cause"], result["ranks"]) == (cause, ranks if cause else []), result["findings"]
        assert not cause or "IPv6 address on rank 1 (fd77:1::2)" in finding_of(result, cause)["text"]
