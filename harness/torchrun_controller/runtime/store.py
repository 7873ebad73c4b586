"""A copy of the objects of one kind, as a watch tells them. It never goes back in time.

Versions are compared as numbers, within one kind. The API server hands a kind's changes out in their order,
so what was told up to a version is all there was. What this process wrote itself is kept from the moment of
the answer until the watch has come that far: a look reads its own writes.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from harness.core.kubernetes import Object

Place = tuple[str, str]
"""Namespace ("" without one) and name."""


@dataclass(frozen=True)
class Change:
    """What a look may see otherwise now. None: it was not there before, or is gone."""

    before: Object | None
    after: Object | None


def version_of(item: Object) -> int:
    """Return an object's version. It is that of the last change of the whole cluster when it was written."""
    return int(item["metadata"]["resourceVersion"])


def place_of(item: Object) -> Place:
    metadata = item["metadata"]
    return metadata.get("namespace") or "", metadata["name"]


class Store:
    """Objects by place, and by the value of one label. They are shared: who reads changes nothing."""

    def __init__(self, label: str | None = None) -> None:
        self.label = label
        self.version = 0
        """The watch has told everything up to here."""
        self._items: dict[Place, Object] = {}
        self._labelled: dict[Place, dict[Place, Object]] = defaultdict(dict)
        self._lock = threading.Lock()

    # -- read ------------------------------------------------------------------------------------------
    def get(self, namespace: str, name: str) -> Object | None:
        with self._lock:
            return self._items.get((namespace, name))

    def of(self, namespace: str, value: str) -> list[Object]:
        """Return the objects of a namespace whose label has this value, by name."""
        with self._lock:
            found = self._labelled.get((namespace, value)) or {}
            return [item for _, item in sorted(found.items())]

    def all(self, namespace: str | None = None) -> list[Object]:
        with self._lock:
            return [item for (where, _), item in self._items.items() if namespace in (None, where)]

    # -- what the watch tells --------------------------------------------------------------------------
    def replace(self, items: Iterable[Object], version: int) -> list[Change]:
        """Take in a list of all objects, of this version. One that is older than what is known is refused."""
        with self._lock:
            if version < self.version:
                raise ValueError(f"a list of version {version}, after {self.version}")
            listed = {place_of(item): item for item in items}
            changes = [self._put(item) for item in listed.values()]
            for place, item in list(self._items.items()):
                if place not in listed and version_of(item) <= version:
                    changes.append(self._drop(place))
            self.version = version
            return [change for change in changes if change is not None]

    def changed(self, item: Object) -> Change | None:
        """Take in an object that was added or changed. Return None when it is known."""
        with self._lock:
            self.version = max(self.version, version_of(item))
            return self._put(item)

    def deleted(self, item: Object) -> Change | None:
        """Take in that an object is gone."""
        with self._lock:
            version = version_of(item)
            self.version = max(self.version, version)
            known = self._items.get(place_of(item))
            if known is None or version_of(known) > version:
                return None
            return self._drop(place_of(item))

    def reached(self, version: int) -> None:
        """Take in that nothing else happened up to this version."""
        with self._lock:
            self.version = max(self.version, version)

    # -- what this process did -------------------------------------------------------------------------
    def wrote(self, item: Object) -> None:
        """Keep what the API server answered to a write. Where the watch is further already it knows better:
        the object may be gone again.
        """
        with self._lock:
            if version_of(item) > self.version:
                self._put(item)

    def _put(self, item: Object) -> Change | None:
        place = place_of(item)
        known = self._items.get(place)
        if known is not None and version_of(known) >= version_of(item):
            return None
        self._unlabel(known)
        self._items[place] = item
        value = self._value(item)
        if value is not None:
            self._labelled[place[0], value][place] = item
        return Change(known, item)

    def _drop(self, place: Place) -> Change:
        known = self._items.pop(place)
        self._unlabel(known)
        return Change(known, None)

    def _value(self, item: Object) -> str | None:
        labels = item["metadata"].get("labels") or {}
        return labels.get(self.label) if self.label else None

    def _unlabel(self, known: Object | None) -> None:
        value = self._value(known) if known is not None else None
        if known is None or value is None:
            return
        place = place_of(known)
        found = self._labelled[place[0], value]
        found.pop(place, None)
        if not found:
            del self._labelled[place[0], value]
