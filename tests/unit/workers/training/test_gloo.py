"""What GLOO_SOCKET_IFNAME may hold: gloo takes names of interfaces alone."""

import pytest

from harness.workers.training import gloo


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("eth0", ""),
        ("eth0,ens5", ""),
        ("eth0.100", ""),
        ("^lo,docker", "found '^lo', which NCCL accepts but gloo does not"),
        ("eth0,=ens5", "found '=ens5', which NCCL accepts"),
        ("10.244.1.7", "as eth0; found the address 10.244.1.7"),
        ("fd00::7", "found the address fd00::7"),
    ],
)
def test_what_cannot_be_a_name_is_told(value: str, message: str) -> None:
    assert message in gloo.problem(value)
    assert bool(message) == bool(gloo.problem(value))


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, ""),
        ({gloo.GLOO: ""}, ""),
        ({gloo.GLOO: "eth0"}, ""),
        ({gloo.GLOO: "lo,eth0"}, ""),
        ({gloo.GLOO: "eth0:1"}, ""),
        (
            {gloo.GLOO: "ens5"},
            "GLOO_SOCKET_IFNAME=ens5: the pod has no interface 'ens5'. The pod has the interfaces eth0, lo",
        ),
        (
            {gloo.GLOO: "^lo"},
            "GLOO_SOCKET_IFNAME=^lo: the name of an interface is expected; found '^lo', which NCCL",
        ),
    ],
)
def test_an_interface_that_the_pod_lacks_is_told(environment: dict[str, str], message: str) -> None:
    found = gloo.missing(environment, ["lo", "eth0"])
    assert found.startswith(message)
    assert bool(found) == bool(message)


def test_the_interfaces_of_this_host_are_known() -> None:
    assert gloo.missing({gloo.GLOO: "lo"}) == ""
    assert ", lo" in f", {gloo.missing({gloo.GLOO: 'no-such-name'}).rpartition('has ')[2]}"
