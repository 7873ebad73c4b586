"""The code of a job outlives the machine that brought it: no client runs, and its pods come and go."""

from __future__ import annotations

import base64
import os
import secrets
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes.client.exceptions import ApiException
from test_torchrun_cli import start, submit
from torchrun_team import LISTED, Team, led, preempting

from harness.core.kubernetes import Object
from harness.provision.cluster import Ready
from harness.provision.controllers import queues
from harness.torchrun_controller.api import names

pytestmark = [pytest.mark.controller, pytest.mark.nightly, pytest.mark.timeout(1800)]
SECONDS = 90.0
"""From a pod that goes to another one that runs the same code: image and code are on the cluster."""
PROGRAM = """
import os, time
import torch.distributed as dist
from lib import NAME
dist.init_process_group("gloo")
tree, generation = os.environ["TORCHRUN_TREE"][:12], os.environ["TORCHRUN_GENERATION"]
print(f"code {NAME} {tree} generation {generation}", flush=True)
time.sleep(3600)
"""


@pytest.fixture(scope="module")
def team(cluster: Ready, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    found = Team(cluster.kube, f"kept-{secrets.token_hex(3)}", cluster.worker.tag)
    found.prepare()
    found.queue(podTemplate={"spec": {"terminationGracePeriodSeconds": 2}})
    with led(found, tmp_path_factory.mktemp("controller")):
        yield found


@pytest.fixture
def here(tmp_path: Path) -> Path:
    top = tmp_path / "here"
    top.mkdir()
    (top / "train.py").write_text(PROGRAM)
    (top / "lib.py").write_text("NAME = 'one'\n")
    return top


def detached(team: Team, here: Path, name: str, *options: str) -> str:
    """Submit a job and leave. Return the first letters of its code's digest."""
    code, output = submit(team, here, name, "--detach", "--max-restarts", "20", *options).ends()
    assert code == 0, output
    assert output.strip().endswith(name)
    return output.partition("code ")[2][:12]


def says(team: Team, name: str, text: str, but: set[str] = frozenset(), seconds: float = SECONDS) -> set[str]:  # type: ignore[assignment]
    """Wait until two pods of a job, others than `but`, have said this. Return the UIDs of all its pods."""
    until = time.monotonic() + seconds
    while True:
        pods = [pod for pod in team.pods(name) if pod["metadata"]["uid"] not in but]
        if len([pod for pod in pods if text in _log(team, pod)]) == 2:
            return {pod["metadata"]["uid"] for pod in team.pods(name)}
        job = team.kube.get(names.API, names.JOB_KIND, name, team.namespace)
        seen = "\n".join(_log(team, pod) for pod in pods)
        assert time.monotonic() < until, f"two pods never said {text!r}: {job and job['status']}\n{seen}"
        time.sleep(0.5)


def _log(team: Team, pod: Object) -> str:
    path = f"/api/v1/namespaces/{team.namespace}/pods/{pod['metadata']['name']}/log"
    try:
        return str(team.kube.fetch(path, {"container": names.TRAINER}).read().decode())
    except ApiException:
        return ""


def parts(team: Team, name: str) -> list[str]:
    found = team.kube.objects("v1", "Secret", team.namespace, f"{names.JOB_LABEL}={name}")
    return sorted(secret["metadata"]["name"] for secret in found)


def test_code_outlives_the_client(team: Team, here: Path, cluster: Ready) -> None:
    """Contract: after a deleted pod, a drained node, a node that is lost, and a suspension, new pods on any
    node run the same code within SECONDS, and no client has run since it was submitted.
    """
    digest = detached(team, here, "lasting")
    (here / "lib.py").write_text("NAME = 'two'\n")  # nobody is to bring this
    text = f"code one {digest} generation 1"
    seen = says(team, "lasting", text, seconds=180)

    pod = team.pods("lasting")[0]["metadata"]["name"]
    team.kube.resource("v1", "Pod").delete(name=pod, namespace=team.namespace)
    seen |= says(team, "lasting", text, seen)

    node = team.pods("lasting")[-1]["spec"]["nodeName"]
    kubectl = ["kubectl", "--kubeconfig", str(team.kube.kubeconfig)]
    drain = ["drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s", "--force"]
    selected = [f"--pod-selector={names.JOB_LABEL}=lasting"]
    try:
        subprocess.run([*kubectl, *drain, *selected], check=True, timeout=180)
        seen |= says(team, "lasting", text, seen)
        assert node not in {pod["spec"]["nodeName"] for pod in team.pods("lasting")}
    finally:
        subprocess.run([*kubectl, "uncordon", node], check=True, timeout=60)

    assert start(team, here, "suspend", "lasting").ends()[0] == 0
    team.until("lasting", "Suspended")
    assert start(team, here, "resume", "lasting").ends()[0] == 0
    seen |= says(team, "lasting", text, seen)

    workers = [name for name in cluster.kind.nodes() if "control-plane" not in name]
    taken = {pod["spec"]["nodeName"] for pod in team.pods("lasting")}
    lost = next(name for name in workers if name in taken)
    subprocess.run(["docker", "restart", "-t", "0", lost], check=True, timeout=120)
    says(team, "lasting", text, seen, seconds=300)


def test_code_outlives_a_preemption(team: Team, here: Path) -> None:
    """Contract: pods that come back after Kueue took them for a higher priority run the same code."""
    name = f"{team.namespace}-kept"
    metadata = {"name": name}
    priority = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": metadata}
    try:
        team.kube.apply({**priority, "value": 100})
        team.kube.apply(preempting(name, team.namespace, cpu="500m", memory="1Gi"))
        resources = {"cpus": "200m", "memory": "512Mi"}
        overrides = {**LISTED, "priorityClasses": [name]}
        team.queue("kept", clusterQueue=name, nodeResources=resources, overrides=overrides)
        digest = detached(team, here, "preempted", "--queue", "kept")
        text = f"code one {digest} generation 1"
        seen = says(team, "preempted", text, seconds=180)
        (here / "lib.py").write_text("NAME = 'two'\n")
        steps = [{"name": "STEPS", "value": "100"}]
        team.job("higher", jobQueue="kept", env=steps, scheduling={"priorityClassName": name})
        team.until("preempted", "Preempted")
        team.until("higher", "Succeeded")
        says(team, "preempted", text, seen)
    finally:
        team.kube.delete(names.API, names.JOB_KIND, "preempted", team.namespace)
        team.kube.delete(queues.API, "ClusterQueue", name)
        team.kube.delete("scheduling.k8s.io/v1", "PriorityClass", name)


def test_new_code_without_pods_and_with(team: Team, here: Path) -> None:
    """Contract: a sync into a job whose pods run, and into one without pods: those that come next run it."""
    detached(team, here, "newer")
    seen = says(team, "newer", "generation 1", seconds=180)
    (here / "lib.py").write_text("NAME = 'two'\n")
    assert start(team, here, "sync", "newer").ends()[0] == 0
    says(team, "newer", "generation 2")
    pod = team.pods("newer")[0]["metadata"]["name"]
    team.kube.resource("v1", "Pod").delete(name=pod, namespace=team.namespace)
    seen |= says(team, "newer", "code two", seen)
    assert start(team, here, "suspend", "newer").ends()[0] == 0
    team.until("newer", "Suspended")
    (here / "lib.py").write_text("NAME = 'three'\n")
    code, output = start(team, here, "sync", "newer").ends()
    assert (code, "is kept in the cluster" in output) == (0, True), output
    assert start(team, here, "resume", "newer").ends()[0] == 0
    says(team, "newer", "code three", seen)


def test_large_code_is_held_by_a_pod(team: Team, here: Path) -> None:
    """Contract: code that is too large for Secrets is on the claim of a pod, by the names of the guide, and
    new pods get it from there, also the code of a later sync; with the job's TTL both are gone. An attached
    submit does not bring what was edited since.
    """
    (here / "data.bin").write_bytes(os.urandom(9_000_000))
    team.queue("large", storage={"workspace": {"enabled": True, "size": "1Gi"}})
    options = ("--queue", "large", "--nodes", "2", "--name", "large", "--max-restarts", "9")
    attached = start(team, here, "submit", *options, "python train.py")
    attached.says("is kept in the cluster, by the pod large-sync-0")
    (here / "lib.py").write_text("NAME = 'two'\n")
    seen = says(team, "large", "code one", seconds=180)
    assert parts(team, "large") == []
    assert team.kube.get("v1", "PersistentVolumeClaim", "large-workspace", team.namespace) is not None
    log = team.kube.fetch(f"/api/v1/namespaces/{team.namespace}/pods/large-sync-0/log").read().decode()
    assert log.count(" sent to ") >= 2, log

    pod = team.pods("large")[0]["metadata"]["name"]
    team.kube.resource("v1", "Pod").delete(name=pod, namespace=team.namespace)
    seen |= says(team, "large", "code one", seen)

    team.kube.resource("v1", "Pod").delete(name="large-sync-0", namespace=team.namespace)
    assert start(team, here, "sync", "large").ends()[0] == 0
    says(team, "large", "code two")
    pod = team.pods("large")[1]["metadata"]["name"]
    team.kube.resource("v1", "Pod").delete(name=pod, namespace=team.namespace)
    says(team, "large", "code two", seen)
    team.change("large", cancel=True, reliability={"ttlSecondsAfterFinished": 1})
    team.until_status("large", "cleaned up", lambda job: "CleanedUp" in str(job.get("status")))
    assert team.kube.get("apps/v1", "StatefulSet", "large-sync", team.namespace) is None
    output = attached.ends()[1]
    assert ("generation 1" in output, " in 2 pods" in output) == (True, False), output


def test_what_keeps_the_code_goes_with_the_job(team: Team, here: Path) -> None:
    """Contract: its Secrets are of the job, and are gone after its TTL or with it; a Secret of somebody else
    of that name stays as it is, and the job runs by a sync.
    """
    (here / "train.py").write_text("print('done')\n")
    detached(team, here, "brief")
    team.until("brief", "Succeeded")
    assert parts(team, "brief") == ["brief-workspace-0"]
    team.change("brief", reliability={"ttlSecondsAfterFinished": 1})
    team.until_status("brief", "cleaned up", lambda job: "CleanedUp" in str(job.get("status")))
    assert parts(team, "brief") == []
    name = "theirs-workspace-0"
    data = {"key": base64.b64encode(b"of somebody").decode()}
    metadata = {"name": name, "namespace": team.namespace}
    team.kube.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})
    code, output = submit(team, here, "theirs").ends()
    assert (code, f"Secret {name} already exists" in output) == (0, True), output
    left = team.kube.get("v1", "Secret", name, team.namespace)
    assert left is not None
    assert left["data"] == data
