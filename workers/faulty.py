"""The main job's worker with one fault on one rank: what the e2e tests launch to see a FAIL.

    torchrun … /workspace/faulty.py FAULT RANK

FAULT is one of: other_run, silent, drop_point, wrong_value, exit3. The ground truth is untouched: it says
what the rank meant to log.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import multinode

STEP = 7


def strike(fault: str, victim: int) -> int:
    """Run the worker with `fault` on rank `victim`; returns its exit code."""
    rank = int(os.environ["RANK"])
    if rank != victim:
        return int(multinode.main())
    if fault == "other_run":
        os.environ["PLUTO_RUN_ID"] += "-other"
        return int(multinode.main())
    if fault == "silent":
        multinode.Recorder.record = lambda *_: None
        return int(multinode.main(log=lambda *_: None))
    if fault == "exit3":
        return int(multinode.main(log=_exit_at_step))
    return int(multinode.main(log={"drop_point": _drop_point, "wrong_value": _wrong_value}[fault]))


def _victim_metric(metrics: dict[str, float]) -> str:
    return next(name for name in metrics if name.startswith("loss/node"))


def _drop_point(run: Any, metrics: dict[str, float], step: int) -> None:
    if step == STEP:
        metrics = {name: value for name, value in metrics.items() if name != _victim_metric(metrics)}
    multinode.plain_log(run, metrics, step)


def _wrong_value(run: Any, metrics: dict[str, float], step: int) -> None:
    if step == STEP:
        name = _victim_metric(metrics)
        metrics = {**metrics, name: metrics[name] + 0.5}
    multinode.plain_log(run, metrics, step)


def _exit_at_step(run: Any, metrics: dict[str, float], step: int) -> None:
    if step == STEP:
        # To the container's own stdout: what the client captures of this process ends with this process.
        with open("/proc/1/fd/1", "w") as stdout:
            stdout.write(f"about to leave at step {step} with exit code 3\n")
        os._exit(3)
    multinode.plain_log(run, metrics, step)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(strike(sys.argv[1], int(sys.argv[2])))
