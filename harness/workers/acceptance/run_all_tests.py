"""Run all acceptance tests for one node: environment, compute, training, and DDP over its GPUs.

    python -m acceptance.run_all_tests --quick --gpus 8 --report-dir /reports

Writes DIR/summary.json. Exit codes: 0 for PASS or WARN, 1 for FAIL, 2 for UNKNOWN or a usage error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator

from .check import Check
from .gpu_tests import accept, parser
from .local_ddp import CPU_RANKS, TAG, LocalDdp
from .node_tests import Node
from .runner import Runner, Section, Step


def main(arguments: list[str] | None = None) -> int:
    """Run the tests, and return the exit code."""
    return accept(parser("acceptance.run_all_tests", __doc__ or ""), arguments, _ddp)


def _ddp(runner: Runner, node: Node, options: argparse.Namespace) -> Iterable[Section]:
    """Yield the section that runs the DDP tests with torchrun on all devices of the node."""

    def steps() -> Iterator[Step]:
        ranks = CPU_RANKS if node.device == "cpu" else len(node.devices)
        if not ranks:
            yield Step("ddp.run", TAG, node.nothing_to_test("ddp.run", TAG))
            return
        run = LocalDdp(ranks, node.device, options.mode, options.report_dir, options.limits)
        runner.at_end.append(run.end)

        def checks() -> Iterator[Check]:
            yield from run.checks()
            runner.extra["collectives"] = run.collectives()

        yield Step("ddp.run", TAG, checks, shown=run.shown)

    yield Section("ddp", TAG, steps)


if __name__ == "__main__":
    sys.exit(main())
