"""The names and variables of ColossalAI's guide keep working."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from contextlib import ExitStack
from typing import Any

import pytest

from harness.workers import netcheck
from harness.workers.netcheck.greeting import Hello, Server

JOB = {
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
    "NNODES": "1",
    "WORLD_SIZE": "1",
    "NODE_RANK": "0",
    "RDZV_ID": "one",
    "NCCL_IB_DISABLE": "1",
}


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int) -> pytest.MonkeyPatch:
    for name in [*os.environ]:
        if name.endswith(("RANK", "WORLD_SIZE", "IFNAME", "NNODES")) or name.startswith(
            ("MASTER_", "RDZV_", "COLOSSALAI_")
        ):
            monkeypatch.delenv(name)
    for name, value in {**JOB, "MASTER_PORT": str(unused_tcp_port)}.items():
        monkeypatch.setenv(name, value)
    return monkeypatch


def test_validate_returns_the_variables_or_raises(job: pytest.MonkeyPatch, unused_tcp_port: int) -> None:
    assert netcheck.validate_k8s_environment() == {
        name: value
        for name, value in {**JOB, "MASTER_PORT": str(unused_tcp_port)}.items()
        if name != "NNODES"
    }
    job.setenv("MASTER_PORT", "x")
    with pytest.raises(RuntimeError, match=r"variables\.master_port: MASTER_PORT='x' is not a whole number"):
        netcheck.validate_k8s_environment()


@pytest.mark.parametrize("name", ["COLOSSALAI_DIST_TIMEOUT", "COLOSSALAI_MASTER_READY_TIMEOUT"])
def test_a_timeout_that_is_none(job: pytest.MonkeyPatch, name: str) -> None:
    job.setenv(name, "soon")
    with pytest.raises(RuntimeError, match="soon"):
        netcheck.validate_k8s_environment()


def test_networking_leaves_infiniband_alone(job: pytest.MonkeyPatch) -> None:
    """The original sets NCCL_IB_DISABLE=1 and eth0. Loopback is no interface to set."""
    job.delenv("NCCL_IB_DISABLE")
    assert netcheck.setup_k8s_networking() == {}
    assert "NCCL_IB_DISABLE" not in os.environ


def test_waiting_for_the_master_ends_at_its_timeout(job: pytest.MonkeyPatch) -> None:
    job.setenv("COLOSSALAI_MASTER_READY_TIMEOUT", "0.2")
    done = netcheck.wait_for_master_ready()
    assert (bool(done), done.cause) == (False, "tcp.refused")
    assert 0.2 <= done.seconds < 60


def table(found: dict[str, Any]) -> dict[str, str]:
    """What the guide's diagnose_k8s.py prints for each entry."""
    return {
        check: "✓ PASS" if status else "✗ FAIL"
        for check, status in found.items()
        if check != "recommendations"
    }


NAMES = ("environment_variables", "network_connectivity", "dns_resolution", "port_availability", "netcheck")


@pytest.mark.parametrize("debug", ["0", "1"])
def test_a_diagnosis_that_is_fine(
    job: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], debug: str
) -> None:
    job.setenv("DEBUG_DISTRIBUTED", debug)
    found = netcheck.diagnose_distributed_issues()
    assert table(found) == dict.fromkeys(NAMES, "✓ PASS")
    assert json.loads(json.dumps(found, indent=2)) == {**dict.fromkeys(NAMES, True), "recommendations": []}
    assert found.diagnosis.verdict == "ok"
    assert ("netcheck: OK" in capsys.readouterr().err) == (debug == "1")


@pytest.mark.parametrize(
    ("name", "value", "bad"),
    [
        ("MASTER_PORT", "x", {"environment_variables"}),
        ("NPROC_PER_NODE", "2", {"environment_variables"}),
        ("RDZV_ID", "", set()),
        ("NNODES", "", {"environment_variables"}),
        ("GLOO_SOCKET_IFNAME", "ens5", {"environment_variables"}),
    ],
)
def test_no_entry_is_true_beside_its_failure(
    job: pytest.MonkeyPatch, name: str, value: str, bad: set[str]
) -> None:
    """Contract: whatever is wrong or unknown, `netcheck` is False and there is a recommendation."""
    job.setenv(name, value)
    job.setenv("COLOSSALAI_MASTER_READY_TIMEOUT", "1")
    found = netcheck.diagnose_distributed_issues()
    shown = table(found)
    assert {entry for entry in NAMES if shown[entry] == "✗ FAIL"} >= {*bad, "netcheck"}
    assert found["recommendations"]
    assert json.loads(json.dumps(found)) == found


def test_each_process_of_a_pod_has_its_own_port(job: pytest.MonkeyPatch) -> None:
    """The guide's script calls it in every process that torchrun starts. One port of a pod is not enough."""
    port = _two_ports()
    job.setenv("MASTER_PORT", str(port))
    job.setenv("LOCAL_RANK", "1")
    job.setenv("LOCAL_WORLD_SIZE", "2")
    job.setenv("WORLD_SIZE", "2")
    with Server(port + 1, Hello("", 0, 1, "job-0", "other")):
        assert netcheck.diagnose_distributed_issues()["netcheck"]


def _two_ports() -> int:
    """Return a port that is free with the next one: below those that the kernel gives to others meanwhile."""
    for port in range(20000 + os.getpid() % 10000, 32000, 2):
        with contextlib.suppress(OSError), ExitStack() as stack:
            for each in (port, port + 1):
                stack.enter_context(socket.create_server(("", each)))
            return port
    raise AssertionError("no two free ports below 32000")


def test_the_last_port_has_none_after_it(job: pytest.MonkeyPatch) -> None:
    job.setenv("MASTER_PORT", "65535")
    assert netcheck.diagnose_distributed_issues()["netcheck"]


@pytest.mark.parametrize("given", ["nan", "-1", "inf", "1e9", "10 min"])
def test_a_limit_that_is_none_is_refused(job: pytest.MonkeyPatch, given: str) -> None:
    job.setenv("COLOSSALAI_MASTER_READY_TIMEOUT", given)
    with pytest.raises(RuntimeError, match="is not a number of seconds from 0 to 1000000"):
        netcheck.launch_from_torch()


def test_launch_without_pytorch_proves_nothing(job: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="unknown: PyTorch cannot be imported"):
        netcheck.launch_from_torch()
    assert netcheck.self_test().status == "unknown"
