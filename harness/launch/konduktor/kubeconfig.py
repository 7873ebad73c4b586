"""Build a self-contained kubeconfig for a launcher, with one context and the launch's namespace.

A launcher runs in another folder with its own HOME, so paths are made absolute. If the user's kubeconfig gets
its token from a credential plugin, as on most clouds, the launcher's kubeconfig contains this token.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.core.errors import HarnessError
from harness.core.kubeconfig import CAUSE, document_of
from harness.core.kubernetes import Kube, Object

_FILES = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
_PROGRAMS = ("exec", "auth-provider")


def for_launch(kube: Kube, namespace: str) -> Object:
    """Return the kubeconfig for a launch.

    Raises HarnessError (cause cluster.kubeconfig) if the user's kubeconfig lacks the context, or the
    context's cluster or user.
    """
    document = document_of(kube.kubeconfig)
    context_name = str(kube.context or document.get("current-context"))
    context = dict(_named(document, "contexts", context_name)["context"])
    cluster = _absolute(_named(document, "clusters", context["cluster"])["cluster"], kube.kubeconfig.parent)
    user = _absolute(_named(document, "users", context["user"])["user"], kube.kubeconfig.parent)
    if any(name in user for name in _PROGRAMS):
        credentials = {name: value for name, value in user.items() if name not in _PROGRAMS}
        user = {**credentials, "token": _token(kube)}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": context_name,
        "contexts": [{"name": context_name, "context": {**context, "namespace": namespace}}],
        "clusters": [{"name": context["cluster"], "cluster": cluster}],
        "users": [{"name": context["user"], "user": user}],
    }


def _named(document: Any, kind: str, name: str) -> Any:
    for item in document.get(kind) or []:
        if item.get("name") == name:
            return item
    raise HarnessError(f"the kubeconfig has no {name!r} among its {kind}", cause=CAUSE)


def _absolute(entry: Object, folder: Path) -> Object:
    return {
        name: str(folder.absolute() / value) if name in _FILES else value
        for name, value in (entry or {}).items()
    }


def _token(kube: Kube) -> str:
    """Return the token from the kubeconfig's credential plugin. Raises HarnessError if there is no token."""
    keys = kube.configuration.api_key  # Older versions of the Kubernetes client use the key "authorization".
    header = str(keys.get("BearerToken") or keys.get("authorization") or "")
    if not header.startswith("Bearer "):
        raise HarnessError(
            f"the credential plugin of {kube.kubeconfig} returned no token",
            hint="run `kubectl get nodes` with the same kubeconfig to see the plugin's error",
            cause=CAUSE,
        )
    return header.removeprefix("Bearer ")
