"""A broken all-reduce on the PYTHONPATH of one node. ACCEPTANCE_FAULT: wrong, slow, hung or died."""

import os
import sys
import time

if "acceptance.trial" in sys.orig_argv:
    import torch.distributed as dist

    real = dist.all_reduce

    def all_reduce(tensor, *arguments, **options):
        """Reduce as this node's fault does."""
        fault = os.environ["ACCEPTANCE_FAULT"]
        if fault == "slow":
            time.sleep(3)
        if fault == "hung":
            time.sleep(3600)
        if fault == "died":
            os._exit(3)
        result = real(tensor, *arguments, **options)
        if fault == "wrong":
            tensor[tensor.numel() // 2] += 1
        return result

    dist.all_reduce = all_reduce
