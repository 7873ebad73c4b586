"""What the variables must say: type, range, consistency."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.workers.netcheck.variables import validate_environment

JOB = {
    "MASTER_ADDR": "job-0.pods",
    "MASTER_PORT": "29500",
    "NNODES": "4",
    "NODE_RANK": "1",
    "WORLD_SIZE": "4",
}


def causes(variables: dict[str, str], **options: int) -> list[str | None]:
    known = validate_environment(variables, **options)
    return [finding.cause for finding in known.findings if finding.status != "ok"]


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"WORLD_SIZE": "32", "NPROC_PER_NODE": "8"},
        {"WORLD_SIZE": ""},
        {"MASTER_ADDR": "fd77::1"},
        {"MASTER_ADDR": "job-0.pods.team.svc.cluster.local."},
        {"NNODES": "2:4"},
        {"NPROC_PER_NODE": "auto"},
        {"NUM_GPUS_PER_NODE": "0"},
        {"NODE_RANK": "", "JOB_COMPLETION_INDEX": "3"},
        {"NODE_RANK": "", "RANK": "3", "WORLD_SIZE": "4"},
        {"NODE_RANK": "", "RANK": "9", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8", "WORLD_SIZE": "32"},
        {"NNODES": "", "WORLD_SIZE": "32", "NPROC_PER_NODE": "8"},
        {"RANK": "8", "NPROC_PER_NODE": "8", "WORLD_SIZE": "32", "LOCAL_RANK": "0"},
    ],
    ids=str,
)
def test_consistent_variables_are_accepted(changed: dict[str, str]) -> None:
    known = validate_environment({**JOB, **changed})
    assert (causes({**JOB, **changed}), known.nodes) == ([], 4)


@pytest.mark.parametrize(
    ("changed", "cause"),
    [
        ({"MASTER_PORT": "http"}, "variables.master_port"),
        ({"MASTER_PORT": "0"}, "variables.master_port"),
        ({"MASTER_PORT": "65536"}, "variables.master_port"),
        ({"MASTER_PORT": "-1"}, "variables.master_port"),
        ({"MASTER_PORT": "²"}, "variables.master_port"),
        ({"MASTER_ADDR": ""}, "variables.missing"),
        ({"MASTER_ADDR": "tcp://job-0"}, "variables.master_addr"),
        ({"MASTER_ADDR": "job-0:29500"}, "variables.master_addr"),
        ({"MASTER_ADDR": "10.0.0.300"}, "variables.master_addr"),
        ({"MASTER_ADDR": "$(MASTER)"}, "variables.master_addr"),
        ({"MASTER_ADDR": "localhost"}, "variables.master_addr"),
        ({"MASTER_ADDR": "::1"}, "variables.master_addr"),
        ({"WORLD_SIZE": "5", "NPROC_PER_NODE": "1"}, "variables.world_size"),
        ({"WORLD_SIZE": "6"}, "variables.world_size"),
        ({"WORLD_SIZE": "3"}, "variables.world_size"),
        ({"WORLD_SIZE": "four"}, "variables.world_size"),
        ({"WORLD_SIZE": "1"}, "variables.world_of_one"),
        ({"WORLD_SIZE": "", "NNODES": ""}, "variables.world_of_one"),
        ({"NODE_RANK": "4"}, "variables.node_rank"),
        ({"NODE_RANK": "-1"}, "variables.node_rank"),
        ({"NODE_RANK": ""}, "variables.missing"),
        ({"NNODES": "0"}, "variables.nodes"),
        ({"NNODES": "four"}, "variables.nodes"),
        ({"NPROC_PER_NODE": "0"}, "variables.nproc_per_node"),
        ({"RANK": "4"}, "variables.rank"),
        ({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "1"}, "variables.rank"),
    ],
    ids=str,
)
def test_each_invalid_variable_is_named(changed: dict[str, str], cause: str) -> None:
    assert causes({**JOB, **changed}) == [cause]


def test_more_nodes_are_expected_than_the_variables_say() -> None:
    assert causes(JOB, nodes=8) == ["variables.nodes", "variables.world_size"]


@pytest.mark.parametrize(
    ("of_torchrun", "master"),
    [
        ({"PET_MASTER_ADDR": "job-0.job", "PET_MASTER_PORT": "29400"}, ("job-0.job", 29400)),
        ({"PET_MASTER_ADDR": "job-0.job"}, ("job-0.job", 29500)),
        ({"PET_RDZV_ENDPOINT": "job-0.job:29400", "PET_RDZV_BACKEND": "c10d"}, ("job-0.job", 29400)),
        ({"PET_RDZV_ENDPOINT": "[fd00::1]:1", "PET_MASTER_ADDR": "x"}, ("fd00::1", 1)),
        (
            {"PET_RDZV_ENDPOINT": "etcd:1", "PET_RDZV_BACKEND": "etcd-v2", "PET_MASTER_ADDR": "x"},
            ("x", 29500),
        ),
        ({"PET_MASTER_ADDR": "job-0.job", "MASTER_ADDR": "job-9.job"}, ("job-9.job", 29500)),
    ],
)
def test_the_variables_of_torchrun_name_rank_0(of_torchrun: dict[str, str], master: tuple[str, int]) -> None:
    """kubeflow/sdk#142: the pods of a TrainJob have PET_MASTER_ADDR, and no MASTER_ADDR."""
    known = validate_environment({"PET_NNODES": "2", "PET_NODE_RANK": "1", **of_torchrun})
    assert (known.ok, known.master_addr, known.master_port) == (True, *master), known.findings


def test_nothing_says_how_many() -> None:
    """Rank 0 alone cannot know that it waits for nobody: unknown, and not ok."""
    assert causes({"MASTER_ADDR": "job-0.pods", "NODE_RANK": "0"}) == [None]


@given(st.dictionaries(st.sampled_from([*JOB, "RANK", "LOCAL_RANK", "NPROC_PER_NODE"]), st.text(max_size=12)))
def test_any_text_is_judged(variables: dict[str, str]) -> None:
    """Contract: no value is taken that is not whole and in range, and nothing is raised."""
    known = validate_environment({**JOB, **variables})
    assert 1 <= known.master_port <= 65535
    assert known.findings
    if known.ok and known.nodes and known.node_rank is not None:
        assert 0 <= known.node_rank < known.nodes
