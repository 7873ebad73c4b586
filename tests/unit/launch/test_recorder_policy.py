"""The commands of the recorder's policy in real shells and Python, and why a pod is not recorded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.core.kubernetes import Object
from harness.launch import recorder_policy as policy
from harness.launch.mounts.recorder import FOLDER

SHOWN = "import os, sys; print(sys.argv[1:], os.environ.get('PYTHONPATH'), os.environ.get('HARNESS_LOG'))"


def run(command: list[str], folder: Path, **environment: str) -> str:
    """Run a wrapped command as a kubelet starts it, with the recorder in `folder`."""
    wrapped = policy.wrapped(command)
    assert wrapped is not None
    words = [word.replace("$$", "$").replace(FOLDER, str(folder)) for word in wrapped]
    env = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **environment}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=30, check=True)
    return done.stdout + done.stderr


SHELLS = [
    ["sh", "-c", 'exec "$@"', "sh"],
    ["bash", "-c", 'exec "$@"', "bash"],
    ["/bin/sh", "-ec", '"$@"', "-"],
    [],
]


@pytest.mark.parametrize("shell", SHELLS)
def test_wrapped_command_keeps_its_words_and_path_of_image(shell: list[str], tmp_path: Path) -> None:
    command = [*shell, "python3", "-c", SHOWN, "a b", "$HOME", ""]
    output = run(command, tmp_path, PYTHONPATH="/of/the/image")
    assert output.startswith(f"['a b', '$HOME', ''] {tmp_path}:/of/the/image /proc/")
    assert output.rstrip().endswith("/fd/1")
    assert run(command, tmp_path).startswith(f"['a b', '$HOME', ''] {tmp_path} /proc/")
    assert run(command, tmp_path / "missing") == "['a b', '$HOME', ''] None None\n"


def test_the_file_in_bash_env_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "rc").write_text("echo read\n")
    assert run(["bash", "-c", "echo command"], tmp_path, BASH_ENV=str(tmp_path / "rc")) == "read\ncommand\n"


def test_exit_code_and_process_id_are_those_of_command(tmp_path: Path) -> None:
    for command in (
        ["sh", "-c", "echo $$; exit 7"],
        ["python3", "-c", "import os; print(os.getpid()); exit(7)"],
    ):
        words = policy.wrapped(command)
        assert words is not None
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            output = process.communicate(timeout=30)[0]
        assert process.returncode == 7
        assert output == f"{process.pid}\n"


def pod(labels: dict[str, str] | None = None, **container: Any) -> Object:
    body = {"name": "main", "image": "x", **container}
    return {
        "metadata": {"name": "p", "namespace": "n", "labels": labels or {}},
        "spec": {"containers": [body]},
    }


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (pod(command=["/usr/bin/bash", "-c", "x"]), ""),
        (pod(command=["/opt/conda/bin/python3.11", "x.py"]), ""),
        (pod(command=["torchrun"]), "its command begins with torchrun: start the command with a shell"),
        (pod(command=["./python-wrapper"]), "its command begins with ./python-wrapper"),
        (pod(), "its command comes from the image"),
        (pod({policy.RECORD: "env"}), ""),
        (pod({policy.RECORD: "env"}, envFrom=[{}]), "its command comes from the image"),
        (pod(env=[{"name": "PYTHONPATH", "value": "/x"}]), ""),
        (pod(env=[{"name": "PYTHONPATH", "valueFrom": {}}]), "its PYTHONPATH does not have a literal value"),
        (
            pod(command=["sh"], env=[{"name": "HARNESS_NONCE", "value": "1"}]),
            "the harness launched this pod and already records",
        ),
        (
            pod(command=["sh"], volumeMounts=[{"mountPath": "/opt/harness"}]),
            "another volume is already mounted at /opt/harness",
        ),
    ],
)
def test_the_reason_why_a_container_is_not_recorded(found: Object, why: str) -> None:
    (container,) = found["spec"]["containers"]
    assert policy.why_not(found, container).startswith(why)
    assert bool(policy.why_not(found, container)) == bool(why)


def test_policy_keeps_pod_and_pluto_variables() -> None:
    text = " ".join(yaml.safe_dump_all(policy.documents()).split())
    assert policy.documents()[0]["spec"]["failurePolicy"] == "Ignore"
    assert '"optional": dyn(true)' in text.replace("\\", "")
    assert "PLUTO_" not in text
    assert "Object." not in text, "it can crash the API server: kubernetes/kubernetes#142181"
    assert "initContainers" not in text


def test_the_files_fit_into_a_config_map() -> None:
    """Its limit is 1 MiB."""
    data = policy.config_map("team")["data"]
    assert sum(map(len, data.values())) < 500_000
    assert {item["key"] for item in policy.volume()["configMap"]["items"]} == data.keys()
    assert policy.volume()["configMap"]["optional"] is True
