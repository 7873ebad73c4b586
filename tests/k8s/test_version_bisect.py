"""`harness bisect` on a real cluster: the commit that made a checkout of the client drop a point is found."""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path

import pytest
from client_checkout import DROPPING, checkout
from harness_command import Harness

from harness.faults.harness_process import launch_environment
from harness.provision.cluster import Ready
from harness.settings import Settings

pytestmark = [pytest.mark.versions, pytest.mark.nightly]
COMMITS = 10
BROKEN = 6
"""The commit that drops a point."""


def git(folder: Path, *words: str) -> str:
    own = ["git", "-C", str(folder), "-c", "user.name=n", "-c", "user.email=e@example.org"]
    return subprocess.run([*own, *words], check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def history(tmp_path: Path) -> tuple[Path, list[str]]:
    """A repository of the client, and the SHAs of its commits, oldest first."""
    folder = checkout(tmp_path / "client")
    git(folder, "init", "--quiet")
    shas = []
    for number in range(COMMITS):
        manager = folder / "content" / "pluto" / "sync" / "process.py"
        text = DROPPING if number == BROKEN else f"\n# change {number}\n"
        manager.write_text(manager.read_text() + text)
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", f"--message=change {number}")
        shas.append(git(folder, "rev-parse", "HEAD"))
    return folder, shas


def test_the_commit_that_drops_a_point_is_found(
    cluster: Ready, harness_settings: Settings, history: tuple[Path, list[str]], tmp_path: Path
) -> None:
    """Contract: ⌊log₂ n⌋ + 1 launches for n commits between the verified ends, then the confirmation."""
    folder, shas = history
    runs = tmp_path / "runs"
    env = launch_environment(harness_settings, runs, False)
    words = ["bisect", "pluto-ml", "--repo", str(folder), "--good", shas[0], "--bad", shas[-1]]
    words += ["--max-error", "0.05", "--json"]  # two launches less than by default
    with Harness(*words, env=env) as harness:
        assert harness.end(1200) == 0, harness.stderr
    result = json.loads(harness.stdout)
    (search,) = runs.glob("bisect-*")
    assert (result["bad"]["version"], result["good"]["version"]) == (shas[BROKEN], shas[BROKEN - 1])
    assert result["bad"]["verdict"] == "FAIL unification.client_rewrote"
    assert result["error"] <= 0.05
    assert [file["name"] for file in result["changes"]["files"]] == ["content/pluto/sync/process.py"]
    assert any(change["what"] == "verdict" for change in result["diff"]["verdict"])
    launched = [json.loads(line)["version"] for line in (search / "bisect.jsonl").read_text().splitlines()]
    assert launched[:2] == [shas[-1], shas[0]]
    assert len(set(launched[2:]) - {shas[-1], shas[0]}) <= math.floor(math.log2(COMMITS - 2)) + 1
    report = (search / "report.md").read_text()
    assert "'loss/node1' (float) at step 7 of rank 1" in report.replace("&#95;", "_")
    assert str(tmp_path) not in report
