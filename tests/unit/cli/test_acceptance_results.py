"""`harness accepted`: the exit code, the table, JSON, and limits made from good fleets alone."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import bundles
import pytest
from fleets import Node, healthy, job

from harness.cli.main import main
from harness.workers.acceptance.limits import Limits


def called(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["harness", *words])
    try:
        return main() or 0
    except SystemExit as ended:
        return int(ended.code or 0)


def written(folder: Path, nodes: list[Node]) -> str:
    return str(job(nodes).write(folder / "20261123T030000Z-n0nce7f3a").path)


@pytest.mark.parametrize(("verdict", "code"), [("PASS", 0), ("WARN", 0), ("FAIL", 1), ("UNKNOWN", 2)])
def test_the_exit_code_is_the_verdict(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    verdict: str,
    code: int,
) -> None:
    nodes = healthy(2, few=True)
    nodes[1] = replace(nodes[1], bad={("env.driver", None): verdict})  # type: ignore[dict-item]
    bundle = written(tmp_path, nodes)
    assert called(monkeypatch, "accepted", bundle) == code
    assert verdict in capsys.readouterr().out.splitlines()[-1]
    assert called(monkeypatch, "accepted", bundle, "--json") == code
    assert json.loads(capsys.readouterr().out)["verdict"] == verdict


def test_a_launch_without_acceptance_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = bundles.healthy().write(tmp_path / "b")
    assert called(monkeypatch, "accepted", str(bundle.path)) == 64
    assert "no acceptance tests ran" in capsys.readouterr().err


def test_limits_are_made_from_a_good_fleet_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Contract: the file is one for --limits. From a fleet that failed no file is written."""
    file = tmp_path / "limits.toml"
    good = written(tmp_path / "good", healthy(4))
    assert called(monkeypatch, "accepted", good, "--calibrate", str(file)) == 0
    row = Limits.load(file).row(model="NVIDIA H100 80GB HBM3", check="copy.h2d")
    assert row is not None
    assert row.limit == pytest.approx(49.5)
    assert called(monkeypatch, "accepted", good, "--calibrate", str(file), "--share", "1.5") == 2
    file.unlink()
    nodes = healthy(4)
    nodes[0] = replace(nodes[0], bad={("env.driver", None): "FAIL"})
    bad = written(tmp_path / "bad", nodes)
    assert called(monkeypatch, "accepted", bad, "--calibrate", str(file)) == 2
    assert not file.exists()
    assert "but the verdict is FAIL" in capsys.readouterr().err
