"""Try once to connect to a host and port from this machine: `python -m netcheck.ask HOST PORT`.

Prints one JSON document. `outcome` is ok or one of netcheck's causes, and `text` explains it.
"""

from __future__ import annotations

import json
import sys

from .finding import OK
from .name_resolution import Configuration, Names
from .reach import connect


def ask(host: str, port: int) -> dict[str, str]:
    """Return `outcome` (ok or the cause of the failure) and `text` (an explanation of the outcome)."""
    found = Names(Configuration.read()).look_up(host)
    if found.cause:
        return {"outcome": found.cause, "text": found.text}
    reached = connect(found.addresses[0], port)
    if reached.connection is not None:
        reached.connection.close()
    text = f"{found.addresses[0]} port {port}: {reached.text}"
    return {"outcome": reached.cause or OK, "text": text}


if __name__ == "__main__":
    print(json.dumps(ask(sys.argv[1], int(sys.argv[2]))))
