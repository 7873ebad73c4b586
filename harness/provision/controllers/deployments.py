"""Wait until the Deployments in a namespace are Available. If they are not, report the reason."""

from __future__ import annotations

from harness.core.causes import CauseId
from harness.core.deadlines import Deadline
from harness.core.errors import HarnessError, WaitError
from harness.core.kubernetes import Kube, Object, condition
from harness.evidence.kubernetes.waiting_reasons import PULL_REASONS
from harness.provision.controllers.readiness import serves

POLL_SECONDS = 5.0
"""The interval, in seconds, at which the harness checks why Deployments are not Available yet. If two
successive checks find failed image pulls, the wait ends with an error.
"""


def wait_available(
    kube: Kube, namespace: str, seconds: float, cause: CauseId, *, endpoints: bool = True
) -> None:
    """Wait until every Deployment in the namespace is Available at its latest generation.

    With `endpoints`, also wait until every EndpointSlice has a ready endpoint.
    """

    def available(deployments: dict[str, Object]) -> str | None:
        unavailable = {name: _why_not_available(d) for name, d in deployments.items()}
        unavailable = {name: reason for name, reason in unavailable.items() if reason}
        return (
            None
            if deployments and not unavailable
            else f"Deployments that are not Available: {unavailable or 'there is no Deployment'}"
        )

    def filled(slices: dict[str, Object]) -> str | None:
        empty = [name for name, s in slices.items() if not any(serves(e) for e in s.get("endpoints") or [])]
        return (
            None
            if slices and not empty
            else f"EndpointSlices without a ready endpoint: {empty or 'there is no EndpointSlice'}"
        )

    deadline, unpulled = Deadline.after(seconds), set[str]()
    while True:
        try:
            kube.wait(
                f"Deployments in {namespace} to become Available",
                "apps/v1",
                "Deployment",
                available,
                seconds=min(POLL_SECONDS, deadline.remaining),
                namespace=namespace,
                cause=cause,
            )
            break
        except WaitError as error:
            before, unpulled = unpulled, set(_waiting(kube, namespace, PULL_REASONS))
            if before and unpulled:
                raise HarnessError(
                    f"the nodes cannot pull a controller's image: {'; '.join(sorted(unpulled))}",
                    hint="run `harness images build`, or check the registry that the nodes use",
                    cause="controllers.image_failed",
                ) from None
            if deadline.passed:
                problems = "; ".join([error.last_seen, *_waiting(kube, namespace)])
                raise WaitError(error.awaited, problems, seconds, cause=cause) from None
    if not endpoints:
        return
    kube.wait(
        f"endpoints in {namespace}",
        "discovery.k8s.io/v1",
        "EndpointSlice",
        filled,
        seconds=seconds,
        namespace=namespace,
        cause=cause,
    )


def _waiting(kube: Kube, namespace: str, reasons: tuple[str, ...] = ()) -> list[str]:
    """Return a message for each waiting container in the namespace, with its pod, image and reason.

    If `reasons` is given, containers that are waiting for other reasons are omitted.
    """
    waiting_pods = []
    for pod in kube.objects("v1", "Pod", namespace):
        for status in pod["status"].get("containerStatuses") or []:
            waiting = (status.get("state") or {}).get("waiting")
            if waiting and (not reasons or waiting.get("reason") in reasons):
                text = f"{waiting.get('reason')}: {waiting.get('message', '')}".rstrip(": ")
                waiting_pods.append(f"{pod['metadata']['name']} ({status['image']}) {text}")
    return waiting_pods


def _why_not_available(deployment: Object) -> str:
    status = deployment.get("status") or {}
    if status.get("observedGeneration", 0) < deployment["metadata"].get("generation", 1):
        return "the Deployment controller has not observed the latest generation yet"
    desired, updated = deployment.get("spec", {}).get("replicas", 1), status.get("updatedReplicas", 0)
    if updated < desired or status.get("replicas", 0) > updated:
        outdated = status.get("replicas", 0) - updated
        return f"{updated} of {desired} pods are up to date; outdated pods: {outdated}"
    available = condition(deployment, "Available")
    if not available:
        return "no Available condition yet"
    return "" if available["status"] == "True" else str(available.get("message", "not Available"))
