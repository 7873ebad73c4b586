"""Run the main job's worker with one fault on one rank.

The fault tests launch this script and expect the verdict FAIL.

    torchrun … /workspace/faulty.py FAULT RANK

FAULT is the name of a function below that has the decorator `fault`. The fault does not affect the ground
truth, which still contains what the rank was meant to log.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import ground_truth
import multinode

STEP = 7
FLOOD_BYTES = 100_000_000
FAULTS: dict[str, Callable[[], int]] = {}


def fault(run: Callable[[], int]) -> Callable[[], int]:
    """Register a function that runs the worker with a fault. Only the rank with the fault calls it."""
    FAULTS[run.__name__] = run
    return run


def strike(name: str, victim: int) -> int:
    """Run the worker. If this is rank `victim`, run it with the fault `name`. Return the exit code."""
    if int(os.environ["RANK"]) != victim:
        return int(multinode.main())
    return FAULTS[name]()


def at_step(step: int, action: Callable[[], object]) -> int:
    """Run the worker, and call `action` just before the given step is logged."""

    def log(run: Any, metrics: dict[str, float], now: int) -> None:
        if now == step:
            action()
        multinode.plain_log(run, metrics, now)

    return int(multinode.main(log=log))


def at_victims_metric(change: Callable[[str, dict[str, float]], dict[str, float]]) -> int:
    """Run the worker. At STEP, it logs `change(metric, metrics)` instead of `metrics`.

    `metric` is the name of the metric with this rank's own loss.
    """

    def log(run: Any, metrics: dict[str, float], step: int) -> None:
        if step == STEP:
            metrics = change(next(name for name in metrics if name.startswith("loss/node")), metrics)
        multinode.plain_log(run, metrics, step)

    return int(multinode.main(log=log))


# -- faults in the logged data -------------------------------------------------------------------------
@fault
def other_run() -> int:
    os.environ["PLUTO_RUN_ID"] += "-other"
    return int(multinode.main())


@fault
def silent() -> int:
    multinode.Recorder.record = lambda *_: None
    return int(multinode.main(log=lambda *_: None))


@fault
def drop_point() -> int:
    return at_victims_metric(lambda own, metrics: {n: v for n, v in metrics.items() if n != own})


@fault
def wrong_value() -> int:
    return at_victims_metric(lambda own, metrics: {**metrics, own: metrics[own] + 0.5})


# -- faults at the end of the process ------------------------------------------------------------------
@fault
def exit3() -> int:
    """Exit with code 3 at STEP, without cleanup, so that output that the client has captured is lost."""

    def leave() -> None:
        os.write(ground_truth.STDOUT, f"about to leave at step {STEP} with exit code 3\n".encode())
        os._exit(3)

    return at_step(STEP, leave)


def _attach_apart(*options: str) -> int:
    """Run the worker. At STEP, start a program with a clean environment. It attaches to the same run."""
    program = (
        "import os, sys\n"
        f"sys.path += {sys.path!r}\n"
        "import pluto\n"
        "pluto.init(project=os.environ['PLUTO_PROJECT'], run_id=os.environ['PLUTO_RUN_ID']).finish()\n"
    )
    clean = {n: v for n, v in os.environ.items() if n.startswith("PLUTO_") or n in ("PATH", "HOME")}
    command = [sys.executable, *options, "-c", program]
    return at_step(STEP, lambda: subprocess.run(command, env=clean, check=True))


@fault
def clean_environment() -> int:
    return _attach_apart()


@fault
def without_site() -> int:
    """Attach to the run from a program that runs without the `site` module, and so without the recorder."""
    return _attach_apart("-S")


@fault
def os_exit() -> int:
    """Exit with code 0 at STEP, without cleanup."""
    return at_step(STEP, lambda: os._exit(0))


@fault
def leave() -> int:
    """Exit with code 0 before anything is logged."""
    return at_step(0, lambda: sys.exit(0))


def _fail(moment: str) -> Callable[[], None]:
    def fail() -> None:
        raise ValueError(f"a fault {moment}")

    return fail


@fault
def raise_before() -> int:
    return at_step(0, _fail("before the first log"))


@fault
def raise_during() -> int:
    return at_step(STEP, _fail(f"at step {STEP}"))


@fault
def raise_once() -> int:
    """Raise an exception in the first attempt only.

    torchrun then restarts the rank, which has no fault in the second attempt.
    """
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":
        return int(multinode.main())
    return raise_during()


@fault
def raise_after() -> int:
    multinode.main()
    _fail("after the last log")()
    return 0


@fault
def oom() -> int:
    """Allocate memory until the kernel kills the process."""

    def hoard() -> None:
        blocks = []
        while True:
            blocks.append(b"x" * (64 << 20))

    return at_step(STEP, hoard)


# -- hangs and floods ----------------------------------------------------------------------------------
def _wait_for_ever() -> None:
    threading.Event().wait()


@fault
def hang_before_joining() -> int:
    """Start, but never join the process group."""
    multinode.init_distributed = _wait_for_ever
    return int(multinode.main())


@fault
def hang_at_step() -> int:
    return at_step(STEP, _wait_for_ever)


@fault
def other_collective() -> int:
    """Call broadcast at STEP, where the other ranks call all-reduce."""

    def broadcast() -> None:
        import torch
        import torch.distributed as dist

        dist.broadcast(torch.zeros(1), src=0)

    return at_step(STEP, broadcast)


@fault
def hang_at_exit() -> int:
    """Log everything, but do not exit, because a thread keeps running forever."""
    code = int(multinode.main())
    threading.Thread(target=_wait_for_ever).start()
    return code


@fault
def flood() -> int:
    """Print 100 MB at once."""

    def print_much() -> None:
        line = b"a filler line that the flood fault prints again and again ..................\n"
        for _ in range(FLOOD_BYTES // len(line) // 1000):
            os.write(ground_truth.STDOUT, line * 1000)

    return at_step(STEP, print_much)


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in FAULTS:
        sys.exit(f"{__doc__}\nFaults: {', '.join(FAULTS)}")
    sys.exit(strike(sys.argv[1], int(sys.argv[2])))
