"""Test the collectives over all ranks for correctness, speed and hangs.

    torchrun … -m acceptance.ddp_tests --quick|--full [--report-dir DIR] [--device cpu] [--limits FILE]

Ranks exchange their results through the job's store, and not through the collectives under test. Rank 0
writes ddp_tests_result.json. If rank 0 has ended, the lowest rank that is still alive writes it. The rank
that writes the report exits with 0 for PASS or WARN, 1 for FAIL, and 2 for UNKNOWN. The other ranks exit with
0 after the report has been written.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from .check import Check
from .collective_tests import Exchanges
from .devices import CPU, Device, image_check, visible
from .emit import Emitter
from .hang_detection import GONE_SECONDS, Diagnosis, Watch, diagnose
from .limits import Limits

HANG_SECONDS = {"quick": 30.0, "full": 120.0}
"""A rank counts as hung if it has made no progress for this many seconds (by mode). Every exchange takes far
less time."""


def main(arguments: list[str] | None = None) -> int:
    """Run the tests as one rank. Return the exit code."""
    options = _options(arguments)
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    devices = [] if options.device == "cpu" else visible()
    kind = "cpu" if options.device == "cpu" else "cuda"
    emitter = Emitter("ddp", kind, options.mode, options.report_dir if rank == 0 else None, framed=rank == 0)
    if kind == "cuda" and (image_error := image_check("ddp.image", "DDP")) is not None:
        if rank:  # If this rank exited with an error, torchrun would stop rank 0 before rank 0 can report.
            return 0
        emitter.say(image_error)
        return emitter.finish(ranks=ranks, hosts={rank: _node()})
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if kind == "cuda" and local >= len(devices):
        text = f"rank {rank} has no GPU: its local rank is {local}, and only {len(devices)} GPUs are visible"
        cause = "gpu.absent" if not devices else "gpu.fewer"
        emitter.say(Check(id="ddp.gpu", tag="DDP", verdict="FAIL", cause=cause, text=text, ranks=(rank,)))
        return emitter.finish(ranks=ranks, hosts={rank: _node()})
    return Rank(rank, ranks, devices[local] if devices else CPU, emitter, options).run()


class Rank:
    """One rank. It joins the process group, runs the tests, and writes the report or waits for it."""

    def __init__(
        self, rank: int, ranks: int, device: Device, emitter: Emitter, options: argparse.Namespace
    ) -> None:
        self.rank, self.ranks, self.device = rank, ranks, device
        self._emitter, self._options = emitter, options
        self._watch: Watch
        self._exchanges: Exchanges
        self._concluding = threading.Lock()

    def run(self) -> int:
        """Join the other ranks, run all tests, and report. Return the exit code.

        After a hang or an error, this function does not return, but exits the process.
        """
        import torch
        import torch.distributed as dist

        # When a rank dies, torchrun sends SIGTERM to the other ranks. They block it, because they must still
        # report which rank died.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        seconds = self._options.hang_seconds or HANG_SECONDS[self._options.mode]
        cuda = self.device.kind == "cuda"
        if cuda:
            torch.cuda.set_device(self.device.index)
        dist.init_process_group("nccl" if cuda else "gloo", timeout=timedelta(seconds=4 * seconds + 60))
        self._watch = Watch(self.rank, self.ranks, seconds, lambda: self._conclude(""))
        self._watch.start()
        threading.Thread(target=self._on_sigterm, name="sigterm", daemon=True).start()
        self._watch.publish(f"host/{self.rank}", _node())
        self._exchanges = Exchanges(
            self.rank, self.ranks, self.device, self._watch, self._emitter, self._options
        )
        try:
            self._exchanges.all()
        except Exception as error:
            self._conclude(f"{type(error).__name__}: {error}"[:300])
            time.sleep(60)  # Another thread is already writing the report. It will then exit the process.
        code = self._report() if self.rank == 0 else self._await_report()
        self._watch.stop()
        return code

    def _report(self) -> int:
        code = self._emitter.finish(**self._extra())
        self._watch.publish("reported", True)
        self._watch.wait_for(
            f"read/{self.ranks}", 1.0
        )  # Rank 0 may host the store, so it waits until the other ranks have read from the store.
        return code

    def _await_report(self) -> int:
        return 0 if self._watch.wait_for("reported", 60.0) else 1

    def _extra(self) -> dict[str, Any]:
        import torch

        hosts = {}
        for rank in range(self.ranks):
            name = self._watch.wait_for(f"host/{rank}", 1.0)
            if name:
                hosts[rank] = name
        nodes = int(os.environ.get("GROUP_WORLD_SIZE", "1"))
        versions = {"python": sys.version.split()[0], "torch": str(torch.__version__)}
        return {
            "nodes": nodes,
            "ranks": self.ranks,
            "hosts": hosts,
            "versions": versions,
            "gpus": [self.device.as_dict()] if self.device.kind == "cuda" else [],
            **self._exchanges.extra(),
        }

    def _on_sigterm(self) -> None:
        signal.sigwait({signal.SIGTERM})
        self._conclude("it received SIGTERM")

    def _conclude(self, error: str) -> None:
        """Exit the process.

        Before that, the lowest rank that is still alive reports which ranks are to blame.
        """
        if not self._concluding.acquire(blocking=False):
            return
        code = 1
        try:
            if error:
                self._watch.failed(error)
            diagnosis, reporter = self._blame()
            if self.rank == reporter:
                self._accuse(diagnosis)
            elif self._watch.wait_for("reported", GONE_SECONDS + 10):
                code = 0
        finally:
            os._exit(code)

    def _accuse(self, diagnosis: Diagnosis) -> None:
        """Write the report with the diagnosis, in place of rank 0."""
        self._emitter.framed, self._emitter.report_dir = True, self._options.report_dir
        accusation = {"cause": diagnosis.cause, "ranks": diagnosis.ranks, "text": diagnosis.text}
        self._emitter.say(Check(id="ddp.hang", tag="DDP", verdict="FAIL", **accusation))  # type: ignore[arg-type]
        self._emitter.finish(**self._extra())
        self._watch.publish("reported", True)
        time.sleep(2.0)  # This process may host the store, and the other ranks may still be reading from it.

    def _blame(self) -> tuple[Diagnosis, int]:
        """Return the diagnosis, and the lowest rank that is still alive. That rank writes the report.

        To determine which ranks are alive, their positions are read twice, GONE_SECONDS seconds apart.
        """
        try:
            before = self._watch.positions()
            time.sleep(GONE_SECONDS)
            now = self._watch.positions()
        except RuntimeError as error:
            text = f"the job's store does not respond: rank 0 or its pod is gone ({error})"[:300]
            return Diagnosis("collective.failed", (0,), text), self.rank
        living = [r for r, p in now.items() if r not in before or before[r].beat != p.beat]
        return diagnose(before, now, self.ranks), min(living, default=self.rank)


def _node() -> str:
    return os.environ.get("NODE_NAME") or os.uname().nodename


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m acceptance.ddp_tests", description=(__doc__ or "").split("\n")[0]
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--quick",
        dest="mode",
        action="store_const",
        const="quick",
        help="test only small sizes, in about a minute",
    )
    mode.add_argument("--full", dest="mode", action="store_const", const="full", help="test all sizes")
    parser.set_defaults(mode="quick")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--report-dir", type=Path, default=Path("reports"))
    parser.add_argument("--limits", help="file with your own limits")
    parser.add_argument("--gpus", help="ignored; torchrun's --nproc-per-node sets the number of GPUs")
    parser.add_argument(
        "--hang-seconds",
        type=float,
        default=0.0,
        help="seconds without progress after which a rank counts as hung (default: 30, or 120 with --full)",
    )
    options = parser.parse_args(arguments)
    try:
        options.limits = Limits.load(options.limits)
    except (OSError, ValueError) as error:
        parser.error(f"--limits: {error}")
    return options


if __name__ == "__main__":
    sys.stdout.flush()
    code = main()
    sys.stdout.flush()
    # Exit without running destructors, because the process group's destructor could wait for a dead rank.
    os._exit(code)
