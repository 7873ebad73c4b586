"""Find the rank that did not take part in a collective operation, from the stack of each rank when it
received SIGTERM."""

import json

import bundles
import pytest
from bundles import at
from ended_pods import failing, says
from process_events import PodEvents, recorded

TIMEOUT = (
    "RuntimeError: [./gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 20000ms for recv operation"
)
HEAD = "Stack (most recent call first):"
ASLEEP = [
    HEAD,
    '  File "/workspace/train.py", line 54 in load',
    '  File "/workspace/train.py", line 87 in main',
]
WAITS = [
    HEAD,
    '  File "/usr/lib/python3/dist-packages/torch/distributed/distributed_c10d.py", line 2810 in all_reduce',
    '  File "/workspace/train.py", line 90 in main',
]
CLIENT = [
    HEAD,
    '  File "/usr/lib/python3/dist-packages/httpx/_client.py", line 1013 in send',
    '  File "/usr/lib/python3/dist-packages/pluto/iface.py", line 200 in _post',
    '  File "/workspace/train.py", line 90 in main',
]


def job(places, per_node=1, gpus=False, finished=()):
    """Return a job whose rank 0 timed out. `places` maps other ranks to the lines of their stacks."""
    made = recorded(bundles.healthy(per_node=per_node) if per_node > 1 else failing())
    if per_node > 1:
        made.drop("workload", 2)
        made.drop("jobset", 2)
        for index in range(2):
            made.drop_pod(index, after=10)
    says(made, 0, [f"[rank0]: {TIMEOUT}"])
    made.logs[made.pod_name(1)] = [f"{at(11, True)} step 6"]
    for index in range(2):
        pod = PodEvents(made, index)
        pod.agent(7, "--nnodes=2")
        ranks = [(20 + local, local, index * per_node + local) for local in range(per_node)]
        pod.workers(7, [(*each, made.ranks) for each in ranks])
        for pid, local, rank in ranks:
            pod.rank(pid, rank, made.ranks, local=local)
            if rank == 0 and 0 not in places:
                pod.end(pid, 1, "exception", TIMEOUT)
                pod.add("failed", 7, failures=[(pid, local, rank, 1, "To enable traceback see: …")])
            elif rank in finished:
                pod.end(pid)
            elif rank in places:
                pod.add("stack", 7, pid=pid, local=local, rank=rank, text="\n".join(places[rank]))
    made.ended(0, 12, 1, message=json.dumps({"exit": 1}))
    gone = {"deletionTimestamp": at(43), "deletionGracePeriodSeconds": 30}
    made.ended(1, 14, 143, message="", metadata=gone)
    made.jobset(15, "Failed")
    for kind, state in made.objects:
        if kind == "pod" and gpus:
            limits = {"limits": {"nvidia.com/gpu": "8"}}
            state.object["spec"]["containers"] = [{"name": bundles.CONTAINER, "resources": limits}]
    return made


def test_the_only_rank_outside_a_collective_is_named(judged):
    """Contract: pytorch/gloo#511. The verdict names the rank's pod, last step and line, with the record as
    evidence."""
    verdict = judged(job({1: ASLEEP}))
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "rank.hung", [1])
    assert (
        "after step 1 did not take part in the collective operation: when it was ended, it was in "
        "load (train.py line 54)" in (verdict.explanation)
    )
    assert any(ref.startswith("processes.jsonl:") for ref in verdict.evidence)


def test_one_rank_of_a_pod_is_named(judged):
    """Contract: the other ranks in the pod, which were waiting, are not named."""
    verdict = judged(job({1: WAITS, 2: WAITS, 3: ASLEEP}, per_node=2))
    assert (verdict.cause, verdict.ranks) == ("rank.hung", [3]), verdict.explanation


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(lambda: job({1: WAITS}), id="in a collective too"),
        pytest.param(lambda: job({}), id="no stack"),
        pytest.param(lambda: job({1: ASLEEP, 2: WAITS}, per_node=2), id="a rank without a stack"),
        pytest.param(lambda: job({1: ASLEEP, 2: ASLEEP, 3: WAITS}, per_node=2), id="two candidates"),
        pytest.param(lambda: job({2: ASLEEP, 3: WAITS}, per_node=2, finished=(1,)), id="a rank had finished"),
        pytest.param(lambda: job({1: ASLEEP}, gpus=True), id="the line may wait for a GPU"),
    ],
)
def test_nobody_is_accused_without_proof(judged, made):
    """Contract: the rank that reported the timeout is the first failure, and the other ranks are only
    possible reasons."""
    verdict = judged(made())
    assert verdict.cause != "rank.hung", verdict.explanation
    assert verdict.ranks == [0]


def test_a_place_is_told_where_it_proves_nothing(judged):
    verdict = judged(job({1: ASLEEP}, gpus=True))
    assert "it may be the rank that hung; rank 1 was in load (train.py line 54)" in (verdict.explanation)


def test_a_job_without_time_tells_where_its_ranks_were(judged):
    """Contract: Lightning#11242, in which the collective's timeout exceeds the job's time. The other ranks
    are named last."""
    made = job({0: WAITS, 1: ASLEEP, 2: WAITS, 3: WAITS}, per_node=2)
    made.processes = [one for one in made.processes if one.kind not in ("end", "failed")]
    made.drop("jobset", 2)
    made.drop_pod(0, after=10)
    made.drop_pod(1, after=10)
    bundles.timed_out(made)
    verdict = judged(made)
    assert (verdict.verdict, verdict.cause) == ("FAIL", "run.timed_out"), verdict.explanation
    places = "rank 1 was in load (train.py line 54), under main (train.py line 87); rank 0 was in all_reduce"
    assert f"When the job was stopped, {places}" in verdict.explanation


def test_rank_that_waited_for_tracker_is_not_hung(judged):
    verdict = judged(job({1: CLIENT}))
    assert (verdict.cause, verdict.ranks) == ("rank.tracker_unreachable", [1]), verdict.explanation
