"""Use watches to record all states of a launch's objects, from before it starts until after it ends.

One thread per kind lists the objects and then watches them. If a watch ends, the thread resumes it. If the
resource version is too old, the thread lists the objects again. Errors are passed to `on_gap`. Each watch
event is written to the bundle before it is passed to the listener, so all decisions are based on recorded
evidence.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from kubernetes import watch
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from harness.core.clock import now
from harness.core.deadlines import Deadline
from harness.core.kubernetes import NOT_SERVED, Kube, Object, events, listed
from harness.evidence.kubernetes.kinds import WatchedKind
from harness.evidence.schema.bundle import Observation

RETRY_SECONDS = 0.5
WATCH_SECONDS = 300
_REFUSED = (401, 403, 404, 405)
"""HTTP statuses after which a list or watch request is not retried, because it would fail again."""
_METADATA = "application/json;as=PartialObjectMetadata{list};g=meta.k8s.io;v=v1"
_RECORDED = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp")
"""The metadata fields that are recorded for metadata-only kinds. Annotations are omitted, because an
annotation can contain the whole object."""


class Watcher:
    """Watches several object kinds for one namespace until it is stopped."""

    def __init__(
        self,
        kube: Kube,
        namespace: str,
        kinds: Sequence[WatchedKind],
        write: Callable[[str, Observation], None],
        listener: Callable[[str, Observation], None],
        on_gap: Callable[[str], None],
    ) -> None:
        self.kube = kube
        self.namespace = namespace
        self._write = write
        self._listener = listener
        self._on_gap = on_gap
        self._stop = threading.Event()
        self._listed = {kind.name: threading.Event() for kind in kinds}
        self._unwatched: set[str] = set()
        self._watches: list[watch.Watch] = []
        self._threads = [
            threading.Thread(target=self._follow, args=(kind,), name=f"watch-{kind.name}", daemon=True)
            for kind in kinds
        ]

    def start(self) -> None:
        """Start one thread per kind, which lists the kind's objects and then watches them."""
        for thread in self._threads:
            thread.start()

    def listed(self, seconds: float = 30) -> None:
        """Wait until the objects of every kind have been listed, for at most `seconds`.

        From then on, all changes are recorded. A kind that is not listed in time is reported as a gap.
        """
        deadline = Deadline.after(seconds)
        for name, once in self._listed.items():
            if not once.wait(deadline.remaining):
                self._on_gap(f"objects/{name}: not listed within {seconds:.0f} s")

    def kinds(self) -> list[str]:
        """Return the names of the kinds whose objects have been listed and are being watched."""
        return sorted(
            name for name, once in self._listed.items() if once.is_set() and name not in self._unwatched
        )

    def resume(self) -> None:
        """Restart the watches, because a connection can break without an error."""
        for each in list(self._watches):
            each.stop()

    def stop(self) -> None:
        """Stop the watches. Threads that are waiting for the API server end when the process ends."""
        self._stop.set()
        self.resume()

    def _follow(self, kind: WatchedKind) -> None:
        versions: dict[str, str] = {}
        version: str | None = None
        while not self._stop.is_set():
            try:
                if version is None:
                    version = self._list(kind, versions)
                    self._listed[kind.name].set()
                version = self._watch(kind, versions, version)
            except NOT_SERVED:
                if not kind.optional:
                    raise
                self._give_up(kind, "it is not served")
                return
            except ApiException as error:
                # Later rejections do not count, because a restarted API server rejects some requests for a
                # while.
                first = not self._listed[kind.name].is_set()
                if kind.optional and first and error.status in _REFUSED:
                    self._give_up(kind, f"HTTP {error.status} {error.reason}")
                    return
                if error.status != 410:
                    self._on_gap(f"objects/{kind.name}: HTTP {error.status} {error.reason}")
                    self._stop.wait(RETRY_SECONDS)
                version = None
            except (HTTPError, OSError) as error:
                if not self._stop.is_set():
                    self._on_gap(f"objects/{kind.name}: {type(error).__name__}")
                    self._stop.wait(RETRY_SECONDS)
                version = None

    def _give_up(self, kind: WatchedKind, reason: str) -> None:
        self._unwatched.add(kind.name)
        self._on_gap(f"objects/{kind.name}: not watched, {reason}")
        self._listed[kind.name].set()

    def _list(self, kind: WatchedKind, versions: dict[str, str]) -> str:
        query = self._query(kind, "List")
        response = listed(self._resource(kind), **query, _request_timeout=20)
        for item in response["items"]:
            change = "MODIFIED" if item["metadata"]["uid"] in versions else "ADDED"
            self._deliver(kind, change, _whole(kind, item), versions)
        return str(response["metadata"]["resourceVersion"])

    def _watch(self, kind: WatchedKind, versions: dict[str, str], version: str) -> str:
        stream = watch.Watch()
        self._watches.append(stream)
        try:
            for event in events(
                self._resource(kind),
                resource_version=version,
                timeout=WATCH_SECONDS,
                watcher=stream,
                **self._query(kind),
            ):
                item = event["raw_object"]
                version = item["metadata"]["resourceVersion"]
                if event["type"] in ("ADDED", "MODIFIED", "DELETED"):
                    self._deliver(kind, event["type"], _whole(kind, item), versions)
        finally:
            self._watches.remove(stream)
        return version

    def _query(self, kind: WatchedKind, list_: str = "") -> dict[str, Any]:
        """Return the parameters for a kind's list and watch requests."""
        query: dict[str, Any] = {"label_selector": kind.labels or None}
        query["namespace"] = (kind.namespace or self.namespace) if kind.namespaced else None
        if kind.own:
            query["field_selector"] = f"metadata.name={self.namespace}"
        if kind.metadata_only:
            query["header_params"] = {"Accept": _METADATA.format(list=list_)}
        return query

    def _resource(self, kind: WatchedKind) -> Any:
        return self.kube.resource(kind.api_version, kind.kind)

    def _deliver(self, kind: WatchedKind, change: Any, item: Object, versions: dict[str, str]) -> None:
        uid, version = item["metadata"]["uid"], item["metadata"]["resourceVersion"]
        if change != "DELETED" and versions.get(uid) == version:
            return
        versions[uid] = version
        item["metadata"]["managedFields"] = _managers(item)
        observation = Observation(received_at=now(), type=change, object=item)
        self._write(kind.name, observation)
        self._listener(kind.name, observation)


def _managers(item: Object) -> list[Object]:
    """Return an object's managedFields entries with their managers and times, but without lists of fields."""
    entries = item["metadata"].get("managedFields") or []
    return [
        {name: value for name, value in entry.items() if not name.startswith("fields")} for entry in entries
    ]


def _whole(kind: WatchedKind, item: Object) -> Object:
    """Return the fields of an object that are recorded in the bundle, with apiVersion and kind.

    Unlike objects from a watch, list items do not have apiVersion and kind.
    """
    if not kind.metadata_only:
        return {"apiVersion": kind.api_version, "kind": kind.kind, **item}
    metadata = item["metadata"]
    recorded = {name: metadata[name] for name in (*_RECORDED, "managedFields") if name in metadata}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": recorded}
