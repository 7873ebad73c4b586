"""Install JobSet and Kueue, and prove that they serve.

Ready means more than Available (Kueue issues 1649, 2073, 12008): the Deployment is Available at its latest
generation, the EndpointSlices of every webhook Service have a ready endpoint, and a server-side dry-run
create passes through each webhook. Kueue's webhooks block pods in every namespace until Kueue serves. So both
controllers are applied at once, and all webhooks when their pods have been created.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path

import yaml

from harness.core.causes import NOT_READY, CauseId
from harness.core.kubernetes import Kube, Object
from harness.core.progress import Progress
from harness.provision.controllers.available import wait_available
from harness.provision.controllers.certificates import SECRET, issued
from harness.provision.controllers.prove import prove
from harness.provision.controllers.readiness import CONTROLLERS, standing

CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
DEPLOYMENT = "Deployment"
WEBHOOKS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")


def install(
    kube: Kube, jobset_manifest: Path, kueue_manifest: Path, progress: Progress, seconds: float = 240
) -> None:
    """Apply both and wait until both serve. Raises WaitError with cause controllers.*_not_ready."""
    prepare(kube, jobset_manifest, kueue_manifest)
    deploy(kube, jobset_manifest, kueue_manifest)
    complete(kube, jobset_manifest, kueue_manifest, progress, seconds)


def prepare(kube: Kube, *manifests: Path) -> None:
    """Apply all but Deployments and webhooks, with certificates where a Secret for them is empty."""
    for document in _documents(manifests):
        if document["kind"] in (DEPLOYMENT, *WEBHOOKS):
            continue
        if document["kind"] != "Secret" or not document["metadata"]["name"].endswith(SECRET):
            kube.apply(document)
        elif not _filled(kube, document["metadata"]):
            kube.apply(issued(document))


def deploy(kube: Kube, *manifests: Path) -> None:
    """Apply the Deployments of what was prepared.

    The control plane must reach the API server's Service. A Kueue that does not reach it when it starts hangs
    until the kubelet kills it, a minute later.
    """
    for document in _documents(manifests):
        if document["kind"] == DEPLOYMENT:
            kube.apply(at_once(document))


def at_once(deployment: Object) -> Object:
    """Return the Deployment for a cluster that somebody waits for.

    Its pods are for the control plane, which is Ready before other nodes, and whose taint they tolerate. They
    are asked every second whether they serve: Kueue is, from 5 s after its start every 10 s.
    """
    changed = copy.deepcopy(deployment)
    spec = changed["spec"]["template"]["spec"]
    spec["nodeSelector"] = {**spec.get("nodeSelector", {}), CONTROL_PLANE: ""}
    tolerated = {"key": CONTROL_PLANE, "operator": "Exists", "effect": "NoSchedule"}
    spec["tolerations"] = [*spec.get("tolerations", []), tolerated]
    for container in spec["containers"]:
        if "readinessProbe" in container:
            container["readinessProbe"] |= {"initialDelaySeconds": 0, "periodSeconds": 1}
    return changed


def complete(
    kube: Kube, jobset_manifest: Path, kueue_manifest: Path, progress: Progress, seconds: float = 240
) -> None:
    """Apply the webhooks of what was deployed, and wait until all serves. Raises as `install`."""
    for name, namespace in CONTROLLERS.items():
        _wait_created(kube, namespace, seconds, NOT_READY[name])
    for document in _documents([jobset_manifest, kueue_manifest]):
        if document["kind"] in WEBHOOKS:
            kube.apply(document)
    for name, namespace in CONTROLLERS.items():
        wait_available(kube, namespace, seconds, NOT_READY[name])
        progress(f"{name}: Available")
    prove(kube)
    progress("jobset, kueue: a dry-run create passes every webhook")


def _documents(manifests: Iterable[Path]) -> Iterator[Object]:
    """Yield the objects of all files. By libyaml: Kueue's CRDs are 1.6 MB."""
    for path in manifests:
        yield from filter(None, yaml.load_all(path.read_text(), yaml.CSafeLoader))


def _filled(kube: Kube, metadata: Object) -> bool:
    """Return whether the cluster has this Secret with certificates: a controller made or renewed them."""
    secret = kube.get("v1", "Secret", metadata["name"], metadata["namespace"])
    return secret is not None and bool(secret.get("data"))


def _wait_created(kube: Kube, namespace: str, seconds: float, cause: CauseId) -> None:
    """Wait until the pods of every Deployment of the namespace have been created."""

    def created(deployments: dict[str, Object]) -> str | None:
        late = [name for name, d in deployments.items() if not (d.get("status") or {}).get("replicas")]
        return None if deployments and not late else f"Deployments without a pod: {late or 'none is there'}"

    kube.wait(
        f"pods of the Deployments of {namespace}",
        "apps/v1",
        "Deployment",
        created,
        seconds=seconds,
        namespace=namespace,
        cause=cause,
    )


def renew(kube: Kube, started: datetime) -> None:
    """Delete the controllers' pods that are older than `started`, when their nodes were started.

    Such a pod comes up before the API server answers. It then waits for a minute and longer, in
    CrashLoopBackOff or inside Kueue. A new pod serves within seconds.
    """
    for namespace in CONTROLLERS.values():
        for pod in kube.objects("v1", "Pod", namespace):
            if datetime.fromisoformat(pod["metadata"]["creationTimestamp"]) < started:
                kube.delete("v1", "Pod", pod["metadata"]["name"], namespace)


def prove_again(kube: Kube, seconds: float = 60) -> None:
    """Prove that controllers which served before still do.

    Raises HarnessError with cause controllers.*, at once for what cannot come back by itself.
    """
    standing(kube)
    for name, namespace in CONTROLLERS.items():
        wait_available(kube, namespace, seconds, NOT_READY[name], endpoints=False)
    prove(kube, seconds)
