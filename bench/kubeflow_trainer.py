"""Kubeflow Trainer v2 on a kind cluster of ours: built from its Go module, installed by its own manifests."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml
from kubernetes.dynamic.exceptions import DynamicApiError

from harness.context import RunContext
from harness.core.deadlines import Deadline
from harness.core.kubernetes import Kube, condition
from harness.core.retries import pause
from harness.provision.images.load import load_images
from harness.provision.kind.cluster import KindCluster
from harness.provision.source import versions
from harness.provision.source.golang import Go, Module
from harness.provision.source.programs import program
from harness.provision.source.shell import Shell

PATH, VERSION = "github.com/kubeflow/trainer/v2", "v2.0.0"
API = "trainer.kubeflow.org/v1alpha1"
NAMESPACE = "kubeflow-system"
MANAGER = "trainer-controller-manager"
IMAGE = f"harness-bench/{MANAGER}:{VERSION}"
DOCKERFILE = 'FROM scratch\nCOPY manager /manager\nUSER 65532:65532\nENTRYPOINT ["/manager"]\n'
PARTS = ("crds", "manager", "rbac", "webhook")
"""Of its manifests/base. JobSet is there already."""


def install(kind: KindCluster, kube: Kube, context: RunContext, work: Path, seconds: float = 180) -> None:
    """Build, load and start its controller, and wait until it is ready."""
    manager = program(Module(MANAGER, PATH, VERSION, {MANAGER: f"{PATH}/cmd/{MANAGER}"}), context)
    (work / "image").mkdir(parents=True)
    shutil.copy2(manager, work / "image" / "manager")
    (work / "image/Dockerfile").write_text(DOCKERFILE)
    subprocess.run(["docker", "build", "-q", "-t", IMAGE, str(work / "image")], check=True, timeout=300)
    load_images([IMAGE], kind.nodes(), context)
    go = Go(Shell(work / "go.log"), versions.load(context.settings).go, work / "go-build")
    (work / "module").mkdir()
    source = go.download(PATH, VERSION, work / "module")
    for document in _documents(source / "manifests/base"):
        kube.apply(document)
    kube.wait(
        "Kubeflow Trainer",
        "apps/v1",
        "Deployment",
        lambda found: _unavailable(found.get(f"kubeflow-{MANAGER}", {})),
        seconds=seconds,
        namespace=NAMESPACE,
    )


def _unavailable(deployment: dict[str, Any]) -> str | None:
    seen = condition(deployment, "Available")
    return None if seen.get("status") == "True" else f"not available: {seen}"


def until_applied(kube: Kube, document: dict[str, Any], seconds: float = 60) -> None:
    """Apply an object that its webhook judges. The Service of a pod that is ready may not lead there yet."""
    deadline = Deadline.after(seconds)
    while True:
        try:
            kube.apply(document)
            return
        except DynamicApiError as error:
            if deadline.passed or "failed calling webhook" not in str(error):
                raise
            pause(deadline)


def _documents(base: Path) -> list[dict[str, Any]]:
    """Return what its kustomization makes, with our image and namespace, and without its remote parts."""
    metadata = {"name": NAMESPACE}
    secret = {"name": "kubeflow-trainer-webhook-cert", "namespace": NAMESPACE}
    found: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata},
        {"apiVersion": "v1", "kind": "Secret", "metadata": secret},
    ]
    for part in PARTS:
        for path in sorted((base / part).glob("*.yaml")):
            if path.name.startswith(("kustom", "patch")):
                continue
            found += [document for document in yaml.safe_load_all(path.read_text()) if document]
    for document in found:
        _place(document)
    return found


def _place(document: dict[str, Any]) -> None:
    kind, metadata = document["kind"], document["metadata"]
    if kind in ("ServiceAccount", "Deployment", "Service", "Role", "RoleBinding"):
        metadata["namespace"] = NAMESPACE
    if kind == "Deployment":
        document["spec"]["template"]["spec"]["containers"][0]["image"] = IMAGE
    for subject in document.get("subjects") or []:
        subject["namespace"] = NAMESPACE
    if kind == "ValidatingWebhookConfiguration":
        metadata["name"] = "validator.trainer.kubeflow.org"
        for hook in document["webhooks"]:
            hook["clientConfig"]["service"].update(name=f"kubeflow-{MANAGER}", namespace=NAMESPACE)


def runtime(name: str, pod: dict[str, Any]) -> dict[str, Any]:
    """Return a runtime of two nodes whose pods have this spec."""
    job = {
        "name": "node",
        "template": {
            "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
            "spec": {"template": {"spec": pod}},
        },
    }
    policy = {"numNodes": 2, "torch": {"numProcPerNode": 1}}
    return {
        "apiVersion": API,
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": name, "labels": {"trainer.kubeflow.org/framework": "torch"}},
        "spec": {"mlPolicy": policy, "template": {"spec": {"replicatedJobs": [job]}}},
    }


def job(name: str, namespace: str, of: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace}
    spec = {"runtimeRef": {"name": of}}
    return {"apiVersion": API, "kind": "TrainJob", "metadata": metadata, "spec": spec}
