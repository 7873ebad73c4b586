"""The Pod Security Standard of a launch's namespace, and whether the workload's pods pass it.

The namespace gets the label of the setting `pod_security`. Without this setting, it gets the label
"restricted" if all pods of the launch are the harness's own and pass that standard. Otherwise it gets no
label, because a weaker label would override the default of the user's cluster.
"""

from __future__ import annotations

import copy

from harness.core import pod_security
from harness.core.errors import HarnessError, UsageError
from harness.core.kubernetes import Kube, Object
from harness.core.pod_security import ENFORCE
from harness.evidence.kubernetes import refusals
from harness.launch.workloads.base import Workload
from harness.provision import pod_rules
from harness.settings import Settings


def check(workload: Workload, settings: Settings) -> None:
    """Raise UsageError if the setting `pod_security` is a standard that rejects the launcher's pods."""
    if workload.pod_standard == "privileged" and settings.pod_security in ("baseline", "restricted"):
        raise UsageError(_unsuitable(settings.pod_security), hint=pod_rules.ALLOW)


def labels(workload: Workload, settings: Settings) -> dict[str, str]:
    """Return the Pod Security labels for the launch's namespace."""
    standard = settings.pod_security
    if standard is None and settings.pod is None and workload.pod_standard == "restricted":
        standard = "restricted"
    return {ENFORCE: standard} if standard else {}


def rejects_root(kube: Kube, workload: Workload, namespace: Object, image: str, *, dry_run: bool) -> bool:
    """Return whether the launch's new namespace rejects pods that run as root.

    With `dry_run`, a dry run of a pod also finds the default standard and other rules of the cluster. Raises
    HarnessError (cause launch.pods_refused) if the pods that the workload's launcher creates are rejected.
    """
    name = str(namespace["metadata"]["name"])
    enforced = (namespace["metadata"].get("labels") or {}).get(ENFORCE)
    if workload.pod_standard == "privileged":
        if enforced in ("baseline", "restricted"):
            raise HarnessError(_unsuitable(enforced), hint=pod_rules.ALLOW, cause="launch.pods_refused")
        if dry_run and (message := _refused(kube, name, _with_image(workload.pod_spec, image))):
            text = f"the API server refuses the pods that {workload.launcher} creates: {message}"
            raise HarnessError(text, hint=pod_rules.hint_for(message), cause="launch.pods_refused")
        return False
    if enforced is not None or workload.pod_standard != "baseline" or not dry_run:
        return enforced == "restricted"
    as_root, as_user = (_pod(image, root=root) for root in (True, False))
    return _refused(kube, name, as_root) is not None and _refused(kube, name, as_user) is None


def _refused(kube: Kube, namespace: str, spec: Object) -> str | None:
    """Return the message with which a rule of the cluster rejects a pod, or None.

    A rejection by access control (RBAC) does not count, because controllers create the pods of a launch.
    """
    message = pod_rules.refused(kube, namespace, spec)
    return message if message and refusals.rule_of(message) else None


def _pod(image: str, *, root: bool) -> Object:
    spec: Object = {"restartPolicy": "Never", "containers": [{"name": "rank", "image": image}]}
    pod_security.harden(spec, root=root)
    return spec


def _unsuitable(standard: str) -> str:
    return (
        f"a namespace that enforces the Pod Security Standard {standard} rejects the pods of a konduktor "
        "job, because konduktor adds the capability IPC_LOCK and its script needs root"
    )


def _with_image(spec: Object, image: str) -> Object:
    changed = copy.deepcopy(spec)
    changed["containers"][0]["image"] = image
    return changed
