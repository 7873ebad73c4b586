"""Advice on errors in PyTorch, CUDA and Python that cannot be understood from the rank's log alone.

These errors can end a rank at any time. They do not have their own causes in the catalogue, because the same
message can have several reasons. Each entry lists the usual reasons.
"""

from __future__ import annotations

import re

_ADVICE = (
    (
        r"Duplicate GPU detected",
        "two ranks use one GPU: call torch.cuda.set_device(LOCAL_RANK), or start no more ranks than the pod "
        "has GPUs",
    ),
    (
        r"transport/nvls\.cc|NVLink SHARP|Cuda failure \d+ 'invalid argument'",
        "the fabric manager may have been restarted while GPUs were in use: reset the GPUs or reboot the "
        "node; NCCL_NVLS_ENABLE=0 avoids it",
    ),
    (
        r"CUDA out of memory|Cuda failure \d+ 'out of memory'|torch\.OutOfMemoryError|CUDA error: out of mem",
        "the GPU's memory is full, not that of the pod: reduce the batch or the sequence length, shard the "
        "model, or see with `nvidia-smi` whether another process uses the GPU",
    ),
    (
        r"Expected to have finished reduction in the prior iteration",
        "some parameters had no part in the loss of this rank: pass find_unused_parameters=True to "
        "DistributedDataParallel, or use all parameters in each step",
    ),
    (
        r"ibv_reg_mr\w* failed|ibv_create_\w+ failed with error Cannot allocate memory",
        "RDMA needs locked memory: run `ulimit -l unlimited` in the container or at its runtime, and grant "
        "the capability IPC_LOCK to the pod",
    ),
    (
        r"ibv_\w+ failed with error|Got completion from peer .* status=|NET/IB : Got async event",
        "the InfiniBand or RoCE link to the peer failed: see whether the ports are active (`ibstat`) on both "
        "nodes, and whether NCCL_IB_HCA and NCCL_IB_GID_INDEX fit; NCCL_IB_DISABLE=1 shows whether TCP works",
    ),
    (
        r"watchdog got stuck for \d+ seconds|Heartbeat monitor timed out",
        "a call to CUDA or NCCL did not return, or a thread held the GIL: look for Xid errors (`dmesg | grep "
        "Xid` on the node), and for long work in Python or on the file system at this step",
    ),
    (
        r"Too many open files|received 0 items of ancdata",
        "the process has too many open files: raise the limit (`ulimit -n 65536` in the script), use fewer "
        'DataLoader workers, or call torch.multiprocessing.set_sharing_strategy("file_system")',
    ),
    (
        r"an illegal (memory access was|instruction was|address) ?|misaligned address"
        r"|unspecified launch failure|device-side assert triggered|cudaErrorLaunchFailure",
        "run once with CUDA_LAUNCH_BLOCKING=1, so that the stack shows the operation that failed; if the "
        "same node fails with other code too, look for Xid errors there: `dmesg | grep Xid`",
    ),
    (
        r"CUDA-capable device\(s\) is/are busy or unavailable|cudaErrorDevicesUnavailable",
        "another process has the GPU, or the GPU has failed: `nvidia-smi` and `dmesg | grep Xid` on the node",
    ),
    (
        r"no kernel image is available for execution on the device|not compiled with CUDA enabled",
        "the image's PyTorch was not built for this GPU: install a wheel whose CUDA version supports it "
        "(`python -c 'import torch; print(torch.cuda.get_arch_list())'`)",
    ),
    (
        r"can't start new thread|blas_thread_init: pthread_create failed|pthread_create.*Resource temporarily"
        r"|fork: (retry: )?Resource temporarily unavailable|BlockingIOError: \[Errno 11\]",
        "the pod may have no more threads: raise the kubelet's podPidsLimit, or set OMP_NUM_THREADS and use "
        "fewer DataLoader workers",
    ),
    (
        r"^(\[rank\d+\]: ?)?MemoryError|Cannot allocate memory|DefaultCPUAllocator: can't allocate memory",
        "the memory of the pod is full: raise its memory limit, or load less at once",
    ),
    (
        r"undefined symbol: |version `(GLIBC|GLIBCXX|CXXABI)_[\d.]+' not found"
        r"|cannot open shared object file: No such file or directory",
        "a compiled extension does not fit the image: build it for the image's PyTorch, CUDA and C library",
    ),
    (
        r"ModuleNotFoundError: |ImportError: cannot import name",
        "install the module in the image of every rank, and see whether PYTHONPATH and the working directory "
        "are the same in each pod",
    ),
    (
        r": command not found$|^exec: .*: not found$",
        "the image has no such program, or PATH lacks its folder: install it in the image of every rank",
    ),
    (
        r"^\S*sh: .*: Permission denied$",
        "start the script with bash, or make it executable (`chmod +x`); a volume may be mounted with noexec",
    ),
    (
        r"can't open file '",
        "the file is not in the container: see the working directory, and the mount or the code that is sent",
    ),
    (
        r"PermissionError: \[Errno 13\]",
        "the user of the container may not use that path: set securityContext.fsGroup or runAsUser, or write "
        "elsewhere",
    ),
    (
        r"(couldn't connect to|Max retries exceeded .*|Cannot reach) '?(https://)?huggingface\.co"
        r"|LocalEntryNotFoundError|OfflineModeIsEnabled",
        "the pod does not reach huggingface.co: allow it, or bring the files into the image or a volume and "
        "set HF_HUB_OFFLINE=1",
    ),
)


def advice(error: str) -> str:
    """Return advice on a rank's last error, or "" if the error is not known."""
    return next((text for pattern, text in _ADVICE if re.search(pattern, error, re.IGNORECASE)), "")
