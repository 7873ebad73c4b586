"""One trial of one process: join a group of its own, exchange data, check and time it.

    python -m acceptance.trial --rank R --ranks N [--host H --port P] --device cpu|cuda

Started by agent.py, and killed by it when it hangs. Rank 0 opens the store and prints its port. Then each
rank prints that it joined, and what it saw, as JSON lines. Every pair of ranks exchanges data directly
(all-to-all), so that a bad link is met wherever it is in the group.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from datetime import timedelta
from statistics import median
from typing import Any

from .older import store_without_libuv

PERIOD = 251
"""Length of the pattern in the data. A prime, so that it fits no buffer: data in the wrong place is seen."""


def main(arguments: list[str] | None = None) -> int:
    """Run the trial. Exits 0 where it came to its end, right or wrong."""
    options = _options(arguments)
    import torch
    import torch.distributed as dist

    timeout = timedelta(seconds=options.timeout)
    first = options.rank == 0
    # Some builds of PyTorch lack libuv, and would fail with the default.
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
    seen = _exchange(options, device)
    _say(seen)
    # Rank 0 owns the store: it stays until all have said what they saw.
    dist.barrier(device_ids=_ids(device))
    dist.destroy_process_group()
    return 0


def _ids(device: Any) -> list[int] | None:
    """Return what NCCL's barrier takes. Without it, it guesses the GPU from the rank, and may hang."""
    return None if device.index is None else [device.index]


def _exchange(options: argparse.Namespace, device: Any) -> dict[str, Any]:
    """All-reduce and all-to-all, with fresh data each time; return what was wrong, and how fast it went."""
    import torch
    import torch.distributed as dist

    rank, ranks = options.rank, options.ranks
    count = max(options.bytes // 4, ranks)
    each = max(1, min(count, 1 << 16) // ranks)
    pattern = torch.arange(count, device=device, dtype=torch.float32).remainder_(PERIOD)
    wrong, times = 0, []
    for iteration in range(options.iterations + 1):
        data = pattern * (rank + 1) + iteration
        _wait(device)
        dist.barrier(device_ids=_ids(device))
        began = time.perf_counter()
        dist.all_reduce(data)
        _wait(device)
        if iteration:  # the first one connects
            times.append(time.perf_counter() - began)
        # Whole numbers below 2**24: float32 sums them without an error, in any order.
        wrong += int((data != pattern * (ranks * (ranks + 1) / 2) + iteration * ranks).sum())
        sent = torch.arange(ranks, device=device, dtype=torch.float32).repeat_interleave(each)
        got = torch.empty_like(sent)
        dist.all_to_all_single(got, sent + rank * ranks + iteration)
        senders = torch.arange(ranks, device=device, dtype=torch.float32).repeat_interleave(each)
        wrong += int((got != senders * ranks + rank + iteration).sum())
    middle = median(times)
    return {"wrong": wrong, "seconds": middle, "busbw": count * 4 / middle * 2 * (ranks - 1) / ranks / 1e9}


def _wait(device: Any) -> None:
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


def _say(data: dict[str, Any]) -> None:
    print(json.dumps(data), flush=True)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    made = argparse.ArgumentParser("python -m acceptance.trial", description=__doc__)
    made.add_argument("--rank", type=int, required=True)
    made.add_argument("--ranks", type=int, required=True)
    made.add_argument("--local", type=int, default=0, help="number of the GPU on this node")
    made.add_argument("--host", default="")
    made.add_argument("--port", type=int, default=0)
    made.add_argument("--device", choices=("cpu", "cuda"), required=True)
    made.add_argument("--bytes", type=int, default=1 << 22)
    made.add_argument("--iterations", type=int, default=5)
    made.add_argument("--timeout", type=float, default=60.0)
    return made.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
