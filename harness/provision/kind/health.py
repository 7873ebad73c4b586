"""Find out why an existing cluster cannot be used: because of its kubeconfig, its API server or its nodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kubernetes.client.exceptions import ApiException

from harness.core.errors import HarnessError
from harness.core.kubernetes import Kube

HINT = "run `harness status` for details, or `harness down`; the next run then creates a new cluster"


def trouble(kubeconfig: Path, context: str, nodes: Sequence[str], expected: int) -> HarnessError | None:
    """Return an error if the API server does not respond or nodes are not Ready, and otherwise None.

    `nodes` contains the names of the nodes in Docker. `expected` is the required number of Ready nodes.
    """
    try:
        kube = Kube(kubeconfig, context)
    except HarnessError as error:
        return HarnessError(error.message, hint=HINT, cause=error.cause)
    try:
        ready = {node["metadata"]["name"] for node in kube.ready_nodes()}
    except ApiException as error:
        is_forbidden = error.status in (401, 403)
        problem = "rejects the credentials in" if is_forbidden else "is not ready for requests with"
        return HarnessError(
            f"the API server {problem} {kubeconfig}: HTTP {error.status} {error.reason}",
            hint=HINT,
            cause="cluster.kubeconfig" if is_forbidden else "cluster.unhealthy",
        )
    except Exception as error:
        return HarnessError(
            f"the API server {kube.configuration.host} of {kubeconfig} does not respond: {error}",
            hint=HINT,
            cause="cluster.unreachable",
        )
    missing = sorted(set(nodes) - ready)
    if not missing and len(ready) == expected:
        return None
    node_list = ", ".join(missing) or f"expected {expected} nodes, found {len(ready)}"
    return HarnessError(
        f"some of the cluster's nodes are not Ready: {node_list}", hint=HINT, cause="cluster.unhealthy"
    )
