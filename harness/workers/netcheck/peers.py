"""Determine the addresses of the other ranks from a list, a pattern, or this pod's own name."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from pathlib import Path

from .name_resolution import HOSTS
from .variables import is_host


@dataclass(frozen=True)
class Peer:
    """A host name or IP address, and a port.

    `port` is the greeting server's port. None means the port that all ranks share.
    """

    host: str
    port: int | None = None

    def __str__(self) -> str:
        return self.host if self.port is None else f"{self.host}:{self.port}"


def parse(text: str) -> list[Peer]:
    """Return the peers in a comma-separated list.

    `job-{0..3}.svc` expands to four peers, and `[fd00::1]:29501` includes a port. Raises ValueError for an
    empty list, an invalid name or an invalid port.
    """
    result = [Peer(*_split(each)) for word in _words(text) for each in _expanded(word)]
    if not result:
        raise ValueError("the list of peers is empty")
    return result


def derive(master: str, rank: int | None, nodes: int | None, own: str | None = None) -> list[Peer]:
    """Return the peers if pod names have the form `NAME-<index>.SERVICE` (Indexed Job, StatefulSet, JobSet).

    `own` is this pod's full name. Returns [] if neither `own` nor `master` has this form.
    """
    if rank is None or nodes is None:
        return []
    for name, index in ((master, 0), (full_name() if own is None else own, rank)):
        first, dot, domain = name.partition(".")
        match = re.fullmatch(r"(.+-)(\d+)", first)
        if match and dot and int(match[2]) == index:
            return [Peer(f"{match[1]}{each}.{domain}") for each in range(nodes)]
    return []


def full_name(hosts: str = HOSTS) -> str:
    """Return this host's name as the kubelet wrote it to /etc/hosts, including the Service name if any."""
    own = socket.gethostname()
    try:
        words = Path(hosts).read_text(encoding="utf-8", errors="replace").split()
    except OSError:
        words = []
    return next((word for word in words if word.startswith(f"{own}.")), own)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _expanded(word: str) -> list[str]:
    match = re.fullmatch(r"(.*)\{(\d+)\.\.(\d+)\}(.*)", word)
    if not match:
        return [word]
    return [f"{match[1]}{index}{match[4]}" for index in range(int(match[2]), int(match[3]) + 1)]


def _split(text: str) -> tuple[str, int | None]:
    match = re.fullmatch(r"\[([^\]]+)\](?::(\d+))?|([^:\[\]]+)(?::(\d+))?|([0-9a-fA-F:.]+)", text)
    host = (match[1] or match[3] or match[5]) if match else ""
    port = int(match[2] or match[4] or 0) if match else 0
    if not is_host(host) or port > 65535:
        raise ValueError(f"{text!r} is not a valid host or host:port")
    return host, port or None
