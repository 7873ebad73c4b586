"""Errors of torchrun itself, which often follow the failure of its rank or the end of another torchrun."""

from __future__ import annotations

import bundles
import pytest
from ended_pods import REPORT, stamped
from failed_ranks import PEER, TRACEBACK, Case, job_of, of

API = "torch.distributed.elastic.rendezvous.api."
CLOSED = [*TRACEBACK, f"{API}RendezvousClosedError"]
LOST_STORE = [
    *TRACEBACK,
    f"{API}RendezvousConnectionError: The connection to the C10d store has failed. See inner exception.",
]
FAILED = REPORT[0].format(code=1)
BROKEN = "[W817 17:41:12.5 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=6): Broken pipe"
OWN = "ValueError: boom"


def ended(zero: list[str], one: list[str], has_met: bool, zero_code: int = 1) -> bundles.Job:
    """Return a job whose nodes end with these lines. If `has_met`, its ranks have logged points before."""
    job = job_of(Case(one, "", [], ""))
    if not has_met:
        job.truth, job.points, job.runs, job.attachments = {}, [], [], []
    job.logs = {job.pod_name(0): stamped(zero), job.pod_name(1): stamped(one)}
    if zero_code == 0:
        job.truth = {**job.truth, 0: bundles.healthy().truth[0]}
        job.drop_pod(0, after=10)
        job.ended(0, 12, 0)
    return job


@pytest.mark.parametrize("has_met", [False, True])
@pytest.mark.parametrize(
    "after",
    [
        CLOSED,  # pytorch/pytorch #116974, #123678 and #147064
        LOST_STORE,  # wenet-e2e/wespeaker #171, wenet-e2e/wekws #172
        [*TRACEBACK, f"{API}RendezvousTimeoutError"],
        [BROKEN, *REPORT[1:6], "[0]:", "  rank      : 1 (local_rank: 0)", "  exitcode  : 1 (pid: 68)"],
    ],
)
def test_error_of_rank_explains_later_one_of_torchrun(judged, after: list[str], has_met: bool) -> None:
    """Contract: torchrun loses the rendezvous when it restarts its rank or ends, because the others ended."""
    verdict = judged(ended(of(0, PEER), [*of(1, OWN), FAILED, *after], has_met))
    assert (verdict.cause, verdict.ranks) == ("rank.crashed", [1]), verdict.explanation
    assert OWN in verdict.explanation.partition("After it")[0]


@pytest.mark.parametrize("has_met", [False, True])
def test_own_exit_code_without_error_explains_closed_rendezvous(judged, has_met: bool) -> None:
    """Contract: a script that exits with its own code, without an exception, is the cause."""
    verdict = judged(ended(of(0, PEER), ["too inaccurate", REPORT[0].format(code=3), *CLOSED], has_met))
    assert (verdict.cause, verdict.ranks) == ("rank.crashed", [1]), verdict.explanation
    assert "too inaccurate" in verdict.explanation


@pytest.mark.parametrize("has_met", [False, True])
def test_lost_peer_before_closed_rendezvous_is_no_own_error(judged, has_met: bool) -> None:
    verdict = judged(ended(of(0, OWN), [*of(1, PEER), FAILED, *CLOSED], has_met))
    assert (verdict.cause, verdict.ranks) == ("rank.crashed", [0]), verdict.explanation


@pytest.mark.parametrize("has_met", [False, True])
@pytest.mark.parametrize(("zero", "one"), [(of(0, PEER), CLOSED), (LOST_STORE, LOST_STORE)])
def test_torchruns_that_lost_each_other_accuse_no_rank(judged, zero, one, has_met: bool) -> None:
    """Contract: a rank that lost a peer had joined the rendezvous."""
    verdict = judged(ended(zero, one, has_met))
    assert (verdict.cause, verdict.ranks) == ("collective.failed", []), verdict.explanation
    assert "never joined" not in verdict.explanation


def test_rendezvous_that_earlier_attempt_closed_has_advice(judged) -> None:
    """Contract: kubeflow/trainer#1638. With etcd, each new attempt finds the rendezvous closed."""
    verdict = judged(ended(CLOSED, CLOSED, has_met=False))
    assert (verdict.cause, verdict.ranks) == ("rendezvous.timeout", [0, 1]), verdict.explanation
    assert verdict.explanation.startswith("Ranks 0 and 1 found the rendezvous closed")
    assert "new --rdzv_id" in verdict.next[-1]


def test_node_that_ended_early_explains_closed_rendezvous(judged) -> None:
    verdict = judged(ended(["done"], CLOSED, has_met=False, zero_code=0))
    assert (verdict.cause, verdict.ranks) == ("rendezvous.timeout", [1]), verdict.explanation
    assert "had ended with exit code 0" in verdict.explanation


NOT_SHUT_DOWN = (
    "W1130 torch/distributed/elastic/rendezvous/dynamic_rendezvous.py:1292] The node 'w1_64_0' has failed to "
    "shutdown the rendezvous 'none' due to an error of type RendezvousConnectionError."
)


@pytest.mark.parametrize(
    "lines",
    [
        [BROKEN, "frame #0: c10::Error::Error(std::string) + 0x96 (0x15 in /x/libc10.so)", NOT_SHUT_DOWN],
        # wenet-e2e/wespeaker #171: the store ended with the torchrun of rank 0, a moment earlier
        [NOT_SHUT_DOWN, *TRACEBACK, "RuntimeError: Broken pipe", *LOST_STORE],
        ["ssh: Could not resolve hostname worker-0: Name or service not known"],
        [
            "NCCL WARN NET/OFI Only EFA provider is supported",
            "NCCL INFO NET/Socket : Using [0]eth0:10.0.0.2<0>",
        ],
    ],
)
def test_lost_store_after_success_is_a_pass(judged, lines: list[str]) -> None:
    job = bundles.healthy()
    job.logs[job.pod_name(1)] = [*job.logs[job.pod_name(1)], *stamped(lines)]
    verdict = judged(job)
    assert verdict.verdict == "PASS", verdict.explanation
