"""Check GLOO_SOCKET_IFNAME, the network interface for gloo."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterable, Mapping

GLOO = "GLOO_SOCKET_IFNAME"


def problem(value: str) -> str:
    """Return the reason why a GLOO_SOCKET_IFNAME value is invalid, or "" if it is valid.

    gloo accepts a comma-separated list of names. NCCL_SOCKET_IFNAME also accepts `^NAME` and `=NAME`.
    """
    for name in value.split(","):
        if name.startswith(("^", "=")):
            expected = "the name of an interface is expected"
            return f"{expected}; found {name!r}, which NCCL accepts but gloo does not"
        try:
            ipaddress.ip_address(name)
        except ValueError:
            continue
        return f"the name of an interface is expected, such as eth0; found the address {name}"
    return ""


def missing(environment: Mapping[str, str] = os.environ, interfaces: Iterable[str] | None = None) -> str:
    """Return the reason why gloo cannot use the interfaces in GLOO_SOCKET_IFNAME, or "" if it can.

    `interfaces` contains the names of the pod's interfaces. None means the interfaces of this host.
    """
    value = environment.get(GLOO, "")
    if not value:
        return ""
    names = sorted(interfaces if interfaces is not None else (name for _, name in socket.if_nameindex()))
    missing_names = [name for name in value.split(",") if name.partition(":")[0] not in names]
    if not missing_names:
        return ""
    reason = problem(value) or f"the pod has no interface {missing_names[0]!r}"
    return f"{GLOO}={value}: {reason}. The pod has the interfaces {', '.join(names)}"
