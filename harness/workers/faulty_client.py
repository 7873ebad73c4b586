"""Run the main job's worker with one fault of the tracker's client on one rank, or on all.

    torchrun … /workspace/faulty_client.py FAULT RANK|all

FAULT is the name of a function below. The ground truth says what the rank meant to log.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import multinode
from faulty import STEP, at_step, fault, strike

VISITOR = f"""
import pluto
run = pluto.init(name="visitor")
run.log({{"visitor/loss": 0.5}}, step={STEP})
run.finish()
"""


def before_init(do: Callable[[], None]) -> None:
    """Call this just before the client starts."""
    import pluto

    init = pluto.init

    def then(*arguments: Any, **options: Any) -> Any:
        do()
        return init(*arguments, **options)

    pluto.init = then


def sync_killed() -> int:
    """Kill the client's upload process in the middle. The client neither notices nor starts another."""

    def kill() -> None:
        for process in multinode.uploaders():
            os.kill(int(process.name), signal.SIGKILL)

    return int(at_step(STEP, kill))


def shared_dir() -> int:
    """Use the PLUTO_DIR of rank 0 on the same node: one queue, which rank 0's upload process empties.

    When rank 0 finishes, that process ends. Rows that this rank logs later stay in the queue.
    """

    def share() -> None:
        own = os.environ["PLUTO_DIR"]
        os.environ["PLUTO_DIR"] = own.replace(f"rank{os.environ['RANK']}-", "rank0-")
        while not multinode.uploaders():
            time.sleep(0.05)

    def outlast() -> None:
        while multinode.uploaders():
            time.sleep(0.05)

    before_init(share)
    return int(at_step(multinode.STEPS - 1, outlast))


def no_wait() -> int:
    """End right after finish(), as most programs do. The container ends while the client still uploads."""
    multinode.wait_for_sync = lambda *_: None
    return int(multinode.main())


def other_project() -> int:
    os.environ["PLUTO_PROJECT"] += "-other"
    return int(multinode.main())


def resume_id() -> int:
    """Use a run id that Pluto's client reads as the id of an existing run."""
    os.environ["PLUTO_RUN_ID"] = "ABC-1"
    return int(multinode.main())


def collision() -> int:
    """Log the rank's own loss under the name that all ranks use for their mean."""
    train = multinode.train

    def unreduced(rank: int, device: Any, on_step: Callable[[int, float, float], None]) -> None:
        train(rank, device, lambda step, own, _: on_step(step, own, own))

    multinode.train = unreduced
    return int(multinode.main())


def visitor() -> int:
    """Write into the run from another program, as if it was given the same run id by mistake."""

    def visit() -> None:
        alone = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
        alone["PLUTO_DIR"] = "/tmp/visitor"  # noqa: S108
        subprocess.run([sys.executable, "-c", VISITOR], env=alone, check=True)

    return int(at_step(STEP, visit))


def _logging(change: Callable[[str, Any], tuple[str, Any]]) -> int:
    """Run the worker, and change each name and value before they are recorded and logged."""
    record = multinode.Recorder.record

    def recorded(self: Any, metric: str, step: int, value: float) -> None:
        name, changed = change(metric, value)
        record(self, name, step, changed)

    def log(run: Any, metrics: dict[str, float], step: int) -> None:
        multinode.plain_log(run, dict(change(name, value) for name, value in metrics.items()), step)

    multinode.Recorder.record = recorded
    return int(multinode.main(log=log))


def renamed() -> int:
    """Use a letter in the own loss's name that is not ASCII."""
    return _logging(lambda name, value: (name.replace("loss/node", "loss/né"), value))


def merged_names() -> int:
    """Use two names that differ in letters that the client replaces by the same."""
    new = {f"loss/node{os.environ['RANK']}": f"xé{os.environ['RANK']}"}
    new |= {f"nonce/node{os.environ['RANK']}": f"xè{os.environ['RANK']}"}
    return _logging(lambda name, value: (new.get(name, name), value))


def boolean() -> int:
    """Log a boolean in place of a number."""
    return _logging(lambda name, value: (name, True if name.startswith("nonce/") else value))


client_faults = (sync_killed, shared_dir, no_wait, other_project, resume_id, collision, visitor)
for each in (*client_faults, renamed, merged_names, boolean):
    fault(each)

if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    name, victim = sys.argv[1:]
    sys.exit(strike(name, int(os.environ["RANK"] if victim == "all" else victim)))
