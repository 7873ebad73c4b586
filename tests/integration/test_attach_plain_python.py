"""`harness attach` to jobs whose ranks no launcher starts: `python train.py` with RANK and WORLD_SIZE."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attached_jobs as jobs
import pytest
from attached_jobs import Object, results, serve, short
from bundle_api import BundleApi

from harness.evidence.schema.bundle import Verdict
from harness.report.finalize import Outcome

Attach = Callable[..., Outcome]
TRAIN = "python train.py"
GLOO = "[Gloo] Rank {0} is connected to {1} peer ranks. Expected number of connected peer ranks is : {1}"
NCCL = "node:77:91 [{0}] NCCL INFO comm 0x55 rank {0} nranks {1} cudaDev 0 busId e7000 - Init COMPLETE"
OLD_NCCL = "node:7:9 [{0}] NCCL INFO ncclCommInitRank comm 0x5 rank {0} nranks {1} cudaDev 0 - Init COMPLETE"
BARRIER = "Rank {0}: Completed store-based barrier for key:store_based_barrier_key:1 with {1} nodes."


def value(name: str, text: object) -> Object:
    return {"name": name, "value": str(text)}


def of_field(name: str, path: str) -> Object:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def pod(index: int, *env: Object, code: int = 0, command: str = TRAIN, **more: Any) -> Object:
    found = jobs.pod(index, code, **more)
    found["spec"]["containers"][0].update(command=["bash", "-c", command], env=list(env))
    return found


def serve_pods(api: BundleApi, *pods: Object, **logs: str) -> None:
    """Serve a Job of these pods. It has failed if one of them has."""
    failed = any(each["status"]["phase"] == "Failed" for each in pods)
    end = jobs.condition("Failed", "BackoffLimitExceeded", "limit") if failed else jobs.condition("Complete")
    job = jobs.job("train", len(pods), end)
    job["spec"]["template"]["spec"] = jobs.template(TRAIN)
    serve(api, job, *pods, **logs)


def explanation(verdict: Verdict, name: str) -> str:
    return next(each.explanation for each in verdict.checks if each.name == name)


INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
LABEL = "metadata.labels['example.com/rank']"


@pytest.mark.parametrize(
    ("of_rank", "more"),
    [
        (lambda rank: [value("RANK", rank), value("WORLD_SIZE", 2)], {}),
        (lambda rank: [of_field("RANK", LABEL), value("WORLD_SIZE", 2)], {}),
        (
            lambda rank: [value("N", rank)],
            {"command": "export WORLD_SIZE=2; RANK=$N exec python train.py"},
        ),
        (lambda rank: [value("N", rank)], {"command": 'WORLD_SIZE=2 RANK="${N}" python train.py'}),
    ],
)
def test_rank_of_the_environment_names_the_rank_that_failed(
    of_rank: Callable[[int], list[Object]], more: dict[str, str], api: BundleApi, attached: Attach
) -> None:
    """Contract: kubeflow/trainer#2000 and others set RANK by hand. It need not be the completion index."""
    pods = [
        pod(n, *of_rank(1 - n), code=1 - n, labels={"example.com/rank": str(1 - n)}, **more) for n in (0, 1)
    ]
    serve_pods(api, *pods, r0=jobs.stamped("ValueError: shard"))
    verdict = attached().verdict
    assert short(verdict) == ("FAIL", "rank.crashed", [1])
    assert "2 ranks on 2 nodes, from WORLD_SIZE=2" in explanation(verdict, "expected")
    assert "the pods are ordered by their RANK variable" in explanation(verdict, "expected")


def test_the_completion_index_is_the_rank(api: BundleApi, attached: Attach) -> None:
    env = [of_field("RANK", INDEX), value("WORLD_SIZE", 2)]
    serve_pods(api, pod(0, *env), pod(1, *env, code=1), r1=jobs.stamped("ValueError: shard"))
    verdict = attached().verdict
    assert short(verdict) == ("FAIL", "rank.crashed", [1])
    assert results(verdict)["expected"] == "PASS"


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ([], "neither its command nor its environment has --nproc-per-node or WORLD_SIZE"),
        (
            [value("RANK", 0), value("WORLD_SIZE", 2)],
            "RANK is 0 in 2 pods (train-0-abcd0, train-1-abcd1)",
        ),
        (
            [
                {"name": "RANK", "valueFrom": {"configMapKeyRef": {"name": "r", "key": "k"}}},
                value("WORLD_SIZE", 2),
            ],
            "the value of RANK is not in the pods' specs, so each pod's rank is assumed to be its index",
        ),
    ],
)
def test_what_is_missing_to_know_the_ranks_is_named(
    env: list[Object], text: str, api: BundleApi, attached: Attach
) -> None:
    serve_pods(api, pod(0, *env), pod(1, *env))
    assert text in explanation(attached().verdict, "expected")


def test_a_rank_beyond_the_world_is_named(api: BundleApi, attached: Attach) -> None:
    serve_pods(api, *(pod(n, value("RANK", n + 1), value("WORLD_SIZE", 2)) for n in (0, 1)))
    verdict = attached().verdict
    assert results(verdict)["expected"] == "UNKNOWN"
    assert "RANK is 2 in a pod, but WORLD_SIZE is 2" in explanation(verdict, "expected")


@pytest.mark.parametrize("first", [0, 4])
def test_rank_of_a_pod_with_several_processes(first: int, api: BundleApi, attached: Attach) -> None:
    """RANK is the pod's index, as in examples with mp.spawn, or the rank of the pod's first process."""
    pods = [pod(n, value("RANK", (1 - n) * (first or 1)), value("WORLD_SIZE", 8), code=1 - n) for n in (0, 1)]
    serve_pods(api, *pods, r0=jobs.stamped("ValueError: shard"))
    assert short(attached().verdict) == ("FAIL", "rank.crashed", [4, 5, 6, 7])


def world(rank: int, size: int = 2) -> list[Object]:
    return [value("RANK", rank), value("WORLD_SIZE", size)]


@pytest.mark.parametrize("line", [GLOO, NCCL, OLD_NCCL, BARRIER])
def test_the_process_group_in_the_logs_proves_one_world(line: str, api: BundleApi, attached: Attach) -> None:
    """Contract: jax-ml/jax#32673, NVIDIA/nccl#629: each rank prints the size of its group."""
    size = 1 if line == GLOO else 2
    serve_pods(
        api,
        *(pod(n, *world(n)) for n in (0, 1)),
        **{f"r{n}": jobs.stamped(line.format(n, size), "done") for n in (0, 1)},
    )
    verdict = attached().verdict
    assert results(verdict)["rendezvous"] == "PASS", explanation(verdict, "rendezvous")
    assert "one process group of all 2 ranks in 2 pods" in explanation(verdict, "rendezvous")


@pytest.mark.parametrize(
    "logs",
    [
        [GLOO.format(0, 1), "step 1"],
        [GLOO.format(0, 0), GLOO.format(0, 0)],
        [GLOO.format(0, 1), GLOO.format(0, 1)],
        [f"{GLOO.format(0, 1)}\n{GLOO.format(1, 1)}", f"{GLOO.format(0, 1)}\n{GLOO.format(1, 1)}"],
        [GLOO.format(0, 2), GLOO.format(1, 2)],
        ["[Gloo] Rank 0 is connected to 0 peer ranks. Expected number of connected peer ranks is : 1"] * 2,
    ],
    ids=["one-log", "alone", "twice", "within-pods", "larger", "not-connected"],
)
def test_another_process_group_in_the_logs_proves_nothing(
    logs: list[str], api: BundleApi, attached: Attach
) -> None:
    """Contract: vllm-project/vllm-ascend#9447: a program can have several process groups, some with only one
    rank."""
    texts = {f"r{n}": jobs.stamped(*log.splitlines(), "done") for n, log in enumerate(logs)}
    serve_pods(api, *(pod(n, *world(n)) for n in (0, 1)), **texts)
    assert results(attached().verdict)["rendezvous"] == "UNKNOWN"


def test_process_group_in_logs_shows_order_of_ranks(api: BundleApi, attached: Attach) -> None:
    """torchrun assigns ranks to pods in the order in which they join, and logs this order only with
    LOGLEVEL=INFO."""
    command = "torchrun --nnodes=2 --nproc-per-node=1 train.py"
    pods = [pod(n, command=command, code=1 - n) for n in (0, 1)]
    texts = {f"r{n}": jobs.stamped(GLOO.format(1 - n, 1), "ValueError: shard") for n in (0, 1)}
    serve_pods(api, *pods, **texts)
    verdict = attached().verdict
    assert short(verdict) == ("FAIL", "rank.crashed", [1])
    assert "the order of ranks is taken from the process group in the logs" in explanation(
        verdict, "expected"
    )
