"""Find this host's address and interface on the kernel's route to another host."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import struct
import time
from collections.abc import Iterable, Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from .finding import Finding, failed, ok

_SIOCGIFCONF, _SIOCGIFMTU = 0x8912, 0x8921
_IFREQ = 40
INFINIBAND = "/sys/class/infiniband"
RECENT = 0.5
_LAST: list[tuple[float, dict[str, str]]] = []
"""The result of the last call to `addresses`, and its monotonic time."""
SOCKETS = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


@dataclass(frozen=True)
class Route:
    """The interface on the route to `target`, this host's address on it, and the interface's MTU in bytes."""

    target: str
    interface: str
    address: str
    mtu: int


def addresses() -> dict[str, str]:
    """Return this host's addresses and their interface names, without IPv6 link-local addresses."""
    return dict([*_version_4(), *_version_6()])


def with_link_local() -> dict[str, str]:
    """Return the result of `addresses`, followed by the IPv6 link-local addresses, such as `fe80::1%2`.

    The part after `%` is the index of the interface on this host.
    """
    return {**addresses(), **dict(_link_local())}


def recent_addresses() -> dict[str, str]:
    """Return the result of `addresses`, at most RECENT seconds old.

    It is cached because each probe needs it.
    """
    now = time.monotonic()
    if not _LAST or now - _LAST[0][0] > RECENT:
        _LAST[:] = [(now, addresses())]
    return _LAST[0][1]


def reachable(own: Iterable[str]) -> list[str]:
    """Return the addresses that are not loopback addresses."""
    return [address for address in own if not ipaddress.ip_address(address).is_loopback]


def families(own: Iterable[str]) -> set[int]:
    """Return the IP versions (4, 6) for which the host has a non-loopback address."""
    return {ipaddress.ip_address(address).version for address in reachable(own)}


def route_to(address: str) -> Route:
    """Return the route to an IP address without sending a packet. Raises OSError if there is no route."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as asking:
        asking.connect((address, 9))
        own = asking.getsockname()[0]
        interface = recent_addresses().get(own, "")
        return Route(address, interface, own, _mtu(asking, interface) if interface else 0)


def check(address: str, alone: bool = False) -> Finding:
    """Check that other ranks can respond to the source address of packets that this host sends to `address`.

    `alone` means that the job has one node, so loopback addresses are sufficient.
    """
    own = recent_addresses()
    own_families = families(own)
    if not own_families and not alone:
        return failed("address.none", f"this host has only loopback addresses: {', '.join(own) or 'none'}")
    version = ipaddress.ip_address(address).version
    if version not in own_families and not alone:
        versions = " and ".join(f"IPv{family}" for family in sorted(own_families))
        return failed(
            "address.family", f"rank 0 is at {address}, but this host has only {versions} addresses"
        )
    try:
        route = route_to(address)
    except OSError as error:
        return failed("tcp.no_route", f"no route to {address}: {error.strerror}")
    if ipaddress.ip_address(route.address).is_loopback and not alone:
        return failed(
            "address.loopback",
            f"the name of rank 0 resolves to {address}, which is a loopback address of this pod",
        )
    return ok(
        "interface", f"{route.interface} ({route.address}, MTU {route.mtu}) is on the route to {address}"
    )


def infiniband(folder: str = INFINIBAND) -> tuple[str, ...]:
    """Return the names of the InfiniBand (RDMA) devices that have an active port."""
    states = Path(folder).glob("*/ports/*/state")
    return tuple(sorted({path.parents[2].name for path in states if "ACTIVE" in _text(path)}))


def setup_networking(
    address: str | None = None,
    variables: MutableMapping[str, str] | None = None,
    *,
    folder: str = INFINIBAND,
) -> tuple[dict[str, str], list[str]]:
    """Make gloo and NCCL use the interface on the route to `address`, an IP address of rank 0.

    Returns the new variables, and a sentence with the reason for each variable. Existing variables are not
    changed, and InfiniBand is never disabled. Raises OSError if there is no route.
    """
    environ = os.environ if variables is None else variables
    new_variables: dict[str, str] = {}
    reasons: list[str] = []
    route = route_to(address) if address else None
    for name in SOCKETS:
        if environ.get(name):
            reasons.append(f"{name}={environ[name]} stays unchanged: it was already set")
        elif route is not None and route.interface not in ("", "lo"):
            # For NCCL, a name is a prefix, so eth1 also matches eth10. "=" makes the match exact.
            # gloo expects one exact name.
            new_variables[name] = environ[name] = (
                f"={route.interface}" if name.startswith("NCCL") else route.interface
            )
            reasons.append(
                f"{name}={new_variables[name]}: the interface ({route.address}) "
                f"is on the route to {route.target}"
            )
    devices = infiniband(folder)
    if devices and environ.get("NCCL_IB_DISABLE") == "1":
        reasons.append(
            f"NCCL_IB_DISABLE=1 turns off {', '.join(devices)}: unset it unless InfiniBand is broken"
        )
    elif devices:
        reasons.append(f"InfiniBand {', '.join(devices)} is active and stays enabled")
    return new_variables, reasons


def _version_4() -> Iterator[tuple[str, str]]:
    size = 256 * _IFREQ
    buffer = bytearray(size)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        pointer = memoryview(buffer)
        import ctypes

        at = ctypes.addressof(ctypes.c_char.from_buffer(pointer))
        length = struct.unpack("iL", fcntl.ioctl(asking, _SIOCGIFCONF, struct.pack("iL", size, at)))[0]
    for start in range(0, length, _IFREQ):
        name = bytes(buffer[start : start + 16]).split(b"\0")[0].decode()
        yield socket.inet_ntoa(bytes(buffer[start + 20 : start + 24])), name.partition(":")[0]


def _version_6() -> Iterator[tuple[str, str]]:
    return ((str(address), name) for address, _, name in _if_inet6() if not address.is_link_local)


def _link_local() -> Iterator[tuple[str, str]]:
    return ((f"{address}%{index}", name) for address, index, name in _if_inet6() if address.is_link_local)


def _if_inet6() -> Iterator[tuple[ipaddress.IPv6Address, int, str]]:
    """Yield each IPv6 address of this host, and the index and name of its interface."""
    for line in _text(Path("/proc/net/if_inet6")).splitlines():
        raw, index, *_, name = line.split()
        yield ipaddress.IPv6Address(bytes.fromhex(raw)), int(index, 16), name


def _mtu(client: socket.socket, interface: str) -> int:
    request = struct.pack("16s24x", interface.encode())
    return int(struct.unpack_from("i", fcntl.ioctl(client, _SIOCGIFMTU, request), 16)[0])


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
