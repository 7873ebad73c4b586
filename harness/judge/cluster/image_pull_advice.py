"""Explain why an attached job's image cannot be pulled if the container's status gives no reason."""

from __future__ import annotations

from harness.evidence.kubernetes.objects import container_of, mapping
from harness.judge.case import Case

LOGIN = (
    "name a Secret with the registry's credentials in imagePullSecrets of the pod template, or correct the "
    "image name"
)
DELETE = "delete pod {pod}: its StatefulSet then recreates the pod from the current template"
_NOT_RETRIEVED = "FailedToRetrieveImagePullSecret"
"""Reason of an Event about missing pull Secrets. The kubelet then pulls the image without credentials."""


def secrets(case: Case, index: int) -> list[str]:
    """Return a one-item list that quotes the Event about a pod's missing imagePullSecrets, or []."""
    uid = case.pods[index].last.uid
    messages = [
        str(event.object.get("message") or "").rstrip(".")
        for event in case.bundle.last("event").values()
        if event.object.get("reason") == _NOT_RETRIEVED
        and mapping(event.object, "involvedObject").get("uid") == uid
    ]
    return [f"an Event reports this: {messages[-1]}"] if messages and case.launch.attached else []


def outdated(case: Case, index: int) -> str:
    """Return a clause about a StatefulSet whose template has another image than the pod, or "".

    With OrderedReady, the controller does not replace a pod until the pod is Ready
    (kubernetes/kubernetes#67250).
    """
    launched = case.jobset
    if not case.launch.attached or case.launch.kind != "StatefulSet" or launched is None:
        return ""
    if mapping(launched.object, "spec").get("podManagementPolicy") == "Parallel":
        return ""
    name = case.launch.container
    pod = case.pods[index].last
    specs = (mapping(launched.object, "spec", "template", "spec"), mapping(pod.object, "spec"))
    new, old = (container_of(spec, name).get("image") for spec in specs)
    if new is None or old is None or new == old:
        return ""
    return (
        f"the StatefulSet's template now has image {new}, but the controller does not replace the pod until "
        "the pod is Ready"
    )
