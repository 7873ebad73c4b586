"""`harness accept` refuses what it cannot launch; `harness accepted` shows nodes and writes limits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from acceptance_bundles import NODES, checks, nodes

from harness.cli.main import main


def typed(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(ended.value.code or 0)


def test_the_nodes_of_a_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Contract: each node with its verdict; exit code 1 when one failed."""
    bad = {**dict.fromkeys(range(NODES)), **{0: checks(), 1: checks()}}
    bad[2] = checks(compute__gemm__fp32={"verdict": "FAIL", "cause": "compute.wrong"})
    bundle = nodes(bad).write(tmp_path / "bundle").path
    assert typed("accepted", str(bundle), "--json") == 1
    said = json.loads(capsys.readouterr().out)
    assert {one["node"]: one["verdict"] for one in said["nodes"]}["e2e-worker3"] == "FAIL"
    assert typed("accepted", str(bundle)) == 1
    assert "compute.wrong" in capsys.readouterr().out


def test_limits_come_from_good_nodes_alone(tmp_path: Path) -> None:
    """Contract: a fleet that is not known to be good writes nothing."""
    bundle = nodes({0: checks(), 1: checks(), 2: None}).write(tmp_path / "bundle").path
    target = tmp_path / "limits.toml"
    assert typed("accepted", str(bundle), "--calibrate", str(target)) == 2
    assert not target.exists()


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--nodes", "--ddp"],
        ["--nodes", "--replicas", "3"],
        ["--nodes", "--device", "tpu"],
        ["--nodes", "--selector", "pool"],
        ["--nodes", "--label"],
    ],
)
def test_what_cannot_be_launched_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Contract: bad usage says what was expected, and makes nothing."""
    assert typed("accept", *words) == 64
    assert "harness:" in capsys.readouterr().err
