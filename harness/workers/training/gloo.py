"""The interface that gloo is told to use, by GLOO_SOCKET_IFNAME."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterable, Mapping

GLOO = "GLOO_SOCKET_IFNAME"


def problem(value: str) -> str:
    """Return why a value cannot name interfaces for gloo, or "".

    Gloo takes names with commas between them. NCCL_SOCKET_IFNAME also takes `^NAME` and `=NAME`.
    """
    for name in value.split(","):
        if name.startswith(("^", "=")):
            expected = "the name of an interface is expected"
            return f"{expected}; found {name!r}, which NCCL understands and gloo does not"
        try:
            ipaddress.ip_address(name)
        except ValueError:
            continue
        return f"the name of an interface is expected, as eth0; found the address {name}"
    return ""


def missing(environment: Mapping[str, str] = os.environ, there: Iterable[str] | None = None) -> str:
    """Return why gloo will find no interface by its variable in this pod, or "".

    `there` are the names of the pod's interfaces; None means those of this host.
    """
    value = environment.get(GLOO, "")
    if not value:
        return ""
    names = sorted(there if there is not None else (name for _, name in socket.if_nameindex()))
    lacking = [name for name in value.split(",") if name.partition(":")[0] not in names]
    if not lacking:
        return ""
    why = problem(value) or f"the pod has no interface {lacking[0]!r}"
    return f"{GLOO}={value}: {why}. The pod has {', '.join(names)}"
