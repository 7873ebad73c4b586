"""Run the embedded tracker as a Deployment in the cluster. It is ready before any rank starts.

The tracker's key is created once per cluster and kept in a Secret. Ranks get a reference to the Secret, so
the key never appears in a job file, a process list or a JobSet.
"""

from __future__ import annotations

import base64
import secrets
from dataclasses import dataclass, field

import httpx

from harness.core import pod_security, service_proxy
from harness.core.errors import HarnessError
from harness.core.kubernetes import Kube, Object
from harness.core.service_proxy import Service
from harness.provision.controllers.deployments import wait_available

NAMESPACE = "harness-system"
NAME = "tracker"
PORT = 8080
MEMORY = "2Gi"
"""The memory limit of the tracker's container. Eight concurrent requests of 43 MB, with 900 000 rows each,
needed 786 MiB."""
URL = f"http://{NAME}.{NAMESPACE}.svc.cluster.local:{PORT}"
LABELS = {"app.kubernetes.io/name": NAME, "app.kubernetes.io/managed-by": "pluto-e2e-harness"}


@dataclass(frozen=True)
class EmbeddedTracker:
    """The tracker's URL, as used by the ranks, and its API key."""

    url: str
    key: str = field(repr=False)

    def client(self, kube: Kube) -> httpx.Client:
        """Return an HTTP client with which the harness reaches the tracker through the API server's proxy."""
        return service_proxy.client(kube, Service(NAMESPACE, NAME, PORT), {"X-Api-Key": self.key})


def permanent_fault(kube: Kube) -> str | None:
    """Return the reason why the tracker cannot become ready, or None if it can."""
    deployment = kube.get("apps/v1", "Deployment", NAME, NAMESPACE)
    if deployment is None:
        return f"there is no Deployment {NAME} in {NAMESPACE}"
    if deployment["spec"].get("replicas") == 0:
        return f"Deployment {NAME} in {NAMESPACE} is scaled to 0"
    return None


def check_serving(kube: Kube, seconds: float = 20) -> None:
    """Check that an installed tracker is ready. Raises HarnessError (cause tracker.not_ready)."""
    fault = permanent_fault(kube)
    if fault is not None:
        hint = f"run `kubectl -n {NAMESPACE} scale deployment {NAME} --replicas=1`, or `harness down`"
        raise HarnessError(f"the tracker is not running: {fault}", hint=hint, cause="tracker.not_ready")
    wait_available(kube, NAMESPACE, seconds, "tracker.not_ready")


def install(kube: Kube, image: str, seconds: float = 120) -> EmbeddedTracker:
    """Install the tracker and wait until it is ready. Raises WaitError (cause tracker.not_ready)."""
    begin(kube, image)
    wait(kube, seconds)
    return find(kube)


def wait(kube: Kube, seconds: float = 120) -> None:
    """Wait until the tracker is ready. Raises WaitError (cause tracker.not_ready)."""
    wait_available(kube, NAMESPACE, seconds, "tracker.not_ready")


def begin(kube: Kube, image: str) -> None:
    """Apply the tracker's objects without waiting. An existing key is kept."""
    metadata = {"name": NAMESPACE, "labels": {**LABELS, **pod_security.RESTRICTED}}
    kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    if kube.get("v1", "Secret", NAME, NAMESPACE) is None:
        kube.apply(_object("v1", "Secret", stringData={"api-key": f"mlpi_{secrets.token_urlsafe(24)}"}))
    selector = {"app.kubernetes.io/name": NAME}
    kube.apply(
        _object("v1", "Service", spec={"selector": selector, "ports": [{"port": PORT, "targetPort": PORT}]})
    )
    kube.apply(_object("networking.k8s.io/v1", "NetworkPolicy", spec=_network_policy(selector)))
    kube.apply(_object("apps/v1", "Deployment", spec=_deployment(image, selector)))


def find(kube: Kube) -> EmbeddedTracker:
    """Return a cluster's tracker. Raises HarnessError if the cluster has no tracker."""
    secret = kube.get("v1", "Secret", NAME, NAMESPACE)
    if secret is None:
        raise HarnessError(
            "the cluster has no embedded tracker", hint="run `harness up`", cause="tracker.not_ready"
        )
    return EmbeddedTracker(URL, base64.b64decode(secret["data"]["api-key"]).decode())


def _object(api_version: str, kind: str, **fields: object) -> Object:
    metadata = {"name": NAME, "namespace": NAMESPACE, "labels": LABELS}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **fields}


def _deployment(image: str, selector: dict[str, str]) -> Object:
    """Return the tracker's Deployment.

    The tracker's database is in an emptyDir. It survives a restart of the container, but not the deletion of
    the pod.
    """
    key = {"secretKeyRef": {"name": NAME, "key": "api-key"}}
    container = {
        "name": NAME,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "args": ["--host", "0.0.0.0", "--port", str(PORT), "--db", "/data/tracker.db"],  # noqa: S104
        "env": [{"name": "TRACKER_API_KEY", "valueFrom": key}],
        "ports": [{"containerPort": PORT}],
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": PORT}, "periodSeconds": 1},
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": MEMORY}},
        "securityContext": pod_security.container_context(),
        "volumeMounts": [
            {"name": "data", "mountPath": "/data"},
            # The tracker stores large request bodies in /tmp.
            {"name": "tmp", "mountPath": pod_security.TMP},
        ],
    }
    pod = {
        "containers": [container],
        "volumes": [{"name": "data", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}],
        "securityContext": pod_security.pod_context(fs_group=True),
        "automountServiceAccountToken": False,
    }
    template = {"metadata": {"labels": LABELS}, "spec": pod}
    return {
        "replicas": 1,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": selector},
        "template": template,
    }


def _network_policy(selector: dict[str, str]) -> Object:
    """Return a NetworkPolicy that allows connections to the pod only on the tracker's port, and no
    connections from the pod. Sources are not restricted, because the harness connects through the API server,
    and a NetworkPolicy cannot select the API server's address on every cluster. The tracker checks the key in
    each request.
    """
    return {
        "podSelector": {"matchLabels": selector},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"ports": [{"protocol": "TCP", "port": PORT}]}],
        "egress": [],
    }
