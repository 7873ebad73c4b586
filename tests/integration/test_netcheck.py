"""netcheck names why ranks cannot meet, and the right rank: four processes in four network namespaces."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from namespaces import DOMAIN, World, world

Result = dict[str, Any]
PORT = 29501
SHORT = {"MASTER_ADDR": "job-0.pods"}


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Four ranks, and a fifth pod for what does not belong to the job."""
    with world(tmp_path_factory.mktemp("world"), size=5) as made:
        yield made


@pytest.fixture
def pods(five: World) -> Iterator[World]:
    """A world without rules."""
    yield five
    five.reset()


def play(
    pods: World, deadline: float = 8.0, without: tuple[int, ...] = (), **of: dict[str, Any]
) -> dict[int, Result]:
    """Run the ranks together; `r2={…}` are options of rank 2, `all={…}` of each. Return what each printed."""
    common = {"variables": {}, **of.get("all", {})}
    started = {}
    for rank in range(4):
        if rank not in without:
            own = {**common, **of.get(f"r{rank}", {})}
            job = {"NNODES": "4", "WORLD_SIZE": "4", **common["variables"], **own["variables"]}
            started[rank] = pods.start(rank, "--deadline", str(deadline), **{**own, "variables": job})
    return {rank: finished(process) for rank, process in started.items()}


def finished(process: subprocess.Popen[str]) -> Result:
    out, err = process.communicate(timeout=30)
    assert process.returncode in (0, 1, 3), err
    result: Result = json.loads(out)
    assert process.returncode == {"ok": 0, "failed": 1, "unknown": 3}[result["verdict"]]
    return result


def said(result: Result, cause: str) -> Result:
    """The finding of a cause."""
    return next(finding for finding in result["findings"] if finding["cause"] == cause)


def named(result: Result) -> tuple[str, list[int]]:
    return result["cause"], result["ranks"]


def test_healthy(pods: World) -> None:
    """Contract: a healthy job of four takes at most 2 s, and every rank knows that all pairs are fine."""
    results = play(pods)
    for rank, result in results.items():
        assert result["verdict"] == "ok", (rank, result)
        assert (result["missing"], result["whole"], sorted(result["rows"])) == (
            [],
            True,
            ["0", "1", "2", "3"],
        )
    assert results[0]["seconds"] <= 2


@pytest.mark.parametrize(
    ("rank", "variables", "cause"),
    [
        (3, {"WORLD_SIZE": "6", "NPROC_PER_NODE": "1"}, "variables.world_size"),
        (1, {"MASTER_PORT": "http"}, "variables.master_port"),
        (2, {"WORLD_SIZE": "1"}, "variables.world_of_one"),
        (1, {"GLOO_SOCKET_IFNAME": "ens5"}, "variables.interface"),
        (2, {"NODE_RANK": "1"}, "variables.node_rank_twice"),
    ],
)
def test_variables(pods: World, rank: int, variables: dict[str, str], cause: str) -> None:
    """Contract: a rank with a wrong variable takes part all the same, so that the job names it."""
    results = play(pods, **{f"r{rank}": {"variables": variables}})
    accused = [1] if cause.endswith("twice") else [rank]
    assert [named(result) for result in results.values()] == [(cause, accused)] * 4
    assert results[0]["missing"] == []


def absent(pods: World, rank: int) -> None:
    records = {
        name: where for name, where in pods.zone.records.items() if not name.startswith(f"job-{rank}.")
    }
    pods.serve(replace(pods.zone, records=records))


def test_record_absent(pods: World) -> None:
    """The rank is there and speaks to others: what lacks is its record."""
    absent(pods, 2)
    assert named(play(pods, deadline=3)[0]) == ("dns.no_record", [2])


def test_a_rank_that_never_came(pods: World) -> None:
    absent(pods, 3)
    results = play(pods, deadline=2, without=(3,))
    for result in results.values():
        assert (named(result), result["missing"]) == (("peer.never_came", [3]), [3])


@pytest.mark.parametrize("cache", ["type", "shared"])
def test_negative_cache(pods: World, cache: str) -> None:
    """Somebody asked before the record was there. The record exists now, and nobody is told."""
    everything = replace(pods.zone, cache=cache)
    pods.serve(everything)
    absent(pods, 2)
    pods.start(0, f"import socket; socket.getaddrinfo('job-2.{DOMAIN}', 1)", module=("-c",)).wait(10)
    pods.serve(everything)
    result = play(pods, deadline=4)[0]
    assert named(result) == ("dns.negative_cached", [2])
    assert "s more" in said(result, "dns.negative_cached")["text"]


def test_waiting_fills_no_negative_cache(pods: World) -> None:
    """Contract: a record that comes late is found at once, also by those who ask plainly afterwards."""
    everything = replace(pods.zone, cache="type")
    pods.serve(everything)
    absent(pods, 2)
    started = [
        pods.start(rank, "--deadline", "8", variables={"NNODES": "4", "WORLD_SIZE": "4"}) for rank in range(4)
    ]
    time.sleep(1.5)
    pods.serve(everything)
    result = finished(started[0])
    assert result["verdict"] == "ok"
    assert result["seconds"] < 4
    plainly = f"import socket; print(socket.getaddrinfo('job-2.{DOMAIN}', 1)[0][4][0])"
    assert pods.start(3, plainly, module=("-c",)).communicate()[0].strip() == pods.address(2)
    for process in started[1:]:
        finished(process)


def test_dns_server_silent(pods: World) -> None:
    """Rank 2 cannot resolve anybody. Rank 0 fetches its row, and so knows why."""
    pods.iptables(pods.gateway, "-A INPUT -i p2 -p udp --dport 53 -j DROP")
    result = play(pods)[0]
    assert (named(result), result["missing"]) == (("dns.server_silent", [2]), [])


def test_dns_server_gone(pods: World) -> None:
    result = play(pods, r2={"nameserver": "10.77.3.2"})[0]
    assert named(result) == ("dns.server_refused", [2])


def test_search_path(pods: World) -> None:
    """A short name that only the right search path completes."""
    result = play(
        pods, all={"variables": SHORT}, r3={"variables": SHORT, "search": "other.svc.cluster.local"}
    )[0]
    assert named(result) == ("dns.search_path", [3])
    assert f"job-0.{DOMAIN}" in said(result, "dns.search_path")["text"]


@pytest.mark.parametrize(
    ("rules", "ranks", "pattern"),
    [
        (["-p tcp --dport 29501 -d 10.77.2.2"], [2], "ingress"),
        (["-p tcp --syn -s 10.77.2.2"], [2], "egress"),
        (["-p tcp --syn -s 10.77.1.2 -d 10.77.2.2"], [1, 2], "pair"),
        (["-s 10.77.1.2 -d 10.77.2.2"], [1, 2], "pair"),
        (
            [f"-p tcp --syn -s 10.77.{s}.2 -d 10.77.{r}.2" for s in (0, 1) for r in (2, 3)],
            [0, 1, 2, 3],
            "boundary",
        ),
    ],
    ids=["ingress", "egress", "one-way", "both-ways", "boundary"],
)
def test_filtered(pods: World, rules: list[str], ranks: list[int], pattern: str) -> None:
    """A rule in the node drops packets. Contract: row, column and block are told apart; nobody is missing."""
    for rule in rules:
        pods.iptables(pods.gateway, f"-A FORWARD {rule} -j DROP")
    results = play(pods)
    for result in results.values():
        assert (named(result), result["missing"]) == (("tcp.filtered", ranks), [])
        assert said(result, "tcp.filtered")["pattern"] == pattern
    assert results[0]["seconds"] <= 4


def test_a_rank_that_is_cut_off(pods: World) -> None:
    """Rank 0 never hears of it; it speaks for its own row."""
    for side in "sd":
        pods.iptables(pods.gateway, f"-A FORWARD -{side} 10.77.2.2 -j DROP")
    results = play(pods, deadline=3)
    assert (named(results[0]), results[0]["missing"]) == (("tcp.filtered", [2]), [2])
    assert (results[2]["cause"], results[2]["whole"]) == ("tcp.filtered", False)


def test_everywhere(pods: World) -> None:
    """A policy for all pods, as the security group that does not name itself."""
    pods.iptables(pods.gateway, "-A FORWARD -p tcp --dport 29501 -j DROP")
    results = play(pods, deadline=2.5)
    assert results[0]["cause"] == results[3]["cause"] == "tcp.filtered"
    assert results[0]["missing"] == [1, 2, 3]


@pytest.mark.parametrize("there", [True, False])
def test_refused(pods: World, there: bool) -> None:
    """A machine that answers with RST: by a rule, or because the process of this rank does not run."""
    if there:
        pods.iptables(
            pods.gateway, f"-A FORWARD -p tcp --dport {PORT} -d 10.77.2.2 -j REJECT --reject-with tcp-reset"
        )
    result = play(pods, deadline=3, without=() if there else (2,))[0]
    assert (named(result), result["missing"]) == (("tcp.refused", [2]), [] if there else [2])


def test_no_route(pods: World) -> None:
    pods.iptables(
        pods.gateway,
        "-A FORWARD -s 10.77.1.2 -d 10.77.2.2 -p tcp --syn -j REJECT --reject-with icmp-host-unreachable",
    )
    result = play(pods)[0]
    assert named(result) == ("tcp.no_route", [1, 2])


def test_another_jobs_master(pods: World) -> None:
    """The name of rank 0 leads to a pod that runs rank 0 of another job."""
    other = pods.start(
        4,
        "--deadline",
        "6",
        variables={"NODE_RANK": "0", "RDZV_ID": "run-other", "NNODES": "4", "WORLD_SIZE": "4"},
    )
    pods.serve(replace(pods.zone, records={**pods.zone.records, f"job-0.{DOMAIN}.": [pods.address(4)]}))
    results = play(pods)
    other.kill()
    other.communicate()
    for result in results.values():
        assert named(result) == ("peer.other_job", [0])
    assert "run-other" in said(results[0], "peer.other_job")["text"]


def test_an_old_address(pods: World) -> None:
    """The record still has the address of a pod that is gone. Where the rank is now is known: it speaks."""
    pods.serve(replace(pods.zone, records={**pods.zone.records, f"job-2.{DOMAIN}.": ["10.77.2.77"]}))
    result = play(pods)[0]
    assert named(result) == ("dns.old_address", [2])
    assert pods.address(2) in said(result, "dns.old_address")["text"]


def test_mtu_black_hole(pods: World) -> None:
    """The link of rank 3 carries 1300 bytes, its end believes 1500, and the node says nothing of it."""
    pods.mtu(3, 1300)
    pods.iptables(pods.gateway, "-A OUTPUT -p icmp -j DROP")
    result = play(pods, deadline=10)[0]
    assert named(result) == ("mtu.black_hole", [3])
    assert "1260 bytes pass" in said(result, "mtu.black_hole")["text"]


def test_port_taken(pods: World) -> None:
    """Another program listens on the port of rank 2. Both sides say so."""
    program = f"import socket,time; s=socket.create_server(('',{PORT})); c=s.accept()[0]; time.sleep(9)"
    squatter = pods.start(2, program, module=("-c",))
    time.sleep(0.3)
    result = play(pods, deadline=6)[0]
    squatter.kill()
    squatter.communicate()
    assert named(result) == ("port.taken", [2])
    assert said(result, "peer.silent")["ranks"] == [2]


def test_small_shared_memory(pods: World) -> None:
    result = play(pods, r1={"setup": "mount -t tmpfs -o size=64k none /dev/shm"})[0]
    assert named(result) == ("shm.small", [1])
    assert "64 KiB" in said(result, "shm.small")["text"]


def test_clock(pods: World, tmp_path: Path) -> None:
    """Linux has one clock for all namespaces. This rank's Python reads one that is 10 minutes ahead."""
    (tmp_path / "sitecustomize.py").write_text(
        "import time; true = time.time; time.time = lambda: true() + 600\n"
    )
    path = {"PYTHONPATH": f"{tmp_path}:{Path.cwd() / 'harness/workers'}"}
    result = play(pods, r2={"variables": path})[0]
    assert named(result) == ("clock.offset", [2])
    offset = re.search(r"rank 2 by \+(\d+\.\d) s", said(result, "clock.offset")["text"])
    assert offset
    assert abs(float(offset[1]) - 600) < 5


def test_versions(pods: World, tmp_path: Path) -> None:
    """Real metadata of two versions, as pip leaves it."""
    paths = {}
    for version in ("2.9.1", "2.8.0"):
        folder = tmp_path / version / f"torch-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
        paths[version] = {"PYTHONPATH": f"{folder.parent}:{Path.cwd() / 'harness/workers'}"}
    result = play(pods, all={"variables": paths["2.9.1"]}, r3={"variables": paths["2.8.0"]})[0]
    assert named(result) == ("versions.torch", [3])


def test_ip_version_6_alone_and_another_interface(tmp_path: Path) -> None:
    """Contract: no name of an interface and no IP version is taken for granted."""
    with world(tmp_path, size=4, interface="net1", versions=(6,)) as pods:
        result = play(pods)[0]
        assert result["verdict"] == "ok", result
        interface = next(finding["text"] for finding in result["findings"] if finding["step"] == "interface")
        assert "net1 (fd77:0::2" in interface or "net1 (fd77::2" in interface


def test_another_ip_version(pods: World) -> None:
    """Rank 1 has no IPv6 address, and the record of rank 2 has nothing else."""
    pods.serve(replace(pods.zone, records={**pods.zone.records, f"job-2.{DOMAIN}.": ["fd77:2::2"]}))
    subprocess.run(["ip", "-n", pods.pod(1), "-6", "addr", "flush", "dev", "eth0"], check=True)
    try:
        result = play(pods)[0]
    finally:
        for line in ("addr add fd77:1::2/64 dev eth0 nodad", "-6 route replace default via fd77:1::1"):
            subprocess.run(["ip", "-n", pods.pod(1), *line.split()], check=True)
    assert named(result) == ("address.family", [1, 2])


def test_without_a_run_id(pods: World) -> None:
    """Contract: who cannot tell its job from another one says so, and does not say ok."""
    result = play(pods, all={"variables": {"RDZV_ID": "-"}})[0]
    assert result["verdict"] == "unknown"
    assert [f["step"] for f in result["findings"] if f["status"] == "unknown"] == [
        "pods",
        "service",
        "greeting",
        "all-reduce",
    ]
