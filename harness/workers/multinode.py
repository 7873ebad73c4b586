"""Train a small model with DistributedDataParallel. Every rank of the main job runs this worker.

First, an all-reduce with a known sum proves that the ranks form one process group. The worker then trains,
and uses the unmodified pluto-ml client to log per-rank metrics and shared metrics to one Pluto run. Before
each call of run.log(), it records the values as ground truth. torchrun launches the worker. The backend is
gloo on CPUs and nccl on GPUs. The exit code is nonzero if a check fails.
"""

from __future__ import annotations

import datetime
import faulthandler
import gc
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ground_truth import STDERR, STDOUT, Recorder, client_state
from own_processes import PROC, OwnProcesses

STEPS = int(os.environ.get("E2E_STEPS", "20"))
STEP_SECONDS = float(os.environ.get("E2E_STEP_SECONDS", "0"))
"""Seconds to sleep after each step. This leaves time, for example, to inspect or disturb the job."""
MORE_METRICS = int(os.environ.get("E2E_MORE_METRICS", "0"))
"""Number of metrics that each rank logs in each step in addition to the usual three. Use this for jobs with
many points."""
DEVICE = os.environ.get("E2E_DEVICE", "auto")
"""The device for training: `auto` or `cuda`. If there is no GPU, a rank fails with `cuda`, and trains on the
CPU with `auto`."""
STALL_SECONDS = float(os.environ.get("HARNESS_STALL_SECONDS", "60")) + STEP_SECONDS
"""A rank exits if it makes no progress for this many seconds. If it is waiting for other ranks, it exits
after 1.5 times as long. So the rank that causes the stall exits first, and writes its stacks to the log."""
_DEADLINE = time.monotonic() + float(os.environ.get("HARNESS_RANK_SECONDS", "500"))
Log = Callable[[Any, dict[str, float], int], None]
"""A function that logs one step's metrics to the tracker. Its arguments are (run, metrics, step)."""


def plain_log(run: Any, metrics: dict[str, float], step: int) -> None:
    """Log one step's metrics with a single call to `run.log`, as workers normally do."""
    run.log(metrics, step=step)


def say(rank: int, text: str) -> None:
    """Write a line to this rank's log without buffering, so that it is not lost if the process dies."""
    os.write(STDOUT, f"[rank {rank}] {text}\n".encode())


def at_most(seconds: float) -> None:
    """Exit the process unless this function is called again within `seconds`.

    The time never extends beyond the rank's deadline (HARNESS_RANK_SECONDS). After that time, faulthandler
    writes the stack of every thread to the log and exits with code 1, even if the interpreter is shutting
    down.
    """
    timeout = max(0.1, min(seconds, _DEADLINE - time.monotonic()))
    faulthandler.dump_traceback_later(timeout, exit=True, file=STDERR)


def stacks_on_sigterm() -> None:
    """Write the stacks of all threads to the log when SIGTERM arrives.

    Call this function again after a library has installed its own SIGTERM handler.
    """
    faulthandler.register(signal.SIGTERM, file=STDERR, chain=True)


def init_distributed() -> tuple[int, int, Any]:
    """Initialise the process group, and return (rank, world size, device).

    Raises RuntimeError if the all-reduce returns a wrong sum, or if CUDA is required but not available.
    """
    import torch
    import torch.distributed as dist

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    cuda = torch.cuda.is_available()
    if DEVICE == "cuda" and not cuda:
        raise RuntimeError("E2E_DEVICE=cuda, but torch finds no CUDA device, so nccl cannot be tested")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    backend = "nccl" if cuda else "gloo"
    seconds = float(os.environ.get("HARNESS_RENDEZVOUS_SECONDS", "120"))
    name = torch.cuda.get_device_name(device) if cuda else "cpu"
    say(
        rank,
        f"{socket.gethostname()}: joining {world} ranks over {backend} on {name}, "
        f"for at most {seconds:.0f} s",
    )
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=seconds))
    total = torch.tensor([rank + 1.0], device=device)
    dist.all_reduce(total)
    expected = world * (world + 1) / 2
    if total.item() != expected:
        raise RuntimeError(f"all-reduce over {world} ranks gave {total.item()}, expected {expected}")
    say(rank, f"all-reduce over {world} ranks: {total.item():g} as expected")
    return rank, world, device


def train(rank: int, device: Any, on_step: Callable[[int, float, float], None]) -> None:
    """Train a linear model with DDP. Call on_step(step, own loss, mean loss) after each step."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(7)
    model = DistributedDataParallel(torch.nn.Linear(8, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    target = torch.arange(8.0, device=device).unsqueeze(1)
    data = torch.Generator().manual_seed(100 + rank)
    for step in range(STEPS):
        at_most(1.5 * STALL_SECONDS)
        x = torch.randn(64, 8, generator=data).to(device)
        loss = torch.nn.functional.mse_loss(model(x), x @ target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        on_step(step, loss.item(), mean.item() / dist.get_world_size())


def wait_for_uploader(rank: int, seconds: float) -> None:
    """Wait until this rank's Pluto upload process has installed its SIGTERM handler.

    If there is none, return at once. finish() sends SIGTERM to the upload process, which then sends the
    remaining rows. On a busy machine, the upload process takes several seconds to start. If SIGTERM arrives
    before the handler is installed, the signal kills the process, and all rows are lost.
    """
    deadline = time.monotonic() + seconds
    while not all(map(_handles_sigterm, uploaders())):
        if time.monotonic() > deadline:
            say(rank, f"pluto.sync did not start within {seconds:.0f} s: rows may be missing")
            break
        time.sleep(0.05)


def wait_for_sync(rank: int, seconds: float) -> None:
    """Keep the container alive until this rank's Pluto upload process has ended.

    With WORLD_SIZE > 1, the client's finish() does not wait for that process. If the container exited
    earlier, the last rows would be lost.
    """
    deadline = time.monotonic() + seconds
    while uploaders():
        if time.monotonic() > deadline:
            say(rank, f"pluto.sync is still running {seconds:.0f} s after finish(): rows may be missing")
            break
        time.sleep(0.05)
    else:
        if (client_state.read(os.environ["PLUTO_DIR"]) or {}).get("unsent"):
            say(rank, "pluto.sync has ended and left rows unsent: these rows will be missing")


def uploaders() -> list[Path]:
    """Return the /proc folders of the upload processes in this container that use this PLUTO_DIR."""
    own = os.environ["PLUTO_DIR"]
    processes = (PROC / f"{pid}" for pid in OwnProcesses().pids())
    return [each for each in processes if _is_sync(each, own)]


def _handles_sigterm(process: Path) -> bool:
    try:
        (mask_line,) = (line for line in (process / "status").read_text().splitlines() if "SigCgt" in line)
    except OSError:  # The upload process has already ended.
        return True
    return bool(int(mask_line.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def _is_sync(process: Path, pluto_dir: str) -> bool:
    try:
        command = (process / "cmdline").read_bytes()
        return b"pluto.sync" in command and pluto_dir.encode() in command and _state(process) != "Z"
    except OSError:
        return False


def _state(process: Path) -> str:
    return (process / "stat").read_text().rsplit(")", 1)[1].split()[0]


def main(log: Log = plain_log) -> int:
    """Train, log each step with `log`, and return the exit code. faulty.py passes a different `log`."""
    faulthandler.enable(file=STDERR)
    at_most(math.inf)
    stacks_on_sigterm()
    # Imports create a million objects that are never freed.
    # Scanning them in garbage collections and at shutdown takes a sixth of a rank's CPU time.
    gc.disable()
    rank, world, device = init_distributed()
    # Each attempt of a rank gets its own queue. If two clients share a queue, points are lost.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT") or "0"
    os.environ["PLUTO_DIR"] = f"/tmp/pluto/rank{rank}-{attempt}"  # noqa: S108
    Path(os.environ["PLUTO_DIR"]).mkdir(parents=True, exist_ok=True)

    import pluto
    import torch.distributed as dist

    truth = Recorder.from_env(rank)
    job = os.environ.get("KONDUKTOR_JOB_NAME", "local")
    faulthandler.unregister(signal.SIGTERM)
    run = pluto.init(project=os.environ.get("PLUTO_PROJECT", "e2e"), name=f"{job}-rank{rank}")
    stacks_on_sigterm()
    ids: list[Any] = [None] * world
    dist.all_gather_object(ids, run.id)
    say(rank, f"Pluto run {run.id}; run ids of all ranks: {ids}")

    def on_step(step: int, own: float, mean: float) -> None:
        at_most(STALL_SECONDS)
        if step == 0:  # All imports are done, so garbage collection can start again.
            gc.freeze()
            gc.enable()
        metrics = {
            f"loss/node{rank}": own,
            f"nonce/node{rank}": float(int(truth.nonce, 16)),
            "loss/mean": mean,
            **{f"more/{number}/node{rank}": own + number for number in range(MORE_METRICS)},
        }
        for name, value in metrics.items():
            truth.record(name, step, value)
        log(run, metrics, step)
        say(rank, f"step {step} loss {own:.4f}")
        time.sleep(STEP_SECONDS)

    train(rank, device, on_step)
    at_most(math.inf)
    truth.flush()
    wait_for_uploader(rank, 40.0)
    run.finish()
    wait_for_sync(rank, 40.0)
    truth.client(client_state.read(os.environ["PLUTO_DIR"]))
    digest = truth.end()
    say(rank, f"done: {digest['count']} points")
    # Without device_ids, NCCL guesses the GPU and may hang.
    dist.barrier(device_ids=None if device.index is None else [device.index])
    dist.destroy_process_group()
    at_most(STALL_SECONDS)
    gc.freeze()
    return 0


if __name__ == "__main__":
    sys.exit(main())
