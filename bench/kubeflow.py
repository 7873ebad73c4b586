"""Build Kubeflow's controllers from their Go modules, and install them on a kind cluster."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from kubernetes.dynamic.exceptions import DynamicApiError

from harness.context import RunContext
from harness.core.deadlines import Deadline
from harness.core.kubernetes import Kube, condition
from harness.core.kubernetes_retries import pause
from harness.provision.controllers.readiness import CONTROLLERS
from harness.provision.controllers.webhooks import check_serving
from harness.provision.images.load import load_images
from harness.provision.kind.cluster import KindCluster
from harness.provision.source import versions
from harness.provision.source.golang import Go, Module
from harness.provision.source.programs import program
from harness.provision.source.shell import Shell

API = "trainer.kubeflow.org/v1alpha1"
TRAINING_API = "kubeflow.org/v1"
_BINARY = "manager"
_INIT_CONTAINER = """
- name: init-pytorch
  image: {{.InitContainerImage}}
  imagePullPolicy: IfNotPresent
  command:
  - sh
  - -c
  - for i in $(seq {{.MaxTries}}); do getent hosts {{.MasterAddr}} && exit; sleep 1; done; exit 1
"""
"""The init container of a PyTorchJob's workers. The operator's default needs nslookup."""


@dataclass(frozen=True)
class Operator:
    """A controller of Kubeflow and where its Go module has its program and manifests."""

    path: str
    version: str
    package: str
    deployment: str
    namespace: str
    secret: str
    """The Secret in which it stores the certificate of its webhooks."""
    webhooks: str
    """Its ValidatingWebhookConfiguration."""
    parts: tuple[str, ...]
    """The folders of manifests/base with its objects."""

    @property
    def name(self) -> str:
        return self.package.rpartition("/")[2]

    @property
    def image(self) -> str:
        return f"harness-bench/{self.name}:{self.version}"


TRAINER = Operator(
    "github.com/kubeflow/trainer/v2",
    "v2.0.0",
    "cmd/trainer-controller-manager",
    "kubeflow-trainer-controller-manager",
    "kubeflow-system",
    "kubeflow-trainer-webhook-cert",
    "validator.trainer.kubeflow.org",
    ("crds", "manager", "rbac", "webhook"),  # JobSet is there already.
)
TRAINING_OPERATOR = Operator(
    "github.com/kubeflow/training-operator",
    "v1.8.1",
    "cmd/training-operator.v1",
    "training-operator",
    "kubeflow",
    "training-operator-webhook-cert",
    "validator.training-operator.kubeflow.org",
    ("", "crds", "rbac", "webhook"),
)


def install(
    operator: Operator,
    kind: KindCluster,
    kube: Kube,
    context: RunContext,
    work: Path,
    *,
    arguments: Sequence[str] = (),
    seconds: float = 180,
) -> None:
    """Build, load and start a controller with additional `arguments`, and wait until it is ready."""
    packages = {operator.name: f"{operator.path}/{operator.package}"}
    built = program(Module(operator.name, operator.path, operator.version, packages), context)
    _build_image(operator, built, work / "image")
    load_images([operator.image], kind.nodes(), context)
    go = Go(Shell(work / "go.log"), versions.load(context.settings).go, work / "go-build")
    (work / "module").mkdir()
    source = go.download(operator.path, operator.version, work / "module")
    for document in _documents(operator, source / "manifests/base", arguments):
        kube.apply(document)
    kube.wait(
        operator.deployment,
        "apps/v1",
        "Deployment",
        lambda found: _unavailable(found.get(operator.deployment, {})),
        seconds=seconds,
        namespace=operator.namespace,
    )
    _restart_kueue(kube, seconds)


def _restart_kueue(kube: Kube, seconds: float) -> None:
    """Let Kueue see the new kinds now. Otherwise it looks for them in growing intervals of up to two minutes,
    in which its webhook denies TrainJobs with "unsupported runtime".
    """
    namespace = CONTROLLERS["kueue"]
    former = {pod["metadata"]["name"] for pod in kube.objects("v1", "Pod", namespace)}
    for name in former:
        kube.delete("v1", "Pod", name, namespace)
    kube.wait(
        "the new pod of Kueue",
        "v1",
        "Pod",
        lambda pods: None if any(_ready(pods[name]) for name in pods.keys() - former) else "not ready",
        seconds=seconds,
        namespace=namespace,
    )
    check_serving(kube, seconds)


def _ready(pod: dict[str, Any]) -> bool:
    return condition(pod, "Ready").get("status") == "True"


def remove(operator: Operator, kube: Kube) -> None:
    """Delete a controller. Its CRDs remain."""
    hooks = ("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration")
    kube.delete(*hooks, operator.webhooks)
    kube.delete("v1", "Namespace", operator.namespace)


def _build_image(operator: Operator, built: Path, folder: Path) -> None:
    folder.mkdir(parents=True)
    shutil.copy2(built, folder / _BINARY)
    (folder / "initContainer.yaml").write_text(_INIT_CONTAINER)
    lines = ["FROM scratch", f"COPY {_BINARY} /{_BINARY}", "COPY initContainer.yaml /etc/config/"]
    lines += ["USER 65532:65532", f'ENTRYPOINT ["/{_BINARY}"]', ""]
    (folder / "Dockerfile").write_text("\n".join(lines))
    subprocess.run(["docker", "build", "-q", "-t", operator.image, str(folder)], check=True, timeout=300)


def _unavailable(deployment: dict[str, Any]) -> str | None:
    seen = condition(deployment, "Available")
    return None if seen.get("status") == "True" else f"not available: {seen}"


def until_applied(kube: Kube, document: dict[str, Any], seconds: float = 60) -> None:
    """Apply an object that a webhook validates, as soon as the webhook is reached and knows its runtimes."""
    deadline = Deadline.after(seconds)
    while True:
        try:
            kube.apply(document)
            return
        except DynamicApiError as error:
            early = any(text in str(error) for text in ("failed calling webhook", "unsupported runtime"))
            if deadline.passed or not early:
                raise
            pause(deadline)


def _documents(operator: Operator, base: Path, arguments: Sequence[str]) -> list[dict[str, Any]]:
    """Return the objects of its kustomization with the local image and namespace, but not remote ones."""
    secret = {"name": operator.secret, "namespace": operator.namespace}
    found: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": operator.namespace}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": secret},
    ]
    for part in operator.parts:
        for path in sorted((base / part).glob("*.yaml")):
            if path.name.startswith(("kustom", "patch")):
                continue
            found += [document for document in yaml.safe_load_all(path.read_text()) if document]
    for document in found:
        _place(operator, document, arguments)
    return found


def _place(operator: Operator, document: dict[str, Any], arguments: Sequence[str]) -> None:
    kind, metadata = document["kind"], document["metadata"]
    if kind in ("ServiceAccount", "Deployment", "Service", "Role", "RoleBinding"):
        metadata["namespace"] = operator.namespace
    if kind == "Deployment":
        container = document["spec"]["template"]["spec"]["containers"][0]
        container.update(image=operator.image, args=[*container.get("args", []), *arguments])
    for subject in document.get("subjects") or []:
        subject["namespace"] = operator.namespace
    if kind == "ValidatingWebhookConfiguration":
        metadata["name"] = operator.webhooks
        for hook in document["webhooks"]:
            hook["clientConfig"]["service"].update(name=operator.deployment, namespace=operator.namespace)


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


def pytorch_job(name: str, namespace: str, pod: dict[str, Any]) -> dict[str, Any]:
    """Return a PyTorchJob with a master and a worker whose pods have this spec."""
    container = {**pod["containers"][0], "name": "pytorch"}  # The operator requires this name.
    template = {"spec": {**pod, "containers": [container]}}
    replicas = {"replicas": 1, "restartPolicy": "Never", "template": template}
    metadata = {"name": name, "namespace": namespace}
    spec = {"pytorchReplicaSpecs": {"Master": replicas, "Worker": replicas}}
    return {"apiVersion": TRAINING_API, "kind": "PyTorchJob", "metadata": metadata, "spec": spec}


def mpi_job(name: str, namespace: str, launcher: dict[str, Any], worker: dict[str, Any]) -> dict[str, Any]:
    """Return an MPIJob with a launcher and two workers whose pods have these specs."""
    replicas = {
        "Launcher": {"replicas": 1, "restartPolicy": "Never", "template": {"spec": launcher}},
        "Worker": {"replicas": 2, "template": {"spec": worker}},
    }
    metadata = {"name": name, "namespace": namespace}
    spec = {"slotsPerWorker": 1, "mpiReplicaSpecs": replicas}
    return {"apiVersion": TRAINING_API, "kind": "MPIJob", "metadata": metadata, "spec": spec}
