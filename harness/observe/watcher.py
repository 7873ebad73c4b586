"""Watches: every state of every object of a launch, from before it starts to after it ends, as evidence.

One thread per kind lists and then watches; a watch that ends is resumed, a resource version that is too old
starts again with a list, and what could not be reached is told to `on_gap`. Each delivery is written first
and then offered to the listener, so a decision is never made on what is not in the bundle.
"""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kubernetes import client, watch
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from harness.evidence.schema import Observation
from harness.kube import Kube, Object

RETRY_SECONDS = 0.5
WATCH_SECONDS = 300


@dataclass(frozen=True)
class Kind:
    """What to watch: `name` is the evidence file, `namespaced` whether only the launch's namespace counts."""

    name: str
    group: str
    version: str
    plural: str
    namespaced: bool = True


KINDS = (
    Kind("jobset", "jobset.x-k8s.io", "v1alpha2", "jobsets"),
    Kind("workload", "kueue.x-k8s.io", "v1beta2", "workloads"),
    Kind("localqueue", "kueue.x-k8s.io", "v1beta2", "localqueues"),
    Kind("clusterqueue", "kueue.x-k8s.io", "v1beta2", "clusterqueues", namespaced=False),
    Kind("job", "batch", "v1", "jobs"),
    Kind("pod", "", "v1", "pods"),
    Kind("node", "", "v1", "nodes", namespaced=False),
    Kind("event", "", "v1", "events"),
)


class Watcher:
    """Watches `KINDS` for one namespace until stopped."""

    def __init__(
        self,
        kube: Kube,
        namespace: str,
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
        self._listed = {kind.name: threading.Event() for kind in KINDS}
        self._watches: list[watch.Watch] = []
        self._threads = [
            threading.Thread(target=self._follow, args=(kind,), name=f"watch-{kind.name}", daemon=True)
            for kind in KINDS
        ]

    def start(self, seconds: float = 30) -> None:
        """Returns when every kind was listed once, so that nothing can happen unseen from here on."""
        for thread in self._threads:
            thread.start()
        for name, listed in self._listed.items():
            if not listed.wait(seconds):
                self._on_gap(f"objects/{name}: not listed within {seconds:.0f} s")

    def stop(self) -> None:
        """Ends the watches; a thread that waits for the API server is left to die with the process."""
        self._stop.set()
        for each in self._watches:
            each.stop()

    def _follow(self, kind: Kind) -> None:
        known: dict[str, str] = {}
        version: str | None = None
        while not self._stop.is_set():
            try:
                if version is None:
                    version = self._list(kind, known)
                    self._listed[kind.name].set()
                version = self._watch(kind, known, version)
            except ApiException as error:
                if error.status != 410:
                    self._on_gap(f"objects/{kind.name}: HTTP {error.status} {error.reason}")
                    self._stop.wait(RETRY_SECONDS)
                version = None
            except (HTTPError, OSError) as error:
                if not self._stop.is_set():
                    self._on_gap(f"objects/{kind.name}: {type(error).__name__}")
                    self._stop.wait(RETRY_SECONDS)
                version = None

    def _list(self, kind: Kind, known: dict[str, str]) -> str:
        answer = self._call(kind, watch=False)
        for item in answer.get("items") or []:
            self._deliver(kind, "MODIFIED" if item["metadata"]["uid"] in known else "ADDED", item, known)
        return str(answer["metadata"]["resourceVersion"])

    def _watch(self, kind: Kind, known: dict[str, str], version: str) -> str:
        stream = watch.Watch()
        self._watches.append(stream)
        try:
            for event in stream.stream(
                self._raw(kind), resource_version=version, timeout_seconds=WATCH_SECONDS, _request_timeout=330
            ):
                item = event["raw_object"]
                if event["type"] == "ERROR":
                    raise ApiException(status=item.get("code", 500), reason=item.get("message"))
                version = item["metadata"]["resourceVersion"]
                if event["type"] in ("ADDED", "MODIFIED", "DELETED"):
                    self._deliver(kind, event["type"], item, known)
        finally:
            self._watches.remove(stream)
        return version

    def _deliver(self, kind: Kind, change: Any, item: Object, known: dict[str, str]) -> None:
        uid, version = item["metadata"]["uid"], item["metadata"]["resourceVersion"]
        if change != "DELETED" and known.get(uid) == version:
            return
        known[uid] = version
        item["metadata"].pop("managedFields", None)
        now = datetime.datetime.now(datetime.UTC).isoformat()
        observation = Observation(received_at=now, type=change, object=item)
        self._write(kind.name, observation)
        self._listener(kind.name, observation)

    def _call(self, kind: Kind, **query: Any) -> Object:
        return dict(self._raw(kind)(_request_timeout=20, **query))

    def _raw(self, kind: Kind) -> Callable[..., Any]:
        """A list function by plain path, whose answers are dictionaries, for `watch.Watch`."""
        root = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
        path = (
            f"{root}/namespaces/{self.namespace}/{kind.plural}"
            if kind.namespaced
            else f"{root}/{kind.plural}"
        )
        api: client.ApiClient = self.kube.api

        def call(**options: Any) -> Any:
            """:return: object"""
            preload = options.pop("_preload_content", True)
            timeout = options.pop("_request_timeout", None)
            query = [(_CAMEL.get(k, k), _text(v)) for k, v in options.items() if v is not None]
            return api.call_api(
                *(path, "GET"),
                query_params=query,
                header_params={"Accept": "application/json"},
                auth_settings=["BearerToken"],
                response_type="object",
                _return_http_data_only=True,
                _preload_content=preload,
                _request_timeout=timeout,
            )

        return call


_CAMEL = {"resource_version": "resourceVersion", "timeout_seconds": "timeoutSeconds"}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
