"""A firewall that rejects connections is identified with any number of pods, and no healthy rank is accused.
iptables rules in the router represent the node's firewall, and rules in a pod represent the pod's own
firewall.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from namespaces import World, world
from test_netcheck import PORT, Result, finding_of, finished, together

SYN = "-p tcp --syn"
HOST_PROHIBITED = "icmp-host-prohibited"


def play(pods: World, deadline: float = 20.0) -> dict[int, Result]:
    """Run netcheck in all pods at the same time, and return the result of each."""
    size = {"NNODES": str(pods.size), "WORLD_SIZE": str(pods.size)}
    started = [pods.start(rank, "--deadline", str(deadline), variables=size) for rank in range(pods.size)]
    together(started)
    return {rank: finished(process) for rank, process in enumerate(started)}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("world"), size=2) as made:
        yield made


@pytest.mark.parametrize(
    ("rule", "how", "accused"),
    [
        pytest.param(f"FORWARD {SYN} --dport {PORT} -d 10.77.1.2", HOST_PROHIBITED, [0, 1], id="on-the-way"),
        pytest.param(f"FORWARD {SYN} --dport {PORT} -d 10.77.1.2", "tcp-reset", [0, 1], id="reset"),
        pytest.param(f"INPUT {SYN} --dport {PORT}", "icmp-admin-prohibited", [1], id="in-the-pod"),
    ],
)
def test_of_two_pods_only_one_that_rejects_is_accused(
    two: World, rule: str, how: str, accused: list[int]
) -> None:
    """Contract: both are accused only if a machine between them sends the message."""
    where = two.pod(1) if rule.startswith("INPUT") else two.gateway
    two.iptables(where, f"-A {rule} -j REJECT --reject-with {how}")
    results = play(two)
    two.reset()
    for result in results.values():
        found = (result["cause"], result["ranks"], result["missing"])
        assert found == ("tcp.rejected", accused, []), result["findings"]
        assert "firewall" in finding_of(result, "tcp.rejected")["text"]


@pytest.mark.nightly
@pytest.mark.parametrize("size", [16, 64])
def test_a_rejected_rank_of_many_is_named(tmp_path: Path, size: int) -> None:
    with world(tmp_path, size=size) as pods:
        rule = f"FORWARD {SYN} -d {pods.address(5)} -j REJECT --reject-with {HOST_PROHIBITED}"
        pods.iptables(pods.gateway, f"-A {rule}")
        results = play(pods, deadline=120)
    for result in results.values():
        assert (result["cause"], result["ranks"]) == ("tcp.rejected", [5]), result["findings"]
