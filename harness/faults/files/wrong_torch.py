"""A sitecustomize that makes PyTorch fail in one pod. ACCEPTANCE_FAULT selects the fault.

With `all-reduce`, one element of each result is too large by one. With `hangs`, this rank never returns from
an all-gather. With `product`, one element of each matrix product is wrong.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

FAULT = os.environ.get("ACCEPTANCE_FAULT", "")
WORDS = " ".join(sys.orig_argv)
if FAULT in ("all-reduce", "hangs") and "acceptance.ddp_tests" in WORDS and "RANK" in os.environ:
    import torch.distributed as dist

    _reduce = dist.all_reduce

    def all_reduce(tensor: Any, *arguments: Any, **options: Any) -> Any:
        """Run the all-reduce, and change one element of its result."""
        result = _reduce(tensor, *arguments, **options)
        tensor[tensor.numel() // 2] += 1
        return result

    def all_gather_into_tensor(*_: Any, **__: Any) -> None:
        """Sleep for an hour, as if the collective hung."""
        time.sleep(3600)

    if FAULT == "all-reduce":
        dist.all_reduce = all_reduce
    else:
        dist.all_gather_into_tensor = all_gather_into_tensor
if FAULT == "product" and "acceptance.run_all_tests" in WORDS:
    import torch

    def wrong(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that calls `real` and changes one element of its result."""

        def product(*arguments: Any, **options: Any) -> Any:
            result = real(*arguments, **options)
            # The tests compare results with a float64 product, which must stay correct.
            if isinstance(result, torch.Tensor) and result.dim() == 2 and result.dtype != torch.float64:
                result[0, 0] += 1 + result[0, 0].abs()
            return result

        return product

    torch.matmul, torch.mm = wrong(torch.matmul), wrong(torch.mm)
    torch.Tensor.__matmul__ = wrong(torch.Tensor.__matmul__)
