"""Check that JobSet's and Kueue's webhooks respond, by sending a server-side dry-run request through each
webhook."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kubernetes.client.exceptions import ApiException
from tenacity import RetryError, Retrying, retry_if_exception, stop_after_delay, wait_fixed

from harness.core import pod_security
from harness.core.errors import WaitError
from harness.core.kubernetes import NOT_SERVED, Kube, Object
from harness.core.kubernetes_retries import reason_of


def check_serving(kube: Kube, seconds: float = 60) -> None:
    """Send a dry-run create request through each webhook, and retry until all requests succeed.

    Readiness is polled, because a webhook cannot be watched. Raises WaitError with the failed probe and the
    API server's last response.
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
            last_error = error.last_attempt.exception()
            raise WaitError(
                f"the webhooks to accept a dry-run request for a {probe['kind']}",
                reason_of(last_error) if isinstance(last_error, ApiException) else str(last_error),
                seconds,
                cause="controllers.webhook_not_serving",
            ) from None


def probes(kube: Kube) -> list[Callable[[], Object]]:
    """Return one function per webhook. Each function sends a dry-run create request and raises an error if
    that fails."""
    return [partial(kube.apply, probe, dry_run=True) for probe in _probes()]


def _webhook_not_serving(error: BaseException) -> bool:
    """Return whether an error means that a webhook is not ready yet.

    The status is 500 if the webhook is unreachable, and 404 if the API server does not know the kind yet.
    """
    if isinstance(error, NOT_SERVED):
        return True
    return isinstance(error, ApiException) and error.status in (404, 500, 503)


def _probes() -> list[Object]:
    """Return one object per webhook, for dry runs. The objects are never created."""
    pod: Object = {"restartPolicy": "Never", "containers": [{"name": "probe", "image": "probe:none"}]}
    pod_security.harden(pod)  # The namespace might enforce a Pod Security Standard.
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
