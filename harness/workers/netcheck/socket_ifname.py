"""Determine the address on which gloo or NCCL would listen, and check the variables that select it.

gloo and NCCL choose an interface themselves. The address that they then send to the other ranks may differ
from the address to which the rank's name resolves.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from .finding import Finding, failed
from .interfaces import with_link_local

GLOO, NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
LOOPBACK = "lo"
_DEFAULTS = ("ib", "^docker,lo", "docker", "lo")
"""The values that NCCL tries, in this order, if NCCL_SOCKET_IFNAME is not set."""


@dataclass(frozen=True)
class Binding:
    """The address on which `library` (gloo or NCCL) would listen, and the reason as a clause."""

    library: str
    address: str
    reason: str

    @property
    def loopback(self) -> bool:
        return ipaddress.ip_address(self.address).is_loopback


def matching(value: str, names: Iterable[str]) -> list[str]:
    """Return the interfaces that a value in NCCL's syntax selects.

    The value is a list of prefixes. With a leading `=`, they are exact names. With `^`, the matching
    interfaces are excluded, and with `^=` those with exactly these names. A port after a colon is ignored.
    """
    excludes, rest = value.startswith("^"), value[1:] if value.startswith("^") else value
    exact, rest = rest.startswith("="), rest[1:] if rest.startswith("=") else rest
    prefixes = [name for word in rest.split(",") if (name := word.partition(":")[0])]

    def listed(name: str) -> bool:
        return not prefixes or any(name == one if exact else name.startswith(one) for one in prefixes)

    return [name for name in names if listed(name) != excludes]


def nccl(variables: Mapping[str, str], own: Mapping[str, str]) -> Binding | None:
    """Return NCCL's binding, or None if NCCL does not find an interface.

    `own` maps addresses to interfaces. Link-local addresses must come last, because NCCL lists an interface's
    other addresses first.
    """
    version = {"AF_INET": 4, "AF_INET6": 6}.get(variables.get("NCCL_SOCKET_FAMILY", ""))
    candidates = {a: name for a, name in own.items() if version in (None, ipaddress.ip_address(a).version)}
    setting = _nccl_value(variables)
    for value in [setting] if setting else _DEFAULTS:
        names = matching(value, dict.fromkeys(candidates.values()))
        for address, name in candidates.items():
            if name in names:
                reason = (
                    f"{NCCL}={setting} selects {name}"
                    if setting
                    else f"{name} is the interface that it selects"
                )
                return Binding("NCCL", address, reason)
    return None


def gloo(variables: Mapping[str, str], own: Mapping[str, str]) -> Binding | None:
    """Return gloo's binding, or None if its interface has no address.

    Without GLOO_SOCKET_IFNAME, gloo resolves this host's own name and uses the first address that it can bind
    to, or loopback if there is none. Resolving the name may take several seconds.
    """
    if value := variables.get(GLOO, ""):
        interface = value.split(",")[0]
        address = next((address for address, name in own.items() if name == interface), None)
        return Binding("gloo", address, f"{GLOO}={value}") if address else None
    host = socket.gethostname()
    try:
        addresses = [str(each[4][0]) for each in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except OSError:
        return Binding("gloo", "127.0.0.1", "this host's own name has no address")
    bindable = next((address for address in addresses if _binds(address)), None)
    if bindable is None:
        return Binding(
            "gloo",
            "127.0.0.1",
            f"this host's own name resolves to {addresses[0]}, which belongs to another host",
        )
    return Binding("gloo", bindable.partition("%")[0], f"this host's own name resolves to {bindable}")


def check_names(
    variables: Mapping[str, str], own: Mapping[str, str] | None = None, alone: bool = True
) -> Iterator[Finding]:
    """Yield a finding for each variable that does not select usable interfaces of this host.

    NCCL_SOCKET_IFNAME must match an interface other than loopback. GLOO_SOCKET_IFNAME must not name loopback
    or a missing interface. `alone` means that the job has one node, for which loopback is enough. `own` maps
    this host's addresses to interfaces.
    """
    names = dict.fromkeys((with_link_local() if own is None else own).values())
    present = ", ".join(sorted(names))
    if value := _nccl_value(variables):
        matches = matching(value, names)
        if not matches:
            text = f"{NCCL}={value} selects no interface of this host, which has {present}"
            yield failed("variables.interface", text)
        elif not alone and set(matches) == {LOOPBACK}:
            text = f"{NCCL}={value} selects only {LOOPBACK}, which other hosts cannot reach"
            text += f"; this host has {present}"
            yield failed("variables.interface", text)
    if value := variables.get(GLOO, ""):
        missing = [name for name in value.split(",") if name not in names]
        if missing:
            text = f"{GLOO}={value}: {missing[0]!r} names no interface of this host, which has {present}"
            text += "; gloo expects exact names without = or ^" if missing[0][:1] in ("=", "^") else ""
            yield failed("variables.interface", text)
        elif not alone and LOOPBACK in value.split(","):
            text = f"{GLOO}={value} names {LOOPBACK}, which other hosts cannot reach; this host has {present}"
            yield failed("variables.interface", text)


def _nccl_value(variables: Mapping[str, str]) -> str:
    """Return NCCL_SOCKET_IFNAME, or "" if it is shorter than two characters, which NCCL ignores."""
    value = variables.get(NCCL, "")
    return value if len(value) > 1 else ""


def _binds(address: str) -> bool:
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as own:
            own.bind((address, 0))
    except OSError:
        return False
    return True
