"""What a container says of the job that runs in it: variables of its processes, torchrun's options, ports."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from harness.workers.netcheck.inside import job_variables, ports_in_use
from harness.workers.netcheck.torchrun_options import RENDEZVOUS, from_options
from harness.workers.own_processes import OwnProcesses

TORCHRUN = ("/usr/bin/python3", "/usr/local/bin/torchrun")


def process(proc: Path, pid: int, words: tuple[str, ...], **variables: str) -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    for each in (folder, proc / "self"):
        each.mkdir(exist_ok=True)
        (each / "cgroup").write_text("0::/kubepods/pod1/worker\n")
    (folder / "cmdline").write_text("".join(f"{word}\0" for word in words))
    (folder / "environ").write_text("".join(f"{name}={value}\0" for name, value in variables.items()))


def found(proc: Path) -> dict[str, str]:
    return job_variables(OwnProcesses(proc).pids(), proc)


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (("--nnodes=2", "--node_rank=1"), {"NNODES": "2", "NODE_RANK": "1"}),
        (("--master-addr", "job-0", "--master_port", "9"), {"MASTER_ADDR": "job-0", "MASTER_PORT": "9"}),
        (("--standalone", "--nproc-per-node", "4", "train.py", "--nnodes=9"), {"NPROC_PER_NODE": "4"}),
        (("--tee", "3", "--nnodes=1:4", "-m", "trainer", "--node-rank=7"), {"NNODES": "1:4"}),
        (("--rdzv-endpoint=job-0.job:1234",), {"MASTER_ADDR": "job-0.job", "MASTER_PORT": "1234"}),
        (("--rdzv_endpoint", "[fd00::1]:1234"), {"MASTER_ADDR": "fd00::1", "MASTER_PORT": "1234"}),
        (("--rdzv-endpoint=job-0.job",), {}),
        (("--rdzv_id=7", "--nnodes=2"), {"RDZV_ID": "7", "NNODES": "2"}),
        (("--rdzv-backend=etcd-v2", "--rdzv-endpoint=etcd:2379", "--nnodes=2"), {"NNODES": "2"}),
        (("--rdzv-backend", "c10d", "--node-rank=0", "--master-addr=a", "--rdzv-endpoint=b:1"),
         {"MASTER_ADDR": "b", "MASTER_PORT": "1"}),
        (("train.py", "--master-addr=else"), {}),
    ],
)  # fmt: skip
def test_torchruns_options_count_and_the_scripts_do_not(words, options):
    """Contract: both spellings, with = and without; what comes after the script's name is the script's."""
    for launcher in (TORCHRUN, ("python3", "-m", "torch.distributed.run")):
        found = from_options([*launcher, *words])
        assert {name: value for name, value in found.items() if name not in RENDEZVOUS} == options


def test_options_of_the_rendezvous_are_those_of_its_variables():
    """Contract: they are known by the names of the variables that torchrun itself reads."""
    words = (
        "--rdzv-backend=c10d",
        "--rdzv_endpoint=b:1",
        "--local-addr",
        "10.0.0.7",
        "train.py",
        "--rdzv_conf=x",
    )
    assert from_options([*TORCHRUN, *words]) == {
        "MASTER_ADDR": "b",
        "MASTER_PORT": "1",
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": "b:1",
        "PET_LOCAL_ADDR": "10.0.0.7",
    }


def test_without_torchrun_there_are_no_options():
    assert from_options(["python3", "train.py", "--master-addr=job-0"]) == {}


def test_each_place_counts_more_than_the_one_before(tmp_path):
    """Contract: the container's variables, then those that the script exported, then torchrun's options."""
    process(tmp_path, 1, ("sh",), A="container", B="container", C="container", MASTER_PORT="1")
    process(tmp_path, 20, (*TORCHRUN, "--master_port=3", "train.py"), B="script", MASTER_PORT="2")
    process(tmp_path, 21, ("python3", "train.py"), C="worker")
    assert found(tmp_path) == {
        "A": "container",
        "B": "script",
        "C": "container",
        "MASTER_PORT": "3",
    }


def test_without_torchrun_process_variables_name_the_master(tmp_path):
    """Contract: the first process that knows MASTER_ADDR counts, unless the container itself does."""
    process(tmp_path, 1, ("sh",), A="container")
    process(tmp_path, 7, ("sleep",))
    process(tmp_path, 9, ("python3",), MASTER_ADDR="job-0", RANK="3")
    assert found(tmp_path) == {
        "A": "container",
        "MASTER_ADDR": "job-0",
        "RANK": "3",
    }


def test_processes_of_other_containers_do_not_count(tmp_path):
    """Contract: with shareProcessNamespace process 1 is the pause container's, with hostPID the node's."""
    process(tmp_path, 1, ("pause",), A="pause")
    process(tmp_path, 9, (*TORCHRUN, "--master-port=7", "train.py"), A="other job")
    process(tmp_path, 20, ("sh",), A="container")
    process(tmp_path, 21, (*TORCHRUN, "--master-port=3", "train.py"))
    for pid in ("1", "9"):
        (tmp_path / pid / "cgroup").write_text("0::/kubepods/pod1/other\n")
    assert found(tmp_path) == {"A": "container", "MASTER_PORT": "3"}


def test_nothing_is_known_of_a_container_without_processes(tmp_path):
    """Contract: processes come and go, and may not be ours to read; that is no error."""
    (tmp_path / "17").mkdir()
    assert found(tmp_path) == {}
    assert ports_in_use(tmp_path) == []


def test_a_port_that_somebody_listens_on_is_in_use():
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert server.getsockname()[1] in ports_in_use()
