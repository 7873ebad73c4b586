"""Wait until rank 0 responds, and return the cause if it does not."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from .finding import OK
from .greeting import Hello
from .name_resolution import Configuration, Names
from .peers import Peer
from .probe import Cell, MasterProbe, Probe
from .reach import CONNECT_SECONDS, connect
from .variables import port_after, validate_environment


@dataclass(frozen=True)
class Waited:
    """The result of waiting.

    `ready` is true if rank 0 responded. If not, `cause` and `text` describe the last failure. `history` lists
    each cause with the time at which it first occurred, in seconds since the start. For example,
    "dns.no_record" followed by "tcp.refused" means that the name was missing from DNS at first, and now
    resolves.
    """

    ready: bool
    cause: str | None
    text: str
    seconds: float
    history: tuple[tuple[float, str], ...]

    def __bool__(self) -> bool:
        return self.ready


def wait_for_master(
    address: str | None = None,
    port: int | None = None,
    *,
    deadline: float = 600.0,
    greeting: bool = True,
    variables: Mapping[str, str] | None = None,
) -> Waited:
    """Wait up to `deadline` seconds until rank 0 responds at `address` (default: MASTER_ADDR) and `port`.

    If `greeting` is true, `port` is netcheck's port on rank 0 (default: MASTER_PORT + 1), and netcheck must
    respond there as rank 0 of this run. Otherwise, `port` is the training's port (default: MASTER_PORT),
    which only has to be open. Names are resolved as in name_resolution.py. Raises ValueError if no address is
    known.
    """
    environment = validate_environment(variables)
    address = address or environment.master_addr
    if not address:
        raise ValueError("MASTER_ADDR is not set, so the address of rank 0 is unknown")
    port = port or port_after(environment.master_port, int(greeting))
    start, history = time.monotonic(), dict[str, float]()
    rank = -1 if environment.node_rank is None else environment.node_rank
    own = Hello(environment.run_id, rank, environment.nodes or 0, os.uname().nodename, os.urandom(8).hex())
    stop = threading.Event()
    probe_class = MasterProbe if greeting else _Open
    probe = probe_class(Peer(address, port), port, own, Names(Configuration.read()), stop).start()
    try:
        while True:
            cell, elapsed = probe.cell, time.monotonic() - start
            if cell.outcome == OK:
                return Waited(True, None, f"{cell.address} answers", elapsed, _in_order(history))
            if "." in cell.outcome:
                history.setdefault(cell.outcome, round(elapsed, 3))
            if elapsed >= deadline:
                cause = cell.outcome if "." in cell.outcome else None
                return Waited(False, cause, cell.text, elapsed, _in_order(history))
            time.sleep(0.02)
    finally:
        stop.set()


class _Open(Probe):
    """A probe that requires only an open port."""

    def _reach(self, address: str) -> Cell:
        result = connect(address, self._port, CONNECT_SECONDS)
        if result.connection is None:
            return self._of(
                result.cause or "tcp.reset", f"{address} port {self._port}: {result.text}", address
            )
        result.connection.close()
        return self._of(OK, "", address)


def _in_order(history: Mapping[str, float]) -> tuple[tuple[float, str], ...]:
    return tuple(sorted((seconds, cause) for cause, seconds in history.items()))
