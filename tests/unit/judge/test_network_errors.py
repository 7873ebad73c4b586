"""Ranks that fail because of the network between them, with the errors of public bug reports.

No rank is to blame for these errors, or the advice depends on the words of the error.
"""

from __future__ import annotations

import re

import bundles
import pytest
from ended_pods import REPORT, stamped
from failed_ranks import PEER, TRACEBACK, UNREACHED, WAITED, Case, job_of, of, starting

from harness.judge.logs import known_errors

GLOO = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/{}"
SIZES = GLOO.format("pair.cc:446] op.preamble.length <= op.nbytes. {} vs {}")
CONNECT = GLOO.format("pair.cc:724] connect [{}]:3210: {}")
NO_REPLY = (
    "Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1, curr state INIT, "
    "next state RTR, local GID index 3"
)
UCX = [
    "[worker-0:195:0:195] ib_mlx5_log.c:139  Transport retry count exceeded on mlx5_0:1/IB (synd 0x15)",
    "[worker-0:195:0:195] ib_mlx5_log.c:139  DCI QP 0xa9f wqe[0]: SEND s-e [rqpn 0xa66 rlid 703]",
]
REFUSED = (
    "socketPollConnect: connect to 10.0.0.1<37000> returned Connection refused(111), exceeded error retry "
    "count after 35 attempts"
)
INTERNAL = "internal error - please report this issue to the NCCL developers"


def nccl(last: str, code: str = "ncclSystemError", text: str = "unhandled system error") -> list[str]:
    """Return the lines of an NCCL exception. `last` is NCCL's description of the error."""
    return [
        f"torch.distributed.DistBackendError: NCCL error in: x.cpp:94, {text}, NCCL version 2.27",
        f"{code}: A call failed.",
        "Last error:",
        last,
    ]


@pytest.mark.parametrize(
    "lines",
    [
        # NVIDIA/nccl #268, #626 and #1328
        nccl("NET/Socket : peer 10.0.0.2<592> message truncated : receiving 1048576 bytes instead of 65536"),
        # NVIDIA/nccl #1176 and #1273
        nccl("Message truncated : received 256 bytes instead of 4", "ncclInternalError", INTERNAL),
        # NVIDIA/nccl #1937
        nccl(
            "NET/IB : req 0/1 tag 7 peer 10.0.0.2<4> collective mismatch error, local size 8192 remote size 0"
        ),
        # NVIDIA/nccl #296
        ["init.cc:1247 NCCL WARN Mismatched collective detected, please check your collective calls", PEER],
        nccl("Bootstrap Root : mismatch in rank count from procs 16 : 8", "ncclInternalError", INTERNAL),
        # PrimeIntellect-ai/prime-diloco #68
        [SIZES.format(1046204, 1040256)],
    ],
)
@pytest.mark.parametrize("is_symmetric", [False, True])
def test_rank_with_data_of_unexpected_size_is_not_accused(judged, lines, is_symmetric: bool) -> None:
    """Contract: the error does not show whether the rank or its peer called something different."""
    verdict = judged(starting(of(0, *(lines if is_symmetric else [PEER])), of(1, *lines)))
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "collective.mismatch", []), (
        verdict.explanation
    )
    assert "with different sizes" in verdict.explanation or "new_group" in verdict.explanation
    assert "depends on the rank" in verdict.next[-1]


@pytest.mark.parametrize(
    ("zero", "one", "per_node", "ranks"),
    [
        (of(0, "ValueError: boom"), of(1, SIZES.format(8, 4)), 1, [0]),
        (of(0, PEER), [*of(2, SIZES.format(8, 4)), *of(3, "ValueError: boom")], 2, [3]),
        # The number is not a size: another program has sent data to gloo's port.
        (of(0, PEER), of(1, SIZES.format(8583909746840200520, 4)), 1, [1]),
    ],
)
def test_own_error_explains_unexpected_data(judged, zero, one, per_node: int, ranks: list[int]) -> None:
    verdict = judged(starting(zero, one, per_node))
    assert (verdict.cause, verdict.ranks) == ("rank.crashed", ranks), verdict.explanation


@pytest.mark.parametrize(
    ("zero", "one", "says", "advice"),
    [
        # NVIDIA/nccl #2013, NVIDIA/nccl-tests #185 and #227
        (of(0, PEER), of(1, *nccl(NO_REPLY)), "lost the connection.*no rank logged any other", "CROSS_NIC"),
        (of(0, *nccl(NO_REPLY)), of(1, *nccl(NO_REPLY)), "no rank logged any other", "ibstat"),
        (
            of(0, PEER),
            of(1, *nccl("Call to ibv_modify_qp failed with error Network is unreachable")),
            "lost the connection",
            "NCCL_IB_GID_INDEX",
        ),
        # The form of NCCL 2.28 (transport/net_ib/p2p.cc)
        (
            of(0, PEER),
            of(1, *nccl("NET/IB: Got completion from peer 10.0.0.1<4> with status=IBV_WC_RETRY_EXC_ERR(12)")),
            "lost the connection",
            "ibstat",
        ),
        # NVIDIA/nccl #706
        (
            of(0, PEER),
            of(1, *nccl("Net : Call to recv from 100.96.188.199<41468> failed : Connection timed out")),
            "no rank logged any other error",
            "--netcheck",
        ),
        # openucx/ucx #5199 and #6000
        (of(0, PEER), UCX, "Transport retry count exceeded", "ibstat"),
        # NVIDIA/nccl-tests #188, hiyouga/LlamaFactory #3641
        (
            of(0, PEER),
            of(1, *nccl("socketFinalizeAccept: wrong type 4 != 3", "ncclInternalError", INTERNAL)),
            "no rank logged any other error",
            "NCCL_IB_DISABLE=1",
        ),
        (of(0, *nccl(REFUSED)), of(1, *nccl(REFUSED)), "lost the connection", "--netcheck"),
        # ray-project/ray #37461, SymbioticLab/FedScale #51
        (
            of(0, CONNECT.format("10.0.0.2", "Connection refused")),
            of(1, CONNECT.format("10.0.0.1", "No route to host")),
            r"could not connect to each other \(tcp/pair",
            "GLOO_SOCKET_IFNAME",
        ),
        (
            of(0, PEER),
            of(1, CONNECT.format("10.0.0.1", "Connection timed out")),
            "Rank 1 could not connect to a peer, and rank 0 lost",
            "GLOO_SOCKET_IFNAME",
        ),
    ],
)
def test_no_rank_is_accused_of_unreachable_peer(judged, zero, one, says: str, advice: str) -> None:
    """Contract: of two ranks without a connection, it is not known which one failed."""
    verdict = judged(starting(zero, one, code=-6 if one == UCX else 1))
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "collective.failed", []), (
        verdict.explanation
    )
    assert re.search(says, verdict.explanation), verdict.explanation
    assert advice in verdict.next[-1], verdict.next


@pytest.mark.parametrize("error", [nccl(NO_REPLY), [CONNECT.format("10.0.0.1", "Connection refused")]])
def test_own_error_of_peer_explains_lost_link(judged, error: list[str]) -> None:
    verdict = judged(starting(of(0, "ValueError: boom"), of(1, *error)))
    assert (verdict.cause, verdict.ranks) == ("rank.crashed", [0]), verdict.explanation


def test_gloo_with_two_ip_families_accuses_no_single_rank(judged) -> None:
    """Contract: pytorch/pytorch#135355, pytorch/gloo#399."""
    error = GLOO.format("device.cc:276] ss1.ss_family == ss2.ss_family. {} vs {}")
    verdict = judged(starting(of(0, error.format(2, 10)), of(1, error.format(10, 2))))
    assert (verdict.cause, verdict.ranks) == ("address.family", [0, 1]), verdict.explanation
    assert "GLOO_SOCKET_IFNAME" in verdict.next[-1]


@pytest.mark.parametrize(
    "lines",
    [
        [CONNECT.format("127.0.1.1", "Connection refused")],  # pytorch/pytorch #15592
        # NVIDIA/nccl #1837
        nccl(
            "ncclSocketInit: connecting to address  with family 59936 is neither AF_INET(2) nor AF_INET6(10)"
        ),
        # gpustack/gpustack #4128
        [GLOO.format("device.cc:83] ifa != nullptr. Unable to find interface for: [0.0.0.189]")],
    ],
)
def test_address_that_no_other_host_reaches_is_named(judged, lines: list[str]) -> None:
    verdict = judged(starting(of(0, *lines), of(1, *lines)))
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "address.advertised", [0, 1]), (
        verdict.explanation
    )
    assert "SOCKET_IFNAME" in verdict.next[-1]


@pytest.mark.parametrize(
    ("error", "part"),
    [
        # Mellanox/nv_peer_memory #115, NVIDIA/nccl #778 and #1842: not a limit of locked memory
        ("Call to ibv_reg_mr_iova2 failed with error Bad address", "nvidia-peermem"),
        ("Call to ibv_reg_dmabuf_mr failed with error Operation not supported", "DMA-BUF"),
        ("Call to ibv_reg_mr failed with error Cannot allocate memory", "IPC_LOCK"),
        # NVIDIA/nccl #1129, Mellanox/k8s-rdma-sriov-dev-plugin #29, aws/aws-ofi-nccl #44
        ("Last error: Call to ibv_create_qp failed", "IPC_LOCK"),
        ("NCCL WARN NET/OFI Couldn't enable endpoint. RC: -12, ERROR: Cannot allocate memory", "IPC_LOCK"),
        # NVIDIA/nccl #799 and #925
        ("Call to ibv_modify_qp failed with error No such device", "show_gids"),
        ("Call to ibv_modify_qp failed with 19 No such device, on dev mlx5_3:1", "show_gids"),
        # NVIDIA/nccl #214, #523, #928 and #1052
        ("NET/IB : Got completion with error 4, opcode 0, len 32694, vendor err 81", "ACS"),
        ("NET/IB: Got completion from peer 10.0.0.2<1> with status=IBV_WC_LOC_PROT_ERR(4) opcode", "ACS"),
        ("NET/IB : Got completion from peer 10.0.0.2<1> with status=12 opcode=0 len=0", "ibstat"),
        # gpustack/gpustack #4128, in a job with one node
        ("device.cc:83] ifa != nullptr. Unable to find interface for: [0.0.0.189]", "GLOO_SOCKET_IFNAME"),
        # aws/aws-ofi-nccl #24, #174, #801 and #889
        (
            "NCCL WARN NET/OFI Couldn't open a fabric access domain. RC: -38, ERROR: Function not",
            "aws-ofi-nccl",
        ),
        ("NET/OFI Creating new endpoint for domain 0x7f9b failed: Invalid argument", "aws-ofi-nccl"),
        ("NET/OFI Request 0x7fbb completed with error. RC: 20. Error: unknown error.", "security group"),
        ("Last error: Error: network AWS Libfabric not found.", "NCCL_NET"),
        # NVIDIA/nccl #1925
        ("MNNVL (cliqueSize 8) is available but not working on this system. Check the IMEX", "ComputeDomain"),
        # sgl-project/sglang #12533, deepseek-ai/DeepEP #289
        ("init.cu:nvshmemi_check_state_and_init:1080: nvshmem initialization failed, exiting", "IBGDA"),
    ],
)
def test_advice_for_error_of_network_card(error: str, part: str) -> None:
    assert part in known_errors.advice(error)


CLOSED = "RuntimeError: [gloo/pair.cc:589] Read error [10.0.0.1]:25266: Connection closed by peer"
RESET = "torch.distributed.DistNetworkError: Connection reset by peer"


def with_proxy(job: bundles.Job, part: str, *indexes: int) -> bundles.Job:
    """Add Istio's proxy to the pods of these nodes."""
    for kind, seen in job.objects:
        if kind == "pod" and any(seen.object["metadata"]["name"] == job.pod_name(at) for at in indexes):
            seen.object["spec"].setdefault(part, []).append({"name": "istio-proxy", "image": "proxyv2"})
    return job


@pytest.mark.parametrize("part", ["containers", "initContainers"])
@pytest.mark.parametrize(
    ("zero", "one", "cause", "ranks"),
    [
        # kubeflow/trainer #1585 and #1636, kubeflow/pytorch-operator #258
        (CLOSED, CLOSED, "collective.failed", []),
        (WAITED, UNREACHED.format("10.0.0.1", 23456), "rendezvous.unreachable", [1]),
        (WAITED, RESET, "rendezvous.unreachable", [1]),
    ],
)
def test_proxy_of_service_mesh_is_named(judged, part: str, zero, one, cause: str, ranks: list[int]) -> None:
    verdict = judged(with_proxy(starting(of(0, zero), of(1, one)), part, 0, 1))
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", cause, ranks), verdict.explanation
    assert "The pods contain the proxy of a service mesh (istio-proxy)" in verdict.explanation.replace(
        "; the pods", ". The pods"
    )
    assert 'sidecar.istio.io/inject: "false"' in verdict.next[-1]


def test_mesh_that_has_one_pod_only_is_named_with_its_rank(judged) -> None:
    """Contract: kubeflow/pytorch-operator#329. With mutual TLS, the other pod cannot connect to this one."""
    lines = of(0, WAITED), of(1, UNREACHED.format("10.0.0.1", 23456))
    verdict = judged(with_proxy(starting(*lines), "containers", 0))
    assert "of the job's pods, only those of rank 0" in verdict.explanation.lower(), verdict.explanation


def test_service_mesh_does_not_explain_later_loss_of_peers(judged) -> None:
    """Contract: once the ranks have trained, the proxies let them connect. A rank's own error comes first."""
    job = job_of(Case(of(1, CLOSED), "", [], ""))
    job.logs[job.pod_name(0)] = stamped(of(0, CLOSED)) + stamped(REPORT, rank=0, code=1, shell=1)
    verdict = judged(with_proxy(job, "containers", 0, 1))
    assert (verdict.cause, verdict.ranks) == ("collective.failed", []), verdict.explanation
    assert "mesh" not in verdict.explanation
    job = with_proxy(starting(of(0, CLOSED), of(1, "ValueError: boom")), "containers", 0, 1)
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("rank.crashed", [1]), verdict.explanation
    assert "mesh" not in verdict.explanation


SSH = "ssh: Could not resolve hostname job-worker-0.job.default.svc: Name or service not known"
HELP = [
    "-" * 74,
    "ORTE was unable to reliably start one or more daemons.",
    "This usually is caused by:",
    "",
    "* an inability to create a connection back to mpirun due to a",
    "  them. Please check network connectivity (including firewalls",
    "  and network routing requirements).",
    "-" * 74,
]
PDSH = "pdsh@launcher: worker-0: ssh exited with exit code 255"


@pytest.mark.parametrize(
    ("lines", "says", "advice"),
    [
        # Azure/aks-rdma-infiniband #30, everpeace/kube-openmpi #26, horovod/horovod #1811
        ([SSH, *HELP], SSH, "WaitForWorkersReady"),
        (["ssh: connect to host worker-0 port 22: Connection refused", PDSH], "Connection refused", "sshd"),
        # kubeflow/mpi-operator #429, horovod/horovod #467
        (["worker-0: Permission denied (publickey,password).", PDSH], "Permission denied", "defaultMode"),
        # deepspeedai/DeepSpeed #4907 and #4649
        (
            [
                *TRACEBACK,
                "RuntimeError: Using hostfile at h but host=10.0.0.2 was not reachable via ssh. If you",
            ],
            "host=10.0.0.2",
            "torchrun in every pod needs no ssh",
        ),
        (
            [
                *TRACEBACK,
                "subprocess.CalledProcessError: Command '['ssh w hostname']' returned non-zero exit "
                "status 255.",
            ],
            "exit status 255",
            "sshd",
        ),
        # A later error explains the end, because the launcher tried again.
        ([SSH, *HELP, "trying again", *TRACEBACK, "ValueError: boom"], "ValueError: boom", "log"),
        ([SSH, *HELP, "trying again", "step 3"], "step 3", "log"),
    ],
)
def test_ssh_error_of_launcher_is_quoted_with_advice(judged, lines, says: str, advice: str) -> None:
    job = starting(of(0, PEER), [])
    job.logs[job.pod_name(1)] = stamped(lines)
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("rank.crashed", [1]), verdict.explanation
    assert says in verdict.explanation.partition("Its last log line: ")[2], verdict.explanation
    assert "network routing" not in verdict.explanation
    assert advice in verdict.next[-1], verdict.next
