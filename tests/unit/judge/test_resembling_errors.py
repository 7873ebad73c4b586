"""Errors that a program survived, or that only resemble those of the network and of its variables."""

from __future__ import annotations

import pytest
from ended_pods import REPORT, stamped
from failed_ranks import PEER, TRACEBACK, UNREACHED, WAITED, Case, job_of, of, starting
from process_events import PodEvents, recorded

from harness.judge.logs import known_errors

OS_FRAME = '  File "<frozen os>", line 714, in __getitem__'
HANDLED = [*TRACEBACK, OS_FRAME, "KeyError: 'RANK'", "not started by torchrun"]
STEPS = [f"step {step} loss 0.5" for step in range(20)]
OWN = "ValueError: boom"


@pytest.mark.parametrize("has_met", [False, True])
@pytest.mark.parametrize(
    ("one", "code", "says"), [(of(1, OWN), 1, OWN), ([*HANDLED, *STEPS, "too inaccurate"], 3, "inaccurate")]
)
def test_missing_variable_that_rank_handled_accuses_nobody(
    judged, one: list[str], code: int, says: str, has_met: bool
) -> None:
    """Contract: a rank that has trained with its peers needed no other variable."""
    zero = [*HANDLED, *STEPS[:3], *of(0, PEER)]
    job = starting(zero, one, code=code)
    if has_met:
        job = job_of(Case(one, "", [], "", code=code))
        job.logs[job.pod_name(0)] = stamped(zero) + stamped(REPORT, rank=0, code=1, shell=1)
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("rank.crashed", [1]), verdict.explanation
    assert says in verdict.explanation


@pytest.mark.parametrize("error", ["KeyError: 'RANK'", "KeyError: 'rank'", "KeyError: 'WORLD_SIZE'"])
def test_missing_key_of_dictionary_has_no_advice(judged, error: str) -> None:
    """Contract: only a key of os.environ is a variable."""
    verdict = judged(starting(of(0, PEER), of(1, error)))
    assert (verdict.cause, verdict.ranks) == ("rank.crashed", [1]), verdict.explanation
    assert "torchrun" not in verdict.next[-1], verdict.next


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: unable to map file (errno: 13 - Permission denied)",
        "redis.exceptions.ConnectionError: Error 99 connecting to ::1:6379. Cannot assign requested address.",
        "urllib3.exceptions.NewConnectionError: Failed to establish a new connection: [Errno 99] Cannot "
        "assign requested address",
    ],
)
def test_error_that_is_not_of_listening_has_no_advice(error: str) -> None:
    assert known_errors.advice(error) == ""


@pytest.mark.parametrize(("clients", "per_node"), [("2/3", 4), ("2/9", 4)])
def test_torchruns_store_that_waits_for_more_nodes(judged, clients: str, per_node: int) -> None:
    """Contract: all nodes had joined."""
    zero = [*TRACEBACK, f"E torchrun: {WAITED.replace('1/2', clients)}"]
    verdict = judged(starting(zero, of(per_node, PEER), per_node))
    assert verdict.cause == "variables.world_size", verdict.explanation


@pytest.mark.parametrize(("clients", "per_node"), [("3/4", 4), ("2/4", 4), ("3/6", 4)])
def test_store_of_part_of_job_is_no_wrong_world(judged, clients: str, per_node: int) -> None:
    """Contract: a group, such as the ranks of one node, can have a store with fewer clients than the job."""
    zero = [*TRACEBACK, WAITED.replace("1/2", clients)]
    verdict = judged(starting(zero, of(per_node, PEER), per_node))
    assert verdict.cause == "rendezvous.timeout", verdict.explanation


@pytest.mark.parametrize(("size", "cause"), [(2, "rendezvous.timeout"), (4, "variables.world_size")])
def test_recorded_world_size_tells_whether_it_is_wrong(judged, size: int, cause: str) -> None:
    """Contract: the store can be one that the script itself created, for example for data loaders."""
    job = recorded(starting(of(0, WAITED.replace("1/2", "2/4")), of(1, PEER)))
    for index in range(2):
        PodEvents(job, index).start(20, "rank", ppid=7, RANK=index, LOCAL_RANK=0, WORLD_SIZE=size)
    verdict = judged(job)
    assert verdict.cause == cause, verdict.explanation


HTTP = "WARNING urllib3: Retrying after ConnectionResetError(104, 'Connection reset by peer')"
SIZES = "RuntimeError: [x/gloo/transport/tcp/pair.cc:446] op.preamble.length <= op.nbytes. 8 vs 4"
NO_INTERFACE = "RuntimeError: [x/tcp/device.cc:83] ifa != nullptr. Unable to find interface for: [0.0.0.189]"
CLOSED = "torch.distributed.elastic.rendezvous.api.RendezvousClosedError"
CHAINED = ["", "During handling of the above exception, another exception occurred:", ""]


@pytest.mark.parametrize(
    "lines",
    [
        [HTTP],
        ["NCCL WARN Call to recv from 10.0.0.2<3> failed : Connection timed out"],
        ["worker-0 ib_mlx5_log.c:139  Transport retry count exceeded on mlx5_0:1/IB (synd 0x15)"],
        [*TRACEBACK, SIZES, "benchmark failed, skipping it"],
        [*TRACEBACK, NO_INTERFACE, "using NCCL only"],
        [*TRACEBACK, CLOSED, "trying again with a new id"],
        [*TRACEBACK, UNREACHED.format("localhost", 29501), "no store in this pod"],
    ],
)
@pytest.mark.parametrize(
    ("end", "code"),
    [
        (of(1, OWN), 1),
        ([*TRACEBACK, "KeyError: 3", *CHAINED, *TRACEBACK, OWN], 1),
        ([f"{OWN}, giving up"], 3),
    ],
)
def test_error_that_rank_survived_does_not_excuse_it(judged, lines, end: list[str], code: int) -> None:
    """Contract: a rank that prints more output ends for another reason, and not its peer is accused."""
    verdict = judged(starting(of(0, PEER), [*lines, *STEPS, *end], code=code))
    assert (verdict.cause, verdict.ranks) == ("rank.crashed", [1]), verdict.explanation
    assert OWN in verdict.explanation.partition("After it")[0]


def test_error_that_one_of_two_ranks_survived_is_no_cause(judged) -> None:
    lines = [*TRACEBACK, UNREACHED.format("localhost", 29501), "no store in this pod", *STEPS]
    verdict = judged(starting(of(0, PEER), [*lines, *of(3, OWN)], per_node=2))
    assert (verdict.cause, verdict.ranks) == ("rank.crashed", [3]), verdict.explanation


def test_rank_that_cannot_reach_rank_0_is_still_accused(judged) -> None:
    """Contract: its error ended it, even if another rank in the pod then prints more and fails."""
    lines = [*of(2, UNREACHED.format("10.0.0.1", 29501)), *STEPS, *of(3, OWN)]
    verdict = judged(starting(of(0, WAITED), lines, per_node=2))
    assert verdict.cause == "rendezvous.unreachable", verdict.explanation


@pytest.mark.parametrize(
    "one",
    [
        [*STEPS, *of(1, PEER)],
        [*STEPS, *of(1, PEER, *CHAINED, *TRACEBACK, "RuntimeError: training failed")],
        [*STEPS, *TRACEBACK, PEER, *STEPS[:3], *of(1, "RuntimeError: training failed")],
    ],
)
def test_rank_that_ends_soon_after_lost_peer_is_excused(judged, one: list[str]) -> None:
    verdict = judged(starting(of(0, OWN), one))
    assert (verdict.cause, verdict.ranks) == ("rank.crashed", [0]), verdict.explanation


def test_mismatch_that_rank_survived_does_not_explain_later_loss(judged) -> None:
    lines = [*TRACEBACK, SIZES, "benchmark failed, skipping it", *STEPS]
    verdict = judged(starting([*lines, *of(0, PEER)], [*lines, *of(1, PEER)]))
    assert (verdict.cause, verdict.ranks) == ("collective.failed", []), verdict.explanation


@pytest.mark.parametrize(("hour", "is_named"), [("05", True), ("03", False)])
def test_mesh_does_not_explain_loss_after_long_run(judged, hour: str, is_named: bool) -> None:
    """Contract: a job that logs no points has also connected if it ran for longer than any timeout."""
    job = starting(of(0, PEER), of(1, PEER))
    for kind, seen in job.objects:
        if kind == "pod":
            seen.object["spec"].setdefault("containers", []).append({"name": "istio-proxy", "image": "p"})
            for status in seen.object["status"].get("containerStatuses", []):
                for state in status["state"].values():
                    if "startedAt" in state:
                        state["startedAt"] = state["startedAt"].replace("T05", f"T{hour}")
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("collective.failed", []), verdict.explanation
    assert ("mesh" in verdict.explanation) == is_named
