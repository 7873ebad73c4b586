"""Install JobSet and Kueue in that order, and prove that they serve.

Ready means more than Available (Kueue issues 1649, 2073, 12008): the Deployment is Available at its latest
generation, the EndpointSlices of every webhook Service have a ready endpoint, and a server-side dry-run
create passes through each webhook. JobSet must be Available before Kueue is applied, because Kueue's own
webhooks block pods in every namespace until Kueue serves.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from kubernetes.client.exceptions import ApiException
from tenacity import RetryError, Retrying, retry_if_exception, stop_after_delay, wait_fixed

from harness.core.causes import NOT_READY, CauseId
from harness.core.deadlines import Deadline
from harness.core.errors import HarnessError, WaitError
from harness.core.kubernetes import NOT_SERVED, Kube, Object, condition
from harness.core.progress import Progress
from harness.core.retries import reason_of
from harness.evidence.messages import PULL_REASONS
from harness.provision.controllers.readiness import CONTROLLERS, serves, standing

LOOK_SECONDS = 5.0
"""Seconds between two looks at why a Deployment is not Available.

An image that is missing at two looks is given up.
"""


def install(
    kube: Kube, jobset_manifest: Path, kueue_manifest: Path, progress: Progress, seconds: float = 240
) -> None:
    """Apply both and wait until both serve. Raises WaitError with cause controllers.*_not_ready."""
    manifests = {"jobset": jobset_manifest, "kueue": kueue_manifest}
    for name, namespace in CONTROLLERS.items():
        kube.apply_file(manifests[name])
        wait_available(kube, namespace, seconds, NOT_READY[name])
        progress(f"{name}: Available")
    prove(kube)
    progress("jobset, kueue: a dry-run create passes every webhook")


def wait_available(
    kube: Kube, namespace: str, seconds: float, cause: CauseId, *, endpoints: bool = True
) -> None:
    """Wait until every Deployment of the namespace is Available at its latest generation.

    With `endpoints`, also wait until every EndpointSlice has an endpoint that is ready.
    """

    def available(deployments: dict[str, Object]) -> str | None:
        late = {name: _why_not_available(d) for name, d in deployments.items()}
        late = {name: why for name, why in late.items() if why}
        return None if deployments and not late else f"Deployments not Available: {late or 'none is there'}"

    def filled(slices: dict[str, Object]) -> str | None:
        empty = [name for name, s in slices.items() if not any(serves(e) for e in s.get("endpoints") or [])]
        return (
            None
            if slices and not empty
            else f"EndpointSlices without a ready endpoint: {empty or 'no slice'}"
        )

    deadline, unpulled = Deadline.after(seconds), set[str]()
    while True:
        try:
            kube.wait(
                f"Deployments of {namespace} Available",
                "apps/v1",
                "Deployment",
                available,
                seconds=min(LOOK_SECONDS, deadline.left),
                namespace=namespace,
                cause=cause,
            )
            break
        except WaitError as error:
            before, unpulled = unpulled, set(_waiting(kube, namespace, PULL_REASONS))
            if before and unpulled:
                raise HarnessError(
                    f"a controller cannot get its image: {'; '.join(sorted(unpulled))}",
                    hint="`harness images build`, or the registry that the nodes reach",
                    cause="controllers.image_failed",
                ) from None
            if deadline.passed:
                seen = "; ".join([error.last_seen, *_waiting(kube, namespace)])
                raise WaitError(error.awaited, seen, seconds, cause=cause) from None
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
    """Return why containers of the namespace do not run, e.g. an image that cannot be pulled.

    Only `reasons` count.
    """
    found = []
    for pod in kube.objects("v1", "Pod", namespace):
        for status in pod["status"].get("containerStatuses") or []:
            waiting = (status.get("state") or {}).get("waiting")
            if waiting and (not reasons or waiting.get("reason") in reasons):
                said = f"{waiting.get('reason')}: {waiting.get('message', '')}".rstrip(": ")
                found.append(f"{pod['metadata']['name']} ({status['image']}) {said}")
    return found


def _why_not_available(deployment: Object) -> str:
    status = deployment.get("status") or {}
    if status.get("observedGeneration", 0) < deployment["metadata"].get("generation", 1):
        return "the latest generation is not observed"
    wanted, updated = deployment.get("spec", {}).get("replicas", 1), status.get("updatedReplicas", 0)
    if updated < wanted or status.get("replicas", 0) > updated:
        old = status.get("replicas", 0) - updated
        return f"{updated} of {wanted} pods are of the latest generation, {old} of an older one still run"
    available = condition(deployment, "Available")
    if not available:
        return "no Available condition yet"
    return "" if available["status"] == "True" else str(available.get("message", "not Available"))


def renew(kube: Kube, started: datetime) -> None:
    """Delete the controllers' pods that are older than `started`, when their nodes were started.

    Such a pod comes up before the API server answers. It then waits for a minute and longer, in
    CrashLoopBackOff or inside Kueue. A new pod serves within seconds.
    """
    for namespace in CONTROLLERS.values():
        for pod in kube.objects("v1", "Pod", namespace):
            if datetime.fromisoformat(pod["metadata"]["creationTimestamp"]) < started:
                kube.delete("v1", "Pod", pod["metadata"]["name"], namespace)


def prove_again(kube: Kube, seconds: float = 60) -> None:
    """Prove that controllers which served before still do.

    Raises HarnessError with cause controllers.*, at once for what cannot come back by itself.
    """
    standing(kube)
    for name, namespace in CONTROLLERS.items():
        wait_available(kube, namespace, seconds, NOT_READY[name], endpoints=False)
    prove(kube, seconds)


def prove(kube: Kube, seconds: float = 60) -> None:
    """Send a dry-run create through each webhook. It is retried, because a webhook cannot be watched.

    Raises WaitError naming the probe and the API server's last answer.
    """
    for probe in _probes():
        try:
            for attempt in Retrying(
                stop=stop_after_delay(seconds),
                wait=wait_fixed(0.25),
                retry=retry_if_exception(_webhook_not_serving),
            ):
                with attempt:
                    kube.apply(probe, dry_run=True)
        except RetryError as error:
            seen = error.last_attempt.exception()
            raise WaitError(
                f"a dry-run create of a {probe['kind']} to pass its webhooks",
                reason_of(seen) if isinstance(seen, ApiException) else str(seen),
                seconds,
                cause="controllers.webhook_not_serving",
            ) from None


def _webhook_not_serving(error: BaseException) -> bool:
    """Return whether a webhook does not serve yet: 500 for unreachable, 404 for a kind not yet discovered."""
    if isinstance(error, NOT_SERVED):
        return True
    return isinstance(error, ApiException) and error.status in (404, 500, 503)


def _probes() -> list[Object]:
    """Return one object per webhook. None is ever created."""
    pod = {"restartPolicy": "Never", "containers": [{"name": "probe", "image": "probe:none"}]}
    job = {"backoffLimit": 0, "template": {"spec": pod}}
    jobset = {"replicatedJobs": [{"name": "workers", "replicas": 1, "template": {"spec": job}}]}
    return [
        _probe("jobset.x-k8s.io/v1alpha2", "JobSet", jobset),
        _probe("batch/v1", "Job", job),
        _probe("v1", "Pod", pod),
        _probe("kueue.x-k8s.io/v1beta2", "ResourceFlavor", {}, namespaced=False),
        _probe("kueue.x-k8s.io/v1beta2", "ClusterQueue", {"namespaceSelector": {}}, namespaced=False),
        _probe("kueue.x-k8s.io/v1beta2", "LocalQueue", {"clusterQueue": "probe"}),
    ]


def _probe(api_version: str, kind: str, spec: Object, *, namespaced: bool = True) -> Object:
    metadata = {"name": "harness-webhook-probe", **({"namespace": "default"} if namespaced else {})}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}
