"""Probe a peer until all steps succeed: resolve, connect, greet, and send full packets."""

from __future__ import annotations

import ipaddress
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from .finding import OK
from .greeting import PATIENCE, Greeted, Hello, greet
from .interfaces import families, recent_addresses
from .messages import Stream
from .mtu import SECONDS, fill
from .name_resolution import Lookup, Names
from .peers import Peer
from .reach import CONNECT_SECONDS, REJECTED, connect

PENDING = "pending"
ADVERTISED = "dns.advertised"
RESPONDED = (OK, ADVERTISED, "address.advertised", "mtu.black_hole")
"""With these outcomes, the peer itself responded to the greeting, so reports can be exchanged with it."""
AGAIN = 0.3
"""If an attempt has had no response for this many seconds, an earlier failure no longer counts, unless it is
in SILENT."""
SILENT = ("tcp.filtered", "tcp.no_route", REJECTED)
"""Failures in which the peer did not send any response."""
UNANSWERED = 1.5
"""A connection attempt counts as filtered if it has had no response for this many seconds. In this time, the
kernel sends at least two SYN packets."""
SERVER = ("dns.server_silent", "dns.server_refused", "dns.server_failed")
"""Outcomes of a DNS lookup for which the server is to blame, not the name."""
SILENCE = ("dns.server_silent", "peer.silent", "mtu.black_hole")
"""After these outcomes, the next attempt has longer timeouts, because the other process may only be slow."""
MAX_PATIENCE = 8.0
"""The maximum factor by which a probe's timeouts are extended."""
ASKED = 1.0
"""If the DNS server has not answered for this many seconds, the text of a pending cell says so."""
QUICK = 1.2
"""Connection timeout in seconds if the probe tries several ports. In this time, the kernel sends at least two
SYN packets."""
UNEXPECTED = ("peer.silent", "peer.not_netcheck", "peer.other_job", "peer.other_rank", "tcp.reset")
"""Outcomes that suggest that another program or a different rank listens on the port."""
_STRIDE, _ALTERNATIVES = 16, 7


def alternatives(port: int) -> list[int]:
    """Return the ports on which a rank tries to listen if its own port is in use.

    A pod's processes use consecutive ports, so these alternatives are further apart.
    """
    return [p for k in range(1, _ALTERNATIVES + 1) if (p := port + k * _STRIDE) < 65536]


@dataclass(frozen=True)
class Cell:
    """The result of one rank's probe of another rank. `outcome` is ok, pending or a cause.

    `rank`, `instance` and `run` describe the rank that responded at `address`. `rtt` and `offset` are in
    seconds as in greeting.py, `rate` is in bytes per second, and `at` is the number of seconds from the start
    of the probe to the result. With --bandwidth, `bandwidth` is in bytes per second, and `p50` and `p99` are
    in seconds.
    """

    outcome: str
    host: str
    text: str = ""
    address: str = ""
    rank: int | None = None
    instance: str = ""
    run: str = ""
    rtt: float = 0.0
    offset: float = 0.0
    rate: float = 0.0
    at: float = 0.0
    bandwidth: float = 0.0
    p50: float = 0.0
    p99: float = 0.0
    port: int = 0
    """The port to which the probe connected."""
    sender: str = ""
    """The address of the machine whose ICMP message ended the connection attempt, or ""."""
    waited: float = 0.0
    """If no response arrived, the number of seconds that the probe waited for one."""
    listened: bool = False
    """Whether the peer was known to be listening on this port both before and after the attempt
    (member.py)."""
    unrouted: bool = False
    """Whether the probing rank's own routing table has no route to the address."""
    withheld: str = ""
    """The cause of a failure that is not proved, so that the outcome is pending (proof.py)."""

    def as_dict(self) -> dict[str, Any]:
        # dataclasses.asdict would copy each value deeply, which is slow for the 4096 cells of 64 ranks.
        return dict(vars(self))

    def as_message(self) -> dict[str, Any]:
        """Return the cell as keyword arguments for `Cell`. Default values are omitted."""
        return {name: value for name, value in vars(self).items() if value != _DEFAULTS.get(name, _NONE)}


_NONE = object()
_DEFAULTS = {field.name: field.default for field in fields(Cell)}


class Probe:
    """Probes one peer, in its own thread or in a pool, until the probe succeeds or `stop` is set."""

    fills = True
    """Whether the probe also sends full packets."""
    everywhere = False
    """Whether the peer must respond at all addresses of its name. If false, one address is enough."""

    def __init__(
        self,
        peer: Peer,
        port: int,
        own: Hello,
        names: Names,
        stop: threading.Event,
        place: int | None = None,
        also: int = 0,
    ) -> None:
        """`place` is the peer's index in the list of peers. `also` is an additional port to try, or 0.

        With hostNetwork, several ranks may listen at the same address. If only a different rank responds
        there, the probe accepts its response for now, but continues until the peer itself responds. `also` is
        needed because a Service may forward only that port.
        """
        self._peer, self.own, self._names, self._stop = peer, own, names, stop
        self._port, self._place, self._also = peer.port or port, place, also
        self._began = time.monotonic()
        self._calling: tuple[str, float] | None = None
        self._patience = 1.0
        """The factor for timeouts. It grows, because a slow process needs longer to respond."""
        self.listens = 0
        """The port on which the peer is known to listen, or 0."""
        self.delayed: Callable[[float], float] = lambda _: 0.0
        """Returns the number of seconds for which this process was delayed since a monotonic time."""
        self._cell = Cell(PENDING, peer.host, "not tried yet")
        self._pause = 0.1
        """The number of seconds before the probe's next attempt."""
        self._greeted: Stream | None = None
        """The connection on which the peer has just responded to the greeting."""
        self._resolved, self._published = "", ""
        """The full name for which the peer has a DNS record, and the name that torchrun may pass to the
        workers for it."""

    def start(self) -> Probe:
        """Start probing the peer in a new thread."""
        threading.Thread(target=self._run, daemon=True).start()
        return self

    @property
    def host(self) -> str:
        """The peer's name or address."""
        return self._peer.host

    @property
    def names(self) -> Names:
        """The resolver that this probe uses."""
        return self._names

    @property
    def port(self) -> int:
        """The port on which the peer responded, or the common port until then."""
        return self._cell.port or self._port

    @property
    def socket_address(self) -> tuple[str, int]:
        """The (address, port) at which the peer responded. Until it has responded, the address is ""."""
        return self.cell.address, self.port

    @property
    def cell(self) -> Cell:
        """The current result. If a connection attempt gets no response, it counts as filtered.

        This replaces an earlier failure, because the peer may have started in the meantime, but behind a
        filter.
        """
        cell, calling, asking = self._cell, self._calling, self._names.asking
        if cell.outcome == PENDING and asking is not None and time.monotonic() - asking >= ASKED:
            waited = time.monotonic() - asking
            text = f"the DNS server has not answered for {waited:.1f} s"
            return replace(self._of(PENDING, text), withheld="dns.server_silent", waited=waited)
        if cell.outcome != OK and calling is not None:
            address, since = calling
            waited = time.monotonic() - since - self.delayed(since)
            # Kernels rate-limit ICMP messages. So even if a connection was rejected once, the next one may
            # get no response.
            if waited >= UNANSWERED and not cell.sender:
                text = f"{address} port {self._port}: no answer for {waited:.1f} s"
                return self._of("tcp.filtered", text, address)
            if waited >= AGAIN and cell.outcome not in SILENT:
                return self._of(PENDING, f"{address} port {self._port}: no answer yet", address)
        return cell

    def succeed(self, lookup: Lookup, address: str, greeted: Greeted, rate: float) -> bool:
        """Set the result to ok if no further check of the peer is needed. Return whether it was set.

        `rate` is the rate in bytes per second at which the peer received full packets.
        """
        there = greeted.hello
        if there is None or there.instance == self.own.instance or there.bound not in ("", address):
            return False
        cell = self._judged(self._from(greeted, there, address, self._port))
        if there.published.rstrip(".") not in ("", lookup.found.rstrip(".")) or not self._is_it(cell):
            return False
        self._published, self._resolved = there.published, lookup.found
        self._cell = replace(cell, rate=rate)
        return True

    def _run(self) -> None:
        while not self._stop.is_set():
            again = self.attempt()
            if again is None:
                return
            self._stop.wait(again - time.monotonic())

    def attempt(self) -> float | None:
        """Run one attempt.

        Return the monotonic time of the next attempt, or None if the probe has succeeded.
        """
        before, again = self._cell, self._try()
        if before.outcome == OK != self._cell.outcome:
            self._cell = before
        if self._is_it(self._cell):
            return None
        if self._cell.outcome in SILENCE:
            self._patience = min(MAX_PATIENCE, 2 * self._patience)
        pause, self._pause = self._pause, min(1.0, self._pause * 1.6)
        return max(time.monotonic() + pause, again)

    def _try(self) -> float:
        """Resolve the name and probe its addresses once.

        Return the earliest monotonic time for the next attempt.
        """
        found = self._names.look_up(self._peer.host, self._patience)
        if found.cause:
            self._cell = replace(self._of(found.cause, found.text), waited=found.waited)
            return found.again
        own = families(recent_addresses())
        fit = [address for address in found.addresses if ipaddress.ip_address(address).version in own]
        if not fit:
            has = " and ".join(f"IPv{version}" for version in sorted(own)) or "loopback"
            text = f"its addresses are {', '.join(found.addresses)}; this host has only {has} addresses"
            self._cell = self._of("address.family", text, found.addresses[0])
            return 0.0
        self._resolved = found.found
        for address in fit:
            self._cell = self._reach(address)
            if (self._cell.outcome == OK) != self.everywhere:
                break
        return 0.0

    def _reach(self, address: str) -> Cell:
        try:
            return self._reached(address)
        finally:
            self._keep(None)

    def _keep(self, stream: Stream | None) -> None:
        """Keep the connection of the most recent successful greeting, and close the previous one."""
        if self._greeted is not None:
            self._greeted.connection.close()
        self._greeted = stream

    def _reached(self, address: str) -> Cell:
        cell = self._ask(address, self._port, QUICK if self._also else CONNECT_SECONDS)
        if not self._is_it(cell):
            cell = self._elsewhere(address, cell)
        if cell.outcome != OK or cell.instance == self.own.instance or not self.fills:
            return cell
        if self._cell.outcome == OK and self._cell.instance == cell.instance:
            return self._cell
        if self._cell.outcome == ADVERTISED and self._cell.instance == cell.instance:
            return self._named(replace(cell, rate=self._cell.rate))
        # Sending full packets is slow, so the pending cell already shows which rank responded.
        if self._cell.outcome not in (OK, "mtu.black_hole"):
            self._cell = replace(cell, outcome=PENDING, text="sending full packets")
        seconds = SECONDS * self._patience
        filled = fill(address, cell.port, seconds, self._greeted)
        where = f"{address} port {cell.port}"
        cell = replace(
            cell,
            outcome=filled.cause or OK,
            text=filled.text and f"{where}: {filled.text}",
            rate=filled.rate,
            waited=seconds if filled.cause else 0.0,
        )
        return self._named(cell) if cell.outcome == OK else cell

    def _named(self, cell: Cell) -> Cell:
        """Return the cell, or a failed cell if the name that torchrun passes to the workers does not lead to
        the peer."""
        name = self._published
        if not name or name.rstrip(".") == self._resolved.rstrip("."):
            return cell
        found = self._names.look_up(name, self._patience)
        if cell.address in found.addresses:
            return cell
        if found.cause in SERVER:
            return replace(cell, outcome=found.cause, text=found.text, waited=found.waited)
        said = found.text
        for address in found.addresses:
            reached = connect(address, cell.port, QUICK)
            if reached.connection is None:
                said = f"the name resolves to {address}, where the pod does not respond: {reached.text}"
                continue
            with reached.connection as connection:
                greeted = greet(Stream(connection), self.own)
            if greeted.hello is not None and greeted.hello.instance == cell.instance:
                return cell
            said = f"the name resolves to {address}: {greeted.text or 'another process responds there'}"
        text = f"torchrun would give all workers this pod's own name {name} as MASTER_ADDR; {said}"
        return replace(cell, outcome=ADVERTISED, text=text)

    def _elsewhere(self, address: str, cell: Cell) -> Cell:
        """Probe other ports.

        Return the result for the port on which the peer responds. If there is none, return the result for the
        common port.
        """
        if self.listens not in (0, self._port) and self._is_it(
            other := self._ask(address, self.listens, QUICK)
        ):
            return other
        away = cell.outcome in UNEXPECTED
        if self._also and (away or cell.outcome.startswith("tcp.")):
            other = self._ask(address, self._also, QUICK)
            if self._is_it(other):
                return other
            cell = self._ask(address, self._port, CONNECT_SECONDS)
        if cell.outcome == OK or away:
            for port in alternatives(self._port):
                other = self._ask(address, port, QUICK)
                if self._is_it(other):
                    return other
                if other.outcome == "tcp.filtered":
                    break
        return cell

    def _is_it(self, cell: Cell) -> bool:
        """Return whether the responder is the peer itself, or a rank that does not know its own number."""
        return cell.outcome == OK and (self._place is None or cell.rank in (self._place, -1))

    def _ask(self, address: str, port: int, seconds: float) -> Cell:
        """Connect and greet once. Return a cell with the responding rank's identity, or with the cause."""
        if port == self._port:
            self._calling = address, time.monotonic()
        listened = bool(port) and port == self.listens
        reached = connect(address, port, seconds)
        self._calling = None
        where = f"{address} port {port}"
        if reached.connection is None:
            cell = self._of(reached.cause or "tcp.reset", f"{where}: {reached.text}", address, port)
            return replace(cell, sender=reached.sender, listened=listened, unrouted=reached.unrouted)
        patience = PATIENCE * self._patience
        stream = Stream(reached.connection)
        greeted = greet(stream, self.own, patience)
        there = greeted.hello
        if there is None:
            reached.connection.close()
            cell = self._of(greeted.cause or "tcp.reset", f"{where} {greeted.text}", address, port)
            return replace(cell, listened=listened, waited=patience)
        cell = self._judged(self._from(greeted, there, address, port))
        if cell.outcome == OK:
            cell = self._bound(cell, there)
        if self._is_it(cell):
            self._published = there.published
            self._keep(stream)
        else:
            reached.connection.close()
        return cell

    def _bound(self, cell: Cell, there: Hello) -> Cell:
        """Return the cell, or a failed cell if the peer does not respond at its gloo or NCCL address."""
        if there.bound in ("", cell.address) or there.instance == self.own.instance:
            return cell
        reached = connect(there.bound, cell.port, QUICK)
        said = reached.text
        if reached.connection is not None:
            with reached.connection as connection:
                greeted = greet(Stream(connection), self.own)
            if greeted.hello is not None and greeted.hello.instance == there.instance:
                return cell
            said = greeted.text or "another process responds there"
        text = f"on {there.host}, {there.why}, but the rank does not respond there: {said}"
        return replace(cell, outcome="address.advertised", text=text)

    def _judged(self, cell: Cell) -> Cell:
        """Return the cell. A subclass may return a failed cell instead if it has further requirements."""
        return cell

    def _from(self, greeted: Greeted, there: Hello, address: str, port: int) -> Cell:
        """Return the cell for a rank that responded to the greeting."""
        said = (
            f"{there.host} ({address}) is rank {there.rank} of {there.nodes}, run {there.run or 'unnamed'!r}"
        )
        outcome = OK
        if there.run != self.own.run:
            outcome = "peer.other_job"
            said += f"; this rank's run is {self.own.run or 'unnamed'!r}"
        elif 0 not in (there.nodes, self.own.nodes) and there.nodes != self.own.nodes:
            outcome = "peer.other_size"
            said += f"; this rank expects {self.own.nodes} ranks"
        return replace(
            self._of(outcome, said if outcome != OK else "", address, port),
            rank=there.rank,
            instance=there.instance,
            run=there.run,
            rtt=greeted.rtt,
            offset=greeted.offset,
        )

    def _of(self, outcome: str, text: str, address: str = "", port: int = 0) -> Cell:
        at = round(time.monotonic() - self._began, 3)
        return Cell(outcome, self._peer.host, text, address, at=at, port=port or self._port)


class FirstProbe(Probe):
    """A probe of rank 0.

    Rank 0 must respond at all addresses of its name, because clients may use any of them.
    """

    everywhere = True

    def _judged(self, cell: Cell) -> Cell:
        if cell.outcome == OK and cell.rank != 0:
            text = f"{cell.host} ({cell.address}) is rank {cell.rank} of this run, and not rank 0"
            return replace(cell, outcome="peer.other_rank", text=text)
        return cell


class MasterProbe(FirstProbe):
    """A probe of rank 0 like FirstProbe, but without full packets."""

    fills = False
