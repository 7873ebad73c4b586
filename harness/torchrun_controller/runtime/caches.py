"""Caches of all kinds that the controller watches. Reading the caches sends no requests to the API server."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from harness.core.kubernetes import Kube, Object
from harness.torchrun_controller.plan.capacity import Capacity
from harness.torchrun_controller.runtime.informer import Informer, OnChange
from harness.torchrun_controller.runtime.kinds import KUEUES, NODES, PARTS, QUEUES, RECONCILED, REQUESTS, Kind
from harness.torchrun_controller.runtime.object_cache import Change, Store

STOP_SECONDS = 0.1
CAPACITY_SECONDS = 10.0
"""The number of seconds to wait for the first lists of nodes and pods. If the controller is not allowed to
list nodes and pods, it works without this data."""


class Caches:
    """The watch caches, with one store per kind.

    A store may be behind the API server, but never goes back to an older version.
    """

    def __init__(self, *, kai: bool = False) -> None:
        self.parts = PARTS if kai else (*PARTS, *KUEUES)
        self.stores: dict[Kind, Store] = {kind: Store(kind.label) for kind in (*RECONCILED, *self.parts)}
        self._capacity = {kind: Store() for kind in (NODES, REQUESTS)}
        self._capacity_synced: list[threading.Event] = []
        self.on_change: OnChange = _ignore
        """A function that is called with each change after the watches have started."""
        self._kinds = {(kind.api, kind.kind): kind for kind in self.stores}

    # -- read the caches (implements snapshot.Source) -----------------------------------------------------
    def one(self, kind: Kind, namespace: str, name: str) -> Object | None:
        return self.stores[kind].get(namespace, name)

    def of(self, kind: Kind, namespace: str, value: str) -> list[Object]:
        return self.stores[kind].of(namespace, value)

    def names(self, kind: Kind) -> frozenset[str]:
        return frozenset(item["metadata"]["name"] for item in self.stores[kind].all())

    def all(self, kind: Kind, namespace: str | None = None) -> list[Object]:
        return self.stores[kind].all(namespace)

    def capacity(self) -> Capacity | None:
        """Return the cluster's nodes and their pods, or None until both have been listed."""
        if not self._capacity_synced or not all(synced.is_set() for synced in self._capacity_synced):
            return None
        return Capacity(*(self._capacity[kind].all() for kind in (NODES, REQUESTS)))

    # -- store this process's own writes ---------------------------------------------------------------
    def wrote(self, item: Object) -> None:
        """Store the object from the API server's response to a write, if its kind is watched.

        A change to a queue's status is passed to `on_change`, because jobs wait for their queue. Other
        objects concern only the job or queue that is being reconciled.
        """
        kind = self._kinds.get((item.get("apiVersion", ""), item.get("kind", "")))
        if kind is None:
            return
        change = self.stores[kind].wrote(kind.trim(item))
        if change is not None and kind == QUEUES:
            self.on_change(kind, change)

    # -- start the watches -----------------------------------------------------------------------------
    def follow(self, kube: Kube, namespace: str | None, on_change: OnChange, stop: threading.Event) -> bool:
        """Start the watches. Return True once all caches are synced, or False if `stop` is set first.

        Jobs and queues are listed before the objects that are created for them. Therefore, if a cached job
        names a JobSet, that JobSet is also in the cache.
        """
        self.on_change = on_change
        for kinds in (RECONCILED, self.parts):
            informers = [Informer(kube, kind, namespace, self.stores[kind], on_change) for kind in kinds]
            for informer in informers:
                informer.start()
            if not _all_synced(informers, stop):
                return False
        self._follow_capacity(kube)
        return True

    def _follow_capacity(self, kube: Kube) -> None:
        """Watch nodes and their pods.

        Changes to nodes and pods do not enqueue jobs, because waiting jobs are reconciled at intervals
        anyway.
        """
        informers = [Informer(kube, kind, None, store, _ignore) for kind, store in self._capacity.items()]
        for informer in informers:
            informer.start()
        self._capacity_synced = [informer.synced for informer in informers]
        deadline = time.monotonic() + CAPACITY_SECONDS
        for synced in self._capacity_synced:
            synced.wait(max(deadline - time.monotonic(), 0))


def _ignore(kind: Kind, change: Change) -> None:
    del kind, change


def _all_synced(informers: Iterable[Informer], stop: threading.Event) -> bool:
    for informer in informers:
        while not informer.synced.wait(STOP_SECONDS):
            if stop.is_set():
                return False
    return True
