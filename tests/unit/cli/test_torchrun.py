"""`harness torchrun`: what it makes of its options, and what it says where it can do nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from harness.cli.main import main
from harness.cli.torchrun.attached import show
from harness.cli.torchrun.jobs import Jobs, environment, finished, name_of, namespace_of, table
from harness.core.errors import UsageError
from harness.core.kubernetes import Kube
from harness.torchrun_controller.api.models import FINISHED

KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "one",
    "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
    "users": [{"name": "u", "user": {}}],
    "contexts": [
        {"name": "one", "context": {"cluster": "c", "user": "u", "namespace": "team"}},
        {"name": "two", "context": {"cluster": "c", "user": "u"}},
    ],
}


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Path:
    """A kubeconfig of a cluster that is not there."""
    path = tmp_path / "config"
    path.write_text(json.dumps(KUBECONFIG))
    return path


def ended(phase: str) -> dict[str, Any]:
    return {"metadata": {"name": "a"}, "spec": {"jobQueue": "cpu"}, "status": {"phase": phase}}


def pod(*codes: int | None) -> dict[str, Any]:
    """Return a pod whose containers ended with these codes, the later ones later. The first is trainer."""
    states = [
        {
            "name": "trainer" if index == 0 else f"sidecar-{index}",
            "state": {"running": {}}
            if code is None
            else {"terminated": {"exitCode": code, "finishedAt": f"2026-01-01T00:00:{code:02}Z"}},
        }
        for index, code in enumerate(codes)
    ]
    return {"metadata": {"name": "p"}, "status": {"containerStatuses": states}}


@pytest.mark.parametrize(
    ("phase", "pods", "code"),
    [
        ("Succeeded", [pod(0), pod(9)], 0),
        ("Failed", [pod(0, 7), pod(5), pod(3)], 3),
        ("Failed", [pod(None), pod(0)], 1),
        ("TimedOut", [], 1),
        ("Cancelled", [pod(0)], 1),
    ],
)
def test_only_a_succeeded_job_has_exit_code_0(
    kubeconfig: Path, monkeypatch: pytest.MonkeyPatch, phase: str, pods: list[dict[str, Any]], code: int
) -> None:
    """Contract: 0 for Succeeded alone; else the first trainer's that failed, and never 0."""
    monkeypatch.setattr(Jobs, "pods", lambda self, name: pods)
    assert Jobs(Kube(kubeconfig), "team").exit_code(ended(phase)) == code


def test_log_cannot_erase_lines_of_other_pods(capsys: pytest.CaptureFixture[str]) -> None:
    """In public reports (tqdm #565 and #750, stern #104), bars of other processes hide prefixes and lines."""
    log = [
        b"\r 10%|#   | 1/10\r100%|####| 10/10\n",
        b"\x1b[2A\x1b[2K\x1b]52;c;cm0gLXJm\x07loss 0.5\n",
        b"h\0e\0l\0l\0o\0\r\0\n",
        b"\xff\xfe last",
    ]
    jobs = SimpleNamespace(kube=SimpleNamespace(fetch=lambda path, query: iter(log)), namespace="team")
    number = {"annotations": {"batch.kubernetes.io/job-completion-index": "3"}}
    show(cast(Jobs, jobs), {"metadata": {"name": "p", **number}}, follow=True)
    lines = capsys.readouterr().out.split("\n")
    assert lines[-1] == ""
    assert all(line.startswith("3 | ") and line.isprintable() for line in lines[:-1])
    assert lines[0] == "3 | 100%|####| 10/10 (1 update left out)"
    assert "3 | hello" in lines
    assert any("loss 0.5" in line for line in lines)
    assert lines[-2].endswith(" last")


def test_every_end_of_a_job_ends_the_wait() -> None:
    """Contract: the controller's own list of ends; a job without a status has not ended."""
    assert all(finished(ended(phase)) for phase in FINISHED)
    assert not any(finished(ended(phase)) for phase in ("Pending", "Running", "Preempted", "Suspended"))
    assert not finished({"metadata": {"name": "a"}, "spec": {}})


@pytest.mark.parametrize("folder", ["My Project", "2024_runs", "é", "a" * 80, "-"])
def test_a_folder_s_name_is_a_job_s_name(tmp_path: Path, folder: str) -> None:
    """Contract: a DNS label that begins with a letter, short enough for the host names of its pods."""
    name = name_of(tmp_path / folder)
    assert name[0].isalpha()
    assert len(name) <= 40
    assert all(part.isalnum() and part.isascii() and part == part.lower() for part in name.split("-"))
    assert name != name_of(tmp_path / folder)


def test_env_options_are_name_value_pairs() -> None:
    """Contract: a value may hold `=` and be empty; what is no pair is refused."""
    assert environment(["A=b=c", "D="]) == [{"name": "A", "value": "b=c"}, {"name": "D", "value": ""}]
    for wrong in ("A", "=b", "1A=b", "A B=c"):
        with pytest.raises(UsageError, match="expected NAME=VALUE"):
            environment([wrong])


def test_the_namespace_is_the_context_s(kubeconfig: Path) -> None:
    """Contract: as kubectl has it: the option, the context's own, `default`."""
    assert namespace_of(Kube(kubeconfig), None) == "team"
    assert namespace_of(Kube(kubeconfig, "two"), None) == "default"
    assert namespace_of(Kube(kubeconfig), "other") == "other"


def test_the_table_includes_a_job_without_status() -> None:
    """Contract: a column for each thing to know, also of a job that the controller has not seen."""
    lines = table([ended("Failed"), {"metadata": {"name": "new"}, "spec": {"queue": "q"}}]).splitlines()
    assert [line.split() for line in lines[1:]] == [["a", "cpu", "Failed", "0"], ["new", "q", "Pending", "0"]]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["list", "--kubeconfig", "none"], 64, "kubeconfig none does not exist"),
        (["list", "--kubeconfig", "config", "--context", "x"], 64, "contexts in this file: one, two"),
        (["list", "--kubeconfig", "config"], 2, "the API server did not respond"),
        (["submit", "--queue", "cpu", "--watch", "--detach", "x"], 64, "--watch cannot be combined with"),
        (["submit", "--queue", "cpu", "--watch", "--suspend", "x"], 64, "cannot be combined with"),
        (["submit", "--queue", "cpu", "--min-nodes", "1", "x"], 64, "both --min-nodes and --max-nodes"),
        (["submit", "--queue", "cpu", "--deadline", "0", "x"], 64, "--deadline"),
        (
            ["submit", "--queue", "cpu", "--dry-run", "--rdzv-backend", "etcd", "x"],
            64,
            "'static' or 'etcd-v2'",
        ),
        (["submit", "--queue", "cpu", "--dry-run", "--kubeconfig", "none", "x"], 64, "none does not exist"),
        (["submit", "--queue", "cpu", "--dir", "none", "x"], 64, "expected a folder to sync"),
        (["submit", "--queue", "cpu", "--env", "A", "x"], 64, "expected NAME=VALUE"),
        (["sync", "job", "--dir", "config"], 64, "config is a file"),
        (["submit", "x"], 64, "--queue"),
    ],
)
def test_what_cannot_be_done_is_said(
    kubeconfig: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: int,
    says: str,
) -> None:
    """Contract: expected, seen, an exit code that is not 0, and no traceback."""
    monkeypatch.chdir(kubeconfig.parent)
    with pytest.raises(SystemExit) as ended:
        main(["torchrun", *words])
    stderr = capsys.readouterr().err
    assert (ended.value.code, says in " ".join(stderr.split())) == (code, True), stderr


def test_the_context_of_kubectl_s_own_kubeconfig(
    kubeconfig: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Contract: --context without --kubeconfig is of KUBECONFIG's file."""
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    with pytest.raises(SystemExit) as ended:
        main(["torchrun", "list", "--context", "nowhere"])
    assert ended.value.code == 64
    assert "expected context nowhere" in capsys.readouterr().err


def test_a_dry_run_without_a_cluster_prints_the_job(
    kubeconfig: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Contract: exit code 0, YAML alone on stdout, and on stderr that no cluster has checked it."""
    monkeypatch.chdir(kubeconfig.parent)
    words = ["--setup", "pip list", "--ttl", "0", "--priority", "high", "--suspend"]
    words += ["--env", "A=b", "--env", "LR=1e3", "--env", "Y=y", "--env", "T=true", "--env", "S=1:30"]
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "torchrun",
                "submit",
                "--queue",
                "cpu",
                "--dry-run",
                "--kubeconfig",
                "config",
                *words,
                "python x.py",
            ]
        )
    captured = capsys.readouterr()
    assert (ended.value.code, "was not validated by a cluster" in captured.err) == (0, True), captured.err
    assert all(
        f"value: {text}" in captured.out.replace("'", '"') for text in ('"1e3"', '"y"', '"true"', '"1:30"')
    )
    job = yaml.safe_load(captured.out)
    assert "torchrun.ai/workspace" in job["metadata"]["annotations"]
    assert job["spec"] == {
        "jobQueue": "cpu",
        "command": "python x.py",
        "setupCommand": "pip list",
        "env": [
            {"name": name, "value": value}
            for name, value in {"A": "b", "LR": "1e3", "Y": "y", "T": "true", "S": "1:30"}.items()
        ],
        "scheduling": {"priorityClassName": "high"},
        "reliability": {"ttlSecondsAfterFinished": 0},
        "suspend": True,
    }


@pytest.mark.parametrize(
    ("options", "code"), [(["--dry-run", "--kubeconfig", "config"], 0), (["--kubeconfig", "none"], 64)]
)
def test_a_setup_that_needs_git_is_named(
    kubeconfig: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    code: int,
) -> None:
    """Contract: the user reads it before the job waits for GPUs, and even before the cluster is asked."""
    monkeypatch.chdir(kubeconfig.parent)
    Path("pyproject.toml").write_text("[tool.setuptools_scm]\n")
    words = ["submit", "--queue", "cpu", *options, "--setup", "pip install -e ."]
    with pytest.raises(SystemExit) as ended:
        main(["torchrun", *words, "python x.py"])
    assert ended.value.code == code
    assert "pyproject.toml takes the version of the package from git" in capsys.readouterr().err


def test_the_plugin_says_its_own_name() -> None:
    """Contract: help and errors begin with what was typed: kubectl runs `kubectl-torchrun`."""
    program = Path(sys.executable).with_name("kubectl-torchrun")
    for words, says in (([], "Usage: kubectl torchrun"), (["submit"], "Usage: kubectl torchrun submit")):
        result = subprocess.run([program, *words, "--help"], capture_output=True, text=True, check=True)
        assert says in result.stdout


def test_dry_run_names_unsent_files_and_possible_secrets(
    kubeconfig: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Contract: on stderr, with the reason; stdout has the job alone. A warning comes with --quiet, too."""
    here = kubeconfig.parent / "here"
    (here / "data").mkdir(parents=True)
    for name in ("train.py", ".env", "data/x.csv"):
        (here / name).write_text("")
    (here / ".gitignore").write_text("data/\n")
    words = ["torchrun", "submit", "--queue", "cpu", "--dry-run", "--kubeconfig", str(kubeconfig)]
    for quiet in ([], ["--quiet"]):
        with pytest.raises(SystemExit) as ended:
            main([*words, *quiet, "--dir", str(here), "python train.py"])
        captured = capsys.readouterr()
        assert ended.value.code == 0
        assert "look like secrets are sent to the cluster: .env;" in captured.err
        assert ("not sent: data/ (a .gitignore file excludes it)" in captured.err) == (not quiet)
        assert yaml.safe_load(captured.out)["kind"] == "TorchrunJob"
