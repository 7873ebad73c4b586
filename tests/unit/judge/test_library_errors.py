"""Errors of NCCL, CUDA, DataLoaders and storage whose reason is on another line, or depends on the pod."""

import re
from dataclasses import dataclass

import bundles
import pytest
from failed_ranks import NOTES, PEER, TRACEBACK, Case, job_of, of, watchdog
from process_events import PodEvents, recorded

from harness.judge.logs import known_errors

SYSTEM = "RuntimeError: NCCL error in ProcessGroupNCCL.cpp:290, unhandled system error"
NCCL = (
    "torch.distributed.DistBackendError: NCCL error in: x.cpp:94, unhandled system error (run with "
    "NCCL_DEBUG=INFO for details), NCCL version 2.27",
    "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. ",
    "Last error:",
)
SEGMENT = "Error while creating shared memory segment /dev/shm/nccl-WU88OE (size 9637888)"
FULL = "No space left on device (28)"
ASSERTION = "Assertion `srcIndex < srcSelectDimSize` failed"
ASSERTIONS = [
    f"../aten/src/ATen/native/cuda/Indexing.cu:1308: indexSelectLargeIndex: [{thread},0,0] {ASSERTION}."
    for thread in range(250)
]
DEVICE_SIDE = "CUDA error: device-side assert triggered"
KILLED = "RuntimeError: DataLoader worker (pid 125) is killed by signal: Killed. "
REPEATED = [
    "",
    "The above exception was the direct cause of the following exception:",
    "",
    *TRACEBACK,
    "RuntimeError: DataLoader worker (pid(s) 125) exited unexpectedly",
]
SHARED = "RuntimeError: unable to open shared memory object </torch_19_1> in read-write mode: "
SHAPES = "size mismatch for emb.weight: copying a param with shape torch.Size([50257, 768]) from checkpoint"


@dataclass(frozen=True)
class Error:
    """The log of rank 1, and the expected cause, explanation and advice."""

    lines: list[str]
    cause: str
    says: str
    advice: str = ""
    code: int = 1


def warned(*messages: str, gpu: int = 0) -> list[str]:
    return [f"node1:27106:27302 [{gpu}] include/shm.h:27 NCCL WARN {message}" for message in messages]


ERRORS = {
    "/dev/shm is full, in a warning (nccl #290, #525)": Error(
        [*warned(f"Call to posix_fallocate failed : {FULL}", SEGMENT), *of(1, SYSTEM)],
        "shm.small",
        "NCCL warned: Call to posix_fallocate failed",
    ),
    "/dev/shm is full, below the exception (ci-infra #490)": Error(
        of(1, *NCCL, f"{SEGMENT}, error: {FULL}"), "shm.small", "Last error: Error while creating"
    ),
    "/dev/shm is full, in other words (ci-infra #490)": Error(
        of(1, *NCCL, f"Error: failed to extend /dev/shm/nccl-WU88OE to 9637892 bytes, error: {FULL}"),
        "shm.small",
        "failed to extend",
    ),
    "/dev/shm may not be written (nccl #328)": Error(
        [*warned("Call to shm_open failed : Permission denied", SEGMENT), *of(1, SYSTEM)],
        "rank.crashed",
        "Permission denied",
        "may not write to /dev/shm",
    ),
    "NCCL gives no reason (Megatron-LM #71)": Error(
        of(1, SYSTEM, "ncclSystemError: System call (socket, malloc, munmap, etc) failed."),
        "rank.crashed",
        "ncclSystemError",
        "NCCL_DEBUG=WARN",
    ),
    "too many open files in shared memory (pytorch #973)": Error(
        of(1, f"{SHARED}Too many open files (24)"), "rank.crashed", "Too many open files", "ulimit -n"
    ),
    "the sender of a tensor has ended": Error(
        of(1, f"{SHARED}No such file or directory (2)"), "rank.crashed", "No such file", "had already ended"
    ),
    "a failed assertion in a kernel (trl #2996, lm-evaluation-harness #2293)": Error(
        [*ASSERTIONS, *of(1, f"RuntimeError: {DEVICE_SIDE}", *NOTES)],
        "rank.crashed",
        f"triggered .{ASSERTION}",
        "token id",
    ),
    "a failed assertion that the watchdog reports (XLM #204)": Error(
        [*ASSERTIONS, *watchdog(1, DEVICE_SIDE)],
        "rank.killed",
        f"SIGABRT.*triggered .{ASSERTION}",
        "token id",
        code=-6,
    ),
    "a DataLoader worker was killed": Error(
        of(1, KILLED, *REPEATED), "rank.crashed", "killed by signal: Killed", "pod's memory was full"
    ),
    "a DataLoader worker crashed": Error(
        of(1, KILLED.replace("Killed", "Segmentation fault"), *REPEATED),
        "rank.crashed",
        "signal: Segmentation fault",
        "faulthandler",
    ),
    "a DataLoader worker ended with a code": Error(
        of(1, *REPEATED[3:]), "rank.crashed", "exited unexpectedly", "read the rank's log"
    ),
    "the shapes of a checkpoint (metaseq #720)": Error(
        of(1, "RuntimeError: Error(s) in loading state_dict for GPT:", f"\t{SHAPES}"),
        "rank.crashed",
        f"for GPT: {re.escape(SHAPES[:40])}",
        "names or shapes",
    ),
    "an exception whose reason is missing": Error(
        of(1, "RuntimeError: Error(s) in loading state_dict for GPT:"), "rank.crashed", "for GPT:", "shapes"
    ),
    "the GPU must be reset": Error(
        of(1, "torch.AcceleratorError: CUDA error: GPU requires reset", *NOTES), "gpu.lost", "requires reset"
    ),
    "an NVLink error": Error(
        of(1, "torch.AcceleratorError: CUDA error: uncorrectable NVLink error detected", *NOTES),
        "gpu.nvlink",
        "uncorrectable NVLink",
    ),
    "a container has lost its GPUs (nvidia-container-toolkit #48, #1227)": Error(
        of(1, "RuntimeError: No CUDA GPUs are available"), "gpu.absent", "No CUDA GPUs", "delete the pod"
    ),
    "a driver without its fabric manager": Error(
        of(1, "RuntimeError: CUDA error: system not yet initialized", *NOTES),
        "gpu.driver",
        "not yet initialized",
        "nvidia-fabricmanager",
    ),
    "a stale file of NFS (datasets #5938)": Error(
        of(1, "OSError: [Errno 116] Stale file handle: '/cache/x.lock'"),
        "rank.write_failed",
        "Stale file handle",
        "replaced or deleted",
    ),
    "a disk that fails": Error(
        of(1, "OSError: [Errno 5] Input/output error: '/data/1'"),
        "rank.write_failed",
        "Input/output",
        "dmesg",
    ),
    "a full disk": Error(
        of(1, "OSError: [Errno 28] No space left on device: '/data/1'"), "rank.write_failed", "", "df -i"
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_error_of_library_is_named_with_its_reason(judged, name: str) -> None:
    error = ERRORS[name]
    verdict = judged(job_of(Case(error.lines, "", [], "", code=error.code)))
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", error.cause, [1]), verdict.explanation
    assert re.search(error.says, verdict.explanation.partition("After it")[0]), verdict.explanation
    assert error.advice in verdict.next[-1], verdict.next


@pytest.mark.parametrize(("gpu", "cause"), [(1, "shm.small"), (0, "rank.crashed")])
def test_warning_of_another_rank_in_pod_is_not_quoted(judged, gpu: int, cause: str) -> None:
    """Contract: the number in NCCL's warnings is that of the GPU, which equals the rank's number in its
    pod."""
    lines = [*warned(f"Call to posix_fallocate failed : {FULL}", SEGMENT, gpu=gpu), *of(3, SYSTEM)]
    verdict = judged(job_of(Case(lines, "", [], "", rank=3, per_node=2)))
    assert (verdict.cause, verdict.ranks) == (cause, [3]), verdict.explanation


@pytest.mark.parametrize(
    "symptom",
    [
        # pytorch #85775, CosyVoice #180
        ["RuntimeError: Timed out receiving the shared seed from the distribtued store on Rank 0."],
        ["RuntimeError: Rank 0 successfully reached monitoredBarrier, but received errors while waiting"],
        [*NCCL, "socketPollConnect: connect to 10.0.0.1<4567> returned Connection refused"],
        [*NCCL, "socketPollConnect: connect to 10.0.0.1<4567> returned No route to host(113)"],
    ],
)
def test_rank_waiting_for_peer_did_not_fail_first(judged, symptom: list[str]) -> None:
    job = job_of(Case(of(1, "KeyError: 'text'"), "", [], ""))
    name = job.pod_name(0)
    job.logs[name] = [line for line in job.logs[name] if PEER not in line]
    job.logs[name][3:3] = [f"{bundles.at(11, True)} {line}" for line in of(0, *symptom)]
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("rank.crashed", [1]), verdict.explanation


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        (
            of(1, *NCCL, "socketPollConnect: connect to 10.0.0.1<4567> returned No route to host(113)"),
            "rendezvous.unreachable",
        ),
        # nccl #1515, sglang #5594
        (
            of(
                1,
                *NCCL,
                "socketStartConnect: Connect to 10.0.0.1<4567> failed : Software caused connection abort",
            ),
            "rendezvous.unreachable",
        ),
        # verl #726
        (
            of(
                1,
                *NCCL,
                "socketStartConnect: Connect to 169.254.0.1<4567> failed : Software caused connection abort",
            ),
            "address.advertised",
        ),
        # nccl #1105
        (
            [*warned("Net : Connect to 10.0.0.1<4567> failed : No route to host"), *of(1, SYSTEM)],
            "rendezvous.unreachable",
        ),
    ],
)
def test_rank_without_route_to_nccl_address_never_met(judged, lines, cause) -> None:
    job = job_of(Case(lines, "", [], ""))
    job.truth, job.points, job.runs, job.attachments = {}, [], [], []
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == (cause, [1]), verdict.explanation


def test_ranks_that_cannot_reach_each_other_are_all_named(judged) -> None:
    """Contract: nccl #1515, verl #726. No rank was the first to fail."""
    lost = "socketStartConnect: Connect to 10.0.0.{}<4567> failed : Software caused connection abort"
    job = job_of(Case(of(1, *NCCL, lost.format(1)), "", [], ""))
    job.logs[job.pod_name(0)] = [f"{bundles.at(11, True)} {line}" for line in of(0, *NCCL, lost.format(2))]
    job.truth, job.points, job.runs, job.attachments = {}, [], [], []
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("rendezvous.unreachable", [0, 1]), verdict.explanation
    assert "Ranks 0 and 1 could not reach the others" in verdict.explanation
    assert "NCCL_SOCKET_IFNAME" in verdict.next[-1]


@pytest.mark.parametrize("error", ["RuntimeError: No CUDA GPUs are available", "Found no NVIDIA driver"])
@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"containers": [{"name": "konduktor-container"}]}, "its pod requests no GPU"),
        ({"containers": [{"name": "k", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]}, ""),
        ({"containers": [{"name": "k"}], "runtimeClassName": "nvidia"}, ""),
        ({"containers": [{"name": "k"}], "resourceClaims": [{"name": "gpu"}]}, ""),
        ({}, ""),
    ],
)
def test_a_rank_without_gpu_whose_pod_requests_none(judged, error: str, spec: dict, says: str) -> None:
    """Contract: neither the node nor its driver is to blame if the pod requests no GPU."""
    job = job_of(
        Case(of(1, error if "Error" in error else f"RuntimeError: {error} on your system."), "", [], "")
    )
    for kind, seen in job.objects:
        if kind == "pod" and seen.object["metadata"]["name"] == job.pod_name(1):
            seen.object["spec"] |= spec
    verdict = judged(job)
    expected = "gpu.absent" if says or "No CUDA" in error else "gpu.driver"
    assert (verdict.cause, verdict.ranks) == (expected, [1]), verdict.explanation
    assert says in verdict.explanation
    assert bool(says) == ("nvidia.com/gpu limit" in verdict.next[-1])


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: Error 802: system not yet initialized",
        "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).",
    ],
)
def test_driver_error_is_not_blamed_on_pod_requests(judged, error: str) -> None:
    """Contract: with NVIDIA's runtime as the default, pods see GPUs that they do not request."""
    job = job_of(Case(of(1, error), "", [], ""))
    for kind, seen in job.objects:
        if kind == "pod" and seen.object["metadata"]["name"] == job.pod_name(1):
            seen.object["spec"] |= {"containers": [{"name": "konduktor-container"}]}
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("gpu.driver", [1]), verdict.explanation
    assert "requests no GPU" not in verdict.explanation


@pytest.mark.parametrize("kills", [0, 1])
def test_a_dataloader_worker_that_the_kernel_killed(judged, kills: int) -> None:
    """Contract: torchrun's record counts the processes that the kernel killed, not only ranks."""
    job = recorded(job_of(Case(of(1, KILLED, *REPEATED), "", [], "")))
    pod = PodEvents(job, 1)
    pod.agent(7, "--nnodes=2")
    pod.workers(7, [(20, 0, 1, 2)])
    pod.rank(20, 1, 2)
    pod.add("failed", 7, failures=[(20, 0, 1, 1, "")], oom_kills=kills)
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("rank.oom_killed" if kills else "rank.crashed", [1])


def test_rank_ended_by_watchdog_was_not_killed(judged) -> None:
    """Contract: accelerate #3512, ace #851. Rank 0 saves a checkpoint for longer than the timeout."""
    work = "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=600000)"
    text = f"Watchdog caught collective operation timeout: {work}"
    job = job_of(Case(watchdog(1, f"[Rank 1] {text} ran for 600027 milliseconds"), "", [], "", code=-6))
    job.drop_pod(0, after=10)
    job.ended(0, 14, 1)
    late = [line.replace(bundles.at(11, True), bundles.at(14, True)) for line in job.logs[job.pod_name(0)]]
    job.logs[job.pod_name(0)] = [f"{bundles.at(8, True)} Saving latest checkpoint", *late]
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("rank.killed", [1]), verdict.explanation
    assert (
        "it may be the rank that hung; its last log line before that was: Saving latest"
        in verdict.explanation
    )
    assert "raise `timeout` of init_process_group" in verdict.next[-1]


@pytest.mark.parametrize(
    ("error", "part"),
    [
        ("RuntimeError: CUDA error: invalid device ordinal", "LOCAL_RANK"),
        (
            "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            "memory is probably full",
        ),
        ("RuntimeError: Cannot re-initialize CUDA in forked subprocess", "spawn"),
        ("OSError: [Errno 107] Transport endpoint is not connected: '/data'", "CSI driver"),
        ("OSError: [Errno 110] Connection timed out: '/data/a'", "CSI driver"),
        ("TimeoutError: [Errno 110] Connection timed out", ""),
        ("OSError: [Errno 37] No locks available", "HF_HOME"),
        ("RuntimeError: Parent directory /out/d20 does not exist.", "makedirs"),  # nanochat #315
        ("RuntimeError: unable to open file </x/.cache/huggingface/a> : No such file", "same cache"),
        ("FileNotFoundError: [Errno 2] Failed to open local file '/c/huggingface/a.arrow'", "same cache"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/train.bin'", ""),
        ("SafetensorError: Error while deserializing header: MetadataIncompleteBuffer", "incomplete"),
        # ROCm/pytorch #3659: a rank loads the file that another one is still writing.
        ("_pickle.UnpicklingError: pickle data was truncated", "incomplete"),
        ("_pickle.UnpicklingError: invalid load key, 'v'.", "git lfs pull"),
        ("tarfile.ReadError: unexpected end of data", "incomplete"),
        # open-mpi/ompi #6535, tomgoldstein/loss-landscape #4, h5py/h5py #1101
        (
            "BlockingIOError: [Errno 11] Unable to open file (unable to lock file, errno = 11, error message "
            "= 'Resource temporarily unavailable')",
            "HDF5_USE_FILE_LOCKING",
        ),
        (
            "OSError: Unable to open file (unable to lock file, errno = 37, error message = 'No locks "
            "available')",
            "HDF5_USE_FILE_LOCKING",
        ),
        # NVIDIA-NeMo/Automodel #3254 and #3686
        ("FileExistsError: Checkpoint directory /out/epoch_0_step_300 already exists", "earlier attempt"),
        ("FileExistsError: [Errno 17] File exists: '/out/epoch_0_step_297/model'", "exist_ok=True"),
        # huggingface/transformers #27925, allenai/OLMo #894
        (
            "FileNotFoundError: [Errno 2] No such file or directory: '/out/tmp-checkpoint-5' -> '/out/5'",
            "has probably renamed the same path",
        ),
        ("OSError: [Errno 39] Directory not empty: '/out/5-tmp' -> '/out/5'", "has probably renamed"),
        # verl-project/verl #2265
        (
            "FileNotFoundError: [Errno 2] No such file or directory: '/out/model_world_size_16_rank_3.pt'",
            "another number of ranks",
        ),
        # kohya-ss/sd-scripts #378, mli0603/stereo-transformer #58, STVIR/pysot #92
        (
            "ValueError: loaded state dict contains a parameter group that doesn't match the size of "
            "optimizer's group",
            "other parameters",
        ),
        ("ValueError: loaded state dict has a different number of parameter groups", "other parameters"),
        # Checkpoint files that are truncated or have another format.
        ("RuntimeError: PytorchStreamReader failed reading zip archive: not a ZIP archive", "incomplete"),
        ("RuntimeError: PytorchStreamReader failed reading file data/12: file read failed", "incomplete"),
        (
            "RuntimeError: unexpected EOF, expected 4096 more bytes. The file might be corrupted.",
            "incomplete",
        ),
        ("_pickle.UnpicklingError: invalid load key, '\\x00'.", "incomplete"),
        ("SafetensorError: Error while deserializing header: HeaderTooLarge", "git lfs pull"),
        ("_pickle.UnpicklingError: Weights only load failed. This file can still be loaded", "weights_only"),
        ("TypeError: RNG state must be a torch.ByteTensor", "map_location='cpu'"),
        (
            "ZeRORuntimeException: The checkpoint being loaded used a DP world size of 16 but the current "
            "world size is 8.",
            "another number of ranks",
        ),
        # Lightning-AI/litData #442, webdataset/webdataset #65 and #68
        (
            "ValueError: Expected more than 1 value per channel when training, got input size "
            "torch.Size([1, 256, 1, 1])",
            "drop_last=True",
        ),
        (
            "ValueError: No samples found in dataset; perhaps you have fewer shards than workers.",
            "number of shards",
        ),
        ("ValueError: num_samples should be a positive integer value, but got num_samples=0", "is empty"),
        ("RuntimeError: CUDA error: invalid device function", "get_arch_list"),
        ("KeyError: 'optimizer'", ""),
        ("ValueError: num_samples should be a positive integer value, but got num_samples=-1", ""),
        ("huggingface_hub.errors.GatedRepoError: 401 Client Error.", "HF_TOKEN"),
        ("HfHubHTTPError: 429 Client Error: Too Many Requests for url", "HF_HUB_OFFLINE"),
        (
            "botocore.exceptions.ClientError: An error occurred (403) when calling HeadObject",
            "object storage",
        ),
        ("ncclInvalidUsage Last error: Mismatched NCCL version detected : 22005 and 22203", "same image"),
        (PEER, ""),
    ],
)
def test_advice_for_an_error_with_one_usual_reason(error: str, part: str) -> None:
    assert part in known_errors.advice(error)
    assert bool(part) == bool(known_errors.advice(error)), known_errors.advice(error)
