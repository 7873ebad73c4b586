"""Check the objects that a pod template refers to: classes, a service account and image pull Secrets.

A launch has its own namespace, which contains only objects that the launch applies.
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
"""API version and kind of the cluster-scoped object that a field of a pod names, by field."""


def check(kube: Kube, pod: Object, beside: Iterable[Object]) -> None:
    """Raise UsageError for a class that the cluster lacks, or an account that the launch does not create.

    `beside` are the objects that the launch applies with the pods.
    """
    for field, (version, kind) in _CLASSES.items():
        name = pod.get(field)
        if name and (known := _missing(kube, version, kind, str(name))) is not None:
            raise UsageError(
                f"{field} {name}: the cluster has no such {kind}; it has {', '.join(known) or 'none'}"
            )
    account = str(pod.get("serviceAccountName") or "default")
    accounts = {str(each["metadata"]["name"]) for each in beside if each["kind"] == "ServiceAccount"}
    if account not in accounts | {"default"}:
        raise UsageError(
            f"serviceAccountName {account}: a launch has its own namespace, whose only service account is "
            "`default`",
            hint="leave the field out, or put the ServiceAccount into the manifest beside the workload",
        )


def pull_secrets(
    kube: Kube, pod: Object, beside: Iterable[Object], namespace: str | None, ours: str | None
) -> list[UserSecret]:
    """Return the Secrets of imagePullSecrets that the launch copies into its namespace.

    They are read from `namespace`, by default that of the kubeconfig's context. `ours` is the pull Secret of
    the settings, which the launch copies anyway. Raises UsageError if a Secret does not exist.
    """
    made = {str(each["metadata"]["name"]) for each in beside if each["kind"] == "Secret"}
    named = [str(each["name"]) for each in items(pod, "imagePullSecrets") if each.get("name")]
    wanted = [Wanted(name, namespace) for name in dict.fromkeys(named) if name not in made | {ours}]
    return read(kube, wanted, {}, "imagePullSecrets")


def _missing(kube: Kube, version: str, kind: str, name: str) -> list[str] | None:
    """Return the names of all objects of a kind if `name` is not one of them.

    Return None if the object exists or this user may not read the kind.
    """
    try:
        if kube.get(version, kind, name) is not None:
            return None
        return sorted(str(each["metadata"]["name"]) for each in kube.objects(version, kind))
    except ForbiddenError:
        return None
