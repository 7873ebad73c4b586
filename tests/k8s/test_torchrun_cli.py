"""`harness torchrun` on a real cluster with its controller: submit, edit, and the job's own exit code."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from torchrun_team import LISTED, Team, led

from harness.provision.cluster import Ready
from harness.settings import Settings
from harness.torchrun_controller.api import names

pytestmark = pytest.mark.controller
SECONDS = 180.0
ABSENT = "nosuch.invalid/nosuch:1"
PROGRAM = """
import os, sys, time
import torch
import torch.distributed as dist
from lib import NAME

dist.init_process_group("gloo")
value = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(value)
print(f"{NAME}: sum {value.item():g} in generation {os.environ['TORCHRUN_GENERATION']}", flush=True)
"""
"""Ranks that meet and add, with a module of the folder."""


class Command:
    """A `harness torchrun` that runs, with all that it has said."""

    def __init__(self, kubeconfig: Path, folder: Path, *words: str) -> None:
        command = [str(Path(sys.executable).with_name("kubectl-torchrun")), *words]
        environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
        self.process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._said = ""
        self._more = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._more:
                self._said += line
                self._more.notify_all()
        with self._more:
            self._more.notify_all()

    def says(self, text: str) -> None:
        """Wait until it has said this."""
        until = time.monotonic() + SECONDS
        with self._more:
            while text not in self._said:
                left = until - time.monotonic()
                assert left > 0, f"never said {text!r}: {self._said}"
                assert self._reader.is_alive() or text in self._said, f"ended before {text!r}: {self._said}"
                self._more.wait(min(left, 1))

    def ends(self) -> tuple[int, str]:
        """Wait for its end. Return its exit code and all it said."""
        try:
            code = self.process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            pytest.fail(f"did not end within {SECONDS:g} s, and said: {self._said}")
        self._reader.join(SECONDS)
        return code, self._said


@pytest.fixture(scope="module")
def team(cluster: Ready, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    """A namespace with a queue, and a controller that runs with its own rights."""
    found = Team(cluster.kube, f"cli-{secrets.token_hex(3)}", cluster.worker.tag)
    found.prepare()
    found.queue(overrides={**LISTED, "images": [ABSENT]})
    with led(found, tmp_path_factory.mktemp("controller")):
        yield found


@pytest.fixture
def here(tmp_path: Path) -> Path:
    top = tmp_path / "here"
    top.mkdir()
    (top / "train.py").write_text(PROGRAM)
    (top / "lib.py").write_text("NAME = 'one'\n")
    (top / "weights.bin").write_bytes(os.urandom(1 << 20))
    return top


def start(team: Team, here: Path, *words: str) -> Command:
    return Command(team.kube.kubeconfig, here, *words, "--namespace", team.namespace)


def submit(team: Team, here: Path, name: str, *words: str, command: str = "python train.py") -> Command:
    options = ("--queue", "cpu", "--nodes", "2", "--name", name)
    return start(team, here, "submit", *options, *words, command)


def test_the_exit_code_is_the_job_s(team: Team, here: Path) -> None:
    """Contract: the folder's code runs on two nodes, its logs are shown, and 0 means that it succeeded."""
    code, output = submit(team, here, "good").ends()
    assert code == 0, output
    assert output.count("one: sum 3 in generation 1") == 2
    assert "0 | " in output
    assert "1 | " in output
    code, output = start(team, here, "status", "good").ends()
    assert (code, "Succeeded" in output, "torchrun --nnodes=2" in output) == (0, True, True), output
    code, output = start(team, here, "logs", "good", "--node-rank", "1").ends()
    assert (code, output.count("one: sum 3")) == (0, 1), output


def test_edited_code_runs_in_the_same_pods(team: Team, here: Path) -> None:
    """Contract: with --watch wrong code keeps the pods; right code in its place ends the job with its own."""
    with (here / "train.py").open("a") as file:
        file.write("if NAME == 'one':\n    time.sleep(600)\nsys.exit(3 if NAME == 'two' else 0)\n")
    watching = submit(team, here, "edited", "--watch")
    watching.says("one: sum 3 in generation 1")
    before = {pod["metadata"]["uid"] for pod in team.pods("edited")}
    (here / "lib.py").write_text("NAME = 'two'\n")
    watching.says("two: sum 3 in generation 2")
    watching.says("waiting for new code")
    (here / "lib.py").write_text("NAME = 'three'\n")
    watching.says("three: sum 3 in generation 3")
    code, output = watching.ends()
    assert code == 0, output
    assert {pod["metadata"]["uid"] for pod in team.pods("edited")} == before
    assert "generation 2: 2 files, 0.0 MB sent" in output  # one in each pod


@pytest.mark.nightly
def test_the_pods_have_what_git_has(team: Team, tmp_path: Path) -> None:
    """Contract: a tracked file that a rule matches, no private file that .git/info/exclude names; the same
    from a worktree, whose `.git` file does not come. What stays here is said.
    """
    top, tree = tmp_path / "proj", tmp_path / "tree"
    (top / "lib/data").mkdir(parents=True)
    for name in ("lib/__init__.py", "lib/data/__init__.py", "tokenizer.bin", "private.env"):
        (top / name).write_text("")
    (top / ".gitignore").write_text("data/\n*.bin\n")
    (top / "train.py").write_text(
        "import os, lib.data\n"
        "print('bin', os.path.exists('tokenizer.bin'), 'env', os.path.exists('private.env'))\n"
        "print('git', os.path.exists('.git'))\n"
    )
    git = ["git", "-C", str(top), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    (top / ".git/info/exclude").write_text("private.env\n")
    for words in (
        ("add", "-f", "lib/data/__init__.py", "tokenizer.bin"),
        ("add", "."),
        ("commit", "-qm", "x"),
        ("worktree", "add", "-q", str(tree)),
    ):
        subprocess.run([*git, *words], check=True)
    (top / "other.bin").write_text("")
    code, output = submit(team, top, "tracked").ends()
    assert (code, output.count("bin True env False"), output.count("git False")) == (0, 2, 2), output
    assert "not sent: other.bin, private.env (git ignores it)" in output
    code, output = submit(team, tree, "worktree").ends()
    assert (code, output.count("bin True env False"), output.count("git False")) == (0, 2, 2), output


@pytest.mark.nightly
def test_ctrl_c_detaches_and_the_job_is_found_again(team: Team, here: Path) -> None:
    """Contract: the job goes on; the words that were said bring one back, and new code into it."""
    with (here / "train.py").open("a") as file:
        file.write("if NAME == 'one':\n    time.sleep(600)\n")
    attached = submit(team, here, "left")
    attached.says("one: sum 3")
    attached.process.send_signal(signal.SIGINT)
    code, output = attached.ends()
    assert code == 130
    assert "kubectl torchrun logs left --follow" in output
    (here / "lib.py").write_text("NAME = 'two'\n")
    assert start(team, here, "sync", "left").ends()[0] == 0
    code, output = start(team, here, "logs", "left", "--follow").ends()
    assert (code, output.count("two: sum 3 in generation 2")) == (0, 2), output
    code, output = start(team, here, "list").ends()
    assert (code, "left" in output) == (0, True)


@pytest.mark.nightly
def test_suspend_resume_and_delete(team: Team, here: Path) -> None:
    """Contract: new pods of a resumed job get the code from the next sync; a deleted job is gone."""
    with (here / "train.py").open("a") as file:
        file.write("time.sleep(600)\n")
    submit(team, here, "pausing", "--detach").ends()
    team.until("pausing", "Running")
    assert start(team, here, "suspend", "pausing").ends()[0] == 0
    team.until("pausing", "Suspended")
    assert start(team, here, "resume", "pausing").ends()[0] == 0
    assert start(team, here, "sync", "pausing").ends()[0] == 0
    team.until("pausing", "Running")
    assert start(team, here, "delete", "pausing").ends()[0] == 0
    code, output = start(team, here, "status", "pausing").ends()
    assert (code, "there is no TorchrunJob pausing" in output) == (64, True), output


@pytest.mark.nightly
def test_a_failed_job_s_code_is_passed_on(team: Team, here: Path) -> None:
    """Contract: a job that failed is no success here either, also when it started again in new pods; the
    rank's code stands beside torchrun's; what the cluster refuses is said."""
    (here / "lib.py").write_text("raise SystemExit(5)\n")
    code, output = submit(team, here, "bad", "--env", "A=b", "--max-restarts", "1").ends()
    assert code == 1, output  # torchrun's own, for a rank that failed
    assert re.search(r"exit code 1 of torchrun, because rank [01] ended with exit code 5", output), output
    code, output = submit(team, here, "bad").ends()
    assert (code, "TorchrunJob bad already exists" in output) == (64, True), output
    code, output = submit(team, here, "Not_A_Name").ends()
    assert (code, "the cluster rejected the job" in output) == (64, True), output


@pytest.mark.nightly
@pytest.mark.parametrize("attempt", range(3))
def test_containers_come_and_go_below_an_attached_submit(team: Team, here: Path, attempt: int) -> None:
    """Contract: whatever an exec into them meets, the exit code is the job's."""
    (here / "lib.py").write_text("raise SystemExit(5)\n")
    code, output = submit(team, here, f"restarting-{attempt}", "--max-restarts", "1").ends()
    assert (code, "ended with exit code 5" in output) == (1, True), output


def test_a_setup_that_fails_is_named(team: Team, here: Path) -> None:
    """Contract: with its exit code and its last line, and the job's exit code is the setup's."""
    setup = "echo no such mirror >&2; exit 6"
    code, output = submit(team, here, "setup", "--setup", setup, "--max-restarts", "0").ends()
    assert (code, "setupCommand failed with exit code 6: no such mirror" in output) == (6, True), output


def test_an_image_that_is_not_there_is_said(team: Team, here: Path) -> None:
    """Contract: within seconds, in the kubelet's words. Who detached leaves at once, and hears it later."""
    words = ("--detach", "--image", ABSENT)
    assert submit(team, here, "no-image", *words, "--max-restarts", "0").ends()[0] == 0
    waiting = start(team, here, "logs", "no-image", "--follow")
    began = time.monotonic()
    waiting.says("ErrImagePull")
    assert time.monotonic() - began < 60
    waiting.process.send_signal(signal.SIGINT)
    waiting.process.wait(30)
    assert start(team, here, "delete", "no-image").ends()[0] == 0


def test_a_namespace_that_is_being_deleted_takes_no_job(team: Team, here: Path) -> None:
    """Contract: the API server's sentence, at once. A finalizer keeps the namespace that long."""
    name = f"{team.namespace}-going"
    kept = {"name": "kept", "namespace": name, "finalizers": ["test.example/kept"]}
    team.kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    team.kube.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": kept})
    try:
        team.kube.delete("v1", "Namespace", name)
        words = ("submit", "--queue", "cpu", "--nodes", "2", "--namespace", name, "python train.py")
        code, output = Command(team.kube.kubeconfig, here, *words).ends()
        assert (code, "because it is being terminated" in output) == (64, True), output
    finally:
        team.kube.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {**kept, "finalizers": []}})


def test_a_dry_run_prints_what_would_be_created(team: Team, here: Path) -> None:
    """Contract: YAML that the API server takes, and nothing is created; what it or the controller would
    refuse is said."""
    words = ("--setup", "true", "--ttl", "60", "--deadline", "90", "--dry-run", "--no-sync", "--quiet")
    command = Command(
        team.kube.kubeconfig,
        here,
        "submit",
        "--queue",
        "cpu",
        *words,
        "--name",
        "dry",
        "--min-nodes",
        "1",
        "--max-nodes",
        "2",
        "--namespace",
        team.namespace,
        "python x.py",
    )
    code, output = command.ends()
    assert code == 0, output
    job = yaml.safe_load(output)
    assert job["spec"]["reliability"] == {"activeDeadlineSeconds": 90, "ttlSecondsAfterFinished": 60}
    assert team.kube.get(names.API, names.JOB_KIND, "dry", team.namespace) is None
    (here / "job.yaml").write_text(output)
    team.kube.dry_run(job)
    code, output = submit(team, here, "dry", "--gpus", "3", "--dry-run").ends()
    assert (code, "numGPUs do not split evenly" in output) == (64, True), output
    code, output = submit(team, here, "dry", "--gpus", "2", "--dry-run").ends()
    assert (code, "the job would not start: numGPUs is" in output) == (0, True), output


@pytest.mark.nightly
def test_a_job_submitted_suspended_runs_after_resume(team: Team, here: Path) -> None:
    """Contract: --suspend creates it and leaves; resume and sync run it."""
    code, output = submit(team, here, "later", "--suspend").ends()
    assert (code, "kubectl torchrun resume later" in output) == (0, True), output
    team.until("later", "Suspended")
    assert start(team, here, "resume", "later").ends()[0] == 0
    assert start(team, here, "sync", "later").ends()[0] == 0
    code, output = start(team, here, "logs", "later", "--follow").ends()
    assert (code, output.count("one: sum 3")) == (0, 2), output


@pytest.mark.nightly
def test_an_elastic_job_is_scaled_while_it_is_suspended(
    team: Team, here: Path, harness_settings: Settings
) -> None:
    """Contract: kubectl scale says why not while pods run; without pods it sets what the next ones are made
    of. A job whose GPUs are split over its nodes is never scaled."""

    def scale(name: str, replicas: int) -> tuple[int, str]:
        words = ("scale", f"torchrunjob/{name}", f"--replicas={replicas}", "-n", team.namespace)
        command = [harness_settings.kubectl_bin, "--kubeconfig", team.kube.kubeconfig, *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    sizes = {"numNodes": None, "minNodes": 1, "maxNodes": 2}
    team.job("scaled", **sizes, env=[{"name": "STEPS", "value": "3000"}])
    team.until("scaled", "Running")
    code, output = scale("scaled", 3)
    assert (code, "suspend the job, scale it once it has no pods" in output) == (1, True), output
    team.change("scaled", suspend=True)
    team.until_condition("scaled", "Suspended", "Suspended")
    code, output = scale("scaled", 1)
    assert (code, "expected at least 2 nodes" in output) == (1, True), output
    code, output = scale("scaled", 3)
    assert (code, "scaled" in output) == (0, True), output
    team.change("scaled", suspend=False)
    job = team.until("scaled", "Running")
    assert (job["status"]["numNodes"], job["spec"]["maxNodes"]) == (3, 3)
    assert "--nnodes=1:3" in job["status"]["torchrunCommand"]
    team.change("scaled", cancel=True)
    team.job("split", **sizes, numGPUs=4, suspend=True)
    team.until_condition("split", "Suspended", "Suspended")
    code, output = scale("split", 4)
    assert (code, "numGPUs are split over maxNodes" in output) == (1, True), output
