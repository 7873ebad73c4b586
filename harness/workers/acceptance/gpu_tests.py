"""Test one node's GPUs: environment, compute and training. `python -m acceptance.gpu_tests --quick`.

Exit codes: 0 for PASS or WARN, 1 for FAIL, 2 for UNKNOWN or a usage error.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from .emit import FILES, Emitter
from .limits import Limits
from .node_tests import Node
from .runner import Runner, Section

DEADLINE = {"quick": 600.0, "full": 7200.0}
"""Maps each mode to the deadline for the tests in seconds. The pod must have a later deadline. Otherwise, the
report is lost."""


def parser(name: str, description: str) -> argparse.ArgumentParser:
    """Return the command's parser, which exits with code 2 on a usage error."""
    result = argparse.ArgumentParser(
        f"python -m {name}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    mode = result.add_mutually_exclusive_group(required=True)
    mode.add_argument("--quick", dest="mode", action="store_const", const="quick", help="takes minutes")
    mode.add_argument("--full", dest="mode", action="store_const", const="full", help="takes an hour")
    result.add_argument("--report-dir", type=Path, default=Path("reports"), metavar="DIR")
    result.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="auto means cuda, so a node without a GPU fails. cpu is only for development",
    )
    result.add_argument(
        "--limits", type=Path, metavar="FILE", help="file with your own limits, in addition to limits.toml"
    )
    result.add_argument(
        "--gpus", type=int, metavar="N", help="expected number of GPUs (default: ACCEPT_GPUS)"
    )
    result.add_argument(
        "--deadline", type=float, metavar="S", help="seconds after which the remaining checks are UNKNOWN"
    )
    return result


def accept(
    command_parser: argparse.ArgumentParser,
    arguments: list[str] | None,
    more_sections: Callable[[Runner, Node, argparse.Namespace], Iterable[Section]],
) -> int:
    """Run one node's test sections, and then the sections that `more_sections` returns.

    Return the exit code.
    """
    options = command_parser.parse_args(arguments)
    try:
        limits = Limits.load(options.limits)
        node = Node("cpu" if options.device == "cpu" else "cuda", options.mode, limits, options.gpus)
    except (OSError, ValueError) as error:
        command_parser.error(str(error))
    # cuBLAS is deterministic only with this workspace setting, which it reads when it starts.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    (options.report_dir / FILES["node"]).unlink(missing_ok=True)
    emitter = Emitter("node", node.device, options.mode, options.report_dir)
    runner = Runner(emitter, options.deadline or DEADLINE[options.mode])
    # The runner and the node share this dictionary, so the node's fields are reported even after an early
    # exit.
    runner.extra = node.extra
    sections = node.sections()
    return runner.run(sections if node.wrong_image else [*sections, *more_sections(runner, node, options)])


def main(arguments: list[str] | None = None) -> int:
    """Run the tests, and return the exit code."""
    return accept(parser("acceptance.gpu_tests", __doc__ or ""), arguments, lambda *_: ())


if __name__ == "__main__":
    sys.exit(main())
