"""Ask the API server whether it would let a pod of a job in, by a dry run in a namespace made for that.

Policies, quotas, limits and webhooks refuse pods and not the job, so a launch would fail after it was made.
"""

from __future__ import annotations

import json
import secrets
import time

from kubernetes.client.exceptions import ApiException

from harness.core.errors import HarnessError
from harness.core.kubernetes import Kube, Object
from harness.evidence.kubernetes import refusals
from harness.provision.controllers.queues import MANAGED

NAMESPACE = "e2e-preflight-"
"""How the namespace's name begins: like that of a launch, because rules select namespaces by their names."""
SECONDS = 10.0
"""Seconds for what Kubernetes makes in each namespace, as the ServiceAccount."""


def admitted(kube: Kube, spec: Object) -> str:
    """Return that a pod with this spec would be let in. The namespace exists for the time of the question.

    Raises HarnessError, cause launch.pods_refused, with the API server's own sentence.
    """
    namespace = f"{NAMESPACE}{secrets.token_hex(4)}"
    kube.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": dict(MANAGED)}}
    )
    try:
        message = _refused(kube, namespace, spec)
    finally:
        kube.delete("v1", "Namespace", namespace)
    if message is None:
        return "a dry run of a pod passes every rule"
    rule = refusals.rule_of(message)
    hint = f"the rule is {' '.join(filter(None, rule))}" if rule else "read the sentence of the API server"
    raise HarnessError(f"the API server refuses it: {message}", hint=hint, cause="launch.pods_refused")


def _refused(kube: Kube, namespace: str, spec: Object) -> str | None:
    """Return the sentence with which the API server refuses the pod, or None."""
    metadata = {"name": "preflight", "namespace": namespace}
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            kube.apply(document, dry_run=True)
            return None
        except ApiException as error:
            if error.status not in (400, 403, 409, 422, 500):
                raise
            message = _message(error)
            if refusals.final(message) or time.monotonic() > deadline:
                return message
            time.sleep(0.5)


def _message(error: ApiException) -> str:
    try:
        return str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        return f"HTTP {error.status} {error.reason}"
