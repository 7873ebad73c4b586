"""Ranks that hang: the verdict names the rank and its stack."""

import json

import pytest
from bundles import at
from ended_pods import HUNG, IN_CLIENT, failing, says

from harness.judge.logs import stacks

IN_COLLECTIVE = [
    "[rank 0] step 7 loss 0.5",
    "Current thread 0x00007f4d8817c780 (most recent call first):",
    '  File "/usr/lib/python3/dist-packages/torch/autograd/graph.py", line 823 in _engine_run_backward',
    '  File "/workspace/multinode.py", line 101 in train',
]


def hanging(lines, peer=IN_COLLECTIVE):
    """Return a job that failed because rank 1 hung while its peer was waiting. `lines` are from the log of
    rank 1."""
    job = failing()
    says(job, 1, lines)
    says(job, 0, peer, code=-15)
    job.ended(1, 12, 1, message=json.dumps({"exit": 1}))
    job.ended(0, 12, 1, message=json.dumps({"exit": 1}))
    job.jobset(14, "Failed")
    return job


def test_a_rank_that_hangs_is_named_with_its_stack(judged):
    """Contract: the verdict names the rank that its deadline ended, the line at which it hung, and its last
    step."""
    verdict = judged(hanging(HUNG))
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "rank.hung", [1])
    for part in (
        "for 0:00:27",
        "wait (threading.py line 359), under _wait_for_ever (faulty.py line 70)",
        "step 6",
    ):
        assert part in verdict.explanation
    assert verdict.evidence[0].endswith(".log:2")


def test_a_hang_in_destroy_process_group_names_its_rank(judged):
    """Contract: the rank itself hangs (pytorch#154976), although its innermost frames are torch's. The peer
    that waits for it in a collective is not named.
    """
    torch = "/usr/lib/python3/dist-packages/torch/distributed"
    leaving = [
        *HUNG[:5],
        "Thread 0x00007f4d8817c780 (most recent call first):",
        f'  File "{torch}/distributed_c10d.py", line 2146 in destroy_process_group',
        '  File "/workspace/train.py", line 88 in main',
    ]
    verdict = judged(hanging(leaving))
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "rank.hung", [1])
    assert "was in destroy_process_group" in verdict.explanation
    assert "pytorch#154976" in verdict.next[-1]


def test_torch_may_be_a_source_tree(judged):
    """Contract: a rank that waits in a collective is waiting for its peers, even if torch was installed from
    a source tree."""
    frame = '  File "/opt/pytorch/torch/distributed/distributed_c10d.py", line 2811 in all_reduce'
    in_collective = [*HUNG[:2], IN_COLLECTIVE[1], frame, IN_COLLECTIVE[3]]
    (stack, _) = stacks.last(list(enumerate(in_collective, 1)))
    assert stack is not None
    assert stack.in_collective
    verdict = judged(hanging(HUNG, in_collective))
    assert (verdict.cause, verdict.ranks) == ("rank.hung", [1])


def test_a_collective_timeout_names_the_hung_peer(judged):
    """Contract: gloo's own timeout ends the peer first. The rank that was terminated outside a collective is
    the one that hung.
    """
    job = failing()
    error = "[rank0]: RuntimeError: [../gloo/buffer.cc:81] Timed out waiting 23000ms for recv operation"
    says(job, 0, ["[rank 0] step 7 loss 0.5", error])
    says(
        job,
        1,
        ["[rank 1] step 6 loss 0.5", "Current thread 0x0000 (most recent call first):", *HUNG[6:]],
        code=-15,
    )
    job.ended(0, 12, 1, message=json.dumps({"exit": 1}))
    job.ended(
        1, 14, 143, message="", metadata={"deletionTimestamp": at(43), "deletionGracePeriodSeconds": 30}
    )
    job.jobset(15, "Failed")
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("rank.hung", [1])
    assert (
        "did not take part in the collective operation: when it was ended, it was in wait"
        in verdict.explanation
    )


def test_rank_that_never_joined_is_one_that_hangs(judged):
    """Contract: the rank that never joined is the one that hung. The stack of the peer that was waiting in
    the process group is evidence.
    """
    job = failing()
    job.truth = {}
    says(
        job,
        0,
        ["torch.distributed.DistStoreError: wait timeout after 46000ms, keys: /default_pg/0//cpu//0/1"],
    )
    says(job, 1, ["Current thread 0x0000 (most recent call first):", *HUNG[6:]], code=-15)
    job.ended(0, 12, 1, message=json.dumps({"exit": 1}))
    job.ended(
        1, 14, 143, message="", metadata={"deletionTimestamp": at(43), "deletionGracePeriodSeconds": 30}
    )
    job.jobset(15, "Failed")
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("rank.hung", [1])
    assert "wait timeout after 46000ms" in verdict.explanation.split("After it")[1]


def test_main_thread_is_last_one_of_dump():
    """Contract: a dump's lines are recognised, its main thread's frames are kept, and later text ends it."""
    lines = list(enumerate([*HUNG, "something else", '  File "/x.py", line 1 in y'], 1))
    stack, dumped = stacks.last(lines)
    assert stack is not None
    assert [frame.name for frame in stack.frames] == ["wait", "_wait_for_ever", "on_step"]
    assert (stack.number, stack.after, stack.in_collective) == (2, "0:00:27", False)
    assert dumped == set(range(2, 10))


def test_a_rank_that_waits_for_its_own_server_hangs():
    """Contract: a request that was not made by Pluto's client is attributed to the program."""
    frames = [line for line in IN_CLIENT if "pluto" not in line]
    stack, _ = stacks.last(list(enumerate(frames)))
    assert stack is not None
    assert not stack.in_client


def test_rank_hanging_in_import_is_quoted():
    """Contract: Python's import machinery also counts as a library, although its frames have no file."""
    frames = [
        "Current thread 0x1 (most recent call first):",
        '  File "<frozen importlib._bootstrap>", line 241 in _call_with_frames_removed',
        '  File "/workspace/train.py", line 7 in main',
    ]
    stack, _ = stacks.last(list(enumerate(frames)))
    assert stack is not None
    assert stack.place.endswith("under main (train.py line 7)")


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (
            "torchrun: error: argument --master-port/--master_port: invalid int value: 'tcp://10.96.37.46:29500'",
            "variables.master_port",
        ),
        ("ValueError: invalid literal for int() with base 10: 'tcp://10.96.37.46:6379'", "rank.crashed"),
    ],
)
def test_variable_that_service_s_name_made_is_told(judged, line, cause):
    job = failing()
    for rank in range(2):
        job.truth[rank] = []
        says(job, rank, [line], code=2)
    job.ended(1, 12, 2, message=json.dumps({"exit": 2}))
    job.jobset(14, "Failed")
    verdict = judged(job)
    assert verdict.cause == cause
    assert "tcp://10.96.37.46" in verdict.explanation
    assert any("enableServiceLinks: false" in step for step in verdict.next)
