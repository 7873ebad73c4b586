"""Try once to connect to a host and port from this machine: `python -m netcheck.ask HOST PORT`.

Prints one JSON document. `outcome` is ok, one of netcheck's causes, or pending (the node is too busy for a
reliable result), and `text` explains it.
"""

from __future__ import annotations

import json
import sys
import threading

from .cpu_delay import CpuDelay
from .finding import OK
from .name_resolution import Configuration, Names
from .probe import PENDING
from .proof import FACTOR, SILENT
from .reach import connect


def ask(host: str, port: int) -> dict[str, str]:
    """Return `outcome` (ok, pending or the cause of the failure) and `text` (an explanation)."""
    stop = threading.Event()
    delay_meter = CpuDelay(stop).start()
    lookup = Names(Configuration.read()).look_up(host)
    delay = delay_meter.now()
    stop.set()
    if lookup.cause in SILENT and lookup.waited < FACTOR * delay.late:
        return {
            "outcome": PENDING,
            "text": f"{lookup.text}; the node is too busy for a reliable result: netcheck {delay.text}",
        }
    if lookup.cause:
        return {"outcome": lookup.cause, "text": lookup.text}
    result = connect(lookup.addresses[0], port)
    if result.connection is not None:
        result.connection.close()
    text = f"{lookup.addresses[0]} port {port}: {result.text}"
    return {"outcome": result.cause or OK, "text": text}


if __name__ == "__main__":
    print(json.dumps(ask(sys.argv[1], int(sys.argv[2]))))
