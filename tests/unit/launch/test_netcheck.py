"""netcheck reaches a rank's container, runs before its command, and alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from mounting import lay_out

from harness.core.errors import UsageError
from harness.evidence.schema.netcheck import NetcheckDiagnosis
from harness.launch import inits
from harness.launch.konduktor.config import Submission, konduktor_config
from harness.launch.mounts import netcheck
from harness.launch.workload_file import load
from harness.launch.workloads.loader import of_manifest
from harness.launch.workloads.netcheck_job import job
from harness.settings import Settings
from harness.workers.netcheck import frames

CONTAINER = konduktor_config(Submission("ns", "n", "", {}, netcheck=True))["kubernetes"]["pod_config"]["spec"]
INITS = {"manifest": inits.WORKER, "konduktor": inits.KONDUKTOR}


@pytest.fixture
def mounted(tmp_path: Path) -> Path:
    """The folder as the kubelet lays it out of the ConfigMap."""
    return lay_out(netcheck.MOUNTED, tmp_path / "netcheck-mount")


def run(mounted: Path, init: str, port: int, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run an init around `echo the command ran`, for a job of one node."""
    script = init.replace(netcheck.FOLDER, str(mounted))
    words = ["sh", "-c", script, "sh", "echo", "the command ran"]
    if init is INITS["konduktor"]:
        words = ["bash", "-c", script, "echo the command ran"]
    env = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HARNESS_NETCHECK": "before",
        "HARNESS_NETCHECK_SECONDS": "5",
        "HARNESS_NODES": "1",
        "HARNESS_NONCE": "n1",
        "NODE_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "NETCHECK_PORT": str(port),
        "KONDUKTOR_OUTPUT_DIR": str(mounted.parent),
        "TERMINATION_LOG": str(mounted.parent / "termination"),
        **variables,
    }
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("init", INITS)
def test_a_healthy_netcheck_lets_the_command_run(mounted: Path, init: str, unused_tcp_port: int) -> None:
    """Contract: the table, the frames and then the command, whose exit code counts."""
    done = run(mounted, INITS[init], unused_tcp_port)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.index("netcheck: OK") < done.stdout.index("the command ran")
    collector = frames.Collector("n1")
    diagnoses = [found for line in done.stdout.splitlines() if (found := collector.feed(line))]
    assert [NetcheckDiagnosis.model_validate(one).verdict for one in diagnoses] == ["ok"]


@pytest.mark.parametrize("init", INITS)
def test_a_failed_netcheck_ends_the_container(mounted: Path, init: str, unused_tcp_port: int) -> None:
    """Contract: an exit code of its own, and the command never starts."""
    done = run(mounted, INITS[init], unused_tcp_port, WORLD_SIZE="6", NPROC_PER_NODE="1")
    assert done.returncode == 90
    assert "variables.world_size" in done.stdout
    assert "the command ran" not in done.stdout


@pytest.mark.parametrize("init", INITS)
def test_not_asked_for_it_does_not_run(mounted: Path, init: str, unused_tcp_port: int) -> None:
    done = run(mounted, INITS[init], unused_tcp_port, HARNESS_NETCHECK="")
    assert done.returncode == 0
    assert "netcheck" not in done.stdout


def test_frame_of_somebody_who_does_not_know_nonce() -> None:
    """Contract: it is no evidence. Neither is a part of one, nor one whose text was changed."""
    whole = {"verdict": "ok", "text": "x" * 9000, "random": os.urandom(9000).hex()}
    lines = frames.encode("n1", whole)
    assert len(lines) > 1
    assert all(len(line) < frames.MAX_LINE for line in lines)
    assert [found for line in lines if (found := frames.Collector("other").feed(line))] == []
    collector = frames.Collector("n1")
    assert [found for line in lines[:-1] if (found := collector.feed(line))] == []
    assert collector.feed(lines[-1].replace(" ", "  ", 2)) is None
    assert collector.feed(f"2026-11-22T00:00:00Z {lines[-1]}") == whole
    assert collector.feed(lines[-1]) is None, "once"


@pytest.mark.parametrize("nodes", [1, 4, 9])
def test_the_job_of_harness_netcheck(nodes: int) -> None:
    """Contract: one pod for each rank, all at once, none made again, and it logs nothing with Pluto."""
    workload = job(nodes, "python:3.9")
    spec = workload.document["spec"]
    assert (spec["completions"], spec["parallelism"], spec["backoffLimitPerIndex"]) == (nodes, nodes, 0)
    assert workload.image == "python:3.9"
    assert workload.purpose == "netcheck"
    assert {"NNODES": str(nodes), "WORLD_SIZE": str(nodes)}.items() <= workload.envs.items()
    assert workload.first_host == workload.envs["MASTER_ADDR"]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            "torchrun --master_addr=a-0.a --master_port=1",
            {"HARNESS_MASTER_ADDR": "a-0.a", "HARNESS_MASTER_PORT": "1"},
        ),
        ("torchrun --master-addr a-0.a x.py", {"HARNESS_MASTER_ADDR": "a-0.a"}),
        ("torchrun --master_addr=$MASTER_ADDR --master_port=$PORT", {"HARNESS_MASTER_ADDR": "own-0.own"}),
        ("torchrun --master_addr=$(first) x.py", {"HARNESS_MASTER_ADDR": "own-0.own"}),
        ("python train.py", {"HARNESS_MASTER_ADDR": "own-0.own"}),
    ],
)
def test_where_the_ranks_will_meet(command: str, expected: dict[str, str]) -> None:
    """Contract: torchrun's own option counts, as far as no shell has to expand it."""
    assert netcheck.master(command, "own-0.own") == expected


@pytest.mark.parametrize("kind", ["statefulset", "indexed-job", "daemonset"])
def test_a_workload_whose_pods_have_no_names_is_refused(kind: str) -> None:
    """Contract: before anything is created, and only where netcheck is asked for."""
    workload = load(Path(f"manifests/{kind}.yaml"))
    workload.check(Settings())
    if kind == "daemonset":
        with pytest.raises(UsageError, match="netcheck needs pods with DNS names"):
            workload.check(Settings(netcheck=True))
    else:
        workload.check(Settings(netcheck=True))


def test_an_indexed_job_without_a_subdomain_is_refused() -> None:
    service, document = yaml.safe_load_all(Path("manifests/indexed-job.yaml").read_text())
    del document["spec"]["template"]["spec"]["subdomain"]
    with pytest.raises(UsageError, match="netcheck needs pods with DNS names"):
        of_manifest([service, document], "x").check(Settings(netcheck=True))
