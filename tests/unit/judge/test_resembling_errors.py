"""Errors that a program survived, or that only resemble those of the network and of its variables."""

from __future__ import annotations

import pytest
from ended_pods import REPORT, stamped
from failed_ranks import PEER, TRACEBACK, WAITED, Case, job_of, of, starting
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
