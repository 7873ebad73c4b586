"""Find pods that still exist long after the end of their grace period.

A controller that waits for such a pod creates no replacement (jobset#576). The kubelet of a lost node cannot
stop a pod, and a process that hangs in the kernel or in a driver does not end. Finalizers can also delay the
deletion of a pod that has ended.
"""

from __future__ import annotations

from harness.core.clock import seconds
from harness.evidence.kubernetes.objects import mapping
from harness.judge.case import Case
from harness.judge.cluster import start_events

LATE_SECONDS = 30.0
"""A pod is overdue if it exists for more than this many seconds after its grace period."""
MAX_PODS = 2
"""Maximum number of pods that a finding names."""


def overdue(case: Case) -> list[str]:
    """Return a sentence for each of the first MAX_PODS pods that are still terminating, oldest first."""
    until = case.waited_until
    sentences: list[tuple[float, str]] = []
    for index, pod in case.pods.items():
        limit = seconds(mapping(pod.last.object, "metadata").get("deletionTimestamp"))
        if until is None or limit is None or pod.last.type == "DELETED" or until - limit <= LATE_SECONDS:
            continue
        metadata, status = (mapping(pod.last.object, part) for part in ("metadata", "status"))
        text = f"pod {pod.name} on node {pod.node} still exists {until - limit:.0f} s after its grace period"
        event = start_events.last(case, index)
        reason = f" ({event.text})" if event and event.is_warning else ""
        advice = "check the kubelet on the node"
        if metadata.get("finalizers") and status.get("phase") in ("Failed", "Succeeded"):
            names = ", ".join(map(str, metadata["finalizers"]))
            advice = f"its containers have ended, but no controller has removed its finalizers ({names})"
        sentences.append(
            (limit, f"{text}{reason}, and the pod's controller waits until it is gone: {advice}")
        )
    return [text for _, text in sorted(sentences)[:MAX_PODS]]
