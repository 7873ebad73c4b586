"""Launches behind a real HTTP proxy: one that the environment names, and one of a kubeconfig."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from harness_command import environment, harness
from proxy_server import ProxyServer, proxy_server

from harness import run as running
from harness.context import RunContext
from harness.core import processes
from harness.launch.konduktor.job_file import JobFile
from harness.provision.cluster import Ready
from harness.provision.source.shell import build_command
from harness.settings import Settings

PASSWORD = "pr0xy+pass/word"
IN_URL = "me:pr0xy%2Bpass%2Fword"
LOCAL = ("127.0.0.1", "localhost", "[::1]", ".svc", ".local")


@pytest.fixture
def proxy() -> Iterator[ProxyServer]:
    with proxy_server(f"me:{PASSWORD}") as running:
        yield running


def variables(proxy: ProxyServer) -> dict[str, str]:
    url = f"http://{IN_URL}@127.0.0.1:{proxy.port}"
    both = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
    return {**dict.fromkeys(both, url), "NO_PROXY": "corp.example", "no_proxy": "corp.example"}


def holding(folder: Path) -> list[str]:
    """Return the files with the proxy's password in a form that something might have written."""
    whole = base64.b64encode(f"me:{PASSWORD}".encode())
    forms = (PASSWORD.encode(), IN_URL.partition(":")[2].encode(), whole)
    files = (path for path in folder.rglob("*") if path.is_file())
    return [str(path) for path in files if any(form in path.read_bytes() for form in forms)]


def test_a_launch_passes_and_sends_the_proxy_nothing_local(
    cluster: Ready, harness_settings: Settings, proxy: ProxyServer, tmp_path: Path
) -> None:
    """The proxy gets requests for registries at most, and the bundle has no password."""
    own = {"HARNESS_STATE_DIR": str(harness_settings.state_dir)}
    own |= {"KEEP_CLUSTER": "true"} if harness_settings.keep_cluster else {}
    env = environment(tmp_path, **own, **variables(proxy), HARNESS_CLUSTER_NAME=cluster.kind.name)
    env["NO_PROXY"] = env["no_proxy"] = "corp.example"  # as a user has it
    run = harness("run", "jobs/multinode.yaml", env=env)
    assert run.verdict.verdict == "PASS", run.verdict.explanation
    asked = [line.partition(" ")[2] for line in proxy.asked + proxy.refused]
    assert [target for target in asked if any(part in target for part in LOCAL)] == []
    assert proxy.refused == []
    assert holding(run.bundle.path) == []
    assert PASSWORD not in run.stderr + run.stdout


def test_launch_passes_on_cluster_behind_proxy_of_its_kubeconfig(
    theirs: Settings, job: JobFile, proxy: ProxyServer
) -> None:
    """The harness, konduktor and the tracker's client reach the API server through the proxy alone."""
    assert theirs.kubeconfig is not None
    document = yaml.safe_load(theirs.kubeconfig.read_text())
    [entry] = document["clusters"]
    real = entry["cluster"]["server"].rpartition(":")[2]
    proxy.elsewhere["kubernetes"] = int(real)  # a name in the certificate, which only the proxy resolves
    entry["cluster"] |= {"server": f"https://kubernetes:{real}"}
    entry["cluster"]["proxy-url"] = f"http://{IN_URL}@127.0.0.1:{proxy.port}"
    theirs.kubeconfig.write_text(yaml.safe_dump(document))
    outcome = running.run(job, RunContext(settings=theirs, progress=print))
    assert outcome.verdict.verdict == "PASS", outcome.verdict.explanation
    assert set(proxy.asked) == {f"CONNECT kubernetes:{real}"}
    assert proxy.refused == []
    assert holding(outcome.bundle) == []


def test_build_gets_proxy_and_its_image_records_nothing(
    cluster: Ready, proxy: ProxyServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in variables(proxy).items():
        monkeypatch.setenv(name, value)
    (tmp_path / "Dockerfile").write_text(f"FROM {cluster.worker.tag}\nRUN env | sed 's/=.*//' >/seen\n")
    tag = "harness/proxy-test:1"
    command = [*build_command(), "-t", tag, str(tmp_path)]
    try:
        built = processes.run(command, timeout=300)
        names = docker("run", "--rm", "--network", "none", "--entrypoint", "cat", tag, "/seen").split()
        assert {"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"} <= set(
            names
        )
        recorded = docker("history", "--no-trunc", tag) + docker("image", "inspect", tag)
        output = " ".join(command) + built.stdout + built.stderr
        for secret in (PASSWORD, IN_URL.partition(":")[2]):
            assert secret not in recorded + output
        assert str(proxy.port) not in docker("image", "inspect", "--format", "{{json .Config.Env}}", tag)
    finally:
        subprocess.run(["docker", "image", "rm", tag], check=False, capture_output=True)


def docker(*arguments: str) -> str:
    return processes.run(["docker", *arguments], timeout=60).stdout
