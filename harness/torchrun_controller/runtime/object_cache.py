"""A cache of the objects of one kind, updated by a watch. It never goes back to an older version.

Versions are compared as numbers, and only within one kind. The API server sends a kind's changes in order, so
after an event the cache is complete up to that event's version. The process's own writes are stored when the
API server responds, before the watch reports them, so that a reconcile reads its own writes.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from harness.core.kubernetes import Object

Place = tuple[str, str]
"""The namespace and name of an object. Cluster-scoped objects have the namespace ""."""


@dataclass(frozen=True)
class Change:
    """A change to an object. `before` is None if the object is new, and `after` is None if it was deleted."""

    before: Object | None
    after: Object | None
    own: bool = False
    """Whether this process caused the change, by writing the object or by reading an outdated object
    again."""


def version_of(item: Object) -> int:
    """Return an object's resource version as a number.

    The number increases with each change in the cluster.
    """
    return int(item["metadata"]["resourceVersion"])


def place_of(item: Object) -> Place:
    metadata = item["metadata"]
    return metadata.get("namespace") or "", metadata["name"]


class Store:
    """A store of the objects of one kind, indexed by namespace and name, and by the value of one label.

    Callers must not modify the objects.
    """

    def __init__(self, label: str | None = None) -> None:
        self.label = label
        self.version = 0
        """The resource version up to which the watch has reported all changes."""
        self._items: dict[Place, Object] = {}
        self._labelled: dict[Place, dict[Place, Object]] = defaultdict(dict)
        self._lock = threading.Lock()

    # -- read objects ----------------------------------------------------------------------------------
    def get(self, namespace: str, name: str) -> Object | None:
        with self._lock:
            return self._items.get((namespace, name))

    def of(self, namespace: str, value: str) -> list[Object]:
        """Return a namespace's objects whose label has the value `value`, sorted by name."""
        with self._lock:
            objects = self._labelled.get((namespace, value)) or {}
            return [item for _, item in sorted(objects.items())]

    def all(self, namespace: str | None = None) -> list[Object]:
        with self._lock:
            return [
                item
                for (item_namespace, _), item in self._items.items()
                if namespace in (None, item_namespace)
            ]

    # -- apply the watch's events ----------------------------------------------------------------------
    def replace(self, items: Iterable[Object], version: int) -> list[Change]:
        """Replace all objects with the listed objects.

        `version` is the resource version of the list. Return the changes. Raises ValueError if the list is
        older than the store.
        """
        with self._lock:
            if version < self.version:
                raise ValueError(
                    f"the list has version {version}, but the store already has version {self.version}"
                )
            items_by_place = {place_of(item): item for item in items}
            changes = [self._put(item) for item in items_by_place.values()]
            for place, item in list(self._items.items()):
                if place not in items_by_place and version_of(item) <= version:
                    changes.append(self._drop(place))
            self.version = version
            return [change for change in changes if change is not None]

    def rewind(self, items: Iterable[Object], version: int) -> list[Change]:
        """Replace all objects with those of a list that is older than the store, and return the changes.

        The API server's data is older than before only if it was restored from a backup.
        """
        with self._lock:
            items_by_place = {place_of(item): item for item in items}
            before = dict(self._items)
            for place in before:
                self._drop(place)
            for item in items_by_place.values():
                self._put(item)
            self.version = version
        changes = [
            Change(before.get(place), items_by_place.get(place)) for place in {**before, **items_by_place}
        ]
        return [change for change in changes if change.before != change.after]

    def changed(self, item: Object) -> Change | None:
        """Store an object that was added or modified.

        Return the change, or None if the stored object has the same or a newer version.
        """
        with self._lock:
            self.version = max(self.version, version_of(item))
            return self._put(item)

    def deleted(self, item: Object) -> Change | None:
        """Remove an object that was deleted.

        Return the change, or None if the store lacks the object or has a newer version.
        """
        with self._lock:
            version = version_of(item)
            self.version = max(self.version, version)
            stored = self._items.get(place_of(item))
            if stored is None or version_of(stored) > version:
                return None
            return self._drop(place_of(item))

    def reached(self, version: int) -> None:
        """Record that the watch has reported all changes up to `version`."""
        with self._lock:
            self.version = max(self.version, version)

    # -- store this process's own writes ---------------------------------------------------------------
    def wrote(self, item: Object) -> Change | None:
        """Store the object from the API server's response to a write. Return the change, or None.

        The watch event for this write is ignored later. If the watch is already at a later version, the
        response is ignored instead, because the object may already have been deleted.
        """
        with self._lock:
            change = self._put(item) if version_of(item) > self.version else None
        return replace(change, own=True) if change is not None else None

    def _put(self, item: Object) -> Change | None:
        place = place_of(item)
        stored = self._items.get(place)
        if stored is not None and version_of(stored) >= version_of(item):
            return None
        self._unlabel(stored)
        self._items[place] = item
        value = self._value(item)
        if value is not None:
            self._labelled[place[0], value][place] = item
        return Change(stored, item)

    def _drop(self, place: Place) -> Change:
        stored = self._items.pop(place)
        self._unlabel(stored)
        return Change(stored, None)

    def _value(self, item: Object) -> str | None:
        labels = item["metadata"].get("labels") or {}
        return labels.get(self.label) if self.label else None

    def _unlabel(self, stored: Object | None) -> None:
        value = self._value(stored) if stored is not None else None
        if stored is None or value is None:
            return
        place = place_of(stored)
        labelled = self._labelled[place[0], value]
        labelled.pop(place, None)
        if not labelled:
            del self._labelled[place[0], value]
