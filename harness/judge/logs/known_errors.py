"""Advice on errors in PyTorch, CUDA and Python that cannot be understood from the rank's log alone.

These errors can end a rank at any time. They do not have their own causes in the catalogue, because the same
message can have several reasons. Each entry lists the usual reasons. Errors of the network between the ranks
are in network_advice.py.
"""

from __future__ import annotations

import itertools
import re

from harness.judge.logs import network_advice

_ADVICE = (
    (
        r"(?<!=)'tcp://[\d.]+:\d+'",
        "Kubernetes sets such a variable for each Service (MASTER_PORT for a Service `master`): rename the "
        "Service, or set enableServiceLinks: false in the pod template",
    ),
    (
        r"shm_open failed.*Permission denied|(shared memory|/dev/shm|</torch_).*Permission denied",
        "the container's user may not write to /dev/shm: mount an emptyDir with medium: Memory there, "
        "or change securityContext.runAsUser",
    ),
    (
        r"unable to open shared memory object .*No such file",
        "the process that created the tensor no longer exists: check whether a DataLoader worker, or the "
        "process that sent the tensor, had already ended",
    ),
    (
        r"DataLoader worker .* killed by signal: Killed",
        "the kernel probably killed the DataLoader worker because the pod's memory was full: raise the "
        "memory limit, or use fewer workers, a smaller prefetch_factor or smaller batches",
    ),
    (
        r"DataLoader worker .* killed by signal: (?!Bus error|Terminated)",
        "a library crashed in the DataLoader worker: set num_workers=0 and run with `python -X faulthandler` "
        "to see the stack",
    ),
    (
        r"Duplicate GPU detected",
        "two ranks use the same GPU: call torch.cuda.set_device(LOCAL_RANK), or start no more ranks "
        "than the pod "
        "has GPUs",
    ),
    (
        r"transport/nvls\.cc|NVLink SHARP|Cuda failure \d+ 'invalid argument'",
        "the fabric manager may have been restarted while GPUs were in use: reset the GPUs or reboot the "
        "node; NCCL_NVLS_ENABLE=0 avoids the problem",
    ),
    (
        r"NVML_SUCCESS == .*INTERNAL ASSERT FAILED at .*CUDACachingAllocator",
        "the GPU's memory is full, and PyTorch failed while reporting this, because it cannot read the "
        "memory's state, for example on a MIG device: reduce the batch or the sequence length, or "
        "use a larger GPU",
    ),
    (
        r"CUDA out of memory|Cuda failure \d+ 'out of memory'|torch\.OutOfMemoryError|CUDA error: out of mem"
        r"|Error 2: out of memory",
        "the GPU's memory is full, not that of the pod: reduce the batch or the sequence length, shard the "
        "model, or "
        "check with `nvidia-smi` whether another process uses the GPU",
    ),
    (
        r"Expected to have finished reduction in the prior iteration",
        "some parameters were not used in the loss on this rank: pass find_unused_parameters=True to "
        "DistributedDataParallel, or use all parameters in each step",
    ),
    (
        r"watchdog got stuck for \d+ seconds|Heartbeat monitor timed out",
        "a call to CUDA or NCCL did not return, or a thread held the GIL: look for Xid errors (`dmesg | grep "
        "Xid` on the node), and for slow Python code or file system access at this step",
    ),
    (
        r"Too many open files|received 0 items of ancdata",
        "the process has too many open files: raise the limit (`ulimit -n 65536` in the script), use fewer "
        'DataLoader workers, or call torch.multiprocessing.set_sharing_strategy("file_system")',
    ),
    (
        r"device-side assert.*(srcIndex|index out of bounds|idx_dim|ind >=)",
        "an index is out of range, such as a token id that is not less than the vocabulary size, or a label "
        "that is not less than the number of classes: check the inputs of this step on the CPU",
    ),
    (
        r"an illegal (memory access was|instruction was|address) ?|misaligned address"
        r"|unspecified launch failure|device-side assert triggered|cudaErrorLaunchFailure"
        r"|CUDA error: (unknown error|hardware stack error)|NVLink or a hardware error|the launch timed out"
        r"|(CUBLAS|CUDNN)_STATUS_EXECUTION_FAILED",
        "run once with CUDA_LAUNCH_BLOCKING=1, so that the stack shows the operation that failed; if the "
        "same node fails with other code too, look for Xid errors there: `dmesg | grep Xid`",
    ),
    (
        r"CUDA-capable device(s|\(s\)) (is/)?are busy or unavailable|cudaErrorDevicesUnavailable",
        "another process uses the GPU, or the GPU has failed: run `nvidia-smi` and `dmesg | grep "
        "Xid` on the node",
    ),
    (
        r"cudaGetDeviceCount\(\).* Error 101: ",
        "CUDA cannot use a GPU of this container: check with `nvidia-smi`, in the pod and on the "
        "node, whether "
        "a GPU has failed or has MIG without MIG devices, and whether CUDA_VISIBLE_DEVICES is valid",
    ),
    (
        r"invalid device ordinal|device >= 0 && device < num_gpus INTERNAL ASSERT",
        "the rank uses a GPU that its pod does not have: start no more ranks (--nproc-per-node) than the pod "
        "has GPUs, and pass LOCAL_RANK, not RANK, to torch.cuda.set_device",
    ),
    (
        r"lib(cuda|nvidia-ml)\.so\.1: cannot open shared|NVML Shared Library Not Found",
        "the driver's libraries are missing from this container: check whether the pod has a limit for "
        "nvidia.com/gpu, whether it needs runtimeClassName: nvidia, and whether NVIDIA_DRIVER_CAPABILITIES "
        "includes compute and utility",
    ),
    (
        r"No CUDA GPUs are available|no CUDA-capable device is detected|CUDA unknown error - this may be due"
        r"|no GPUs found|CUDA driver initialization failed|cudaGetDeviceCount\(\).* Error (304|999): "
        r"|NVMLError_Unknown|nvml\w+\(\w*\) failed: (Unknown Error|Not Found)"
        r"|GPU access blocked by the operating system",
        "check the pod's limit for nvidia.com/gpu and its CUDA_VISIBLE_DEVICES, and run `nvidia-smi` in the "
        "pod: if it prints `Failed to initialize NVML: Unknown Error`, the container has lost its GPUs, for "
        "example because systemd was reloaded on the node; then delete the pod",
    ),
    (
        r"driver/library version mismatch",
        "the node's driver was updated, but its old kernel module is still loaded: drain and reboot the node",
    ),
    (
        r"CUDA driver is a stub library",
        "the image loads the stub of libcuda.so.1, which is only for linking programs: remove the "
        "stubs folder from LD_LIBRARY_PATH and /etc/ld.so.conf.d",
    ),
    (
        r"PTX was compiled with an unsupported toolchain"
        r"|API call is not supported in the installed CUDA driver",
        "the node's driver is older than the CUDA version of this program or library: update the driver, or "
        "use a build for an older CUDA version",
    ),
    (
        r"forward compatibility was attempted|unsupported display driver / cuda driver combination",
        "the image contains its own libcuda.so.1, for example from cuda-compat, which does not match the "
        "node's driver or GPU: remove its folder, such as /usr/local/cuda/compat, from LD_LIBRARY_PATH, or "
        "update the driver",
    ),
    (
        r"system not yet initialized",
        "the NVSwitch fabric is not initialized yet: start nvidia-fabricmanager on the node, in the same "
        "version as the driver, and check the state of the fabric with `nvidia-smi -q`",
    ),
    (
        r"(CUDA error|Error \d+): MPS ",
        "the GPU is shared through MPS, whose daemon on the node failed or allows no more clients: see the "
        "log of nvidia-cuda-mps-control",
    ),
    (
        r"Cannot re-initialize CUDA in forked subprocess|(CUDA error|Error 3): initialization error",
        'create child processes with the start method "spawn" (multiprocessing_context="spawn" for a '
        "DataLoader), or keep CUDA tensors out of the dataset",
    ),
    (
        r"(CUBLAS|CUDNN|CUSOLVER|CUSPARSE)_STATUS_(NOT_INITIALIZED|ALLOC_FAILED|INTERNAL_ERROR)",
        "the GPU's memory is probably full, so the library cannot be initialised: reduce the batch, or "
        "check with `nvidia-smi` whether another process uses the GPU; otherwise look for an earlier "
        "CUDA error with "
        "CUDA_LAUNCH_BLOCKING=1",
    ),
    (
        r"no kernel image is available for execution on the device|not compiled with CUDA enabled"
        r"|device kernel image is invalid|CUDA error: invalid device function",
        "the image's PyTorch was not built for this GPU: install a wheel whose CUDA version supports it "
        "(`python -c 'import torch; print(torch.cuda.get_arch_list())'`)",
    ),
    (
        r"peer access is not supported between these two devices",
        "these GPUs cannot access each other's memory, for example because of a vGPU or the PCIe settings of "
        "the host: set NCCL_P2P_DISABLE=1",
    ),
    (
        r"Attempting to deserialize object on (a )?CUDA device",
        "the checkpoint was saved on a GPU that this rank does not have: pass map_location to torch.load, "
        "such as cpu or the rank's own device",
    ),
    (
        r"unable to lock file, errno|HDF5_USE_FILE_LOCKING",
        "another rank has the HDF5 file open, or its file system does not support locks: let one rank write "
        "it and the others open it for reading after that; for a file that no rank writes, set "
        "HDF5_USE_FILE_LOCKING=FALSE",
    ),
    (
        r"can't start new thread|blas_thread_init: pthread_create failed|pthread_create.*Resource temporarily"
        r"|fork: (retry: )?Resource temporarily unavailable|BlockingIOError: \[Errno 11\]",
        "the pod cannot create more threads: raise the kubelet's podPidsLimit, or set OMP_NUM_THREADS and "
        "use fewer DataLoader workers",
    ),
    (
        r"^(\[rank\d+\]: ?)?MemoryError|std::bad_alloc|Cannot allocate memory"
        r"|DefaultCPUAllocator: can't allocate memory",
        "the pod's memory is full: raise its memory limit, or load less data at once",
    ),
    (
        r"undefined symbol: |version `(GLIBC|GLIBCXX|CXXABI)_[\d.]+' not found"
        r"|cannot open shared object file: No such file or directory",
        "a compiled extension was not built for this image: build it for the image's PyTorch, CUDA and C "
        "library",
    ),
    (
        r"ModuleNotFoundError: |ImportError: cannot import name",
        "install the module in the image of every rank, and check whether PYTHONPATH and the working "
        "directory are the same in each pod",
    ),
    (
        r": command not found$|^exec: .*: not found$",
        "the program is not in the image, or its folder is not in PATH: install it in every rank's image",
    ),
    (
        r"^\S*sh: .*: Permission denied$",
        "start the script with bash, or make it executable (`chmod +x`); if it already is, check whether its "
        "volume is mounted with noexec",
    ),
    (
        r"can't open file '",
        "the file is not in the container: check the working directory, the mount and the code that was sent",
    ),
    (
        r"\[Errno (107|112)\]|\[Errno (19|110)\] .*: '/|Transport endpoint is not connected",
        "the server or the FUSE process behind this mount does not respond or has ended: read the log of the "
        "volume's CSI driver on the node, and recreate the pod",
    ),
    (
        r"\[Errno 116\]|Stale file handle",
        "another process replaced or deleted the file on the network file system: let one rank write "
        "it while "
        "the others wait in torch.distributed.barrier(), and recreate the pod if its mount is stale",
    ),
    (
        r"\[Errno 30\]|Read-only file system",
        "the volume is not writable: check readOnly in the pod's volumes and mounts, and whether the kernel "
        "remounted the disk after an error (`dmesg` on the node)",
    ),
    (
        r"\[Errno 5\]|Input/output error",
        "the storage failed but is not full: check the volume's status, and `dmesg` on the node",
    ),
    (
        r"\[Errno 37\]|No locks available",
        "this file's file system, such as NFS, does not support locks: set HF_HOME, or the folder in "
        "the message, to a local disk or an emptyDir",
    ),
    (
        r"Parent directory .* does not exist",
        "create the folder in every rank, with os.makedirs(folder, exist_ok=True), or in one rank before a "
        "torch.distributed.barrier()",
    ),
    (
        r"Missing key in checkpoint state_dict|Error\(s\) in loading state_dict|size mismatch for ",
        "the names or shapes in the checkpoint differ from the model's: use the configuration, the wrappers "
        "and the number of ranks with which the checkpoint was saved",
    ),
    (
        r"(FileNotFoundError|OSError|FileExistsError): \[Errno (2|17|39)\] .*' -> '",
        "another rank has probably renamed the same path: on a shared volume, let only one rank of the job "
        "rename it, not one rank of each node, and the others wait in torch.distributed.barrier()",
    ),
    (
        r"FileExistsError: ",
        "another rank created this path at the same time, or an earlier attempt left it there: let one rank "
        "create it, with exist_ok=True, and remove an incomplete checkpoint before it is saved again",
    ),
    (
        r"(No such file|not found|does not exist).*"
        r"(world_size_\d+_rank_\d+|mp_rank_\d+|zero_pp_rank_\d+|__\d+_\d+\.distcp)",
        "the checkpoint may have been saved by another number of ranks, or on volumes that not every node "
        "has: resume with that number, or convert it, and save to a volume that all nodes share",
    ),
    (
        r"checkpoint being loaded used a DP world size of \d+ but the current world size is \d+",
        "the checkpoint was saved by another number of ranks: resume with that number, or convert it, for "
        "example to DeepSpeed's universal format",
    ),
    (
        r"loaded state dict (contains a parameter group that doesn't match|has a different number of)",
        "the optimizer in the checkpoint has other parameters than this rank's: resume with the same model, "
        "frozen layers and parameter groups, or load only the model and start with a new optimizer",
    ),
    (
        r"Weights only load failed",
        "since PyTorch 2.6, torch.load does not load other Python objects by default: for a file that you "
        "trust, pass weights_only=False, or allow its classes with torch.serialization.add_safe_globals",
    ),
    (
        r"RNG state must be a torch\.ByteTensor",
        "torch.load has moved the state of the random number generator to a GPU: load the checkpoint with "
        "map_location='cpu'",
    ),
    (
        r"HeaderTooLarge",
        "the file has no header of safetensors, so it is probably a Git LFS pointer or a web page: run "
        "`git lfs pull` before it is copied, or download it again",
    ),
    (
        r"Expected more than 1 value per channel when training",
        "the rank's last batch has a single sample, which batch normalization cannot use: set "
        "drop_last=True, or choose another batch size",
    ),
    (
        r"No samples found in dataset; perhaps you have fewer shards than workers",
        "a worker received no shard: the number of shards must be at least the number of ranks times the "
        "number of workers of each rank's DataLoader; or the path of the shards does not exist in this pod",
    ),
    (
        r"num_samples should be a positive integer value, but got num_samples=0(?!\d)",
        "the dataset of this rank is empty: check that the volume with the data is mounted at this path in "
        "every pod",
    ),
    (
        r"invalid load key, 'v'",
        "the file is a Git LFS pointer instead of the checkpoint: run `git lfs pull` before it is copied",
    ),
    (
        r"MetadataIncompleteBuffer|InvalidHeaderDeserialization|failed finding central directory"
        r"|EOFError: Ran out of input|reading zip archive: not a ZIP archive|: file read failed"
        r"|unexpected EOF, expected \d+ more bytes|invalid load key, '\\x00'"
        r"|UnpicklingError: (pickle data was truncated|unpickling stack underflow)"
        r"|tarfile\.ReadError: unexpected end of data|Parquet magic bytes not found",
        "the file is incomplete: another rank may still be writing it, or an earlier save or download was "
        "cut off. Let one rank write it and the others wait in torch.distributed.barrier(); delete it if it "
        "stays incomplete",
    ),
    (
        r"(unable to open file|Failed to open local file|No such file or directory)"
        r".*(/huggingface/|/\.cache/|/\.triton/|\.incomplete|\.arrow)",
        "several ranks may be filling the same cache: let one rank of each node prepare it and the others "
        "wait in torch.distributed.barrier(), or give each rank its own folder",
    ),
    (
        r"PermissionError: \[Errno 13\]",
        "the container's user is not allowed to use that path: set securityContext.fsGroup or runAsUser, or "
        "write elsewhere",
    ),
    (
        r"(couldn't connect to|Max retries exceeded .*|Cannot reach) '?(https://)?huggingface\.co"
        r"|LocalEntryNotFoundError|OfflineModeIsEnabled",
        "the pod cannot reach huggingface.co: allow this connection, or put the files into the image "
        "or a volume and "
        "set HF_HUB_OFFLINE=1",
    ),
    (
        r"GatedRepoError|RepositoryNotFoundError|(401|403) Client Error",
        "the server refused access: check the name, accept the model's licence, and set HF_TOKEN from a "
        "Secret in every pod",
    ),
    (
        r"429 Client Error|Too Many Requests",
        "too many ranks download at once: download once into the image or a volume and set HF_HUB_OFFLINE=1",
    ),
    (
        r"Can't load (the )?(tokenizer|configuration|model|feature extractor|image processor)",
        "check the name, and whether the pod reaches huggingface.co or has the files in a volume (HF_HOME)",
    ),
    (
        r"Unable to locate credentials"
        r"|An error occurred \((403|AccessDenied|ExpiredToken|InvalidAccessKeyId)\)",
        "the pod is not allowed to use this object storage: give its service account access, or mount the "
        "credentials from a Secret in every pod",
    ),
    (
        r"^(\[rank\d+\]: ?)?StopIteration",
        "the rank ran out of data before the others: give every rank the same number of batches, for example "
        "with drop_last and DistributedSampler, or use the Join context manager",
    ),
    (
        r"BrokenProcessPool",
        "a child process ended abruptly, often because the kernel killed it when the pod's memory was full: "
        "raise the memory limit, or use fewer processes",
    ),
    (
        r"ray\.exceptions\.OutOfMemoryError",
        "Ray ended the task because the memory of its pod was almost full: raise the pod's memory limit, or "
        "run fewer actors in it",
    ),
    (
        r"ray\.exceptions\.(ActorDied|ActorUnavailable|RayActor|NodeDied|WorkerCrashed)Error",
        "Ray lost the actor's process: read the actor's own log in /tmp/ray/session_latest/logs on its node; "
        "a frequent reason is that the kernel killed it because the pod's memory was full",
    ),
    (
        r"'NoneType' object has no attribute 'is_failed'",
        "torchrun had no room for this node: set --nnodes to the number of pods that run torchrun "
        "(pytorch#194710)",
    ),
    (
        r"unrecognized arguments: --local[-_]rank",
        "torch.distributed.launch passes this argument: start the script with torchrun, and read LOCAL_RANK",
    ),
    (
        r"Failed to find C compiler",
        "the image has no C compiler, which torch.compile and Triton need: install gcc in it",
    ),
    (
        r"^(?!.*(Last error:|NCCL warned:))"
        r".*(unhandled (system|cuda) error|nccl(System|UnhandledCuda)Error: )",
        "run the job again with NCCL_DEBUG=WARN, so that NCCL logs the reason; a common reason is that "
        "/dev/shm is too small (mount an emptyDir with medium: Memory)",
    ),
)

_KILLED_WORKER = re.compile(r"DataLoader worker .* killed by signal: Killed")


def is_killed_worker(error: str) -> bool:
    """Return whether a rank failed because one of its DataLoader workers was killed by SIGKILL."""
    return _KILLED_WORKER.search(error) is not None


def advice(error: str) -> str:
    """Return advice on a rank's last error, or "" if the error is not known."""
    entries = itertools.chain(network_advice.ADVICE, _ADVICE)
    return next((text for pattern, text in entries if re.search(pattern, error, re.IGNORECASE)), "")
