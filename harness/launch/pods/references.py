"""What a pod template names in the cluster: classes, a service account and Secrets to pull images with.

A launch has a namespace of its own. Nothing of the user is in it, except what the launch applies there.
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
"""Field of a pod → what it names, which belongs to no namespace."""


def check(kube: Kube, pod: Object, beside: Iterable[Object]) -> None:
    """Refuse a class that the cluster does not have, and a service account that the launch does not make.

    `beside` are the objects that the launch applies with the pods. Raises UsageError.
    """
    for field, (version, kind) in _CLASSES.items():
        name = pod.get(field)
        if name and (known := _missing(kube, version, kind, str(name))) is not None:
            raise UsageError(
                f"{field} {name}: the cluster has no such {kind}; it has {', '.join(known) or 'none'}"
            )
    account = str(pod.get("serviceAccountName") or "default")
    made = {str(each["metadata"]["name"]) for each in beside if each["kind"] == "ServiceAccount"}
    if account not in made | {"default"}:
        raise UsageError(
            f"serviceAccountName {account}: a launch has a namespace of its own, and `default` is the only "
            "service account there",
            hint="leave the field out, or put the ServiceAccount into the manifest beside the workload",
        )


def pull_secrets(
    kube: Kube, pod: Object, beside: Iterable[Object], namespace: str | None, ours: str | None
) -> list[UserSecret]:
    """Return the Secrets of imagePullSecrets that the launch copies into its namespace.

    They are in `namespace`, or in that of the kubeconfig's context. `ours` is the pull Secret of the
    settings, which the launch copies anyway. Raises UsageError where one does not exist.
    """
    made = {str(each["metadata"]["name"]) for each in beside if each["kind"] == "Secret"}
    named = [str(each["name"]) for each in items(pod, "imagePullSecrets") if each.get("name")]
    wanted = [Wanted(name, namespace) for name in dict.fromkeys(named) if name not in made | {ours}]
    return read(kube, wanted, {}, "imagePullSecrets")


def _missing(kube: Kube, version: str, kind: str, name: str) -> list[str] | None:
    """Return the names of all objects of a kind, where `name` is none of them, or None.

    None also means that this user may not read them.
    """
    try:
        if kube.get(version, kind, name) is not None:
            return None
        return sorted(str(each["metadata"]["name"]) for each in kube.objects(version, kind))
    except ForbiddenError:
        return None
