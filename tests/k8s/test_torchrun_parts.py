"""What a TorchrunJob meets besides JobSet and Kueue, each for real: git, S3, etcd, a node that is lost."""

from __future__ import annotations

import base64
import io
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client.exceptions import BadRequestException
from test_torchrun_controller import MET, submit_readme
from torchrun_team import CODE, LISTED, PROGRAM, Controller, Team

from harness.context import RunContext
from harness.core.kubernetes import Object
from harness.fixtures.plugin import progress
from harness.provision.cluster import Ready
from harness.provision.images.etcd import etcd_image
from harness.provision.images.load import load_images
from harness.settings import Settings
from harness.torchrun_controller.api import names
from harness.torchrun_controller.objects import etcd
from tests.s3_server import s3_server

pytestmark = [pytest.mark.controller, pytest.mark.nightly, pytest.mark.timeout(1200)]
GIT_IMAGE = "harness-tests/git:1"
ELASTIC = """
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
print(f"rank {rank} of {size} meets", flush=True)
for step in range(100 if size == 1 else 3000):
    value = torch.tensor([1.0])
    dist.all_reduce(value)
    assert value.item() == size, value
    time.sleep(0.2)
print(f"rank {rank} of {size}: sum {value.item():g}", flush=True)
dist.destroy_process_group()
"""
"""Two ranks take ten minutes, longer than the test; what is left alone takes twenty seconds."""


@pytest.fixture(scope="module")
def gateway() -> str:
    """The address of this machine as pods reach it."""
    form = "{{range .IPAM.Config}}{{.Gateway}} {{end}}"
    out = subprocess.run(
        ["docker", "network", "inspect", "kind", "--format", form], capture_output=True, text=True, check=True
    )
    return next(address for address in out.stdout.split() if ":" not in address)


@pytest.fixture(scope="module")
def context(harness_settings: Settings) -> RunContext:
    return RunContext(settings=harness_settings, progress=progress)


@pytest.fixture(scope="module")
def git_image(cluster: Ready, context: RunContext, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image with git, on all nodes: what workspaceStorage.image names where the job's own has none."""
    listed = ["docker", "images", "harness/debian-trixie", "--format", "{{.Repository}}:{{.Tag}}"]
    local = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()
    folder = tmp_path_factory.mktemp("git-image")
    install = "apt-get -o Acquire::Check-Valid-Until=false update -qq && apt-get install -y -qq"
    (folder / "Dockerfile").write_text(
        f"FROM {(local or ['debian:trixie'])[0]}\n"
        "RUN rm -f /etc/apt/sources.list.d/sid.sources; export DEBIAN_FRONTEND=noninteractive\n"
        f"RUN {install} --no-install-recommends git ca-certificates >/dev/null\n"
    )
    build = ["docker", "build", "--network=host", "-q", "-t", GIT_IMAGE, str(folder)]
    subprocess.run(build, check=True, timeout=600)
    load_images([GIT_IMAGE], cluster.kind.nodes(), context)
    return GIT_IMAGE


def git(folder: Path, *words: str) -> str:
    identity = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.com"}
    identity |= {"GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@example.com"}
    done = subprocess.run(
        ["git", *words],
        cwd=folder,
        env={**os.environ, **identity},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, gateway: str, unused_tcp_port: int) -> Iterator[tuple[str, Path]]:
    """A repository whose tag v1 and whose branch main differ, served by git's own daemon: URL and folder."""
    folder = tmp_path / "served" / "code"
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    for version in ("one", "two"):
        (folder / "train.py").write_text(f"print('code {version}')\n{PROGRAM}")
        git(folder, "add", ".")
        git(folder, "commit", "-q", "-m", version)
        if version == "one":
            git(folder, "tag", "v1")
    daemon = ["git", "daemon", "--export-all", f"--base-path={folder.parent}", f"--listen={gateway}"]
    process = subprocess.Popen([*daemon, f"--port={unused_tcp_port}", "--reuseaddr"])
    try:
        yield f"git://{gateway}:{unused_tcp_port}/code", folder
    finally:
        process.terminate()
        process.wait(timeout=30)


def log_lines(team: Team, name: str) -> list[str]:
    """Return all that the ranks of a job printed."""
    lines: list[str] = []
    for pod in team.pods(name):
        path = f"/api/v1/namespaces/{team.namespace}/pods/{pod['metadata']['name']}/log"
        lines += team.kube.fetch(path, {"container": names.TRAINER}).read().decode().splitlines()
    return lines


def test_all_ranks_run_the_code_of_the_git_ref(
    team: Team, controller: Controller, repository: tuple[str, Path], git_image: str
) -> None:
    """Contract: all ranks run the code of the ref: a tag, a branch, a part of a commit's name. A ref that is
    not there, and an image without git, are a Failed job that says so.
    """
    url, folder = repository
    team.queue(overrides={"images": [git_image]})
    never = {"restartPolicy": "Never"}

    def submit(name: str, ref: str, image: str | None = git_image) -> None:
        code = {"source": "git", "url": url, "ref": ref, **({"image": image} if image else {})}
        team.job(name, command="python train.py", volumes={}, workspaceStorage=code, reliability=never)

    submit("tag", "v1")
    submit("branch", "main")
    submit("commit", git(folder, "rev-parse", "--short=12", "v1"))
    submit("nothing", "v9")
    submit("no-git", "v1", None)
    for name, version in (("tag", "one"), ("branch", "two"), ("commit", "one")):
        team.until(name, "Succeeded", 300)
        lines = log_lines(team, name)
        assert team.printed(name) == MET
        assert [line for line in lines if line.startswith("code ")] == [f"code {version}"] * 2
    missing = team.until("nothing", "Failed", 300)["status"]["message"]
    assert "v9" in missing
    assert "exit code" in missing
    assert "this image has no git" in team.until("no-git", "Failed", 300)["status"]["message"]


def test_an_s3_workspace_uses_keys_from_a_secret(
    team: Team, controller: Controller, context: RunContext, gateway: str, tmp_path: Path
) -> None:
    """Contract: the code comes from a bucket with the keys of a Secret, by the job's own image."""
    with s3_server(context, tmp_path, gateway) as server:
        client = server.client()
        client.make_bucket("code")
        text = f"import lib\n{PROGRAM}".encode()
        client.put_object("code", "team/train.py", io.BytesIO(text), len(text))
        client.put_object("code", "team/lib/__init__.py", io.BytesIO(b""), 0)
        data = {key: base64.b64encode(value.encode()).decode() for key, value in server.environment.items()}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "data": data}
        team.kube.apply({**secret, "metadata": {"name": "keys", "namespace": team.namespace}})
        team.queue(overrides={"secrets": ["keys"], "fields": ["workspaceStorage.source"]})
        code = {"source": "s3", "url": "s3://code/team", "secretName": "keys"}
        once = {"command": "python train.py", "volumes": {}, "reliability": {"restartPolicy": "Never"}}
        team.job("bucket", workspaceStorage=code, **once)
        team.job("keyless", workspaceStorage={"source": "s3", "url": "s3://code/team"}, **once)
        team.until("bucket", "Succeeded", 300)
        assert team.printed("bucket") == MET
        refused = team.until("keyless", "Failed", 300)["status"]["message"]
        assert "workspace: " in refused
        assert server.secret_key not in refused


@pytest.fixture(scope="module")
def etcd_here(cluster: Ready, context: RunContext) -> Iterator[str]:
    """The etcd of manifests/torchrun-etcd, with an image that was built here: the image."""
    image = etcd_image(context)
    load_images([image], cluster.kind.nodes(), context)
    for document in etcd.documents(image):
        cluster.kube.apply(document)

    def done(found: dict[str, Object]) -> str | None:
        return None if (found[etcd.NAME].get("status") or {}).get("readyReplicas") else "no pod is ready"

    cluster.kube.wait("etcd", "apps/v1", "Deployment", done, seconds=180, namespace=etcd.NAMESPACE)
    yield image
    cluster.kube.delete("v1", "Namespace", etcd.NAMESPACE)


def test_the_readme_runs_with_its_rendezvous(team: Team, controller: Controller, etcd_here: str) -> None:
    """Contract: both jobs of the README run with etcd-v2 and no endpoint, as they are written. Changed are
    GPUs, image and command, and storage that this cluster has no class for.
    """
    for name in submit_readme(team):
        ended = team.until(name, "Succeeded", 300)
        assert team.printed(name) == MET
        assert f"--rdzv-endpoint={etcd.ENDPOINT}" in ended["status"]["torchrunCommand"]


def test_a_restart_uses_a_fresh_etcd_rendezvous(team: Team, controller: Controller, etcd_here: str) -> None:
    """Contract: a restart meets nothing of the last time in etcd."""
    overrides = {**LISTED, "fields": ["env.valueFrom.fieldRef"]}
    team.queue(podTemplate={"spec": {"terminationGracePeriodSeconds": 3}}, overrides=overrides)
    by_etcd = {"rdzvBackend": "etcd-v2", "rdzvEndpoint": etcd.ENDPOINT}
    once = "test -f /tmp/x || [ $JOB_COMPLETION_INDEX = 0 ] || [ $JOBSET_RESTART_ATTEMPT != 0 ] || exit 7"
    team.job("again", distributed=by_etcd, setupCommand=once, reliability={"maxRestarts": 1}, env=ATTEMPT)
    ended = team.until("again", "Succeeded", 400)
    assert ended["status"]["restarts"] == 1
    assert team.printed("again") == MET


def test_an_etcd_of_no_use_is_named(team: Team, controller: Controller, etcd_here: str) -> None:
    """Contract: a server without the API v2, none at all, and an image without python-etcd are the message
    of the job, in place of an exit code after a long wait.
    """
    pod = etcd.documents(etcd_here)[2]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    container["args"].remove("--enable-v2")
    metadata = {"name": "v3", "namespace": team.namespace, "labels": {"app": "v3"}}
    team.kube.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod})
    ports = [{"name": "client", "port": etcd.PORT}]
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {**metadata, "labels": {}}}
    team.kube.apply({**service, "spec": {"selector": {"app": "v3"}, "ports": ports}})
    team.queue()
    never = {"reliability": {"restartPolicy": "Never"}}
    hidden = "mkdir /tmp/no; echo raise ImportError >/tmp/no/etcd.py; export PYTHONPATH=/tmp/no:$PYTHONPATH"
    for name, endpoint, setup in (
        ("v3-only", f"v3:{etcd.PORT}", None),
        ("nobody", f"nobody:{etcd.PORT}", None),
        ("no-package", None, hidden),
    ):
        where = {"rdzvBackend": "etcd-v2", **({"rdzvEndpoint": endpoint} if endpoint else {})}
        team.job(name, distributed=where, setupCommand=setup, **never)
    for name, says in (
        ("v3-only", "--enable-v2"),
        ("nobody", f"expected an etcd at nobody:{etcd.PORT}"),
        ("no-package", "python-etcd"),
    ):
        assert says in team.until(name, "Failed", 240)["status"]["message"]


ATTEMPT = [
    {
        "name": "JOBSET_RESTART_ATTEMPT",
        "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{names.ATTEMPT_LABEL}']"}},
    }
]


def test_elastic_job_goes_on_without_a_node(team: Team, controller: Controller, etcd_here: str) -> None:
    """Contract: of 1 to 2 nodes one is lost for good: the other's rank meets anew, alone, and it succeeds.

    The lost one is node 0, which a c10d rendezvous would not survive. Its pod is made again, and finds no
    node.
    """
    apart = {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {
                    "labelSelector": {"matchLabels": {names.JOB_LABEL: "elastic"}},
                    "topologyKey": "kubernetes.io/hostname",
                }
            ]
        }
    }
    team.queue("apart", scheduling={"affinity": apart}, overrides={"configMaps": ["elastic"]})
    team.kube.apply(_program(team, ELASTIC))
    volumes = {**CODE, "additionalVolumes": [{"name": "code", "configMap": {"name": "elastic"}}]}
    team.job(
        "elastic",
        jobQueue="apart",
        numNodes=None,
        minNodes=1,
        maxNodes=2,
        distributed={"rdzvBackend": "etcd-v2", "rdzvEndpoint": etcd.ENDPOINT},
        volumes=volumes,
        reliability={"maxRestarts": 3},
    )
    team.until("elastic", "Running", 300)
    before = {_index(pod): pod for pod in team.pods("elastic")}
    _until_said(team, before[1], "of 2 meets")
    lost = before[0]["spec"]["nodeName"]
    nodes = team.kube.resource("v1", "Node")
    nodes.patch(
        name=lost, body={"spec": {"unschedulable": True}}, content_type="application/merge-patch+json"
    )
    try:
        delete = {"gracePeriodSeconds": 0}
        name = before[0]["metadata"]["name"]
        team.kube.resource("v1", "Pod").delete(name=name, namespace=team.namespace, body=delete)
        _until_said(team, before[1], "rank 0 of 1 meets")
        alone = team.until("elastic", "Running", 60)
        assert alone["status"]["workersStatus"] == "1/2 ready"
        ended = team.until("elastic", "Succeeded")
        assert ended["status"]["jobID"] == alone["status"]["jobID"]
    finally:
        nodes.patch(
            name=lost, body={"spec": {"unschedulable": None}}, content_type="application/merge-patch+json"
        )


def _program(team: Team, text: str) -> dict[str, Any]:
    metadata = {"name": "elastic", "namespace": team.namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"add.py": text}}


def _index(pod: Object) -> int:
    return int(pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"])


def _until_said(team: Team, pod: Object, text: str, seconds: float = 180.0) -> None:
    """Wait for a text in a pod's log. An elastic job runs with minNodes: another pod may still be made."""
    path = f"/api/v1/namespaces/{team.namespace}/pods/{pod['metadata']['name']}/log"
    until = time.monotonic() + seconds
    seen = ""
    while time.monotonic() < until:
        with suppress(BadRequestException):  # its container waits to start
            seen = team.kube.fetch(path, {"container": names.TRAINER}).read().decode()
        if text in seen:
            return
        time.sleep(1)
    raise AssertionError(f"expected {text!r} within {seconds:g} s, seen:\n{seen}")
