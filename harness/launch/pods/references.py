"""Check the priority class, runtime class, service account and image pull Secrets that a pod template names.

A launch has its own namespace, which contains only the objects that the launch applies.
"""

from __future__ import annotations

from collections.abc import Iterable

from kubernetes.dynamic.exceptions import ForbiddenError

from harness.core.errors import UsageError
from harness.core.kubernetes import Kube, Object
from harness.evidence.kubernetes.objects import items
from harness.launch.user_secrets import UserSecret, Wanted, read

_CLASSES = {
    "priorityClassName": ("scheduling.k8s.io/v1", "PriorityClass"),
    "runtimeClassName": ("node.k8s.io/v1", "RuntimeClass"),
}
"""Maps each pod field that names a cluster-scoped object to the object's API version and kind."""


def check(kube: Kube, pod: Object, other_objects: Iterable[Object]) -> None:
    """Raise UsageError if the pod's priority class or runtime class does not exist, or if the pod's service
    account is neither `default` nor created by the launch.

    `other_objects` contains the other objects that the launch applies.
    """
    for field, (version, kind) in _CLASSES.items():
        name = pod.get(field)
        if name and (existing := _missing(kube, version, kind, str(name))) is not None:
            raise UsageError(
                f"{field} {name}: the cluster has no such {kind}; existing ones: "
                f"{', '.join(existing) or 'none'}"
            )
    account = str(pod.get("serviceAccountName") or "default")
    accounts = {str(each["metadata"]["name"]) for each in other_objects if each["kind"] == "ServiceAccount"}
    if account not in accounts | {"default"}:
        raise UsageError(
            f"serviceAccountName {account}: each launch runs in a new namespace, which has only the service "
            "account `default`",
            hint="omit the field, or add the ServiceAccount to the manifest",
        )


def pull_secrets(
    kube: Kube, pod: Object, other_objects: Iterable[Object], namespace: str | None, own_secret: str | None
) -> list[UserSecret]:
    """Return the Secrets in imagePullSecrets, so that the launch can copy them into its namespace.

    They are read from `namespace`, by default the namespace of the kubeconfig's context. `own_secret`, the
    pull Secret from the settings, is omitted, because every launch copies it. Raises UsageError if a Secret
    is missing.
    """
    created_names = {str(each["metadata"]["name"]) for each in other_objects if each["kind"] == "Secret"}
    names = [str(each["name"]) for each in items(pod, "imagePullSecrets") if each.get("name")]
    requests = [
        Wanted(name, namespace) for name in dict.fromkeys(names) if name not in created_names | {own_secret}
    ]
    return read(kube, requests, {}, "imagePullSecrets")


def _missing(kube: Kube, version: str, kind: str, name: str) -> list[str] | None:
    """Return the names of all objects of a kind if none of them has the name `name`.

    Return None if the object exists, or if this user is not permitted to read the kind.
    """
    try:
        if kube.get(version, kind, name) is not None:
            return None
        return sorted(str(each["metadata"]["name"]) for each in kube.objects(version, kind))
    except ForbiddenError:
        return None
