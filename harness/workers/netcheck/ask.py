"""Try once to connect to a host and port from this machine: `python -m netcheck.ask HOST PORT`.

Prints one JSON document. `outcome` is ok, one of netcheck's causes, or pending (the node is too busy to
tell), and `text` explains it.
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
    over = threading.Event()
    measured = CpuDelay(over).start()
    found = Names(Configuration.read()).look_up(host)
    delay = measured.now()
    over.set()
    if found.cause in SILENT and found.waited < FACTOR * delay.late:
        return {
            "outcome": PENDING,
            "text": f"{found.text}; the node is too busy to judge: netcheck {delay.text}",
        }
    if found.cause:
        return {"outcome": found.cause, "text": found.text}
    reached = connect(found.addresses[0], port)
    if reached.connection is not None:
        reached.connection.close()
    text = f"{found.addresses[0]} port {port}: {reached.text}"
    return {"outcome": reached.cause or OK, "text": text}


if __name__ == "__main__":
    print(json.dumps(ask(sys.argv[1], int(sys.argv[2]))))
