"""Jobs that can train pass netcheck, with hostNetwork and behind a Service that forwards only one port."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from namespaces import DOMAIN, World, run
from test_netcheck import NAMED, PORT, SERVICE, Result, finding_of, finished, guide, play, together

CLUSTER_IP = "10.96.7.7"
OTHER = "10.88.0.2"
"""An address of rank 2 on an interface that no other rank can reach."""
LISTEN = "import socket,time; s=socket.create_server(('',{})); print('ready', flush=True); time.sleep(99)"


def on_host_network(pods: World, first: int = 0, **variables: str) -> dict[int, Result]:
    """Run netcheck in four ranks, two on each of two nodes. Ranks on the same node share its ports and
    addresses. Rank `first` starts 2 s before the others.
    """
    node = {0: 0, 1: 0, 2: 2, 3: 2}
    records = {f"job-{rank}.{DOMAIN}.": [pods.address(node[rank])] for rank in node}
    pods.serve(replace(pods.zone, records={**records, f"{SERVICE}.": [pods.address(0)]}))
    started = {
        rank: pods.start(
            node[rank], "--deadline", "60", variables={"NODE_RANK": str(rank), "NNODES": "4", **variables}
        )
        for rank in node
    }
    together([started[first]])
    time.sleep(2)
    together([process for rank, process in started.items() if rank != first])
    return {rank: finished(process) for rank, process in started.items()}


@pytest.mark.parametrize(
    "variables",
    [
        pytest.param({}, id="by name"),
        pytest.param(guide(NPROC_PER_NODE="8")["variables"], id="learned", marks=pytest.mark.nightly),
    ],
)
def test_ranks_that_share_the_ports_of_a_node_pass(pods: World, variables: dict[str, str]) -> None:
    """Contract: two pods of a job with hostNetwork on the same node use different ports."""
    if variables:
        variables = {**variables, "NNODES": "-", "WORLD_SIZE": "32"}
    results = on_host_network(pods, **variables)
    assert [result["verdict"] for result in results.values()] == ["ok"] * 4, results[0]["findings"]
    ports = {cell["port"] for cell in results[0]["rows"]["0"].values()}
    assert ports == {PORT, PORT + 16}


def test_rank_keeps_its_rank_at_address_of_later_one(pods: World) -> None:
    """Contract: rank 1 of a job with hostNetwork starts first, and listens on the port that rank 0 would
    use."""
    results = on_host_network(pods, first=1)
    assert [result["verdict"] for result in results.values()] == ["ok"] * 4, results[0]["findings"]
    assert {cell["rank"] for cell in results[0]["rows"]["1"].values()} == {0, 1, 2, 3}


def test_program_on_port_of_netcheck_stops_no_job(pods: World) -> None:
    """Contract: the training does not use this port, so rank 2 uses another one."""
    program = pods.start(2, LISTEN.format(PORT), module=("-c",))
    together([program])
    results = play(pods)
    program.kill()
    program.communicate()
    assert [result["verdict"] for result in results.values()] == ["ok"] * 4, results[0]["findings"]
    assert results[0]["rows"]["1"]["2"]["port"] == PORT + 16


def cluster_ip(pods: World) -> None:
    """Make a Service with a cluster IP forward only MASTER_PORT to rank 0."""
    pods.serve(replace(pods.zone, records={**pods.zone.records, f"{SERVICE}.": [CLUSTER_IP]}))
    forward = f"-d {CLUSTER_IP} -p tcp --dport 29500 -j DNAT --to-destination {pods.address(0)}:29500"
    pods.iptables(pods.gateway, f"-t nat -A PREROUTING {forward}")
    pods.iptables(
        pods.gateway, f"-t nat -A POSTROUTING -s {pods.address(0)} -d {pods.address(0)} -j MASQUERADE"
    )


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(NAMED, id="by name", marks=pytest.mark.nightly),
        pytest.param(guide(NPROC_PER_NODE="8"), id="learned"),
    ],
)
def test_a_service_that_forwards_one_port_passes(pods: World, options: dict[str, object]) -> None:
    """Contract: rank 0 is found at MASTER_PORT, all pairs connect directly between pods, and the port is free
    afterwards."""
    cluster_ip(pods)
    results = play(pods, all=options)
    assert [result["verdict"] for result in results.values()] == ["ok"] * 4, results[0]["findings"]
    cells = [cell for s, row in results[0]["rows"].items() for r, cell in row.items() if s != r]
    assert {cell["port"] for cell in cells} == {PORT}
    assert CLUSTER_IP not in {cell["address"] for cell in cells}
    training = pods.start(0, LISTEN.format(29500), module=("-c",))
    together([training])
    training.kill()
    training.communicate()


@pytest.mark.nightly
def test_unknown_service_is_warning_and_stops_no_script(pods: World) -> None:
    """Contract: if nothing responds at MASTER_ADDR, which may be a Service, the verdict is "unknown" and the
    exit code is 0."""
    training = pods.start(0, LISTEN.format(29500), module=("-c",))
    together([training])
    cluster_ip(pods)
    results = play(pods, all=NAMED)
    training.kill()
    training.communicate()
    for result in results.values():
        assert result["verdict"] == "unknown", result["findings"]
        assert any("may not forward this port" in finding["text"] for finding in result["findings"])


@pytest.mark.parametrize(
    ("setup", "how", "ranks", "text"),
    [
        pytest.param("echo 127.0.1.1 job-2 >/etc/hosts", "", [2], "listen on 127.0.1.1", id="loopback"),
        pytest.param(f"echo {OTHER} job-2 >/etc/hosts", "", [2], f"listen on {OTHER}", id="other-interface"),
        pytest.param("true", "net9", [2], "IFNAME=net9", id="variable", marks=pytest.mark.nightly),
        pytest.param("echo 10.77.2.2 job-2 >/etc/hosts", "", [], "", id="own", marks=pytest.mark.nightly),
    ],
)
def test_the_address_on_which_gloo_listens_is_tested(
    pods: World, setup: str, how: str, ranks: list[int], text: str
) -> None:
    """Contract: the name of rank 2 resolves to an address that all ranks can reach, but gloo selects another
    address."""
    run("ip", "-n", pods.pod(2), "link", "add", "net9", "type", "veth", "peer", "name", "net8")
    run("ip", "-n", pods.pod(2), "addr", "add", f"{OTHER}/24", "dev", "net9")
    run("ip", "-n", pods.pod(2), "link", "set", "net9", "up")
    try:
        own = {"setup": setup, "variables": {"GLOO_SOCKET_IFNAME": how or "-"}}
        results = play(pods, r2=own)
    finally:
        run("ip", "-n", pods.pod(2), "link", "del", "net9")
    for result in results.values():
        assert (result["cause"], result["ranks"]) == ("address.advertised" if ranks else None, ranks), result
        assert not ranks or text in finding_of(result, "address.advertised")["text"]


@pytest.mark.parametrize(("port", "cause"), [("98", "variables.master_port"), ("1024", None)])
def test_privileged_port_is_not_called_taken(pods: World, port: str, cause: str | None) -> None:
    """Contract: KimMeen/Time-LLM#158. No process uses the port, but the ranks must not listen on it."""
    dropped = 'set -- setpriv --bounding-set=-net_bind_service --inh-caps=-net_bind_service "$@"'
    results = play(pods, all={"variables": {"MASTER_PORT": port}, "setup": dropped})
    for rank, result in results.items():
        assert (result["cause"], result["ranks"]) == (cause, [rank] if cause else []), result["findings"]
        if cause:
            assert f"not allowed to listen on MASTER_PORT={port}" in finding_of(result, cause)["text"]
