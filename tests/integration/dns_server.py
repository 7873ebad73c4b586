"""A real DNS server for tests: records, NXDOMAIN with SOA, a negative cache, silence, delay, errors.

It caches "no such name" by name and type, as CoreDNS does, or by name alone (`shared`), as RFC 2308
specifies. If it runs as a program (`python dns_server.py FILE ADDRESS PORT`), it reads its zone from a JSON
file, which may change.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

A, AAAA, SOA = 1, 28, 6


@dataclass(frozen=True)
class Zone:
    """`records` maps full names to addresses. `ttl` is the TTL of a negative response in seconds. `since` is
    the number of seconds after the first query during which there are no records.
    """

    records: dict[str, list[str]] = field(default_factory=dict)
    ttl: int = 30
    cache: str = ""
    """The key of the negative cache: "type" for name and type, "shared" for the name alone, or "" for no
    cache."""
    silent: bool = False
    code: int = 0
    delay: float = 0.0
    truncate: bool = False
    """Whether UDP responses are marked as truncated."""


class Server:
    """Responds over UDP and TCP in threads. `zone` can be replaced at any time. `asked` contains the (name,
    type) of each query."""

    def __init__(self, zone: Zone, address: str = "127.0.0.1", port: int = 0) -> None:
        self.zone = zone
        self.asked: list[tuple[str, int]] = []
        self._kept: dict[tuple[str, int], float] = {}
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._tcp = socket.create_server((address, port), family=family, dualstack_ipv6=address == "::")
        self.port: int = self._tcp.getsockname()[1]
        self._udp = socket.socket(family, socket.SOCK_DGRAM)
        self._udp.bind((address, self.port))
        self._closed = False
        self._serving = threading.Thread(target=self._serve_udp, daemon=True)
        self._serving.start()
        threading.Thread(target=self._serve_tcp, daemon=True).start()

    def close(self) -> None:
        """Stop the server, including threads that are waiting for a query, which would otherwise keep the
        port in use."""
        self._closed = True
        self._tcp.shutdown(socket.SHUT_RDWR)
        self._tcp.close()
        with socket.socket(self._udp.family, socket.SOCK_DGRAM) as waking:
            waking.sendto(b"", self._udp.getsockname())
        self._serving.join()
        self._udp.close()

    def _serve_udp(self) -> None:
        while True:
            question, client = self._udp.recvfrom(4096)
            if self._closed:
                return
            answer = self.answer(question, over_udp=True)
            if answer is not None:
                self._udp.sendto(answer, client)

    def _serve_tcp(self) -> None:
        while True:
            try:
                connection, _ = self._tcp.accept()
            except OSError:
                return
            with connection:
                question = connection.recv(4096)
                answer = self.answer(question[2:], over_udp=False)
                if answer is not None:
                    connection.sendall(struct.pack("!H", len(answer)) + answer)

    def answer(self, question: bytes, over_udp: bool) -> bytes | None:
        """Return the response to one message, or None for no response."""
        zone, at = self.zone, 12
        labels = []
        while question[at]:
            labels.append(question[at + 1 : at + 1 + question[at]].decode())
            at += question[at] + 1
        name, kind = ".".join(labels).lower() + ".", int.from_bytes(question[at + 1 : at + 3], "big")
        self.asked.append((name, kind))
        time.sleep(zone.delay)
        if zone.silent:
            return None
        asked = question[12 : at + 5]

        def message(
            code: int, answers: bytes = b"", count: int = 0, authority: bytes = b"", flags: int = 0
        ) -> bytes:
            header = struct.pack(
                "!6H", *struct.unpack("!H", question[:2]), 0x8580 | flags | code, 1, count, bool(authority), 0
            )
            return header + asked + answers + authority

        if zone.truncate and over_udp:
            return message(0, flags=0x0200)
        if zone.code:
            return message(zone.code)
        key, now = (name, 0 if zone.cache == "shared" else kind), time.monotonic()
        kept = self._kept.get(key, 0.0) - now
        if zone.cache and kept > 0:
            return message(3, authority=self._soa(int(kept), zone.ttl))
        addresses = zone.records.get(name)
        if addresses is None:
            self._kept[key] = now + zone.ttl
            return message(3, authority=self._soa(zone.ttl, zone.ttl))
        family = {A: socket.AF_INET, AAAA: socket.AF_INET6}.get(kind)
        fit = [each for each in addresses if (":" in each) == (family == socket.AF_INET6)] if family else []
        if not fit:
            return message(0, authority=self._soa(zone.ttl, zone.ttl))
        data = [socket.inet_pton(family, each) for each in fit]  # type: ignore[arg-type]
        return message(
            0, b"".join(struct.pack("!HHHIH", 0xC00C, kind, 1, 5, len(d)) + d for d in data), len(data)
        )

    @staticmethod
    def _soa(ttl: int, minimum: int) -> bytes:
        data = b"\x02ns\0\x04mail\0" + struct.pack("!5I", 1, 60, 60, 60, minimum)
        return b"\x07cluster\x05local\0" + struct.pack("!HHIH", SOA, 1, ttl, len(data)) + data


def main(path: str, address: str, port: int) -> None:
    """Serve the zone in a file, which may change."""
    server = Server(Zone(silent=True), address, port)
    last = ""
    while True:
        text = Path(path).read_text()
        if text and text != last:
            zone = Zone(**json.loads(text))
            if replace(zone, records={}) != replace(server.zone, records={}):
                server._kept.clear()
            server.zone, last = zone, text
        time.sleep(0.02)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
