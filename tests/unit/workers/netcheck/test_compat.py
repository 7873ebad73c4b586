"""The names and variables of ColossalAI's guide keep working."""

from __future__ import annotations

import os

import pytest

from harness.workers import netcheck

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


def test_variables(job: pytest.MonkeyPatch, unused_tcp_port: int) -> None:
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


def test_waiting(job: pytest.MonkeyPatch) -> None:
    job.setenv("COLOSSALAI_MASTER_READY_TIMEOUT", "0.2")
    done = netcheck.wait_for_master_ready()
    assert (bool(done), done.cause) == (False, "tcp.refused")
    assert 0.2 <= done.seconds < 5


@pytest.mark.parametrize("debug", ["0", "1"])
def test_diagnosis(job: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], debug: str) -> None:
    job.setenv("DEBUG_DISTRIBUTED", debug)
    found = netcheck.diagnose_distributed_issues()
    names = ("environment_variables", "network_connectivity", "dns_resolution", "port_availability")
    assert [found[name] for name in names] == [True] * 4
    assert found["recommendations"] == []
    assert ("netcheck: OK" in capsys.readouterr().err) == (debug == "1")


def test_launch_without_pytorch_proves_nothing(job: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="unknown: PyTorch is not here"):
        netcheck.launch_from_torch()
    assert netcheck.self_test().status == "unknown"
