"""Leader election with a Lease, so that only one controller acts at a time.

Correctness does not depend on the Lease, because every write is safe to repeat (executor.py).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic.exceptions import DynamicApiError
from urllib3.exceptions import HTTPError

from harness.core.kubernetes import Kube, Object
from harness.core.kubernetes_retries import reason_of

log = logging.getLogger(__name__)
API = "coordination.k8s.io/v1"
LEASE_SECONDS, RENEW_SECONDS, RETRY_SECONDS = 15, 10, 2
"""The lease duration, the renew deadline and the retry period in seconds. The values are client-go's
defaults.
"""


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass
class Lease:
    """A Lease that `identity` acquires and renews.

    The clocks of two machines may differ. This process therefore considers another holder's Lease expired if
    it has observed no change to the Lease for the lease duration.
    """

    kube: Kube
    namespace: str
    name: str
    identity: str
    monotonic: Callable[[], float] = time.monotonic
    on_attempt: Callable[[bool], None] = lambda _: None
    """A function that is called after each attempt to acquire or renew the Lease. Its argument is True if the
    API server responded."""
    _observed: tuple[str, float] = field(default=("", 0.0), init=False)

    def acquire(self, stop: threading.Event) -> bool:
        """Wait until this process holds the Lease. Return False if `stop` is set first."""
        while not stop.is_set():
            if self.try_acquire():
                log.info("%s leads", self.identity)
                return True
            stop.wait(RETRY_SECONDS)
        return False

    def renew(self, stop: threading.Event) -> None:
        """Renew the Lease until `stop` is set or the Lease is lost.

        After that, the caller must not write to the cluster.
        """
        last = self.monotonic()
        while not stop.wait(RETRY_SECONDS):
            if self.try_acquire():
                last = self.monotonic()
            elif self.monotonic() - last > RENEW_SECONDS:
                log.error("%s has lost the Lease %s", self.identity, self.name)
                return
        self.release()

    def try_acquire(self) -> bool:
        """Acquire or renew the Lease. Return whether this process holds it, or False after an API error."""
        try:
            is_holder = self._acquire()
        except (ApiException, DynamicApiError, HTTPError) as error:
            log.warning("Lease %s: %s", self.name, reason_of(error))
            self.on_attempt(False)
            return False
        self.on_attempt(True)
        return is_holder

    def _acquire(self) -> bool:
        lease = self.kube.get(API, "Lease", self.name, self.namespace)
        if lease is None:
            self._write({"metadata": {}}, 0, create=True)
            return True
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        version = lease["metadata"]["resourceVersion"]
        if version != self._observed[0]:
            self._observed = (version, self.monotonic())
        duration = float(spec.get("leaseDurationSeconds") or LEASE_SECONDS)
        if holder not in ("", self.identity) and self.monotonic() - self._observed[1] < duration:
            return False
        self._write(lease, int(spec.get("leaseTransitions") or 0) + (holder != self.identity))
        return True

    def release(self) -> None:
        """Release the Lease, so that the next leader does not have to wait until the Lease expires."""
        try:
            lease = self.kube.get(API, "Lease", self.name, self.namespace)
            spec = (lease or {}).get("spec") or {}
            if lease is not None and spec.get("holderIdentity") == self.identity:
                self._write(lease, int(spec.get("leaseTransitions") or 0), holder="")
        except (ApiException, DynamicApiError, HTTPError) as error:
            log.warning("Lease %s: %s", self.name, reason_of(error))

    def _write(
        self, lease: Object, transitions: int, *, holder: str | None = None, create: bool = False
    ) -> None:
        version = lease["metadata"].get("resourceVersion")
        body = {
            "apiVersion": API,
            "kind": "Lease",
            "metadata": {
                "name": self.name,
                "namespace": self.namespace,
                **({"resourceVersion": version} if version else {}),
            },
            "spec": {
                "holderIdentity": self.identity if holder is None else holder,
                "leaseDurationSeconds": LEASE_SECONDS,
                "renewTime": _now(),
                "leaseTransitions": transitions,
            },
        }
        resource = self.kube.resource(API, "Lease")
        if create:
            resource.create(body=body, namespace=self.namespace)
        else:
            resource.replace(body=body, name=self.name, namespace=self.namespace)
