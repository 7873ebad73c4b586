"""Errors that the environment variables and options with which the ranks find each other explain."""

from __future__ import annotations

import json

import bundles
import pytest
from ended_pods import REPORT, stamped
from failed_ranks import PEER, TRACEBACK, UNREACHED, WAITED, of, starting
from process_events import PodEvents, recorded


@pytest.mark.parametrize(
    ("host", "port", "nodes", "cause"),
    [
        # hiyouga/LlamaFactory #6154, vllm-project/vllm #34784: the script's default
        ("localhost", 29500, 2, "variables.master_addr"),
        ("127.0.0.1", 23456, 2, "variables.master_addr"),
        ("10.0.0.1", 29500, 2, "rendezvous.unreachable"),
        # lllyasviel/ControlNet #382: a port that a library chose for the processes of one pod
        ("127.0.0.1", 48391, 2, "rendezvous.unreachable"),
        ("localhost", 29500, 1, "rendezvous.unreachable"),
    ],
)
def test_rank_that_looks_for_rank_0_in_its_own_pod(judged, host, port, nodes: int, cause: str) -> None:
    error = UNREACHED.format(host, port)
    job = starting(of(0, WAITED), of(1, error))
    if nodes == 1:
        job = alone(error)
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", cause, [nodes - 1]), (
        verdict.explanation
    )


def alone(error: str):
    """Return a job with one node, whose rank ends with an error."""
    job = bundles.healthy(nodes=1)
    job.drop("workload", 2)
    job.drop("jobset", 2)
    job.drop_pod(0, after=10)
    job.truth, job.points, job.runs, job.attachments = {}, [], [], []
    job.logs[job.pod_name(0)] = stamped(of(0, error)) + stamped(REPORT, rank=0, code=1, shell=1)
    job.ended(0, 12, 1, message=json.dumps({"exit": 1}))
    job.jobset(15, "Failed")
    return job


@pytest.mark.parametrize("env", ["localhost", "workers-0-0.js"])
def test_recorded_master_addr_tells_what_localhost_is(judged, env: str) -> None:
    """Contract: a script can use a second store in its own pod."""
    job = recorded(starting(of(0, WAITED), of(1, UNREACHED.format("localhost", 29501))))
    for index in range(2):
        pod = PodEvents(job, index)
        pod.start(20, "rank", ppid=7, RANK=index, LOCAL_RANK=0, WORLD_SIZE=2, MASTER_ADDR=env)
    verdict = judged(job)
    cause = "variables.master_addr" if env == "localhost" else "rendezvous.unreachable"
    assert (verdict.cause, verdict.ranks) == (cause, [1]), verdict.explanation


CLIENTS = WAITED.replace("1/2", "{}")


@pytest.mark.parametrize(
    ("clients", "per_node", "cause", "ranks"),
    [
        # volcano-sh/volcano #4238: WORLD_SIZE counts the pods of other tasks
        ("2/4", 1, "variables.world_size", [0]),
        ("2/16", 2, "variables.world_size", [0]),
        ("1/2", 1, "rendezvous.timeout", [1]),
        ("1/2", 2, "rendezvous.timeout", [2]),
        ("3/4", 2, "rendezvous.timeout", [2]),
    ],
)
def test_store_that_waits_for_more_ranks_than_job_has(judged, clients, per_node, cause, ranks) -> None:
    """Contract: a rank that had joined is not accused. The store of torchrun itself waits for the nodes."""
    zero = CLIENTS.format(clients) if per_node == 1 else f"E torchrun: {CLIENTS.format(clients)}"
    verdict = judged(starting([*TRACEBACK, zero], of(per_node, PEER), per_node))
    assert (verdict.verdict, verdict.cause) == ("FAIL", cause), verdict.explanation
    assert set(ranks) <= set(verdict.ranks), verdict.explanation
    if cause == "variables.world_size":
        assert "The job has" in verdict.explanation
        assert "never joined" not in verdict.explanation


@pytest.mark.parametrize("unknown", [{"ranks_given": False}, {"most_ranks": 8}])
def test_number_of_clients_is_not_judged_without_number_of_ranks(judged, unknown: dict) -> None:
    """Contract: a script that starts more processes itself, and an elastic job, wait for more clients."""
    job = starting([*TRACEBACK, CLIENTS.format("2/16")], of(1, PEER))
    expected = job.manifest.expected.model_copy(update=unknown)
    job.manifest = job.manifest.model_copy(update={"expected": expected})
    verdict = judged(job)
    assert verdict.cause == "rendezvous.timeout", verdict.explanation


ENV = (
    "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable {} "
    "expected, "
)
OS_FRAME = '  File "<frozen os>", line 714, in __getitem__'


@pytest.mark.parametrize(
    ("lines", "cause", "advice"),
    [
        # mit-han-lab/distrifuser #11
        ([ENV.format("RANK") + "but not set"], "variables.missing", "torchrun"),
        # The-AI-Summer/pytorch-ddp #2
        ([OS_FRAME, "KeyError: 'RANK'"], "variables.missing", "torchrun"),
        ([OS_FRAME, "KeyError: 'MASTER_ADDR'"], "variables.missing", "pod template"),
        (["KeyError: 'RANK'"], "rank.crashed", ""),
        ([OS_FRAME, "KeyError: 'HF_TOKEN'"], "rank.crashed", ""),
        # HarderThenHarder/transformers_tasks #34
        (
            ["ValueError: The hostname of the rendezvous endpoint ':8080' must be a dot-separated list"],
            "variables.master_addr",
            "--rdzv_endpoint",
        ),
        (
            ["ValueError: The port number of the rendezvous endpoint 'm:$P' must be an integer between"],
            "variables.master_port",
            "--rdzv_endpoint",
        ),
        # KimMeen/Time-LLM #158
        (
            [
                "torch.distributed.DistNetworkError: The server socket has failed to listen on any local "
                "network address. The server socket has failed to bind to [::]:98 (errno: 13 - Permission "
                "denied)."
            ],
            "variables.master_port",
            "1024",
        ),
        # ai-dynamo/dynamo #2706, vllm-project/vllm #31884, sgl-project/sglang #4877
        (
            ["zmq.error.ZMQError: Cannot assign requested address (addr='tcp://10.27.91.102:13345')"],
            "rank.crashed",
            "VLLM_HOST_IP",
        ),
    ],
)
def test_wrong_variable_of_every_pod_is_named(judged, lines: list[str], cause: str, advice: str) -> None:
    verdict = judged(starting(of(0, *lines), of(1, *lines)))
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", cause, [0, 1]), verdict.explanation
    assert advice in verdict.next[-1], verdict.next


def test_node_rank_that_is_not_less_than_number_of_nodes(judged) -> None:
    """Contract: pytorch/pytorch#123815. torchrun fails in a pod with --node_rank=2 and --nnodes=2."""
    frame = '  File "/x/torch/distributed/elastic/agent/server/api.py", line 610, in _assign_worker_ranks'
    lines = [
        *TRACEBACK,
        frame,
        "    my_role_info = role_infos[group_rank]",
        "IndexError: list index out of range",
    ]
    job = starting(of(0, WAITED), [])
    job.logs[job.pod_name(1)] = stamped(lines)
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("variables.node_rank", [1]), verdict.explanation
    assert "from 0 to nodes - 1" in verdict.next[-1]


def test_missing_variable_that_script_handled_is_no_cause(judged) -> None:
    """Contract: mit-han-lab/distrifuser #11. The script then uses one GPU, and another error ends it."""
    handled = f"Failed to initialize: {ENV.format('RANK')}but not set, falling back to single GPU mode."
    lines = [*TRACEBACK, f"{ENV.format('RANK')}but not set", handled, *of(1, "ValueError: boom")]
    verdict = judged(starting(of(0, PEER), lines))
    assert (verdict.cause, verdict.ranks) == ("rank.crashed", [1]), verdict.explanation


def test_error_of_script_that_only_resembles_torchruns_is_its_own(judged) -> None:
    lines = of(1, "IndexError: list index out of range")
    verdict = judged(starting(of(0, PEER), lines))
    assert (verdict.cause, verdict.ranks) == ("rank.crashed", [1]), verdict.explanation
    assert "rank" not in verdict.next[-1].replace("read the rank's log", "")
