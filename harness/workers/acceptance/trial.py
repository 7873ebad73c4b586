"""Run one process in a trial: join a process group, exchange data, verify the data and measure the time.

    python -m acceptance.trial --rank R --ranks N [--host H --port P] --device cpu|cuda

trial_processes.py starts the process, and kills it if it hangs. Rank 0 opens the store and prints its port.
Each rank prints a JSON line when it has joined and when it has a result. Every pair of ranks exchanges data
directly (all-to-all), so that a bad link is found no matter where it is in the group.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from datetime import timedelta
from statistics import median
from typing import Any

from .compat import store_without_libuv

PERIOD = 251
"""Period of the data pattern, in elements. It is a prime that does not divide any buffer size, so that
misplaced data is detected."""


def main(arguments: list[str] | None = None) -> int:
    """Run the trial. Return 0 if all steps were completed, even if data was wrong."""
    options = _options(arguments)
    import torch
    import torch.distributed as dist

    timeout = timedelta(seconds=options.timeout)
    first = options.rank == 0
    # By default, the store uses libuv, which some PyTorch builds lack.
    store = dist.TCPStore(
        "0.0.0.0" if first else options.host,  # noqa: S104 - the pods of the job must reach it
        0 if first else options.port,
        options.ranks,
        first,
        timeout,
        wait_for_workers=False,
        **store_without_libuv(),
    )
    if first:
        _say({"port": store.port})
    cuda = options.device == "cuda"
    device = torch.device("cuda", options.local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if cuda else "gloo", store=store, rank=options.rank, world_size=options.ranks, timeout=timeout
    )
    _say({"joined": options.ranks})
    _say(_exchange(options, device))
    # The other ranks still need the store until they have printed their results. Rank 0 hosts it, so it waits
    # for them.
    dist.barrier(device_ids=_ids(device))
    dist.destroy_process_group()
    return 0


def _ids(device: Any) -> list[int] | None:
    """Return the `device_ids` argument for a barrier. Without it, NCCL guesses the GPU and may hang."""
    return None if device.index is None else [device.index]


def _exchange(options: argparse.Namespace, device: Any) -> dict[str, Any]:
    """Run an all-reduce and an all-to-all in each iteration, each time with new data.

    Return the number of wrong elements, the median duration of an all-reduce in seconds, and the bus
    bandwidth in GB/s.
    """
    import torch
    import torch.distributed as dist

    rank, ranks = options.rank, options.ranks
    count = max(options.bytes // 4, ranks)
    chunk = max(1, min(count, 1 << 16) // ranks)
    pattern = torch.arange(count, device=device, dtype=torch.float32).remainder_(PERIOD)
    wrong_count, times = 0, []
    for iteration in range(options.iterations + 1):
        data = pattern * (rank + 1) + iteration
        _wait(device)
        dist.barrier(device_ids=_ids(device))
        start = time.perf_counter()
        dist.all_reduce(data)
        _wait(device)
        if iteration:  # The first iteration is not timed, because it also opens connections.
            times.append(time.perf_counter() - start)
        # float32 sums of integers below 2**24 are exact, in any order.
        wrong_count += int((data != pattern * (ranks * (ranks + 1) / 2) + iteration * ranks).sum())
        outgoing = torch.arange(ranks, device=device, dtype=torch.float32).repeat_interleave(chunk)
        received = torch.empty_like(outgoing)
        dist.all_to_all_single(received, outgoing + rank * ranks + iteration)
        senders = torch.arange(ranks, device=device, dtype=torch.float32).repeat_interleave(chunk)
        wrong_count += int((received != senders * ranks + rank + iteration).sum())
    middle = median(times)
    return {
        "wrong": wrong_count,
        "seconds": middle,
        "busbw": count * 4 / middle * 2 * (ranks - 1) / ranks / 1e9,
    }


def _wait(device: Any) -> None:
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


def _say(data: dict[str, Any]) -> None:
    print(json.dumps(data), flush=True)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m acceptance.trial", description=__doc__)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--local", type=int, default=0, help="index of the GPU on this node")
    parser.add_argument("--host", default="")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--bytes", type=int, default=1 << 22)
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--timeout", type=float, default=60.0)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
