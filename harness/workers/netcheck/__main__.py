"""Check whether a job's ranks can connect to each other. Run `python -m netcheck` in all pods at once.

Exit codes: 0 if no check failed, 1 if a check failed, 2 for a usage error. If no check failed but some result
is unknown, a warning on stderr names it, and the exit code is 0 (3 with --strict).
"""

from __future__ import annotations

import argparse
import json
import os
import sys

from . import diagnosis_text, frames, peers, surroundings
from .diagnose import DEADLINE, diagnose

EXIT = {"ok": 0, "failed": 1, "unknown": 0}
STRICT = 3
"""The exit code if the verdict is unknown and --strict is set."""


def parser() -> argparse.ArgumentParser:
    """Return the command's argument parser, which exits with code 2 on a usage error."""
    result = argparse.ArgumentParser(
        "python -m netcheck", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    result.add_argument(
        "--json", action="store_true", help="print one JSON document on stdout, and nothing else"
    )
    result.add_argument(
        "--frames",
        action="store_true",
        help="after the table, print the JSON for the harness, in lines authenticated with HARNESS_NONCE",
    )
    result.add_argument(
        "--nodes", type=_number, metavar="N", help="number of pods (default: from NNODES or WORLD_SIZE)"
    )
    result.add_argument(
        "--peers",
        type=peers.parse,
        default=os.environ.get("NETCHECK_PEERS") or [],
        metavar="HOSTS",
        help=(
            "hosts of all ranks, in order: host,host or job-{0..3}.service (default: NETCHECK_PEERS or pod "
            "names)"
        ),
    )
    result.add_argument(
        "--port",
        type=_number,
        metavar="P",
        default=_port(os.environ.get("NETCHECK_PORT", "")),
        help="port on which netcheck listens on every rank (default: NETCHECK_PORT, or MASTER_PORT + 1)",
    )
    result.add_argument(
        "--deadline",
        type=float,
        metavar="S",
        default=DEADLINE,
        help=f"seconds within which all ranks must start and report (default: {DEADLINE:.0f})",
    )
    result.add_argument(
        "--bandwidth",
        action="store_true",
        help=(
            "also measure each pair's bandwidth and latency, in at most 30 s. Set it on all ranks or on none"
        ),
    )
    result.add_argument(
        "--strict", action="store_true", help="exit with code 3 if no check failed but a result is unknown"
    )
    return result


def main(arguments: list[str] | None = None) -> int:
    """Run the check, print the diagnosis, and return the exit code."""
    if sys.flags.no_site:
        surroundings.find_packages()
    command_parser = parser()
    options = command_parser.parse_args(arguments)
    if not 0 < options.deadline < 86400:
        command_parser.error("--deadline must be more than 0 and less than 86400 seconds")
    try:
        result = diagnose(
            nodes=options.nodes,
            others=options.peers,
            port=options.port,
            deadline=options.deadline,
            bandwidth=options.bandwidth,
        )
    except ValueError as error:
        command_parser.error(str(error))
    print(json.dumps(result.as_dict()) if options.json else diagnosis_text.text(result, sys.stdout.isatty()))
    nonce = os.environ.get("HARNESS_NONCE")
    if options.frames and nonce:
        print("\n".join(frames.encode(nonce, result.as_dict())))
    if result.verdict == "unknown":
        print(f"netcheck: WARNING: not known: {'; '.join(result.recommendations)}", file=sys.stderr)
        return STRICT if options.strict else EXIT["unknown"]
    return EXIT[result.verdict]


def _port(variable: str) -> str | None:
    """Return the value of NETCHECK_PORT, or None if it is not set.

    For a Service named netcheck, Kubernetes sets it to a URL, tcp://ADDRESS:PORT, which is ignored.
    """
    return None if "://" in variable else variable or None


def _number(text: str) -> int:
    number = int(text)
    if not 0 < number < 65536:
        raise ValueError(text)
    return number


if __name__ == "__main__":
    sys.exit(main())
