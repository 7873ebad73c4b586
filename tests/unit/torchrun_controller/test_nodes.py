"""GPUs → nodes × processes: every GPU asked for is used, by equal nodes, and what cannot be is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.torchrun_controller.api.models import JobSpec
from harness.torchrun_controller.plan.gpu_layout import Plan, Refused, distribute


def job(**fields: int) -> JobSpec:
    return JobSpec.model_validate({"jobQueue": "q", "command": "python train.py", **fields})


@pytest.mark.parametrize(
    ("fields", "capacity", "expected"),
    [
        ({"numGPUs": 16}, 8, Plan(2, 2, 8, 8)),
        ({"numGPUs": 32}, 8, Plan(4, 4, 8, 8)),
        ({"numGPUs": 8}, 8, Plan(1, 1, 8, 8)),
        ({"numGPUs": 3}, 8, Plan(1, 1, 3, 3)),
        ({"numGPUs": 12}, 8, Plan(2, 2, 6, 6)),
        ({"numGPUs": 9, "numNodes": 3}, 8, Plan(3, 3, 3, 3)),
        ({"numNodes": 2}, 4, Plan(2, 2, 4, 4)),
        ({}, 4, Plan(1, 1, 4, 4)),
        ({"minNodes": 2, "maxNodes": 4}, 8, Plan(4, 2, 8, 8)),
    ],
)
def test_gpus_are_split_evenly_over_nodes(fields: dict[str, int], capacity: int, expected: Plan) -> None:
    """Contract: one node when it fits, else an even split; numNodes alone asks for whole nodes."""
    assert distribute(job(**fields), capacity) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, Plan(1, 1, 0, 1)),
        ({"numNodes": 2}, Plan(2, 2, 0, 1)),
        ({"numNodes": 2, "processesPerNode": 4}, Plan(2, 2, 0, 4)),
        ({"numGPUs": 0, "numNodes": 3}, Plan(3, 3, 0, 1)),
    ],
)
def test_cpu_jobs_run_a_process_on_each_node(fields: dict[str, int], expected: Plan) -> None:
    """Contract: a job on CPUs has at least one process on each node (the original had none)."""
    assert distribute(job(**fields), 0) == expected


@pytest.mark.parametrize(
    ("fields", "capacity", "reason", "text"),
    [
        ({"numGPUs": 10, "numNodes": 4}, 8, "UnevenSplit", "12"),
        ({"numGPUs": 32, "numNodes": 2}, 8, "TooManyGPUs", "at least 4 nodes"),
        ({"numGPUs": 8}, 0, "NoGPUs", "nodeResources.gpus"),
        ({"processesPerNode": 2}, 8, "ProcessesPerNode", "leave it out"),
    ],
)
def test_an_impossible_distribution_is_refused_with_advice(
    fields: dict[str, int], capacity: int, reason: str, text: str
) -> None:
    """Contract: a refusal says what was asked, what there is, and what would do."""
    with pytest.raises(Refused, match=text) as refused:
        distribute(job(**fields), capacity)
    assert refused.value.reason == reason


@given(gpus=st.integers(1, 2000), capacity=st.integers(1, 16))
def test_every_gpu_is_used_on_the_fewest_equal_nodes(gpus: int, capacity: int) -> None:
    """Contract: the ranks are exactly the GPUs, no node has more than it holds, and fewer nodes cannot."""
    plan = distribute(job(numGPUs=gpus), capacity)
    assert plan.world_size == gpus == plan.nodes * plan.gpus
    assert plan.gpus <= capacity
    assert all(gpus % nodes or gpus // nodes > capacity for nodes in range(1, plan.nodes))


@given(gpus=st.integers(1, 500), nodes=st.integers(1, 40), capacity=st.integers(0, 16))
def test_a_plan_is_what_was_asked_or_none(gpus: int, nodes: int, capacity: int) -> None:
    """Contract: numNodes and numGPUs together are met exactly, or refused; never something near them."""
    try:
        plan = distribute(job(numGPUs=gpus, numNodes=nodes), capacity)
    except Refused:
        assert gpus % nodes or gpus // nodes > capacity
    else:
        assert (plan.nodes, plan.world_size) == (nodes, gpus)
