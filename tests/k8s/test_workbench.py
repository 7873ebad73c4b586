"""A kept cluster as a workbench: an edited worker without a new image, logs, a shell, pause and resume."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import run
from harness.cli import cluster_status, logs, shell
from harness.context import RunContext
from harness.core.errors import UsageError
from harness.evidence.io.reader import Bundle
from harness.launch.konduktor.job_file import JobFile
from harness.provision.cluster import Ready
from harness.provision.images.build import SCRIPTS
from harness.provision.images.docker_images import image_id
from harness.provision.kind.cluster import KindCluster
from harness.report.finalize import Outcome
from harness.settings import Settings
from tests.terminal import Terminal

Launch = Callable[..., Outcome]
HARNESS = Path(sys.executable).with_name("harness")


@pytest.fixture
def edited(tmp_path: Path) -> Path:
    """An edited copy of harness/workers/multinode.py, as a user makes one to find an error.

    It reads a file in a folder of a folder.
    """
    folder = tmp_path / "mine"
    (folder / "parts" / "deep").mkdir(parents=True)
    (folder / "parts" / "deep" / "word.txt").write_text("edited")
    text = (SCRIPTS / "multinode.py").read_text()
    word = 'WORD = Path("/workspace/parts/deep/word.txt").read_text()\n\n\n'
    for old, new in {'f"done: {': 'f"{WORD}: {', "if __name__ ==": f"{word}if __name__ =="}.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "multinode.py").write_text(text)
    return folder


@pytest.fixture(scope="module")
def launched(cluster: Ready, harness_settings: Settings) -> Path:
    """The bundle of a healthy launch, for tests that only read it."""
    job = JobFile.load(Path("jobs/multinode.yaml"))
    context = RunContext(settings=harness_settings, progress=print)
    return run.launch(job, context, cluster).bundle


def test_an_edited_worker_runs_without_a_new_image(
    launch: Launch, job: JobFile, cluster: Ready, edited: Path
) -> None:
    """Only the folder's files are sent, and the verdict says so. The nodes keep the image that they had."""
    before = image_id(cluster.worker.tag)
    outcome = launch(job, scripts=edited)
    assert outcome.verdict.verdict == "PASS", outcome.verdict.explanation
    bundle = Bundle.open(outcome.bundle)
    assert all("edited: " in "\n".join(logs.lines(bundle, rank)) for rank in (0, 1))
    assert image_id(cluster.worker.tag) == before
    (code,) = (check for check in outcome.verdict.checks if check.name == "code")
    assert re.search(
        r"mounted over it (?:\S+, )*multinode.py@\w{12}, parts/deep/word.txt@\w{12}", code.explanation
    )


def test_a_shell_for_an_ended_rank_uses_a_copy(
    launched: Path, cluster: Ready, harness_settings: Settings
) -> None:
    """The shell has the rank's environment, returns the program's exit code, and leaves nothing behind."""
    bundle = Bundle.open(launched)
    namespace = bundle.manifest.launch.namespace  # type: ignore[union-attr]
    messages: list[str] = []
    look = 'test "$RANK" = 1 && test -f multinode.py && exit 7'
    context = RunContext(settings=harness_settings, progress=messages.append)
    code = shell.shell(bundle, 1, ["bash", "-c", look], context)
    assert code == 7
    assert "a copy of its pod" in messages[0]
    cluster.kube.wait(
        "the copy to go",
        "v1",
        "Pod",
        lambda pods: next((name for name in pods if name.startswith("shell-")), None),
        seconds=20,
        namespace=namespace,
    )


def test_status_says_what_a_launch_waits_for(launched: Path, harness_settings: Settings) -> None:
    """Status shows a rank's pod, its node, what Kueue says, and how much disk space is taken."""
    found = cluster_status.status(harness_settings)
    mine = launched.name.rpartition("-")[2]
    (entry,) = [row for row in found.launches if row.namespace.endswith(mine)]
    assert entry.state == "Completed"
    assert (entry.queue or "").startswith("Finished: ")
    assert len(entry.pods) == 2
    assert all(pod.state.startswith("Succeeded on ") for pod in entry.pods)
    assert found.disk["free"] > 0
    assert entry.name is not None
    assert entry.name in found.text()


def test_a_terminal_shows_the_ranks_side_by_side(cluster: Ready, tmp_path: Path) -> None:
    """A real terminal shows node, phase, step and loss of both ranks while they train.

    The verdict stays visible.
    """
    terminal, whole = Terminal(), None
    command = [str(HARNESS), "run", "jobs/multinode.yaml", "--runs-dir", str(tmp_path)]
    command += ["--cluster-name", cluster.kind.name]
    rank = re.compile(rf"^([01]) +{cluster.kind.name}-worker2? +Running +\d+ +[\d.e+-]+ +\d+ ", re.MULTILINE)
    for screen in terminal.run(command, Path.cwd(), os.environ, seconds=300):
        if set(rank.findall(screen)) == {"0", "1"}:
            whole = screen
    assert terminal.code == 0
    assert whole is not None, "both ranks were never seen at once"
    assert "✓ launch" in whole
    last = "\n".join(terminal.screen.display)
    assert "report.html" in last.replace("\n", "").replace(" ", "")
    assert not rank.search(last), "what changes goes at the end"


def test_a_cluster_in_use_is_not_paused(cluster: Ready, harness_settings: Settings) -> None:
    with pytest.raises(UsageError, match="in use"):
        KindCluster(harness_settings).pause(print)
    assert not cluster.kind.paused()


@pytest.mark.nightly
def test_a_paused_cluster_is_started_by_the_next_run(tmp_path: Path, job: JobFile) -> None:
    """up, pause, a run that starts the cluster again, one after Docker has restarted the nodes, down: nothing
    is installed twice, and nothing is left.

    In every `make test`, the reader of tests/reader.py types the same on a cluster that is there already.
    """
    name = f"e2e-pause-{time.time_ns() % 10**6}"

    def harness(*arguments: str) -> str:
        done = subprocess.run(
            [str(HARNESS), *arguments, "--cluster-name", name],
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    try:
        harness("up", "--runs-dir", str(tmp_path))
        assert "paused" in harness("pause")
        assert "was paused already" in harness("pause")
        output = harness("run", "jobs/multinode.yaml", "--runs-dir", str(tmp_path))
        assert "was paused; starting its nodes" in output
        assert "✓ PASS" in output
        assert "Available" not in output, "nothing is installed again"
        assert "was not paused" in harness("resume")
        nodes = [f"{name}-{node}" for node in ("control-plane", "worker", "worker2")]
        subprocess.run(["docker", "restart", "-t", "0", *nodes], check=True, timeout=120)
        output = harness("run", "jobs/multinode.yaml", "--runs-dir", str(tmp_path))
        assert "✓ PASS" in output
        assert "Available" not in output, "nothing is installed again"
    finally:
        assert "removed" in harness("down")
