"""An API server in memory, and controllers that learn of its changes as late as a test likes.

It refuses what a real one refuses: an object that is there, an old version, a precondition that does not
hold. The controllers are the real ones (Reconciler, Cluster, Caches, Store); their watches are the test's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import datetime
from typing import Any

from kubernetes.client.exceptions import ApiException

from harness.torchrun_controller.runtime.caches import Caches
from harness.torchrun_controller.runtime.executor import Cluster
from harness.torchrun_controller.runtime.kinds import RECONCILED, Kind
from harness.torchrun_controller.runtime.reconcile import Key, Reconciler

Object = dict[str, Any]
JOB = Key("job", "team", "demo")


class Answer(dict[str, Any]):
    """What the dynamic client returns."""

    def to_dict(self) -> Object:
        return copy.deepcopy(dict(self))

    def json(self) -> Object:
        return self.to_dict()


class Api:
    """Objects of one namespace, by kind and name; each change has a version of its own."""

    def __init__(self) -> None:
        self.version = 100
        self.objects: dict[tuple[str, str], Object] = {}
        self.told: list[tuple[str, str, Object]] = []
        """(kind, ADDED or MODIFIED or DELETED, object), in their order."""
        self.reads, self.writes, self.checks = 0, 0, 0
        self.refuse: Callable[[Object], None] = lambda item: None
        """Called with an object before it is created, in a dry run too. It may raise."""
        self.asked: Callable[[str, Object], None] = lambda verb, item: None
        """Called before a controller's create or delete."""
        self.then: tuple[int, Callable[[], None]] | None = None
        """What happens after so many steps; each write is two: before it is done, and before its answer."""

    # -- what the cluster does ---------------------------------------------------------------------------
    def there(self, kind: str, name: str = "demo") -> Object | None:
        return self.objects.get((kind, name))

    def put(self, item: Object) -> Object:
        """Add or change an object. What is as it was keeps its version."""
        key = (item["kind"], item["metadata"]["name"])
        known = self.objects.get(key)
        metadata = {k: v for k, v in item["metadata"].items() if k != "resourceVersion"}
        if known is not None:
            version = known["metadata"]["resourceVersion"]
            if known == {**item, "metadata": {**metadata, "resourceVersion": version}}:
                return known
        self.version += 1
        new = copy.deepcopy({**item, "metadata": {**metadata, "resourceVersion": str(self.version)}})
        self.objects[key] = new
        self.told.append((item["kind"], "ADDED" if known is None else "MODIFIED", copy.deepcopy(new)))
        return new

    def drop(self, kind: str, name: str = "demo") -> None:
        self.version += 1
        item = self.objects.pop((kind, name))
        item["metadata"]["resourceVersion"] = str(self.version)
        self.told.append((kind, "DELETED", copy.deepcopy(item)))

    def listed(self, kind: Kind) -> list[Object]:
        return [kind.trim(copy.deepcopy(item)) for (of, _), item in self.objects.items() if of == kind.kind]

    # -- harness.core.kubernetes.Kube, as far as the controller needs it ---------------------------------
    def get(self, api: str, kind: str, name: str, namespace: str | None = None) -> Object | None:
        del api, namespace
        self.reads += 1
        return copy.deepcopy(self.objects.get((kind, name)))

    def objects_of(self, kind: str, selector: str) -> list[Object]:
        self.reads += 1
        label, _, value = selector.partition("=")
        return [
            copy.deepcopy(item)
            for (of, _), item in self.objects.items()
            if of == kind and (not label or (item["metadata"].get("labels") or {}).get(label) == value)
        ]

    def step(self) -> None:
        if self.then is not None:
            left, happens = self.then
            self.then = (left - 1, happens) if left else None
            if not left:
                happens()

    def fail(self, steps: int, error: BaseException) -> None:
        """Fail after so many steps."""

        def happens() -> None:
            raise error

        self.then = (steps, happens)


class Client:
    """A controller's connection."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.get = api.get

    def objects(self, api: str, kind: str, namespace: str | None = None, selector: str = "") -> list[Object]:
        del api, namespace
        return self.api.objects_of(kind, selector)

    def resource(self, api: str, kind: str) -> Resource:
        return Resource(self.api, api, kind)

    def fetch(self, path: str, query: dict[str, str], seconds: float | None = None) -> Answer:
        """Return Events, as the only list that the controller reads with a field selector. A kubelet that
        would have logs does not answer.
        """
        del seconds
        self.api.reads += 1
        if path.endswith("/log"):
            raise ApiException(status=500, reason="Internal Server Error")
        warning = query["fieldSelector"].startswith("type=Warning")
        found = [item for (kind, _), item in self.api.objects.items() if kind == "Event"]
        return Answer(items=[item for item in found if (item["type"] == "Warning") == warning])


class Resource:
    """What the dynamic client has for a kind. `status` is its subresource."""

    namespaced = True

    def __init__(self, api: Api, version: str, kind: str) -> None:
        self.api, self.version, self.kind = api, version, kind
        self.status = self

    def _write(self, verb: str, item: Object) -> Answer:
        self.api.asked(verb, item)
        done = copy.deepcopy(self.api.put(item))
        self.api.step()
        return Answer(done)

    def _known(self, name: str) -> Object:
        """Return the object as it is when the request has come."""
        self.api.writes += 1
        self.api.step()
        known = self.api.there(self.kind, name)
        if known is None:
            raise ApiException(status=404)
        return known

    def create(self, *, body: Object, dry_run: str | None = None, **_: Any) -> Answer:
        self.api.refuse(body)
        if dry_run:
            self.api.checks += 1
            return Answer(body)
        assert self.kind != "Pod", "the controller stores no pod"
        self.api.writes += 1
        self.api.step()
        if (self.kind, body["metadata"]["name"]) in self.api.objects:
            raise ApiException(status=409)
        made = copy.deepcopy(body)
        made["metadata"]["uid"] = f"{self.kind}-{self.api.version}"
        if self.kind == "JobSet":
            made["status"] = {"restarts": 0, "conditions": []}
        return self._write("create", made)

    def replace(self, *, body: Object, name: str, namespace: str) -> Answer:
        del namespace
        known = self._known(name)
        if known["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
            raise ApiException(status=409)
        if "status" in body:
            return self._write("update", {**known, "status": body["status"]})
        return self._write("update", body)

    def delete(self, *, name: str, namespace: str | None, body: Object) -> Answer:
        del namespace
        known = self._known(name)
        for field, value in body["preconditions"].items():
            if known["metadata"][field] != value:
                raise ApiException(status=409)
        metadata = {**known["metadata"], "deletionTimestamp": "2026-11-23T12:00:00Z"}
        return self._write("delete", {**known, "metadata": metadata})


class Watching:
    """A controller whose copies are as old as the test leaves them. It lists jobs and queues first."""

    def __init__(self, api: Api, now: Callable[[], datetime]) -> None:
        self.api, self.caches = api, Caches()
        self.reconciler = Reconciler(Cluster(Client(api)), self.caches, "cluster-queue", now)  # type: ignore[arg-type]
        self.at: dict[str, int] = {}
        """Kind → how much of what the API server told it has heard."""
        for kind in RECONCILED:
            self._list(kind)

    def listed(self) -> bool:
        return all(kind.kind in self.at for kind in self.caches.stores)

    def list_rest(self) -> None:
        for kind in self.caches.stores:
            if kind.kind not in self.at:
                self._list(kind)

    def list_again(self, kind: Kind) -> None:
        """Its watch was too old (410)."""
        self._list(kind)

    def _list(self, kind: Kind) -> None:
        self.caches.stores[kind].replace(self.api.listed(kind), self.api.version)
        self.at[kind.kind] = len(self.api.told)

    def hear(self, kind: Kind, changes: int) -> None:
        """Take in so many changes of a kind that the API server has told."""
        store, events = self.caches.stores[kind], self.api.told
        while changes and self.at[kind.kind] < len(events):
            of, event, item = events[self.at[kind.kind]]
            self.at[kind.kind] += 1
            if of == kind.kind:
                changes -= 1
                (store.deleted if event == "DELETED" else store.changed)(kind.trim(copy.deepcopy(item)))

    def hear_all(self) -> None:
        for kind in self.caches.stores:
            self.hear(kind, len(self.api.told))

    def look(self, key: Key = JOB) -> float | None:
        return self.reconciler.reconcile(key)
