"""`harness torchrun` on a real cluster with its controller: submit, edit, and the job's own exit code."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from torchrun_team import Controller, Team

from harness.provision.cluster import Ready

pytestmark = [pytest.mark.e2e, pytest.mark.controller]
SECONDS = 180.0
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
        code = self.process.wait(SECONDS)
        self._reader.join(SECONDS)
        return code, self._said


@pytest.fixture(scope="module")
def team(cluster: Ready, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    """A namespace with a queue, and a controller that runs with its own rights."""
    found = Team(cluster.kube, f"cli-{secrets.token_hex(3)}", cluster.worker.tag)
    found.prepare()
    found.queue()
    folder = tmp_path_factory.mktemp("controller")
    controller = Controller(found.account(folder), found.namespace, folder / "log")
    controller.start()
    found.until_led()
    yield found
    controller.kill()  # test_torchrun_controller.py asks it to end
    print((folder / "log").read_text())
    found.remove()


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
    code, said = submit(team, here, "good").ends()
    assert code == 0, said
    assert said.count("one: sum 3 in generation 1") == 2
    assert "0 | " in said
    assert "1 | " in said
    code, said = start(team, here, "status", "good").ends()
    assert (code, "Succeeded" in said, "torchrun --nnodes=2" in said) == (0, True, True), said
    code, said = start(team, here, "logs", "good", "--node-rank", "1").ends()
    assert (code, said.count("one: sum 3")) == (0, 1), said


def test_edit_and_the_ranks_run_new_code_in_the_same_pods(team: Team, here: Path) -> None:
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
    code, said = watching.ends()
    assert code == 0, said
    assert {pod["metadata"]["uid"] for pod in team.pods("edited")} == before
    assert "generation 2: 2 files, 0.0 MB sent" in said  # one in each pod


@pytest.mark.nightly
def test_ctrl_c_detaches_and_the_job_is_found_again(team: Team, here: Path) -> None:
    """Contract: the job goes on; the words that were said bring one back, and new code into it."""
    with (here / "train.py").open("a") as file:
        file.write("if NAME == 'one':\n    time.sleep(600)\n")
    attached = submit(team, here, "left")
    attached.says("one: sum 3")
    attached.process.send_signal(signal.SIGINT)
    code, said = attached.ends()
    assert code == 130
    assert "harness torchrun logs left --follow" in said
    (here / "lib.py").write_text("NAME = 'two'\n")
    assert start(team, here, "sync", "left").ends()[0] == 0
    code, said = start(team, here, "logs", "left", "--follow").ends()
    assert (code, said.count("two: sum 3 in generation 2")) == (0, 2), said
    code, said = start(team, here, "list").ends()
    assert (code, "left" in said) == (0, True)


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
    code, said = start(team, here, "status", "pausing").ends()
    assert (code, "there is no TorchrunJob pausing" in said) == (64, True), said


def test_a_failed_job_s_code_is_passed_on(team: Team, here: Path) -> None:
    """Contract: a job that failed is no success here either; what the cluster refuses is said."""
    (here / "lib.py").write_text("raise SystemExit(5)\n")
    code, said = submit(team, here, "bad", "--env", "A=b", "--max-restarts", "0").ends()
    assert code == 1, said  # torchrun's own, for a rank that failed
    code, said = submit(team, here, "bad").ends()
    assert (code, "there is a TorchrunJob bad already" in said) == (64, True), said
    code, said = submit(team, here, "Not_A_Name").ends()
    assert (code, "the cluster refuses the job" in said) == (64, True), said
