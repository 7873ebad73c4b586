"""Determine which of a cluster's launch namespaces are in use, and which can be deleted.

A launch locks <state>/clusters/<cluster>/launches/<nonce> while it uses its namespace. The kernel releases
the lock even if the harness is killed, so a namespace whose file is missing or not locked is a leftover.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from harness.core.concurrency import run_all
from harness.core.errors import WaitError
from harness.core.kubernetes import NOT_SERVED, Kube, Object, condition
from harness.core.locks import LockHandle, acquire, in_use
from harness.core.progress import Progress
from harness.launch.labels import NONCE_LABEL
from harness.provision.controllers.queues import MANAGED

LAUNCHED = (
    ("jobset.x-k8s.io/v1alpha2", "JobSet"),
    ("apps/v1", "StatefulSet"),
    ("apps/v1", "DaemonSet"),
    ("batch/v1", "Job"),
)
"""The API versions and kinds of the workload objects that launches create."""
KEPT = 3
"""The number of finished launches, starting with the newest, whose namespaces are kept for inspection."""
ENDING_SECONDS = 45
"""The timeout in seconds for pods to terminate. Their grace period is 30 s."""


def namespace_of(nonce: str) -> str:
    """Return the namespace for the launch with this nonce."""
    return f"e2e-{nonce}"


class NamespaceLeases:
    """Manages the leases on a cluster's launch namespaces. A namespace with a lease is in use."""

    def __init__(self, folder: Path, mine_only: bool = False) -> None:
        """Use the leases in `folder`.

        If `mine_only` is true, a namespace that never had a lease in this folder counts as another user's
        namespace and is therefore never free.
        """
        self._folder = folder
        self._mine_only = mine_only
        self._own_leases: dict[str, LockHandle] = {}

    def acquire(self, nonce: str) -> None:
        """Acquire the lease on a namespace, before the namespace is created."""
        self._own_leases[nonce] = acquire(self._folder / nonce)

    def release(self, nonce: str) -> None:
        """Release the lease. A second call has no effect."""
        if (handle := self._own_leases.pop(nonce, None)) is not None:
            handle.release()
            (self._folder / nonce).unlink(missing_ok=True)

    def forget(self, namespaces: list[Object]) -> None:
        """Remove the lease files that killed harnesses left, if their namespaces no longer exist."""
        nonces = {item["metadata"]["labels"][NONCE_LABEL] for item in namespaces}
        for path in self._folder.glob("*"):
            # A new file may belong to a lease that is being acquired.
            is_old = time.time() - path.stat().st_mtime > ENDING_SECONDS
            if is_old and path.name not in nonces and not in_use(path):
                path.unlink(missing_ok=True)

    def free(self, namespaces: list[Object]) -> list[str]:
        """Return the names of namespaces that no launch uses, oldest first."""
        namespaces = sorted(namespaces, key=lambda item: str(item["metadata"]["creationTimestamp"]))
        return [
            item["metadata"]["name"]
            for item in namespaces
            if self._free(self._folder / item["metadata"]["labels"][NONCE_LABEL])
        ]

    def _free(self, lease: Path) -> bool:
        return not in_use(lease) and (lease.exists() or not self._mine_only)


def sweep(kube: Kube, leases: NamespaceLeases, progress: Progress) -> None:
    """Delete the jobs that killed harnesses left behind, because the jobs use quota, and wait until their
    pods have terminated.

    If this fails, the error is reported and the launch continues.
    """
    try:
        free = set(leases.free(of_launches(kube)))
        by_kind = zip(LAUNCHED, run_all(partial(_open, kube, kind, free) for kind in LAUNCHED), strict=True)
        leftovers = [(kind, item["metadata"]) for kind, items in by_kind for item in items]
        for (api_version, kind), metadata in leftovers:
            name, namespace = metadata["name"], metadata["namespace"]
            progress(f"deleting job {namespace}/{name}, which a killed harness left behind")
            kube.delete(api_version, kind, name, namespace)
        for namespace in {metadata["namespace"] for _, metadata in leftovers}:
            kube.wait(
                "the pods of a leftover job to terminate",
                "v1",
                "Pod",
                _unfinished,
                seconds=ENDING_SECONDS,
                namespace=namespace,
            )
    except (ApiException, WaitError) as error:
        progress(f"some jobs left behind by killed harnesses could not be deleted: {error}")


def launched(kube: Kube, kind: tuple[str, str]) -> list[Object]:
    """Return all objects of one of the kinds in LAUNCHED, except for objects with an owner.

    An object that a JobSet owns is left out, because it is deleted with the JobSet.
    """
    try:
        items = kube.objects(*kind)
    except NOT_SERVED:
        return []
    return [item for item in items if not item["metadata"].get("ownerReferences")]


def _open(kube: Kube, kind: tuple[str, str], namespaces: set[str]) -> list[Object]:
    """Return the launched objects of one kind in the given namespaces that have not finished yet."""
    return [
        item
        for item in launched(kube, kind)
        if item["metadata"]["namespace"] in namespaces
        and not (item.get("status") or {}).get("terminalState")
        and not any(
            condition(item, condition_type).get("status") == "True"
            for condition_type in ("Complete", "Failed")
        )
    ]


def prune(kube: Kube, leases: NamespaceLeases) -> None:
    """Delete the namespaces of finished launches except for the KEPT newest.

    If the API server does not respond or a request fails, a later launch deletes the namespaces.
    """
    if kube.silence(seconds=2) is not None:
        return
    try:
        namespaces = of_launches(kube)
        leases.forget(namespaces)
        for name in leases.free(namespaces)[:-KEPT]:
            kube.delete("v1", "Namespace", name)
    except (ApiException, HTTPError, OSError):
        return


def of_launches(kube: Kube) -> list[Object]:
    """Return the launch namespaces that are not being deleted."""
    selector = ",".join(f"{key}={value}" for key, value in MANAGED.items())
    items = kube.objects("v1", "Namespace", selector=f"{selector},{NONCE_LABEL}")
    return [item for item in items if not item["metadata"].get("deletionTimestamp")]


def _unfinished(pods: dict[str, Object]) -> str | None:
    running = [name for name, pod in pods.items() if pod["status"].get("phase") in ("Pending", "Running")]
    return f"still there: {', '.join(running)}" if running else None
