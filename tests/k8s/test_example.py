"""examples/own-repository, copied elsewhere and run by its own pytest on this session's cluster."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.provision.cluster import Ready
from harness.settings import Settings

EXAMPLE = Path(__file__).parents[2] / "examples" / "own-repository"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A copy of the repository, outside the harness's own."""
    ignore = shutil.ignore_patterns("__pycache__", "build", "*.egg-info", "runs")
    return Path(shutil.copytree(EXAMPLE, tmp_path / "repository", ignore=ignore))


@pytest.fixture
def site(repository: Path, tmp_path: Path) -> Path:
    """The folder where it is installed, so that its judge is found by entry point."""
    folder = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-index", "--no-deps"]
    subprocess.run(
        [*pip, "--quiet", "--no-build-isolation", "--target", str(folder), str(repository)],
        cwd=tmp_path,
        check=True,
        timeout=120,
    )
    return folder


def options(settings: Settings) -> list[str]:
    """Return options that make its session use this session's cluster.

    The cluster stays, because it is in use here.
    """
    found = ["--cluster-name", settings.cluster_name, "--harness-workers", str(settings.workers)]
    found += ["--kind-bin", settings.kind_bin, "--kind-kubectl-bin", settings.kubectl_bin]
    found += ["--keep-cluster"] if settings.keep_cluster else []
    found += ["--kubeconfig", str(settings.kubeconfig.absolute())] if settings.kubeconfig else []
    return found + (["--kube-context", settings.context] if settings.context else [])


@pytest.mark.nightly
def test_another_repository_proves_its_own_job(
    cluster: Ready, harness_settings: Settings, repository: Path, site: Path
) -> None:
    """Its tests pass, its judge was asked in both launches, and this session's cluster stays."""
    runs = repository / "runs"
    kept = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    done = subprocess.run(
        [str(Path(sys.executable).with_name("pytest")), "-rA", *options(harness_settings)],
        cwd=repository,
        env={**kept, "PYTHONPATH": str(site), "HARNESS_RUNS_DIR": str(runs)},
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
    verdicts = [json.loads(path.read_text()) for path in runs.glob("2*/verdict.json")]
    own = [
        check["result"] for verdict in verdicts for check in verdict["checks"] if check["name"][:5] == "user."
    ]
    assert sorted(own) == ["FAIL", "PASS"]
    assert cluster.kube.ready_nodes()
