"""The address on which gloo or NCCL would listen, in their own syntax."""

from __future__ import annotations

import pytest

from harness.workers.netcheck.socket_ifname import check_names, gloo, matching, nccl

OWN = {
    "127.0.0.1": "lo",
    "172.17.0.1": "docker0",
    "10.0.0.5": "eth0",
    "10.0.1.5": "eth10",
    "192.168.4.2": "bond0.2973",
    "fd00::5": "eth0",
    "fd01::5": "net1",
}


@pytest.mark.parametrize(
    ("value", "selected"),
    [
        ("eth0", ["eth0"]),
        ("eth", ["eth0", "eth10"]),
        ("eth1", ["eth10"]),
        ("=eth1", []),
        ("=eth0,net1", ["eth0", "net1"]),
        ("=eth", []),
        ("^lo,docker", ["eth0", "eth10", "bond0.2973", "net1"]),
        ("^eth", ["lo", "docker0", "bond0.2973", "net1"]),
        ("^=eth1", ["lo", "docker0", "eth0", "eth10", "bond0.2973", "net1"]),
        ("^=eth0", ["lo", "docker0", "eth10", "bond0.2973", "net1"]),
        ("ib,mlx,net", ["net1"]),
        ("net1,", ["net1"]),
        ("eth0:5000", ["eth0"]),
        ("ens5", []),
        ("ETH0", []),
        (" eth0", []),
    ],
)
def test_nccl_selects_interfaces_by_its_own_syntax(value: str, selected: list[str]) -> None:
    assert matching(value, dict.fromkeys(OWN.values())) == selected
    assert bool(list(check_names({"NCCL_SOCKET_IFNAME": value}, OWN))) == (not selected)


def test_nccl_uses_link_local_address_without_alternative() -> None:
    """NVIDIA/nccl#1291: `ib0` has no IP address, and NCCL prefers it to the interface of the pod."""
    own = {**OWN, "fe80::1%2": "eth0", "fe80::7%5": "ib0"}
    assert [
        found.address for found in (nccl({}, own), nccl({"NCCL_SOCKET_IFNAME": "=eth0"}, own)) if found
    ] == [
        "fe80::7%5",
        "10.0.0.5",
    ]
    assert not list(check_names({"NCCL_SOCKET_IFNAME": "ib"}, own, alone=False))


@pytest.mark.parametrize("value", ["", "l", "x"])
def test_nccl_ignores_values_of_one_character(value: str) -> None:
    assert not list(check_names({"NCCL_SOCKET_IFNAME": value}, OWN, alone=False))


@pytest.mark.parametrize(
    ("variables", "address"),
    [
        ({}, "10.0.0.5"),
        ({"NCCL_SOCKET_FAMILY": "AF_INET6"}, "fd00::5"),
        ({"NCCL_SOCKET_IFNAME": "net1"}, "fd01::5"),
        ({"NCCL_SOCKET_IFNAME": "^eth,lo"}, "172.17.0.1"),
        ({"NCCL_SOCKET_IFNAME": "net1", "NCCL_SOCKET_FAMILY": "AF_INET"}, None),
        ({"NCCL_SOCKET_IFNAME": "ens5"}, None),
    ],
)
def test_nccl_listens_on_the_first_address_that_it_selects(
    variables: dict[str, str], address: str | None
) -> None:
    found = nccl(variables, OWN)
    assert (found and found.address) == address


def test_nccl_prefers_infiniband_and_takes_docker_before_loopback() -> None:
    found = nccl({}, {"127.0.0.1": "lo", "10.0.0.5": "eth0", "10.9.0.5": "ib0"})
    assert found is not None
    assert found.address == "10.9.0.5"
    found = nccl({}, {"127.0.0.1": "lo", "172.17.0.1": "docker0"})
    assert found is not None
    assert found.address == "172.17.0.1"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("eth0", None),
        ("eth0,net1", None),
        ("eth", "names no interface"),
        ("=eth0", "without = or ^"),
        ("^lo", "without = or ^"),
        ("eth0,ens5", "names no interface"),
        ("lo", "other hosts cannot reach"),
        ("eth0,", "names no interface"),
    ],
)
def test_gloo_takes_exact_names_only(value: str, text: str | None) -> None:
    found = list(check_names({"GLOO_SOCKET_IFNAME": value}, OWN, alone=False))
    assert [finding.cause for finding in found] == (["variables.interface"] if text else [])
    assert not text or text in found[0].text


def test_loopback_alone_is_enough_for_one_node_only() -> None:
    assert not list(check_names({"NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}, OWN))
    (found,) = check_names({"NCCL_SOCKET_IFNAME": "=lo"}, OWN, alone=False)
    assert "selects only lo" in found.text


def test_gloo_listens_on_the_interface_that_its_variable_names() -> None:
    found = gloo({"GLOO_SOCKET_IFNAME": "net1,eth0"}, OWN)
    assert found is not None
    assert (found.address, found.loopback) == ("fd01::5", False)
    assert gloo({"GLOO_SOCKET_IFNAME": "ens5"}, OWN) is None
