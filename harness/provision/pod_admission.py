"""Check with a dry run in a temporary namespace whether the API server would admit a job's pods.

Policies, quotas, limits and webhooks can reject a job's pods although the job itself is accepted. Without
this check, a launch would fail only after the job was created.
"""

from __future__ import annotations

import json
import secrets
import time

from kubernetes.client.exceptions import ApiException

from harness.core.errors import HarnessError
from harness.core.kubernetes import Kube, Object
from harness.core.pod_security import ENFORCE, Standard
from harness.evidence.kubernetes import refusals
from harness.provision.controllers.queues import MANAGED

ALLOW = f"set HARNESS_POD_SECURITY=privileged, which labels the launch's namespace with {ENFORCE}=privileged"
NAMESPACE = "e2e-preflight-"
"""The prefix of the temporary namespace's name. The names of launch namespaces begin in the same way, so
policies that select them by name also apply to the temporary namespace.
"""
SECONDS = 10.0
"""The maximum number of seconds to wait until Kubernetes has created a new namespace's default objects, such
as its ServiceAccount.
"""


def admitted(kube: Kube, spec: Object, standard: Standard | None = None) -> str:
    """Return a message that confirms that the cluster would admit a pod with this spec.

    The dry run uses a temporary namespace, which enforces `standard` and is deleted afterwards. If the pod is
    rejected, raises HarnessError (cause launch.pods_refused) with the API server's message.
    """
    namespace = f"{NAMESPACE}{secrets.token_hex(4)}"
    labels = {**MANAGED, **({ENFORCE: standard} if standard else {})}
    kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}})
    try:
        message = rejection(kube, namespace, spec)
    finally:
        kube.delete("v1", "Namespace", namespace)
    if message is None:
        return "the API server accepts a pod in a dry run"
    raise HarnessError(
        f"the API server rejects the pod: {message}", hint=hint_for(message), cause="launch.pods_refused"
    )


def hint_for(message: str) -> str:
    """Return a hint about how to make the cluster admit a rejected pod."""
    rule = refusals.rule_of(message)
    if rule is None:
        return "correct the problem that the API server's message names"
    if rule[0] == refusals.POD_SECURITY:
        return ALLOW
    return f"change the pod, or the rule that rejects it: {' '.join(filter(None, rule))}"


def rejection(kube: Kube, namespace: str, spec: Object) -> str | None:
    """Return the message with which the API server rejects the pod, or None if it admits the pod."""
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
