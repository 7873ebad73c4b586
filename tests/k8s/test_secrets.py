"""Secrets reach the ranks and nothing else: no file, no terminal, no process list.

The tracker's key and a job's own secrets are searched for in everything that a launch leaves. The command
lines searched are those of the harness and of its child processes. Those of the Pluto client inside the pods
are the client's own.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from harness_command import Harness, environment, family

from harness.core.processes import command_line
from harness.launch.konduktor.job_file import JobFile
from harness.provision.cluster import Ready
from harness.provision.controllers import tracker
from harness.settings import Settings

OTHERS = b"apiVersion: v1\nkind: Config\ncurrent-context: precious\n"


@pytest.fixture
def own() -> dict[str, str]:
    """Secrets of the job: long ones, with characters that quoting and JSON change."""
    return {
        "MY_TOKEN": f"s3cr3t-{secrets.token_hex(8)}",
        "DB_PASSWORD": f'pa"ss&{secrets.token_hex(8)}',
        "DATA_URL": f"postgres://me:{secrets.token_hex(8)}@db/points",
    }


@pytest.fixture
def in_script() -> str:
    """A secret that the user wrote into the job's script. konduktor puts the script into the JobSet."""
    return f"hf_{secrets.token_hex(12)}"


@pytest.fixture
def job_file(job: JobFile, own: dict[str, str], in_script: str, tmp_path: Path) -> Path:
    """The main job with secrets in its environment and one in its script.

    Each rank prints them, and the hash of two.
    """
    say = (
        'echo "token $MY_TOKEN password $DB_PASSWORD"\nprintf %s "$MY_TOKEN$DB_PASSWORD" | sha256sum\n'
        f'export OTHER_TOKEN={in_script}\necho "url $DATA_URL other $OTHER_TOKEN"\n'
    )
    document = {**job.document, "envs": {**own, "PLAIN": "visible"}, "run": say + job.document["run"]}
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(replace(job, document=document).document))
    return path


@pytest.fixture
def env(tmp_path: Path, harness_settings: Settings) -> dict[str, str]:
    """The environment of a user with ~/.kube/config, on the session's cluster."""
    variables = environment(tmp_path, HARNESS_STATE_DIR=str(harness_settings.state_dir))
    kube = tmp_path / "home" / ".kube"
    kube.mkdir()
    (kube / "config").write_bytes(OTHERS)
    return variables


def forms(secret: str) -> set[bytes]:
    """Return the secret as it is, and as a Kubernetes Secret shows it."""
    return {secret.encode(), base64.b64encode(secret.encode())}


def holding(folder: Path, secret: str) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.is_file() and any(form in path.read_bytes() for form in forms(secret)):
            yield path


def test_secrets_reach_the_ranks_and_nothing_else(
    cluster: Ready,
    harness_settings: Settings,
    job_file: Path,
    own: dict[str, str],
    in_script: str,
    env: dict[str, str],
    tmp_path: Path,
) -> None:
    """No secret is left anywhere, even when the job prints them, and the user's kubeconfig stays as it is."""
    key = tracker.find(cluster.kube).key
    lines: set[str] = set()
    over = threading.Event()
    use = ("--cluster-name", harness_settings.cluster_name, "--workers", str(harness_settings.workers))
    with Harness("run", str(job_file), *use, env=env) as run:

        def sample() -> None:
            while not over.wait(0.02):
                lines.update(command_line(process) for process in family(run.process.pid))

        sampler = threading.Thread(target=sample)
        sampler.start()
        code = run.end()
        over.set()
        sampler.join()
    assert code == 0, run.stderr + run.stdout
    assert any("konduktor" in line and "launch" in line for line in lines), "konduktor was never seen"
    logs = "".join(path.read_text() for path in (run.bundle.path / "logs").glob("*.log"))
    digest = hashlib.sha256((own["MY_TOKEN"] + own["DB_PASSWORD"]).encode()).hexdigest()
    assert logs.count(digest) == 2, "both ranks had the secrets"
    assert logs.count("token *** password ***") == 2, "and said them aloud"
    assert logs.count("url *** other ***") == 2
    password = own["DATA_URL"].split(":")[2].partition("@")[0]
    for secret in (key, *own.values(), password, in_script):
        assert list(holding(run.bundle.path, secret)) == []
        assert list(holding(harness_settings.state_dir, secret)) == []
        assert secret not in run.stdout + run.stderr
        assert not any(secret in line for line in lines)
    launch = run.manifest.launch
    assert launch is not None
    jobset = cluster.kube.get(
        "jobset.x-k8s.io/v1alpha2", "JobSet", launch.object_name or "", launch.namespace
    )
    for secret in (key, *own.values(), password):
        assert secret not in str(jobset)
    assert "visible" in str(jobset)
    assert (tmp_path / "home" / ".kube" / "config").read_bytes() == OTHERS
    assert [path.name for path in (tmp_path / "home" / ".kube").iterdir()] == ["config"]
