"""Run and check an all-reduce over all ranks.

This is netcheck's last step, and the only one that requires PyTorch.
"""

from __future__ import annotations

import datetime
import time

from .finding import Finding, failed, ok, unknown


def self_test(seconds: float = 60.0, elements: int = 1 << 16) -> Finding:
    """All-reduce `elements` numbers that depend on the rank and the index, and check every sum.

    If there is no process group, this function creates one from torchrun's variables and destroys it
    afterwards. The backend is nccl if CUDA is available, otherwise gloo. The numbers are integers stored as
    float64, so all sums are exact. If PyTorch cannot be imported, the finding is unknown.
    """
    try:
        import torch
        import torch.distributed as dist
    except ImportError as error:
        return unknown("all-reduce", f"PyTorch cannot be imported: {error}")
    start, creates_group = time.monotonic(), not dist.is_initialized()
    cuda = torch.cuda.is_available()
    try:
        if creates_group:
            dist.init_process_group("nccl" if cuda else "gloo", timeout=datetime.timedelta(seconds=seconds))
        rank, world = dist.get_rank(), dist.get_world_size()
        backend = dist.get_backend()
        device = (
            torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else torch.device("cpu")
        )
        place = torch.arange(elements, dtype=torch.float64, device=device)
        numbers = (rank + 1) * (place + 1)
        dist.all_reduce(numbers)
        wrong_count = int((numbers != (place + 1) * (world * (world + 1) // 2)).sum().item())
    except Exception as error:
        return failed(
            "allreduce.failed", f"{type(error).__name__}: {error}", seconds=time.monotonic() - start
        )
    finally:
        if creates_group and dist.is_initialized():
            dist.destroy_process_group()
    duration = time.monotonic() - start
    if wrong_count:
        return failed(
            "allreduce.wrong_sum",
            f"{wrong_count} of {elements} sums over {world} ranks are wrong",
            [rank],
            seconds=duration,
        )
    return ok("all-reduce", f"{elements} sums over {world} ranks are correct ({backend})", duration)
