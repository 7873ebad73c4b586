"""Copies of all kinds that the controller watches. Reading them asks the API server nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from harness.core.kubernetes import Kube, Object
from harness.torchrun_controller.informer import Informer, Told
from harness.torchrun_controller.kinds import KUEUES, OWN, PARTS, Kind
from harness.torchrun_controller.store import Store

STOP_SECONDS = 0.1


class Caches:
    """A store for each kind. They may be behind, each by itself; none goes back (store.py)."""

    def __init__(self, *, kai: bool = False) -> None:
        self.parts = PARTS if kai else (*PARTS, *KUEUES)
        self.stores: dict[Kind, Store] = {kind: Store(kind.label) for kind in (*OWN, *self.parts)}
        self._kinds = {(kind.api, kind.kind): kind for kind in self.stores}

    # -- read: harness.torchrun_controller.seeing.Source -------------------------------------------------
    def one(self, kind: Kind, namespace: str, name: str) -> Object | None:
        return self.stores[kind].get(namespace, name)

    def of(self, kind: Kind, namespace: str, value: str) -> list[Object]:
        return self.stores[kind].of(namespace, value)

    def names(self, kind: Kind) -> frozenset[str]:
        return frozenset(item["metadata"]["name"] for item in self.stores[kind].all())

    def all(self, kind: Kind, namespace: str | None = None) -> list[Object]:
        return self.stores[kind].all(namespace)

    # -- write -----------------------------------------------------------------------------------------
    def wrote(self, item: Object) -> None:
        """Keep the API server's answer to a write, where it is of a kind that is watched."""
        kind = self._kinds.get((item.get("apiVersion", ""), item.get("kind", "")))
        if kind is not None:
            self.stores[kind].wrote(kind.kept(item))

    # -- watch -----------------------------------------------------------------------------------------
    def follow(self, kube: Kube, namespace: str | None, told: Told, stop: threading.Event) -> bool:
        """Start to watch, and return when everything is there once; False when stopped before.

        Jobs and queues come first. What is made for them is listed after that, so no job names a JobSet that
        is not there yet.
        """
        for kinds in (OWN, self.parts):
            started = [Informer(kube, kind, namespace, self.stores[kind], told) for kind in kinds]
            for informer in started:
                informer.start()
            if not _all_synced(started, stop):
                return False
        return True


def _all_synced(informers: Iterable[Informer], stop: threading.Event) -> bool:
    for informer in informers:
        while not informer.synced.wait(STOP_SECONDS):
            if stop.is_set():
                return False
    return True
