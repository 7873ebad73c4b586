"""examples/own-repository without a cluster: it can be installed, its judge is called, and its test and job
are valid."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.faults.recorded_bundles import extract
from harness.launch.konduktor.job_file import JobFile
from harness.provision.images import scripts
from harness.settings import Settings

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the repository, which is installed into `site` next to it."""
    folder = tmp_path_factory.mktemp("another")
    copy = Path(shutil.copytree(ROOT / "examples/own-repository", folder / "repository"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-index", "--no-deps"]
    pip += ["--quiet", "--no-build-isolation", "--target", str(folder / "site"), str(copy)]
    subprocess.run(pip, cwd=folder, check=True, timeout=120)
    return copy


def run(repository: Path, *command: str, code: int = 0) -> str:
    done = subprocess.run(
        [str(BIN / command[0]), *command[1:]],
        cwd=repository,
        env={**os.environ, "PYTHONPATH": str(repository.parent / "site")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_its_judge_is_asked_offline(repository: Path, tmp_path: Path) -> None:
    """Contract: for a recorded PASS, the judge reports that the loss fell, and the verdict remains PASS."""
    bundle = extract(ROOT / "tests/recorded/tracker-outage.tar.xz", tmp_path / "bundle")
    verdict = json.loads(run(repository, "harness", "judge", "--json", str(bundle)))
    assert verdict["verdict"] == "PASS"
    assert (verdict["checks"][-1]["name"], verdict["checks"][-1]["result"]) == ("user.loss-falls", "PASS")


def test_a_loss_that_does_not_fall_is_a_fail(repository: Path, tmp_path: Path) -> None:
    """Contract: the exit code is 1 and the cause is the judge's own, although all other checks pass."""
    bundle = extract(ROOT / "tests/recorded/tracker-outage.tar.xz", tmp_path / "bundle")
    judging = repository.parent / "site/judging.py"
    text = judging.read_text()
    try:
        judging.write_text(text.replace("end.value < start.value", "end.value > start.value"))
        # The new file may have the same size and modification time in seconds as the one from which the
        # bytecode was compiled.
        later = time.time() + 10
        os.utime(judging, (later, later))
        verdict = json.loads(run(repository, "harness", "judge", "--json", str(bundle), code=1))
    finally:
        judging.write_text(text)
    assert (verdict["verdict"], verdict["cause"]) == ("FAIL", "user.loss-falls")


def test_its_tests_find_the_fixtures(repository: Path) -> None:
    """The repository's own job file is used in place of the main job."""
    output = run(repository, "pytest", "--setup-plan", "-q")
    assert "test_training_that_learns_nothing" in output
    assert "SETUP    S cluster" in output


def test_its_job_and_worker_are_sound(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job file passes every check, and pyproject.toml names the folder whose files are sent."""
    monkeypatch.chdir(repository)
    assert JobFile.load(Path("job.yaml")).ranks == 2
    found = scripts.users(Settings())
    assert set(found) == {"train.py"}
    ast.parse(found["train.py"])
