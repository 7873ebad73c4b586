"""Install VictoriaLogs with the namespace, name and port that `konduktor logs` expects, and vlagent on every
node. konduktor connects through the API server's service proxy, so all users with access to that proxy can
read the logs.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

import yaml

from harness.core.errors import UsageError
from harness.core.kubernetes import Kube, Object, applied_by_us
from harness.provision.controllers.deployments import wait_available
from harness.provision.images.victoria_logs import LogImages

NAMESPACE = "victoria-logs"
SERVER = "vls-victoria-logs-single-server"
"""The name that konduktor expects for the Service of VictoriaLogs (VICKY_SERVICE in
konduktor/utils/log_utils.py). The Deployment has the same name.
"""
AGENT = "vlagent"
ROLE = f"{NAMESPACE}-{AGENT}"
"""The name of the ClusterRole and the ClusterRoleBinding that allow vlagent to list the pods on its node."""
SECONDS = 120.0
"""The maximum number of seconds to wait until VictoriaLogs and vlagent are running, including the time to
pull their images."""
_FILES = Path(__file__).parent / "files"
_APPLIED = "pluto-e2e-harness/applied"
"""The namespace's annotation that contains a hash of the applied objects. It is written only after
VictoriaLogs and vlagent are ready."""
_CAUSE: Final = "controllers.logs_not_ready"


def install(kube: Kube, images: LogImages, tracker_image: str, seconds: float = SECONDS) -> bool:
    """Install VictoriaLogs and vlagent, and wait until they are ready.

    Return False if this version was already installed. Raises UsageError if the harness did not create the
    existing namespace, and WaitError (cause controllers.logs_not_ready).
    """
    documents = manifest(images, tracker_image)
    version = hashlib.sha256(yaml.safe_dump(documents).encode()).hexdigest()
    existing = kube.get("v1", "Namespace", NAMESPACE)
    if existing is not None and not applied_by_us(existing):
        raise UsageError(
            f"--logs needs to create the namespace {NAMESPACE}, but this namespace already exists",
            hint="omit --logs (HARNESS_LOGS) to use the existing VictoriaLogs",
            cause=_CAUSE,
        )
    changed = existing is None or (existing["metadata"].get("annotations") or {}).get(_APPLIED) != version
    for document in documents if changed else ():
        kube.apply(document)
    wait_available(kube, NAMESPACE, seconds, _CAUSE)
    kube.wait(
        f"{AGENT} on every node",
        "apps/v1",
        "DaemonSet",
        _not_ready,
        seconds=seconds,
        namespace=NAMESPACE,
        cause=_CAUSE,
    )
    if changed:
        namespace = documents[0]["metadata"]
        kube.apply({**documents[0], "metadata": {**namespace, "annotations": {_APPLIED: version}}})
    return changed


def manifest(images: LogImages, tracker_image: str) -> list[Object]:
    """Return all objects of VictoriaLogs and vlagent, the namespace first."""
    text = (_FILES / "victoria-logs.yaml").read_text()
    references = {"SERVER_IMAGE": images.server, "AGENT_IMAGE": images.agent, "TRACKER_IMAGE": tracker_image}
    for word, reference in references.items():
        text = text.replace(word, reference)
    script = "konduktor_fields.py"
    documents: list[Object] = list(yaml.safe_load_all(text))
    (config_map,) = (document for document in documents if document["kind"] == "ConfigMap")
    config_map["data"] = {script: (_FILES / script).read_text()}
    return documents


def _not_ready(daemon_sets: dict[str, Object]) -> str | None:
    status = daemon_sets.get(AGENT, {}).get("status") or {}
    ready, desired = status.get("numberReady", 0), status.get("desiredNumberScheduled", 0)
    return None if desired and ready == desired else f"{ready} of {desired} nodes have a ready pod"
