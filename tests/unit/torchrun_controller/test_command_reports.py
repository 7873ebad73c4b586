"""Commands and endpoints from public bug reports. Each test names its reports."""

from __future__ import annotations

import shlex

import pytest

from harness.torchrun_controller.api.models import Distributed, JobSpec
from harness.torchrun_controller.objects import command
from harness.torchrun_controller.plan.gpu_layout import Plan, Refused

TWO = Plan(2, 2, 8, 8)


def spec(text: str) -> JobSpec:
    return JobSpec.model_validate({"jobQueue": "q", "command": text})


def distributed(**fields: object) -> Distributed:
    return Distributed.model_validate(fields)


@pytest.mark.parametrize(
    ("endpoint", "host", "port"),
    [
        ("[fd00::10]:29400", "fd00::10", "29400"),
        ("[fd00::10]", "fd00::10", "29500"),
        ("fd00::10:29400", "fd00::10", "29400"),  # as torchrun parses it
        ("10.0.0.7:1", "10.0.0.7", "1"),
        ("store.example", "store.example", "29500"),
    ],
)
def test_endpoint_with_an_ipv6_address(endpoint: str, host: str, port: str) -> None:
    """meta-pytorch/torchft#335, THUDM/slime#2151: an IPv6 address was cut at its first colon.

    Contract: the address of a static rendezvous and that of the checked store are those that torchrun uses.
    """
    static = distributed(rdzvBackend="static", rdzvEndpoint=endpoint)
    words = shlex.split(command.torchrun("demo", spec("python train.py"), TWO, static))
    assert {f"--master-addr={host}", f"--master-port={port}"} <= set(words)
    c10d = distributed(rdzvBackend="c10d", rdzvEndpoint=endpoint)
    lines = command.script("demo", spec("python train.py"), TWO, c10d).splitlines()
    assert f"store={host}:{port} host={host}" in lines
    assert any(line.startswith(f'watch_store "$host" {port} ') for line in lines)


NESTED = (
    "torchrun train.py",
    "/opt/conda/bin/torchrun train.py",
    "OMP_NUM_THREADS=4 torchrun --nproc_per_node=8 train.py",
    "cd src && torchrun train.py",
    "pip install x\nexec torchrun train.py\n",
    "python -m torch.distributed.launch --nproc_per_node=8 train.py",
    "python3.11 -u -m torch.distributed.run train.py",
    "env A=b python -m torch.distributed.run train.py 2>&1 | tee log",
    "(cd src; torchrun train.py || echo failed)",
)


@pytest.mark.parametrize("text", NESTED)
def test_launchers_of_torch_in_a_rank_are_refused(text: str) -> None:
    """kubeflow/trainer#1713, pytorch/pytorch#103221: a job's command was one that starts all ranks of a node.

    Contract: it is refused before any pod is created, also behind a variable or another command. Each rank
    would start the processes of a whole node.
    """
    with pytest.raises(Refused, match="expected the command of one rank"):
        command.torchrun("demo", spec(text), TWO, distributed())


@pytest.mark.parametrize(
    "text",
    [
        "python train.py --launcher torchrun",
        "python -m torch.distributed.checkpoint.format_utils x",
        "torchrun --version; python train.py",
        "bash -c 'echo torchrun'",
        "python -c 'import os\nos.system(\"torchrun\")'",
        "echo 'cd x && torchrun y'",
        "./torchrun.sh",
        "python train.py # torchrun train.py",
    ],
)
def test_commands_that_only_mention_a_launcher_are_run(text: str) -> None:
    assert command.torchrun("demo", spec(text), TWO, distributed())
