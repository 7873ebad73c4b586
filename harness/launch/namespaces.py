"""Namespaces of launches on one cluster: which are in use, which killed harnesses left, which may be deleted.

A launch holds a lock on <state>/clusters/<cluster>/launches/<nonce> for as long as it needs its namespace.
The kernel releases the lock also when the harness is killed, so a namespace without a holder is left over.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from harness.core.beside import together
from harness.core.errors import WaitError
from harness.core.kubernetes import NOT_SERVED, Kube, Object, condition
from harness.core.locks import Hold, in_use, take
from harness.core.progress import Progress
from harness.launch.names import NONCE_LABEL
from harness.provision.controllers.queues import MANAGED

LAUNCHED = (
    ("jobset.x-k8s.io/v1alpha2", "JobSet"),
    ("apps/v1", "StatefulSet"),
    ("apps/v1", "DaemonSet"),
    ("batch/v1", "Job"),
)
"""API version and kind of the objects that launches make."""
KEPT = 3
"""How many of the newest namespaces of finished launches stay, for users who want to look at them."""
ENDING_SECONDS = 45
"""Seconds for pods to end. Their grace is 30 s."""


def namespace_of(nonce: str) -> str:
    """Return the namespace of the launch with this nonce."""
    return f"e2e-{nonce}"


class NamespaceLeases:
    """Leases that tell which namespaces of a cluster are in use."""

    def __init__(self, folder: Path, mine_only: bool = False) -> None:
        """Use leases in this folder. With `mine_only`, a namespace that was never leased here is not free.

        Such a namespace belongs to somebody else.
        """
        self._folder = folder
        self._mine_only = mine_only
        self._mine: dict[str, Hold] = {}

    def acquire(self, nonce: str) -> None:
        """Lease a namespace before it is made."""
        self._mine[nonce] = take(self._folder / nonce)

    def release(self, nonce: str) -> None:
        """End the lease. Ending it twice is fine."""
        if (hold := self._mine.pop(nonce, None)) is not None:
            hold.release()
            (self._folder / nonce).unlink(missing_ok=True)

    def forget(self, namespaces: list[Object]) -> None:
        """Remove the leases that killed harnesses left for namespaces that are gone."""
        there = {item["metadata"]["labels"][NONCE_LABEL] for item in namespaces}
        for path in self._folder.glob("*"):
            # A new file is a lease that is just being taken.
            old = time.time() - path.stat().st_mtime > ENDING_SECONDS
            if old and path.name not in there and not in_use(path):
                path.unlink(missing_ok=True)

    def free(self, namespaces: list[Object]) -> list[str]:
        """Return the names of namespaces that nobody uses, oldest first."""
        namespaces = sorted(namespaces, key=lambda item: str(item["metadata"]["creationTimestamp"]))
        return [
            item["metadata"]["name"]
            for item in namespaces
            if self._free(self._folder / item["metadata"]["labels"][NONCE_LABEL])
        ]

    def _free(self, lease: Path) -> bool:
        return not in_use(lease) and (lease.exists() or not self._mine_only)


def sweep(kube: Kube, leases: NamespaceLeases, progress: Progress) -> None:
    """End the jobs of killed harnesses, because they hold quota, and wait until their pods have ended.

    A job that cannot be ended now is reported, and does not stop the launch.
    """
    try:
        free = set(leases.free(of_launches(kube)))
        found = zip(LAUNCHED, together(partial(_open, kube, kind, free) for kind in LAUNCHED), strict=True)
        left = [(kind, item["metadata"]) for kind, items in found for item in items]
        for (api_version, kind), metadata in left:
            name, namespace = metadata["name"], metadata["namespace"]
            progress(f"ending {namespace}/{name}, left by a harness that was killed")
            kube.delete(api_version, kind, name, namespace)
        for namespace in {metadata["namespace"] for _, metadata in left}:
            kube.wait(
                "pods of a job that was left to end",
                "v1",
                "Pod",
                _ended,
                seconds=ENDING_SECONDS,
                namespace=namespace,
            )
    except (ApiException, WaitError) as error:
        progress(f"what killed harnesses left was not all ended: {error}")


def launched(kube: Kube, kind: tuple[str, str]) -> list[Object]:
    """Return all objects of one of the LAUNCHED kinds, without those that another object owns.

    What JobSet made is left out, because it is deleted with its JobSet.
    """
    try:
        found = kube.objects(*kind)
    except NOT_SERVED:
        return []
    return [item for item in found if not item["metadata"].get("ownerReferences")]


def _open(kube: Kube, kind: tuple[str, str], namespaces: set[str]) -> list[Object]:
    """Return launched objects of a kind in these namespaces that have not ended."""
    return [
        item
        for item in launched(kube, kind)
        if item["metadata"]["namespace"] in namespaces
        and not (item.get("status") or {}).get("terminalState")
        and not any(condition(item, ended).get("status") == "True" for ended in ("Complete", "Failed"))
    ]


def prune(kube: Kube, leases: NamespaceLeases) -> None:
    """Delete namespaces of finished launches, all but the newest few, so that a kept cluster stays small.

    One that cannot be deleted now is deleted by a later launch. A silent API server is not waited for.
    """
    if kube.silence(seconds=2) is not None:
        return
    try:
        there = of_launches(kube)
        leases.forget(there)
        for name in leases.free(there)[:-KEPT]:
            kube.delete("v1", "Namespace", name)
    except (ApiException, HTTPError, OSError):
        return


def of_launches(kube: Kube) -> list[Object]:
    """Return the namespaces of launches that are not being deleted."""
    selector = ",".join(f"{key}={value}" for key, value in MANAGED.items())
    found = kube.objects("v1", "Namespace", selector=f"{selector},{NONCE_LABEL}")
    return [item for item in found if not item["metadata"].get("deletionTimestamp")]


def _ended(pods: dict[str, Object]) -> str | None:
    running = [name for name, pod in pods.items() if pod["status"].get("phase") in ("Pending", "Running")]
    return f"still there: {', '.join(running)}" if running else None
