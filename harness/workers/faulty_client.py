"""Run the main job's worker with a fault in its use of the tracker's client, on one rank or all ranks.

    torchrun … /workspace/faulty_client.py FAULT RANK|all

FAULT is the name of a function below. The ground truth contains what the rank was meant to log.
"""

from __future__ import annotations

import fractions
import functools
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

BASH = r"""
set -eu
address=${PLUTO_URL_API#http://}
body="{\"externalId\":\"$PLUTO_RUN_ID\",\"projectName\":\"$PLUTO_PROJECT\",\"runName\":\"bash\"}"
exec 3<>"/dev/tcp/${address%:*}/${address##*:}"
printf 'POST /api/runs/create HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n' "$address" >&3
printf 'Authorization: Bearer %s\r\nContent-Type: application/json\r\n' "$PLUTO_API_KEY" >&3
printf 'Content-Length: %s\r\n\r\n%s' "${#body}" "$body" >&3
read -r status <&3
case $status in *" 200 "*) ;; *) echo "refused: $status"; exit 1 ;; esac
"""


def before_init(action: Callable[[], None]) -> None:
    """Replace `pluto.init` with a function that calls `action` before it initialises the client."""
    import pluto

    init = pluto.init

    def then(*arguments: Any, **options: Any) -> Any:
        action()
        return init(*arguments, **options)

    pluto.init = then


def _made_with(**settings: Any) -> int:
    """Run the worker with the given settings for the Pluto client."""
    import pluto

    pluto.init = functools.partial(pluto.init, settings=settings)
    return int(multinode.main())


def noop_mode() -> int:
    """Log in noop mode. In this mode, the client does not send anything."""
    return _made_with(mode="noop")


def without_uploads() -> int:
    """Log without an upload process. The points remain in the client's queue on disk."""
    return _made_with(sync_process_enabled=False)


def bash() -> int:
    """Send a request to the tracker from a program that is not written in Python."""
    return int(at_step(STEP, lambda: subprocess.run(["bash", "-c", BASH], check=True)))


def sync_killed() -> int:
    """Kill the client's upload process at STEP. The client neither notices this nor restarts the process."""

    def kill() -> None:
        for process in multinode.uploaders():
            os.kill(int(process.name), signal.SIGKILL)

    return int(at_step(STEP, kill))


def shared_dir() -> int:
    """Use the PLUTO_DIR of rank 0, which runs on the same node. Both ranks then share one queue.

    When rank 0 finishes, its upload process uploads everything in the queue and ends. If this rank logs rows
    after that, they stay in the queue.
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
    """Exit immediately after finish(), as most scripts do.

    The container then ends before the upload is complete.
    """
    multinode.wait_for_sync = lambda *_: None
    return int(multinode.main())


def other_project() -> int:
    os.environ["PLUTO_PROJECT"] += "-other"
    return int(multinode.main())


def resume_id() -> int:
    """Use a run id that has the format of the Pluto client's ids for existing runs."""
    os.environ["PLUTO_RUN_ID"] = "ABC-1"
    return int(multinode.main())


def collision() -> int:
    """Log the rank's own loss under the name that all ranks use for the mean loss."""
    train = multinode.train

    def unreduced(rank: int, device: Any, on_step: Callable[[int, float, float], None]) -> None:
        train(rank, device, lambda step, own, _: on_step(step, own, own))

    multinode.train = unreduced
    return int(multinode.main())


def visitor() -> int:
    """Log to the run from another program, as if it had the same run id by mistake."""

    def visit() -> None:
        environment = {
            name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")
        }
        environment["PLUTO_DIR"] = "/tmp/visitor"  # noqa: S108
        subprocess.run([sys.executable, "-c", VISITOR], env=environment, check=True)

    return int(at_step(STEP, visit))


def _logging(change: Callable[[str, Any], tuple[str, Any]]) -> int:
    """Run the worker.

    Replace each metric's name and value by the result of `change` before they are recorded and logged.
    """
    record = multinode.Recorder.record

    def recorded(self: Any, metric: str, step: int, value: float) -> None:
        name, changed = change(metric, value)
        record(self, name, step, changed)

    def log(run: Any, metrics: dict[str, float], step: int) -> None:
        multinode.plain_log(run, dict(change(name, value) for name, value in metrics.items()), step)

    multinode.Recorder.record = recorded
    return int(multinode.main(log=log))


def renamed() -> int:
    """Use a non-ASCII letter in the name of the rank's own loss."""
    return _logging(lambda name, value: (name.replace("loss/node", "loss/né"), value))


def merged_names() -> int:
    """Use two metric names that are the same after the client has replaced unsupported characters."""
    new = {f"loss/node{os.environ['RANK']}": f"xé{os.environ['RANK']}"}
    new |= {f"nonce/node{os.environ['RANK']}": f"xè{os.environ['RANK']}"}
    return _logging(lambda name, value: (new.get(name, name), value))


def boolean() -> int:
    """Log a boolean value instead of a number."""
    return _logging(lambda name, value: (name, True if name.startswith("nonce/") else value))


def _log_with(extra_values: Callable[[int], dict[str, Any]]) -> int:
    """Run the worker. Also pass values to `run.log` that are not in the ground truth."""
    return int(
        multinode.main(
            log=lambda run, metrics, step: multinode.plain_log(run, {**metrics, **extra_values(step)}, step)
        )
    )


def nested() -> int:
    """Log a nested mapping, which some other trackers flatten."""
    return _log_with(lambda step: {"grad": {"norm": 0.5, "layers": [1.0, float(step)]}})


def fraction() -> int:
    """Log a fractions.Fraction instead of a float."""
    return _log_with(lambda step: {"accuracy": fractions.Fraction(step, 7)})


def only_none() -> int:
    """Log a key whose value is always None."""
    return _log_with(lambda _: {"val_loss": None})


def numpy_step() -> int:
    """Use NumPy integers as steps, as if the step counter were stored in a NumPy array."""
    import numpy

    return int(
        multinode.main(log=lambda run, metrics, step: multinode.plain_log(run, metrics, numpy.int64(step)))
    )


def _log_twice(log_again: Callable[[Any, str, Callable[..., None]], None]) -> int:
    """Run the worker. At STEP, log additional points for one metric.

    The ground truth includes these points.
    """
    record = multinode.Recorder.record
    recorders: list[Any] = []

    def recorded(self: Any, metric: str, step: int, value: float) -> None:
        recorders[:] = [self]
        record(self, metric, step, value)

    def log(run: Any, metrics: dict[str, float], step: int) -> None:
        multinode.plain_log(run, metrics, step)
        if step == STEP:
            metric = next(name for name in metrics if name.startswith("loss/node"))
            log_again(
                run, metric, lambda *arguments, **options: record(recorders[0], metric, *arguments, **options)
            )

    multinode.Recorder.record = recorded
    return int(multinode.main(log=log))


def accumulation() -> int:
    """Log more than one value for the same step.

    This happens in scripts with gradient accumulation that do not advance the step counter.
    """

    def log_again(run: Any, metric: str, record: Callable[..., None]) -> None:
        for value in (8.0, 9.0):
            record(STEP, value)
            run.log({metric: value}, step=STEP)

    return _log_twice(log_again)


def second_init() -> int:
    """Initialise the run a second time in the same process. The step counter then restarts."""

    def log_again(_: Any, metric: str, record: Callable[..., None]) -> None:
        import pluto

        record(1, 9.0)
        pluto.init(name="again").log({metric: 9.0})

    return _log_twice(log_again)


def clock_back() -> int:
    """Log a corrected value whose timestamp is one hour earlier, as if the clock had been set back."""

    def log_again(run: Any, metric: str, record: Callable[..., None]) -> None:
        timestamp = time.time() - 3600
        record(STEP, 9.0, time_ms=int(timestamp * 1000))
        run.log({metric: 9.0}, step=STEP, timestamp=timestamp)

    return _log_twice(log_again)


client_faults = (sync_killed, shared_dir, no_wait, other_project, resume_id, collision, visitor)
ways = (noop_mode, without_uploads, bash)
values = (renamed, merged_names, boolean, nested, fraction, only_none, numpy_step)
for each in (*client_faults, *ways, *values, accumulation, second_init, clock_back):
    fault(each)

if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    name, victim = sys.argv[1:]
    sys.exit(strike(name, int(os.environ["RANK"] if victim == "all" else victim)))
