"""Find the bad nodes in a cluster. Run this command at the same time in one pod on each node.

    python -m acceptance.screen --nodes N --node-rank K --master HOST [--local GPUS]

The pod with node rank 0 is the coordinator. It tests groups of nodes, several groups at the same time.
search.py chooses the groups. With up to 16 nodes, it tests every pair. Each trial has its own process group,
so a hang or a crash affects only that trial. The coordinator writes the report to
REPORT_DIR/screen/ddp_tests_result.json.

Exit codes for node rank 0: 0 if all passed, 1 if a node, link or boundary failed, 2 if a result is unknown.
Exit codes for the other pods: 1 if the pod's node is bad, 2 if the pod did not get a verdict, else 0.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from pathlib import Path

from . import trial_processes
from .check import Check
from .coordinator import Coordinator, Settings
from .devices import image_check
from .emit import Emitter
from .group_verdict import CPU_SHARE, SHARE
from .search_results import Screening, bandwidth, checks, named, rows

PORT = 29555
"""The coordinator's default port. It differs from torchrun's default port, 29500."""


def coordinate(options: argparse.Namespace, emitter: Emitter) -> int:
    """Run the search as the coordinator, in the pod with node rank 0.

    Write the report, and return the exit code.
    """
    settings = Settings(
        options.device, options.local, options.bytes, options.iterations, options.trial_deadline
    )
    coordinator = Coordinator(options.nodes, options.port, settings)
    own = threading.Thread(target=_join, args=(options,), daemon=True)
    own.start()
    nodes = coordinator.gather(options.deadline)
    missing = [node for node in range(options.nodes) if node not in nodes]
    text = f"{len(nodes)} of {options.nodes} agents connected"
    text += f"; no agent connected from {named(missing)} within {options.deadline:.0f} s" if missing else ""
    emitter.say(
        Check(
            id="screen.nodes",
            tag="DDP",
            verdict="UNKNOWN" if missing or coordinator.doubled else "PASS",
            text=text
            + (
                f"; more than one agent connected from {named(sorted(coordinator.doubled))}"
                if coordinator.doubled
                else ""
            ),
            ranks=tuple(missing) or tuple(sorted(coordinator.doubled)),
        )
    )
    screening = Screening(coordinator, options.limit, options.share)
    conclusion = screening.run(nodes, options.repeats, options.bound)
    for check in checks(conclusion, screening, nodes, coordinator):
        emitter.say(check)
    emitter.say(bandwidth(coordinator, options.limit, options.share))
    code = emitter.finish(
        nodes=options.nodes,
        ranks=options.nodes * options.local,
        hosts=coordinator.names,
        pairs=rows(screening),
    )
    coordinator.end(
        {0: "PASS", 1: "FAIL"}.get(code, "UNKNOWN"), {one.node: one.reason for one in conclusion.accused}
    )
    own.join(timeout=5)
    return code


def main(arguments: list[str] | None = None) -> int:
    """Run the coordinator or an agent, and return the exit code."""
    command_parser = parser()
    options = command_parser.parse_args(arguments)
    if not 0 <= options.node_rank < options.nodes:
        command_parser.error(f"--node-rank must be from 0 to {options.nodes - 1}; found {options.node_rank}")
    if options.share is None:
        options.share = SHARE if options.device == "cuda" else CPU_SHARE
    directory = options.report_dir / "screen" if options.report_dir else None
    first = options.node_rank == 0
    if options.device == "cuda" and (image_error := image_check("screen.image", "DDP")) is not None:
        emitter = Emitter("ddp", options.device, "full", directory if first else None, framed=first)
        emitter.say(image_error)
        return emitter.finish()
    if first:
        return coordinate(options, Emitter("ddp", options.device, "full", directory))
    return _join(options)


def parser() -> argparse.ArgumentParser:
    """Return the parser for the command line."""
    result = argparse.ArgumentParser(
        "python -m acceptance.screen",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument(
        "--nodes", type=int, default=os.environ.get("NNODES"), required="NNODES" not in os.environ
    )
    result.add_argument(
        "--node-rank", type=int, default=os.environ.get("NODE_RANK"), required="NODE_RANK" not in os.environ
    )
    result.add_argument(
        "--master", default=os.environ.get("MASTER_ADDR", "127.0.0.1"), help="host of node rank 0"
    )
    result.add_argument("--port", type=int, default=PORT, help=f"the coordinator's port (default: {PORT})")
    result.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    result.add_argument("--local", type=int, default=1, metavar="N", help="processes per node, one per GPU")
    result.add_argument("--bytes", type=int, default=1 << 22, help="size of the all-reduce in bytes")
    result.add_argument("--iterations", type=int, default=5)
    result.add_argument(
        "--deadline",
        type=float,
        default=300,
        metavar="S",
        help="seconds within which all agents must connect",
    )
    result.add_argument(
        "--trial-deadline",
        type=float,
        default=120,
        metavar="S",
        help="maximum seconds for a test's processes to join, and then to exchange data",
    )
    result.add_argument(
        "--limit", type=float, metavar="GB/S", help="minimum bus bandwidth of a group, in GB/s"
    )
    result.add_argument(
        "--share",
        type=float,
        help=f"fraction of the median below which a group is slow (default: {SHARE}; on CPUs {CPU_SHARE})",
    )
    result.add_argument(
        "--repeats", type=int, default=1, help="number of times each test is run, to find intermittent faults"
    )
    result.add_argument(
        "--bound", type=int, help="maximum number of bad nodes (default: a quarter of the nodes)"
    )
    result.add_argument("--report-dir", type=Path)
    return result


def _join(options: argparse.Namespace) -> int:
    """Run this node's agent until the search has ended, and return the exit code."""
    line = trial_processes.connect(options.master, options.port, options.deadline)
    verdict = trial_processes.serve(line, options.node_rank, options.nodes) if line else None
    if options.node_rank == 0:
        return 0
    if verdict is None:
        print(f"[DDP] UNKNOWN screen: no verdict from {options.master}:{options.port}", flush=True)
        return 2
    accused = verdict.get("accused")
    own = f"FAIL screen.node: this node {accused}" if accused else "this node is not accused"
    print(f"[DDP] {own}", flush=True)
    print(f"[RESULT] {verdict.get('verdict')} for all nodes together", flush=True)
    return 1 if accused else 0


if __name__ == "__main__":
    sys.exit(main())
