"""Test the GPUs of one node: the environment, computing, training. `python -m acceptance.gpu_tests --quick`.

Exit code: 0 PASS or WARN, 1 FAIL, 2 UNKNOWN or bad use.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from .emit import FILES, Emitter
from .limits import Limits
from .node import Node
from .runner import Runner, Section

DEADLINE = {"quick": 600.0, "full": 7200.0}
"""Seconds. The pod's own deadline must be later, or Kubernetes deletes the report with the pod."""


def parser(name: str, description: str) -> argparse.ArgumentParser:
    """Return the command's parser. Bad use exits with 2."""
    made = argparse.ArgumentParser(
        f"python -m {name}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    mode = made.add_mutually_exclusive_group(required=True)
    mode.add_argument("--quick", dest="mode", action="store_const", const="quick", help="minutes")
    mode.add_argument("--full", dest="mode", action="store_const", const="full", help="an hour")
    made.add_argument("--report-dir", type=Path, default=Path("reports"), metavar="DIR")
    made.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="auto is cuda: a node without a GPU fails. cpu is for development, and accepts no GPU",
    )
    made.add_argument("--limits", type=Path, metavar="FILE", help="limits of your own, beside limits.toml")
    made.add_argument(
        "--gpus", type=int, metavar="N", help="how many GPUs there should be (else ACCEPT_GPUS)"
    )
    made.add_argument("--deadline", type=float, metavar="S", help="seconds after which the rest is UNKNOWN")
    return made


def accept(
    made: argparse.ArgumentParser,
    arguments: list[str] | None,
    more: Callable[[Runner, Node, argparse.Namespace], Iterable[Section]],
) -> int:
    """Run the sections of a node, and `more` after them. Returns the exit code."""
    options = made.parse_args(arguments)
    try:
        limits = Limits.load(options.limits)
        node = Node("cpu" if options.device == "cpu" else "cuda", options.mode, limits, options.gpus)
    except (OSError, ValueError) as error:
        made.error(str(error))
    # Each run of cuBLAS gives the same bits only with a workspace of its own. It reads this when it starts.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    (options.report_dir / FILES["node"]).unlink(missing_ok=True)
    emitter = Emitter("node", node.device, options.mode, options.report_dir)
    runner = Runner(emitter, options.deadline or DEADLINE[options.mode])
    # One dictionary for both: a report that is written early has what the node has learnt until then.
    runner.extra = node.extra
    sections = node.sections()
    return runner.run(sections if node.wrong_image else [*sections, *more(runner, node, options)])


def main(arguments: list[str] | None = None) -> int:
    """Test, print, and return the exit code."""
    return accept(parser("acceptance.gpu_tests", __doc__ or ""), arguments, lambda *_: ())


if __name__ == "__main__":
    sys.exit(main())
