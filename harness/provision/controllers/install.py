"""Install JobSet and Kueue, and check that they respond to webhook requests.

A controller can be Available although its webhooks do not respond (Kueue issues 1649, 2073, 12008). Therefore
a controller counts as ready only if its Deployment is Available at the latest generation, the EndpointSlices
of every webhook Service have a ready endpoint, and each webhook accepts a dry-run create request.

Until Kueue is ready, its webhooks block pods in every namespace. For this reason, the webhooks are applied
only after the controllers' pods exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import cache, partial
from pathlib import Path

import yaml
from kubernetes.client.exceptions import ApiException

from harness.core.causes import NOT_READY, CauseId
from harness.core.concurrency import run_all
from harness.core.errors import HarnessError
from harness.core.kubernetes import NOT_SERVED, Kube, Object
from harness.core.progress import Progress
from harness.provision.controllers.ca_bundle import SECRET, trusting
from harness.provision.controllers.deployments import wait_available
from harness.provision.controllers.fast_start import DEFINITION, DEPLOYMENT
from harness.provision.controllers.readiness import CONTROLLERS, check_controllers, checks
from harness.provision.controllers.webhooks import check_serving, probes

NAMESPACE = "Namespace"
WEBHOOKS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
SERVED = (*WEBHOOKS, "APIService")
"""The kinds of objects that make the API server call a controller. Such calls fail or hang until the
controller is ready."""
ONCE_SECONDS = 1.0
"""The timeout, in seconds, of a check that reads each Deployment only once instead of waiting for it."""
Change = Callable[[Object], Object]
"""A function that takes an object from a manifest and returns the object to apply."""


def _as_published(document: Object) -> Object:
    return document


def install(kube: Kube, manifests: Sequence[Path], progress: Progress, seconds: float = 240) -> None:
    """Apply both published manifests, and wait until both controllers are ready.

    Raises WaitError (cause controllers.*_not_ready).
    """
    prepare(kube, manifests)
    deploy(kube, manifests)
    complete(kube, manifests, progress, seconds)


def prepare(kube: Kube, manifests: Sequence[Path], change: Change = _as_published) -> None:
    """Apply the certificates, then all objects that `deploy` and `complete` do not apply.

    `change` is called with each object, and returns the object to apply.
    """
    for document in _documents(manifests):
        if document["kind"] == NAMESPACE:
            kube.apply(document)
    authorities = _authorities(kube, manifests)
    for document in _documents(manifests):
        if document["kind"] not in (NAMESPACE, DEPLOYMENT, *SERVED) and not _is_certificate(document):
            kube.apply(trusting(change(document), authorities))


def deploy(kube: Kube, manifests: Sequence[Path], change: Change = _as_published) -> None:
    """Apply the controllers' Deployments.

    Call this after `prepare`. The pods must be able to reach the API server as soon as they start. Otherwise
    Kueue hangs until the kubelet kills it after a minute.
    """
    for document in _documents(manifests):
        if document["kind"] == DEPLOYMENT:
            kube.apply(change(document))


def complete(kube: Kube, manifests: Sequence[Path], progress: Progress, seconds: float = 240) -> None:
    """Apply the objects that need running controllers, and wait until the controllers are ready.

    Raises the same errors as `install`.
    """
    for name, namespace in CONTROLLERS.items():
        _wait_created(kube, namespace, seconds, NOT_READY[name])
    authorities = _authorities(kube, manifests)
    for document in deferred(manifests):
        kube.apply(trusting(document, authorities))
    for name, namespace in CONTROLLERS.items():
        wait_available(kube, namespace, seconds, NOT_READY[name])
        progress(f"{name}: Available")
    check_serving(kube)
    progress("jobset, kueue: all webhooks respond to dry-run requests")


def deferred(manifests: Sequence[Path]) -> Iterator[Object]:
    """Yield the objects that need running controllers. They are applied once the controllers' pods exist."""
    return (document for document in _documents(manifests) if document["kind"] in SERVED)


def certify(kube: Kube, manifests: Sequence[Path]) -> None:
    """Create the Secrets with the webhooks' certificates, in a cluster that already has all other objects."""
    _authorities(kube, manifests)


def entrust(kube: Kube, manifests: Sequence[Path], change: Change) -> None:
    """Write this cluster's webhook certificate authority into the CRDs that the cluster copied from its
    template."""
    authorities = _authorities(kube, manifests)
    for document in _documents(manifests):
        if document["kind"] == DEFINITION and document["spec"].get("conversion", {}).get("webhook"):
            kube.apply(trusting(change(document), authorities))


def _documents(manifests: Iterable[Path]) -> Iterator[Object]:
    return (document for path in manifests for document in _parsed(path))


@cache
def _parsed(path: Path) -> tuple[Object, ...]:
    """Return the objects in a file. The result is cached, because Kueue's CRDs are 1.6 MB in size."""
    return tuple(filter(None, yaml.load_all(path.read_text(), yaml.CSafeLoader)))


def _is_certificate(document: Object) -> bool:
    return document["kind"] == "Secret" and bool(document["metadata"]["name"].endswith(SECRET))


def _authorities(kube: Kube, manifests: Iterable[Path]) -> dict[str, str]:
    """Return the certificate authority of each controller's webhooks, keyed by namespace.

    If a Secret is missing or empty, new certificates are stored in it. A Secret that already contains
    certificates is not changed, because a controller may have created or renewed them.
    """
    authorities = {}
    for document in filter(_is_certificate, _documents(manifests)):
        metadata = document["metadata"]
        secret = kube.get("v1", "Secret", metadata["name"], metadata["namespace"])
        if secret is None or not secret.get("data"):
            # Imported here, because the import is slow and is needed only if certificates are missing.
            from harness.provision.controllers.certificates import issued

            secret = issued(document)
            kube.apply(secret)
        authorities[metadata["namespace"]] = secret["data"]["ca.crt"]
    return authorities


def _wait_created(kube: Kube, namespace: str, seconds: float, cause: CauseId) -> None:
    """Wait until each Deployment in the namespace has created its pods."""

    def created(deployments: dict[str, Object]) -> str | None:
        missing = [name for name, d in deployments.items() if not (d.get("status") or {}).get("replicas")]
        return (
            None
            if deployments and not missing
            else f"Deployments without a pod: {missing or 'there is no Deployment'}"
        )

    kube.wait(
        f"pods for the Deployments in {namespace}",
        "apps/v1",
        "Deployment",
        created,
        seconds=seconds,
        namespace=namespace,
        cause=cause,
    )


def renew(kube: Kube, started_at: datetime) -> None:
    """Delete the controllers' pods that were created before `started_at`, the time when the nodes were
    started.

    When its node is started again, an older pod exits because the API server does not respond yet. It then
    needs a minute or longer to become ready, because the kubelet backs off or because Kueue itself waits. A
    new pod is ready within seconds.
    """
    for namespace in CONTROLLERS.values():
        for pod in kube.objects("v1", "Pod", namespace):
            if datetime.fromisoformat(pod["metadata"]["creationTimestamp"]) < started_at:
                kube.delete("v1", "Pod", pod["metadata"]["name"], namespace)


def recheck_serving(kube: Kube, seconds: float = 60) -> None:
    """Check that controllers that were ready earlier are still ready, and wait for them if necessary.

    Raises HarnessError (cause controllers.*) immediately if waiting cannot help.
    """
    if _serve_now(kube):
        return
    check_controllers(kube)
    for name, namespace in CONTROLLERS.items():
        wait_available(kube, namespace, seconds, NOT_READY[name], endpoints=False)
    check_serving(kube, seconds)


def _serve_now(kube: Kube) -> bool:
    """Return whether both controllers are ready at this moment.

    Their APIs, Deployments and webhooks are each checked once, without waiting.
    """
    tests: list[Callable[[], object]] = [*checks(kube), *probes(kube)]
    for name, namespace in CONTROLLERS.items():
        tests.append(partial(wait_available, kube, namespace, ONCE_SECONDS, NOT_READY[name], endpoints=False))
    try:
        run_all(tests)
    except (HarnessError, ApiException, NOT_SERVED):
        return False  # The caller then waits for the controllers and reports failures.
    return True
