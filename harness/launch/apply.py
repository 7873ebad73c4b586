"""Apply a launch's objects, and limit the disk space of its containers."""

from __future__ import annotations

from kubernetes.client.exceptions import ApiException
from kubernetes.utils.quantity import parse_quantity

from harness.core.errors import HarnessError
from harness.core.kubernetes import Kube, Object
from harness.core.kubernetes_retries import reason_of
from harness.provision.cluster import Cluster
from harness.provision.controllers.queues import MANAGED
from harness.settings import Settings


def apply(kube: Kube, document: Object) -> Object:
    """Apply one of a launch's objects, and return the object as stored by the API server.

    Raises HarnessError (cause launch.rejected) if the API server refuses the object.
    """
    name = f"{document['kind']} {document['metadata']['name']}"
    try:
        return kube.apply(document)
    except ApiException as error:
        raise HarnessError(
            f"The API server rejected {name}: {reason_of(error)}",
            hint="correct the object; the bundle's folder launch/ contains all objects as applied",
            cause="launch.rejected",
        ) from None


NAME = "ephemeral-storage"


def limit(kube: Kube, cluster: Cluster, settings: Settings, namespace: str) -> None:
    """Limit the ephemeral storage of each container in the namespace.

    The limit is the user's setting or, if there is none, the cluster's default. A limit in a container's own
    spec takes precedence. The kubelet evicts a pod that exceeds its limit, and the reason for the eviction
    contains the limit.
    """
    amount = cluster.ephemeral_storage if settings.ephemeral_storage is None else settings.ephemeral_storage
    if amount is not None and parse_quantity(amount):
        kube.apply(limit_range(namespace, amount))


def limit_range(namespace: str, amount: str) -> Object:
    """Return a LimitRange that limits ephemeral storage to `amount`.

    The default request is 0, because it would otherwise equal the limit. Nodes would then look full, and
    Kueue would need a quota for this resource.
    """
    limit_item = {"type": "Container", "default": {NAME: amount}, "defaultRequest": {NAME: "0"}}
    metadata = {"name": NAME, "namespace": namespace, "labels": MANAGED}
    return {"apiVersion": "v1", "kind": "LimitRange", "metadata": metadata, "spec": {"limits": [limit_item]}}
