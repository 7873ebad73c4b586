"""pytest-kind's fixture on the harness's cluster, used as in pytest-kind's own documentation."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pykube
import pytest
import pytest_kind
import yaml
from pytest_kind import KindCluster

from harness.provision.cluster import Ready
from harness.settings import Settings

pytestmark = pytest.mark.nightly
SUITE = """
def test_nodes(kind_cluster):
    print("NODES", kind_cluster.kubectl("get", "nodes", "-o", "name"))
"""


@pytest.fixture
def application(cluster: Ready) -> Iterator[str]:
    """An image that only this machine's Docker has: one file, and the web server of Python on port 8080."""
    tag = f"pytest-kind-example:{secrets.token_hex(4)}"
    lines = [
        f"FROM {cluster.worker.tag}",
        "RUN mkdir -p /site/hello && echo -n 'Hello world!' >/site/hello/world",
    ]
    lines += ['CMD ["python3", "-m", "http.server", "8080", "--directory", "/site"]']
    build = ["docker", "build", "--network=none", "--provenance=false", "--quiet", "--tag", tag, "-"]
    subprocess.run(build, input="\n".join(lines).encode(), check=True, timeout=120)
    yield tag
    subprocess.run(["docker", "rmi", "--force", tag], check=True, capture_output=True, timeout=60)


@pytest.fixture
def namespace(kind_cluster: KindCluster) -> Iterator[str]:
    """An empty namespace, created and deleted by kubectl."""
    name = f"pytest-kind-{secrets.token_hex(3)}"
    kind_cluster.kubectl("create", "namespace", name)
    yield name
    kind_cluster.kubectl("delete", "namespace", name, "--wait=false")


def test_the_handle_is_of_this_cluster(
    kind_cluster: KindCluster, cluster: Ready, harness_settings: Settings
) -> None:
    """It is pytest-kind's own class, with the harness's programs: nothing was downloaded."""
    assert type(kind_cluster) is pytest_kind.KindCluster
    assert kind_cluster.name == cluster.cluster.name
    assert str(kind_cluster.kind_path) == shutil.which(harness_settings.kind_bin)
    assert str(kind_cluster.kubectl_path) == shutil.which(harness_settings.kubectl_bin)
    nodes = {node.name for node in pykube.Node.objects(kind_cluster.api)}
    assert nodes == {node["metadata"]["name"] for node in cluster.kube.objects("v1", "Node")}
    version = cluster.versions["kubernetes"].removeprefix("v").split(".")
    assert kind_cluster.api.version == (version[0], version[1])


def test_its_kubeconfig_is_a_copy(kind_cluster: KindCluster, cluster: Ready) -> None:
    """`kubectl config` in a test does not change the file that the harness and its users work with."""
    before = cluster.cluster.kubeconfig.read_bytes()
    kind_cluster.kubectl("config", "set-context", "--current", "--namespace", "kube-system")
    try:
        assert "coredns" in kind_cluster.kubectl("get", "pods")
    finally:
        kind_cluster.kubectl("config", "set-context", "--current", "--namespace", "")
    assert cluster.cluster.kubeconfig.read_bytes() == before
    assert len(yaml.safe_load(kind_cluster.kubeconfig_path.read_text())["contexts"]) == 1
    assert kind_cluster.kubeconfig_path.stat().st_mode & 0o777 == 0o600


def test_an_image_is_loaded_deployed_and_reached(
    kind_cluster: KindCluster,
    namespace: str,
    application: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """load_docker_image, kubectl, pykube's objects and port_forward, as in pytest-kind's README."""
    monkeypatch.chdir(tmp_path)  # port_forward starts kubectl without HOME, and kubectl's cache is then here
    kind_cluster.load_docker_image(application)
    inside = ("--namespace", namespace)
    kind_cluster.kubectl("create", "deployment", "web", f"--image={application}", "--port=8080", *inside)
    kind_cluster.kubectl("expose", "deployment", "web", "--port=80", "--target-port=8080", *inside)
    kind_cluster.kubectl("rollout", "status", "deployment/web", "--timeout=120s", *inside)
    pods = list(pykube.Pod.objects(kind_cluster.api, namespace=namespace).filter(selector="app=web"))
    assert [pod.obj["spec"]["containers"][0]["image"] for pod in pods] == [application]
    with kind_cluster.port_forward("service/web", 80, *inside, retries=2) as port:
        reply = httpx.get(f"http://127.0.0.1:{port}/hello/world", trust_env=False)
    assert (reply.status_code, reply.text) == (200, "Hello world!")
    assert '"GET /hello/world HTTP/1.1" 200' in pods[0].logs()


def test_a_suite_of_pytest_kind_runs_unchanged(
    kind_cluster: KindCluster, harness_settings: Settings, tmp_path: Path
) -> None:
    """A session with pytest-kind's options alone. It leaves the cluster, which is in use here."""
    (tmp_path / "test_mine.py").write_text(SUITE)
    options = ["--cluster-name", harness_settings.cluster_name, "--kind-bin", str(kind_cluster.kind_path)]
    options += ["--kind-kubectl-bin", str(kind_cluster.kubectl_path)]
    options += ["--keep-cluster"] if harness_settings.keep_cluster else []
    kept = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rP", *options],
        cwd=tmp_path,
        env={**kept, "HARNESS_WORKERS": str(harness_settings.workers)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"NODES node/{harness_settings.cluster_name}-control-plane" in done.stdout
    assert kind_cluster.kubectl("get", "nodes", "-o", "name")
    assert [path.name for path in (tmp_path / ".pytest-kind").rglob("*") if path.is_file()] == []
