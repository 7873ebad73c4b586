"""Check from every pod whether its ranks can meet: `python -m netcheck`, at the same time in each pod.

Exit code: 0 all pairs are fine, 1 something failed, 2 bad use, 3 nothing failed but something is unknown.
"""

from __future__ import annotations

import argparse
import json
import os
import sys

from . import frames, peers, show, surroundings
from .diagnose import DEADLINE, diagnose

EXIT = {"ok": 0, "failed": 1, "unknown": 3}


def parser() -> argparse.ArgumentParser:
    """Return the command's parser. Bad use exits with 2."""
    made = argparse.ArgumentParser(
        "python -m netcheck", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument(
        "--json", action="store_true", help="one JSON document on stdout, and nothing else there"
    )
    made.add_argument(
        "--frames",
        action="store_true",
        help="the table, and the JSON once more as lines that the harness trusts (HARNESS_NONCE)",
    )
    made.add_argument(
        "--nodes", type=_number, metavar="N", help="pods of the job (else by NNODES, WORLD_SIZE)"
    )
    made.add_argument(
        "--peers",
        type=peers.parse,
        default=os.environ.get("NETCHECK_PEERS") or [],
        metavar="HOSTS",
        help="all ranks in order: host,host or job-{0..3}.service (NETCHECK_PEERS; else by the pods' names)",
    )
    made.add_argument(
        "--port",
        type=_number,
        metavar="P",
        default=os.environ.get("NETCHECK_PORT") or None,
        help="port of the greetings on every rank (NETCHECK_PORT; else MASTER_PORT + 1)",
    )
    made.add_argument(
        "--deadline",
        type=float,
        metavar="S",
        default=DEADLINE,
        help=f"seconds for all ranks to come and be heard (default: {DEADLINE:.0f})",
    )
    made.add_argument(
        "--bandwidth",
        action="store_true",
        help="measure MB/s and latency of each pair, in 30 s more at most: in every rank, or in none",
    )
    return made


def main(arguments: list[str] | None = None) -> int:
    """Check, print, and return the exit code."""
    if sys.flags.no_site:
        surroundings.find_packages()
    made = parser()
    options = made.parse_args(arguments)
    if not 0 < options.deadline < 86400:
        made.error("--deadline is from 0 to 86400 seconds")
    try:
        result = diagnose(
            nodes=options.nodes,
            others=options.peers,
            port=options.port,
            deadline=options.deadline,
            bandwidth=options.bandwidth,
        )
    except ValueError as error:
        made.error(str(error))
    print(json.dumps(result.as_dict()) if options.json else show.text(result, sys.stdout.isatty()))
    nonce = os.environ.get("HARNESS_NONCE")
    if options.frames and nonce:
        print("\n".join(frames.encode(nonce, result.as_dict())))
    return EXIT[result.verdict]


def _number(text: str) -> int:
    number = int(text)
    if not 0 < number < 65536:
        raise ValueError(text)
    return number


if __name__ == "__main__":
    sys.exit(main())
