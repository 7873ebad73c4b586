"""Nodes that advertise GPUs: an image without CUDA, marks of an earlier acceptance, who holds the GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from kubernetes import client

from harness import run as running
from harness.cli.acceptance_results import mark_nodes
from harness.context import RunContext
from harness.core.errors import HarnessError
from harness.core.kubernetes import Kube, Object
from harness.evidence.io.reader import Bundle
from harness.judge.acceptance.expected_nodes import of_bundle
from harness.judge.acceptance.node_fault_proof import doubtful
from harness.launch.workloads import acceptance
from harness.launch.workloads.acceptance import GPU, AcceptanceSpec
from harness.launch.workloads.pod_template_workload import PlainWorkload
from harness.provision.cluster import Ready
from harness.provision.node_marks import LABEL, TAINT, mark, undo
from harness.report.finalize import Outcome
from harness.settings import Settings

pytestmark = [pytest.mark.acceptance, pytest.mark.nightly]


@pytest.fixture
def gpus(cluster: Ready) -> Iterator[list[str]]:
    """Return the nodes that take pods, which advertise two GPUs each meanwhile, as a device plugin would."""
    nodes = cluster.kube.objects("v1", "Node")
    names = [str(node["metadata"]["name"]) for node in nodes if not node["spec"].get("taints")]
    try:
        _advertise(cluster.kube, names, "2")
        yield names
    finally:
        _advertise(cluster.kube, names, None)


def _advertise(kube: Kube, names: list[str], count: str | None) -> None:
    for name in names:
        status = {"capacity": {GPU: count}, "allocatable": {GPU: count}}
        client.CoreV1Api(kube.api).patch_node_status(name, {"status": status})

    def seen(nodes: dict[str, Object]) -> str | None:
        wrong = [name for name in names if nodes[name]["status"]["allocatable"].get(GPU) != count]
        return f"{GPU} allocatable is not {count} on {wrong}" if wrong else None

    kube.wait(f"{GPU} to be allocatable: {count}", "v1", "Node", seen, seconds=60)


def launched(workload: PlainWorkload, cluster: Ready, settings: Settings) -> Outcome:
    settings = settings.model_copy(update={"wait_seconds": 300.0})
    context = RunContext(settings=settings, progress=lambda text: print(f"  {text}"))
    return running.launch(workload, context, cluster)


def labels(kube: Kube) -> dict[str, str]:
    nodes = kube.objects("v1", "Node")
    return {n["metadata"]["name"]: v for n in nodes if (v := n["metadata"]["labels"].get(LABEL))}


@pytest.mark.parametrize("kind", ["nodes", "ddp"])
def test_an_image_without_cuda_takes_no_node_out(
    kind: str, cluster: Ready, gpus: list[str], harness_settings: Settings
) -> None:
    """Contract: the verdict is about the image, accuses no rank, and marks no node."""
    asked = AcceptanceSpec(gpus=2, image=cluster.worker.tag)
    workload = acceptance.nodes(asked) if kind == "nodes" else acceptance.ddp(asked, len(gpus))
    outcome = launched(workload, cluster, harness_settings)
    verdict = outcome.verdict
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "image.no_cuda", []), (
        verdict.explanation
    )
    assert "is built without CUDA" in verdict.explanation
    with pytest.raises(HarnessError, match="no node is marked"):
        mark_nodes(outcome.bundle, taint=True, force=True, cluster_name=harness_settings.cluster_name)
    assert labels(cluster.kube) == {}


def test_acceptance_runs_on_nodes_that_it_marked(cluster: Ready, harness_settings: Settings) -> None:
    """Contract: a node that failed before can be tested again, by itself and together with others."""
    kube = cluster.kube
    names = [str(node["metadata"]["name"]) for node in kube.objects("v1", "Node")]
    mark(kube, dict.fromkeys(names, "FAIL"), taint=True)
    try:
        tainted = [
            n for n in kube.objects("v1", "Node") if any(t["key"] == TAINT for t in n["spec"]["taints"])
        ]
        assert len(tainted) == len(names)
        outcome = launched(acceptance.ddp(AcceptanceSpec(device="cpu"), 2), cluster, harness_settings)
        assert outcome.verdict.verdict == "PASS", outcome.verdict.explanation
    finally:
        undo(kube)


def test_who_holds_the_gpus_is_named(cluster: Ready, gpus: list[str], harness_settings: Settings) -> None:
    """Contract: the verdict names the pod that has them, its namespace and its node."""
    kube, (node_name, *_) = cluster.kube, gpus
    image, limits = cluster.worker.tag, {"limits": {GPU: "2"}}
    sleeps = {"name": "c", "image": image, "command": ["sleep", "3600"], "resources": limits}
    spec = {"nodeName": node_name, "containers": [sleeps], "terminationGracePeriodSeconds": 0}
    metadata = {"name": "holder", "namespace": "default"}
    kube.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    try:
        workload = acceptance.nodes(
            AcceptanceSpec(device="cpu", image=image)
        )  # it asks for GPUs, and tests CPUs
        workload.document["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] = {GPU: 2}
        outcome = launched(workload, cluster, harness_settings)
        assert outcome.verdict.cause == "scheduling.devices_held", outcome.verdict.explanation
        assert "efault/holder holds 2 of 2" in outcome.verdict.explanation
        holders = [one for _, one in Bundle.open(outcome.bundle).device_holders()]
        assert [(one.namespace, one.pod, one.node) for one in holders] == [("default", "holder", node_name)]
        ddp_workload = acceptance.ddp(AcceptanceSpec(gpus=2, image=image), len(gpus))
        verdict = launched(ddp_workload, cluster, harness_settings).verdict
        assert verdict.cause == "scheduling.devices_held", verdict.explanation
        assert "efault/holder holds 2 of 2" in verdict.explanation
    finally:
        kube.delete("v1", "Pod", "holder", "default")


@pytest.fixture
def labelled(cluster: Ready, gpus: list[str]) -> Iterator[Callable[[dict[str, str]], None]]:
    """Return a function that labels the nodes with GPUs, as GPU feature discovery would."""
    core, added = client.CoreV1Api(cluster.kube.api), dict[str, None]()

    def label(labels: dict[str, str]) -> None:
        added.update(dict.fromkeys(labels))
        for name in gpus:
            core.patch_node(name, {"metadata": {"labels": labels}})

    try:
        yield label
    finally:
        for name in gpus:
            core.patch_node(name, {"metadata": {"labels": added}})


def test_gpus_that_the_device_plugin_lost_are_named(
    cluster: Ready,
    gpus: list[str],
    labelled: Callable[[dict[str, str]], None],
    harness_settings: Settings,
) -> None:
    """Contract: each node is named with what it has and what it offers, long before the wait ends."""
    labelled({"nvidia.com/gpu.count": "8"})
    workload = acceptance.nodes(AcceptanceSpec(image=cluster.worker.tag))
    verdict = launched(workload, cluster, harness_settings).verdict
    assert (verdict.verdict, verdict.cause) == ("FAIL", "gpu.not_allocatable"), verdict.explanation
    assert "8 GPUs according to" in verdict.explanation
    assert all(name in verdict.explanation for name in gpus)


def test_time_sliced_gpu_is_requested_once_and_not_accepted(
    cluster: Ready,
    gpus: list[str],
    labelled: Callable[[dict[str, str]], None],
    harness_settings: Settings,
) -> None:
    """Contract: the verdict is in the words of the device plugin's labels, and taints no node."""
    labelled(
        {
            "nvidia.com/gpu.count": "1",
            "nvidia.com/gpu.replicas": "2",
            "nvidia.com/gpu.sharing-strategy": "time-slicing",
            "nvidia.com/gpu.product": "NVIDIA-A10-SHARED",
        }
    )
    workload = acceptance.nodes(AcceptanceSpec(device="cpu", image=cluster.worker.tag))
    workload.document["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"] = {GPU: 1}
    outcome = launched(workload, cluster, harness_settings)
    assert (outcome.verdict.verdict, outcome.verdict.cause) == ("UNKNOWN", "gpu.shared"), (
        outcome.verdict.explanation
    )
    assert "has 1 GPU, shared by 2 (time-slicing)" in outcome.verdict.explanation
    fleet = of_bundle(Bundle.open(outcome.bundle))
    assert fleet is not None
    assert {node.verdict for node in fleet.nodes} == {"UNKNOWN"}
    assert doubtful(fleet) == {}
