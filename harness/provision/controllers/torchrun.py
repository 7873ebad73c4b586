"""Install the torchrun controller for TorchrunJob launches, or check that a cluster already has it."""

from __future__ import annotations

from harness.core.errors import HarnessError
from harness.core.kubernetes import Kube, Object, condition
from harness.torchrun_controller.api import crd_generator
from harness.torchrun_controller.objects import manifests

SECONDS = 180.0
_API = "apiextensions.k8s.io/v1"


def install(kube: Kube, image: str) -> None:
    """Install or update the torchrun controller and its CRDs, and wait until the controller is ready.

    Raises WaitError.
    """
    for definition in crd_generator.definitions():
        kube.apply(definition)
    kube.wait("the CRDs of TorchrunJobs", _API, "CustomResourceDefinition", _established, seconds=SECONDS)
    for document in manifests.documents(image):
        kube.apply(document)
    kube.wait(
        "the torchrun controller",
        "apps/v1",
        "Deployment",
        lambda deployments: _unavailable(deployments.get(manifests.NAME, {})),
        seconds=SECONDS,
        namespace=manifests.NAMESPACE,
    )


def require(kube: Kube) -> None:
    """Check that the torchrun controller is ready on a user's cluster. Raises HarnessError if it is not."""
    deployment = kube.get("apps/v1", "Deployment", manifests.NAME, manifests.NAMESPACE) or {}
    missing = _unavailable(deployment)
    if missing is not None:
        raise HarnessError(
            f"the torchrun controller is not running (Deployment {manifests.NAMESPACE}/{manifests.NAME}): "
            f"{missing}",
            hint="set your controller image, and run `kubectl apply --server-side -k "
            "manifests/torchrun-controller`",
        )


def _established(definitions: dict[str, Object]) -> str | None:
    names = [str(definition["metadata"]["name"]) for definition in crd_generator.definitions()]
    pending = [n for n in names if condition(definitions.get(n, {}), "Established").get("status") != "True"]
    return f"not established: {', '.join(pending)}" if pending else None


def _unavailable(deployment: Object) -> str | None:
    """Return why the pods of a Deployment's latest generation are not running and ready, or None if they
    are."""
    if not deployment:
        return "it does not exist"
    status = deployment.get("status") or {}
    if status.get("observedGeneration") != deployment["metadata"].get("generation"):
        return "the Deployment controller has not observed the latest generation yet"
    ready, updated = status.get("readyReplicas") or 0, status.get("updatedReplicas") or 0
    replicas = deployment["spec"].get("replicas", 1)
    return (
        None
        if ready >= replicas <= updated
        else f"{ready} of {replicas} pods are ready, and {updated} of {replicas} are up to date"
    )
