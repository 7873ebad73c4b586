"""Logs of ranks from public bug reports: the verdict names the right rank and its own error, with suitable
advice."""

from __future__ import annotations

import re

import pytest
from ended_pods import REPORT, stamped
from failed_ranks import NOTES, PEER, TRACEBACK, Case, job_of, of, watchdog
from process_events import PodEvents, recorded

from harness.judge.logs import known_errors

ECC = "CUDA error: uncorrectable ECC error encountered"
ILLEGAL = "CUDA error: an illegal memory access was encountered"
SHARD = "ValueError: bad shard 7"


CASES = {
    "an ECC error of a GPU (accelerate #1192)": Case(
        of(1, f"RuntimeError: {ECC}", *NOTES), "gpu.ecc", [1], ECC, "drain the node"
    ),
    "an ECC error that the watchdog reports (pytorch #113128)": Case(
        watchdog(1, ECC), "gpu.ecc", [1], f"SIGABRT.*{ECC}", "drain the node", code=-6
    ),
    "an illegal memory access (pytorch #113128)": Case(
        watchdog(1, ILLEGAL), "rank.killed", [1], ILLEGAL, "CUDA_LAUNCH_BLOCKING=1.*Xid", code=-6
    ),
    "no fabric manager (dstack #2348)": Case(
        of(1, "RuntimeError: Error from cudaGetDeviceCount(). Error 802: system not yet initialized"),
        "gpu.driver",
        [1],
        "Error 802",
        "nvidia-smi",
    ),
    "too many open files (pytorch #973)": Case(
        of(1, "RuntimeError: received 0 items of ancdata"),
        "rank.crashed",
        [1],
        "0 items of ancdata",
        "ulimit -n",
    ),
    "the GPU's memory is full": Case(
        of(1, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 79.11 GiB"),
        "rank.crashed",
        [1],
        "CUDA out of memory",
        "not that of the pod",
    ),
    "/dev/shm is full, not the disk (Megatron-LM #878)": Case(
        of(1, "OSError: [Errno 28] No space left on device: '/dev/shm/torch_123'"),
        "shm.small",
        [1],
        "No space left on device: '/dev/shm/torch_123'",
        "/dev/shm",
    ),
    "one process killed by the kernel (kubernetes #50632, #78973)": Case(
        ["step 5"], "rank.killed", [1], "SIGKILL", "memory ran out.*does not show OOMKilled", code=-9
    ),
    "a segmentation fault with faulthandler's stack": Case(
        [
            "Fatal Python error: Segmentation fault",
            "",
            "Current thread 0x00007f (most recent call first):",
            '  File "/w/train.py", line 70 in collate',
        ],
        "rank.killed",
        [1],
        r"SIGSEGV\) in collate \(train.py line 70\)",
        code=-11,
    ),
    "two ranks on one GPU (nccl #1241)": Case(
        of(
            1,
            "torch.distributed.DistBackendError: NCCL error in: x.cpp:1287, invalid usage",
            "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.",
            "Last error:",
            "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
        ),
        "rank.crashed",
        [1],
        "Last error: Duplicate GPU detected : rank 1 and rank 0",
        "set_device",
    ),
    "a fabric manager that was restarted (nccl #976, #1488)": Case(
        of(
            1,
            "torch.distributed.DistBackendError: NCCL error in: x.cpp:317, unhandled cuda error",
            "ncclUnhandledCudaError: Call to CUDA function failed.",
            "Last error:",
            "Cuda failure 1 'invalid argument'",
        ),
        "rank.crashed",
        [1],
        "Last error: Cuda failure 1 'invalid argument'",
        "NCCL_NVLS_ENABLE=0",
    ),
    "torchrun --tee labels each line (prime-rl #1360)": Case(
        [
            *(f"[default0]:{line}" for line in of(1, SHARD)),
            "[default0]:[rank1]:[W1130 ProcessGroupNCCL.cpp:1250] Warning: NOT been destroyed",
        ],
        "rank.crashed",
        [1],
        f"line: .*{SHARD}",
    ),
    "an exception in a group of exceptions": Case(
        [
            "  + Exception Group Traceback (most recent call last):",
            '  |   File "/w/train.py", line 3, in <module>',
            "  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)",
            "  +-+---------------- 1 ----------------",
            "    | Traceback (most recent call last):",
            '    |   File "/w/train.py", line 2, in load',
            f"    | {SHARD}",
            "    +------------------------------------",
        ],
        "rank.crashed",
        [1],
        f"line: {SHARD}",
    ),
    "accelerate reports the process that it started (Fast-dLLM #37)": Case(
        [
            *TRACEBACK,
            SHARD,
            *TRACEBACK,
            "subprocess.CalledProcessError: Command '['python', 't.py']' returned non-zero exit status 1.",
        ],
        "rank.crashed",
        [1],
        f"line: {SHARD}",
    ),
    "mpirun labels each line and reports the process": Case(
        [
            *(f"[1,1]<stderr>:{line}" for line in (*TRACEBACK, SHARD)),
            "-" * 74,
            "mpirun detected that one or more processes exited with non-zero status, thus causing",
            "the job to be terminated. The first process to do so was:",
            "  Process name: [[1234,1],1]",
            "  Exit code:    1",
        ],
        "rank.crashed",
        [1],
        f"line: {SHARD}",
    ),
    "another rank of the pod lost its peer later (nccl #1928)": Case(
        [*of(3, SHARD), *of(2, PEER)], "rank.crashed", [3], SHARD, rank=3, per_node=2
    ),
    "two tracebacks line by line (nccl #1928)": Case(
        [line for pair in zip(of(2, PEER), of(3, SHARD), strict=True) for line in pair],
        "rank.crashed",
        [3],
        SHARD,
        rank=3,
        per_node=2,
    ),
    "the report names the rank that lost its peer (pytorch #121209)": Case(
        [*of(3, SHARD), *of(2, PEER)], "rank.crashed", [3], SHARD, rank=2, per_node=2
    ),
    "tracebacks without labels (Chinese-Vicuna #113)": Case(
        [*TRACEBACK, SHARD, *TRACEBACK, PEER], "rank.crashed", [3], SHARD, rank=3, per_node=2
    ),
    "an exception that was printed and survived is not the end": Case(
        [*TRACEBACK, SHARD, "step 6 loss 0.5", *of(2, "KeyError: 'text'"), *of(3, PEER)],
        "rank.crashed",
        [2],
        "KeyError: 'text'",
        rank=3,
        per_node=2,
    ),
    "an exception raised from the loss of a peer is not the origin": Case(
        [
            *of(3, "KeyError: 'text'"),
            *of(2, PEER),
            "[rank2]: During handling of the above exception, another exception occurred:",
            "[rank2]: ",
            *of(2, "RuntimeError: the job is aborted"),
        ],
        "rank.crashed",
        [3],
        "KeyError: 'text'",
        rank=2,
        per_node=2,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_reported_log_names_rank_and_its_own_error(judged, name: str) -> None:
    case = CASES[name]
    verdict = judged(job_of(case))
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", case.cause, case.ranks), (
        verdict.explanation
    )
    assert re.search(case.says, verdict.explanation.partition("After it")[0]), verdict.explanation
    assert re.search(case.advice, verdict.next[-1]), verdict.next


WORLD = "FileNotFoundError: [Errno 2] No such file or directory: '/out/model_world_size_2_rank_{}.pt'"


@pytest.mark.parametrize(
    ("errors", "ranks"),
    [
        # verl-project/verl #2265: resumed with another number of nodes
        ((WORLD.format(0), WORLD.format(1)), [0, 1]),
        # facebookresearch/metaseq #709
        (("RuntimeError: trying to restart a job that already wrote checkpoint_last",) * 2, [0, 1]),
        ((WORLD.format(0), "KeyError: 'text'"), [0]),
        ((PEER, WORLD.format(1)), [1]),
    ],
)
def test_error_of_every_rank_is_not_attributed_to_first(judged, errors, ranks) -> None:
    """Contract: the explanation states that the ranks that ended later raised the same error on their own."""
    job = job_of(Case(of(1, errors[1]), "", [], ""))
    job.logs[job.pod_name(0)] = stamped(of(0, errors[0])) + stamped(REPORT, rank=0, code=1, shell=1)
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("rank.crashed", ranks), verdict.explanation
    assert ("it is not an error of one rank" in verdict.explanation) == (len(ranks) > 1)


CAUSED = [
    "",
    "The above exception was the direct cause of the following exception:",
    "",
    *TRACEBACK,
    "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store "
    "has failed. See inner exception for details.",
]


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("ValueError: host not found: Name or service not known", "dns"),  # pytorch-operator #333
        (
            "torch.distributed.DistNetworkError: The IPv6 network addresses of (m, 1) cannot be retrieved "
            "(gai error: -2 - Name or service not known).",
            "dns",
        ),
        # pytorch #107021, #69197, #128970
        (
            "TimeoutError: The client socket has timed out after 60s while trying to connect to (m, 1).",
            "unreachable",
        ),
        ("RuntimeError: connect() timed out. Original timeout was 60000 ms.", "unreachable"),
        ("torch.distributed.DistNetworkError: Connection reset by peer", "unreachable"),
    ],
)
def test_unconnected_rank_explains_why_rank_0_waits(judged, error: str, cause: str) -> None:
    """Contract: pytorch #80772. Both ranks end when their equal timeouts expire."""
    job = job_of(Case([], "", [], ""))
    job.truth, job.points, job.runs, job.attachments = {}, [], [], []
    timeout = [*TRACEBACK, "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError"]
    job.logs = {job.pod_name(0): stamped(timeout), job.pod_name(1): stamped([*TRACEBACK, error, *CAUSED])}
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == (f"rendezvous.{cause}", [1]), verdict.explanation
    assert error[:60] in verdict.explanation


UNRESOLVED = [
    f"[W817 17:{second}.123456789 socket.cpp:759] [c10d] The IPv6 network addresses of ({{host}}, 40571) "
    "cannot be retrieved (gai error: -2 - Name or service not known)."
    for second in ("40:10", "40:14", "40:22", "41:01")
]
TIMED_OUT = (
    "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to "
    "connect to ({host}, 40571)."
)
CONNECTS = (
    "[W817 17:40:30.1 socket.cpp:764] [c10d] The client socket has failed to connect to [{host}]:40571 "
    "(errno: 111 - Connection refused)."
)
WAITED = (
    "torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 clients joined."
)
C10D = "--rdzv_backend=c10d"
BROKEN = [
    "[W817 17:41:12.5 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=6, addr=[a]:4): Broken pipe",
    *(
        f"frame #{n}: c10d::TCPStore::doGet(std::string const&) + 0x5d (0x7f{n:02}ee09 in x.so)"
        for n in range(30)
    ),
]
GONE = ["torch.distributed.DistNetworkError: Broken pipe", *CAUSED]


@pytest.mark.parametrize(
    ("host", "options", "more", "cause", "ranks"),
    [
        pytest.param("{pod}", [C10D], [], "dns.advertised", [0], id="pytorch #150532"),
        pytest.param(
            "x.internal", ["--rdzv-backend", "etcd-v2"], [], "dns.advertised", [1], id="monarch #1571"
        ),
        pytest.param("{pod}", [C10D, "--local-addr=x"], [], "rendezvous.dns", [1], id="an address"),
        pytest.param("m", ["--node_rank=1"], [], "rendezvous.dns", [1], id="static"),
        pytest.param("m", [C10D], [CONNECTS], "rendezvous.unreachable", [1], id="resolved later"),
        pytest.param("{pod}", [C10D], None, "dns.advertised", [0], id="rank 0 gave up first"),
    ],
)
def test_name_that_only_its_own_pod_resolves_is_named(
    judged, host: str, options: list[str], more: list[str] | None, cause: str, ranks: list[int]
) -> None:
    """Contract: torchrun's rendezvous completed, but its workers are waiting for MASTER_ADDR, and rank 0 for
    the others."""
    job = recorded(job_of(Case([], "", [], "")))
    job.truth, job.points, job.runs, job.attachments = {}, [], [], []
    host = host.format(pod=job.pod_name(0).rpartition("-")[0])
    own = TIMED_OUT.replace("torch.distributed.DistNetworkError:", "[E817 17:41:01.2 socket.cpp:1023] [c10d]")
    lines = [line.format(host=host) for line in (*UNRESOLVED, *(more or ()), own, *TRACEBACK, TIMED_OUT)]
    if more is None:  # On kind with torch 2.6, the store is closed before the worker's timeout.
        again = UNRESOLVED[-1].replace("41:01", "41:31")
        lines = [line.format(host=host) for line in (*UNRESOLVED, own, again)] + [
            *BROKEN * 7,
            *TRACEBACK,
            *GONE,
        ]
    job.logs = {job.pod_name(0): stamped([*TRACEBACK, WAITED]), job.pod_name(1): stamped(lines)}
    for index in range(2):
        pod = PodEvents(job, index)
        pod.agent(7, "--nnodes=2", *options)
        pod.workers(7, [(20, 0, index, 2)])
        pod.rank(20, index, 2, group=False)
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == (cause, ranks), verdict.explanation
    if cause == "dns.advertised":
        assert f"{host}, as MASTER_ADDR" in verdict.explanation
        assert "--local-addr" in " ".join(verdict.next)


def test_late_name_does_not_explain_refused_connection(judged) -> None:
    """Contract: PyTorch does not log a refused connection, and fails at the time of its last attempt."""
    job = recorded(job_of(Case([], "", [], "")))
    job.truth, job.points, job.runs, job.attachments = {}, [], [], []
    own = TIMED_OUT.replace("torch.distributed.DistNetworkError:", "[E817 17:41:01.2 socket.cpp:1023] [c10d]")
    lines = [line.format(host="m") for line in (*UNRESOLVED[:3], own, *TRACEBACK, TIMED_OUT)]
    job.logs = {job.pod_name(0): stamped([*TRACEBACK, WAITED]), job.pod_name(1): stamped(lines)}
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("rendezvous.unreachable", [1]), verdict.explanation


def test_name_that_only_script_connects_to_is_not_torchruns(judged) -> None:
    """Contract: a script may pass an init_method, or set MASTER_ADDR itself."""
    job = recorded(job_of(Case([], "", [], "")))
    job.truth, job.points, job.runs, job.attachments = {}, [], [], []
    lines = [line.format(host="learner") for line in (*UNRESOLVED, *TRACEBACK, TIMED_OUT)]
    job.logs = {job.pod_name(0): stamped([*TRACEBACK, WAITED]), job.pod_name(1): stamped(lines)}
    for index in range(2):
        pod = PodEvents(job, index)
        pod.agent(7, "--nnodes=2", C10D)
        pod.workers(7, [(20, 0, index, 2)])
        pod.start(20, "rank", ppid=7, RANK=index, LOCAL_RANK=0, WORLD_SIZE=2, MASTER_ADDR="workers-0-0.js")
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("rendezvous.dns", [1]), verdict.explanation


def test_an_unknown_error_beside_lost_peers_is_not_preferred(judged) -> None:
    """Contract: if two pods have errors of their own, the pod in which no rank lost a peer failed first."""
    job = job_of(Case(of(3, SHARD), "", [], "", rank=3, per_node=2))
    lines = stamped([*of(0, PEER), *of(1, "RuntimeError: the step could not be completed")])
    job.logs[job.pod_name(0)] = lines + stamped(REPORT, rank=0, code=1, shell=1)
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("rank.crashed", [3]), verdict.explanation


@pytest.mark.parametrize("kills", [0, 1])
def test_a_rank_that_the_kernel_killed_out_of_memory(judged, kills: int) -> None:
    """Contract: torchrun's record shows the kill even if the pod's status contains only the reason Error
    (kubernetes #78973)."""
    job = recorded(job_of(Case(["step 5"], "", [], "", code=-9)))
    pod = PodEvents(job, 1)
    pod.agent(7, "--nnodes=2")
    pod.workers(7, [(20, 0, 1, 2)])
    pod.rank(20, 1, 2)
    pod.add("failed", 7, failures=[(20, 0, 1, -9, "")], oom_kills=kills)
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("rank.oom_killed" if kills else "rank.killed", [1])


@pytest.mark.parametrize(
    ("error", "part"),
    [
        ("[rank0]: RuntimeError: can't start new thread", "podPidsLimit"),
        ("OpenBLAS blas_thread_init: pthread_create failed for thread 3 of 64", "OMP_NUM_THREADS"),
        ("ImportError: /x/flash_attn_2_cuda.so: undefined symbol: _ZN2at4_ops", "compiled extension"),
        ("[rank1]: ModuleNotFoundError: No module named 'train.data'", "PYTHONPATH"),
        ("CUDA error: no kernel image is available for execution on the device", "get_arch_list"),
        ("OSError: We couldn't connect to 'https://huggingface.co' to load this file", "HF_HUB_OFFLINE"),
        ("[rank0]: MemoryError", "memory limit"),
        ("PermissionError: [Errno 13] Permission denied: '/out/a'", "fsGroup"),
        ("ValueError: too many open parentheses", ""),
        ("KeyError: 'text'", ""),
        ("/bin/bash: line 3: accelerate: command not found", "install it"),
        ("/bin/bash: line 3: ./train.sh: Permission denied", "chmod"),
        ("Last error: Call to ibv_modify_qp failed with error Connection timed out", "ibstat"),
        ("NET/IB: Got completion from peer 10.0.0.2<40000> with status=12 opcode=0 len=0", "ibstat"),
        ("RuntimeError: Expected to have finished reduction in the prior iteration before", "find_unused"),
        ("NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory", "IPC_LOCK"),
        ("ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress", "Xid"),
        ("python: can't open file '/workspace/train.py': [Errno 2] No such file or directory", "mount"),
    ],
)
def test_advice_for_an_error_of_a_library(error: str, part: str) -> None:
    """Contract: an error that is not a known message of a library gets no advice."""
    assert part in known_errors.advice(error)
    assert bool(part) == bool(known_errors.advice(error))
