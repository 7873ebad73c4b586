"""The printed acceptance tests with kubectl alone: apply, logs and cp work until the objects are deleted."""

from __future__ import annotations

import json
import secrets
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness import run as running
from harness.context import RunContext
from harness.core.kubernetes import Object, condition
from harness.launch.workload_file import load
from harness.launch.workloads import acceptance
from harness.launch.workloads.acceptance import GPU, AcceptanceSpec
from harness.provision.cluster import Ready
from harness.settings import Settings

pytestmark = [pytest.mark.acceptance, pytest.mark.nightly]
PRESENT = "nvidia.com/gpu.present"
Kubectl = Callable[..., str]


@pytest.fixture
def namespace(cluster: Ready) -> Iterator[str]:
    name = f"printed-{secrets.token_hex(3)}"
    cluster.kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    cluster.kube.delete("v1", "Namespace", name)


@pytest.fixture
def kubectl(cluster: Ready, namespace: str, harness_settings: Settings) -> Kubectl:
    """Run kubectl in the namespace, and return what it prints."""
    where = ["--kubeconfig", str(cluster.cluster.kubeconfig), "--context", cluster.cluster.context]
    command = [harness_settings.kubectl_bin, *where, "-n", namespace]

    def run(*words: str, stdin: str | None = None) -> str:
        done = subprocess.run([*command, *words], input=stdin, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def ended(cluster: Ready, namespace: str, count: int, ready: bool) -> dict[str, Object]:
    """Wait until so many pods have printed their end and are Ready, or have a probe's message."""

    def seen(pods: dict[str, Object]) -> str | None:
        there = sum(condition(pod, "Ready").get("status") == "True" for pod in pods.values())
        return None if there == count else f"{there} of {len(pods)} pods are Ready"

    def missing_verdict(events: dict[str, Object]) -> str | None:
        found = [event for event in events.values() if "UNKNOWN" in event.get("message", "")]
        return None if found else f"{len(events)} events, none has the verdict"

    kind, awaited = ("Pod", seen) if ready else ("Event", missing_verdict)
    cluster.kube.wait("the tests to end", "v1", kind, awaited, seconds=400, namespace=namespace)
    return {pod["metadata"]["name"]: pod for pod in cluster.kube.objects("v1", "Pod", namespace)}


def restarts(pods: dict[str, Object]) -> set[int]:
    return {status["restartCount"] for pod in pods.values() for status in pod["status"]["containerStatuses"]}


def test_each_node_keeps_its_report(cluster: Ready, namespace: str, kubectl: Kubectl, tmp_path: Path) -> None:
    """Contract: Ready says that the tests passed, and each report can be copied from a pod that stays."""
    workload = acceptance.nodes(AcceptanceSpec(device="cpu", image=cluster.worker.tag))
    kubectl("apply", "-f", "-", stdin=acceptance.manifests(workload))
    pods = ended(cluster, namespace, len(cluster.kube.objects("v1", "Node")), ready=True)
    for name, pod in pods.items():
        kubectl("cp", f"{name}:/app/reports", str(tmp_path / name))
        report = json.loads((tmp_path / name / "summary.json").read_text())
        assert report["node"] == pod["spec"]["nodeName"]
        assert (tmp_path / name / "ended.txt").read_text().strip() in ("PASS", "WARN")
        assert "this pod stays until it is deleted" in kubectl("logs", name)
    assert restarts(pods) == {0}


def test_the_collectives_keep_their_report(
    cluster: Ready, namespace: str, kubectl: Kubectl, harness_settings: Settings, tmp_path: Path
) -> None:
    """Contract: the first pod has the report; the same file is a launch of the harness, which ends."""
    text = acceptance.manifests(acceptance.ddp(AcceptanceSpec(device="cpu", image=cluster.worker.tag), 2))
    kubectl("apply", "-f", "-", stdin=text)
    pods = ended(cluster, namespace, 2, ready=True)
    kubectl("cp", "gpu-accept-ddp-0:/app/reports", str(tmp_path / "0"))
    assert json.loads((tmp_path / "0/ddp_tests_result.json").read_text())["verdict"] in ("PASS", "WARN")
    kubectl("cp", "gpu-accept-ddp-1:/app/reports", str(tmp_path / "1"))
    assert (tmp_path / "1/ended.txt").read_text() == "DONE, the first pod has the report\n"
    assert restarts(pods) == {0}
    kubectl("delete", "-f", "-", stdin=text)
    path = tmp_path / "printed.yaml"
    path.write_text(text)
    settings = harness_settings.model_copy(update={"wait_seconds": 300.0})
    outcome = running.launch(load(path), RunContext(settings=settings, progress=print), cluster)
    assert outcome.verdict.verdict == "PASS", outcome.verdict.explanation


def test_nodes_without_gpus_get_no_pod(cluster: Ready, namespace: str, kubectl: Kubectl) -> None:
    """Contract: no pod is Pending for ever, and an end that is no pass is in the events and in Ready."""
    kube = cluster.kube
    nodes = [node for node in kube.objects("v1", "Node") if not node["spec"].get("taints")]
    chosen = str(nodes[0]["metadata"]["name"])
    resource = kube.resource("v1", "Node")

    def mark(value: str | None, count: str | None) -> None:
        merge = {"name": chosen, "content_type": "application/merge-patch+json"}
        resource.patch(body={"metadata": {"labels": {PRESENT: value}}}, **merge)
        status = {"capacity": {GPU: count}, "allocatable": {GPU: count}}
        kubectl(*("patch", "node", chosen, "--subresource=status"), *("-p", json.dumps({"status": status})))

    mark("true", "1")
    try:
        workload = acceptance.nodes(AcceptanceSpec(gpus=1, image=cluster.worker.tag))
        kubectl("apply", "-f", "-", stdin=acceptance.manifests(workload))
        pods = ended(cluster, namespace, 1, ready=False)
        assert [pod["spec"].get("nodeName") for pod in pods.values()] == [chosen]
        (pod,) = pods.values()
        assert condition(pod, "Ready").get("status") == "False"
        assert pod["status"]["phase"] == "Running"
        assert "is built without CUDA" in kubectl("logs", pod["metadata"]["name"])
    finally:
        mark(None, None)
