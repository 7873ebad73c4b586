"""netcheck --bandwidth: the MB/s and latency of each pair of four network namespaces, and the name of the
slow rank. A rule on the node drops packets above a rate, so TCP is really slow.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from namespaces import World
from test_netcheck import FOUR, Result, finished, together

RATE = "-m hashlimit --hashlimit-upto 1mb/s --hashlimit-burst 1mb --hashlimit-name {name} -j ACCEPT"


def limit(pods: World, match: str, name: str) -> None:
    """Limit matching packets to 1 MB/s on the node."""
    pods.iptables(pods.gateway, f"-A FORWARD {match} {RATE.format(name=name)}")
    pods.iptables(pods.gateway, f"-A FORWARD {match} -j DROP")


def measure(pods: World, *more: str) -> dict[int, Result]:
    options = ("--deadline", "60", "--bandwidth", *more)
    started = [pods.start(rank, *options, variables=FOUR) for rank in range(4)]
    together(started)
    return {rank: finished(process) for rank, process in enumerate(started)}


def cells(result: Result) -> dict[tuple[int, int], dict[str, Any]]:
    return {
        (int(sender), int(receiver)): cell
        for sender, row in result["rows"].items()
        for receiver, cell in row.items()
        if sender != receiver
    }


def test_every_pair_is_measured(pods: World) -> None:
    """Contract: each of the 12 pairs has a rate and percentiles, within the time that the option's help
    states."""
    results = measure(pods)
    for result in results.values():
        assert result["verdict"] == "ok", result["recommendations"]
        assert len(cells(result)) == 12
        for cell in cells(result).values():
            assert cell["bandwidth"] > 1e6
            assert 0 < cell["p50"] <= cell["p99"] < 1
    assert results[0]["seconds"] < 35


@pytest.mark.nightly
def test_a_slow_link_is_named_with_its_direction(pods: World) -> None:
    limit(pods, "-s 10.77.1.2 -d 10.77.2.2", "link")
    for result in measure(pods).values():
        assert (result["cause"], result["ranks"]) == ("tcp.slow", [1, 2]), result["findings"]
        (finding,) = (one for one in result["findings"] if one["cause"])
        assert "the link rank 1 → rank 2 is slow" in finding["text"]
        assert cells(result)[1, 2]["bandwidth"] < 3e6 < cells(result)[2, 1]["bandwidth"]


@pytest.mark.nightly
def test_a_slow_node_is_named(pods: World) -> None:
    limit(pods, "-s 10.77.2.2", "from")
    limit(pods, "-d 10.77.2.2", "to")
    result = measure(pods)[3]
    assert (result["cause"], result["ranks"]) == ("tcp.slow", [2]), result["findings"]
    assert "all traffic of rank 2 is slow" in json.dumps(result, ensure_ascii=False)


@pytest.mark.nightly
def test_what_a_slow_node_sends_alone_is_named(pods: World) -> None:
    limit(pods, "-s 10.77.3.2", "from")
    result = measure(pods)[0]
    assert (result["cause"], result["ranks"]) == ("tcp.slow", [3]), result["findings"]


def test_a_failing_pair_prevents_every_bandwidth_measurement(pods: World) -> None:
    """Contract: if a pair fails, no rank measures the bandwidth, and no rates are reported."""
    pods.iptables(pods.gateway, "-A FORWARD -p tcp --syn -s 10.77.1.2 -d 10.77.2.2 -j DROP")
    result = measure(pods)[0]
    assert result["cause"] == "tcp.filtered"
    assert not any(cell["bandwidth"] for cell in cells(result).values())
