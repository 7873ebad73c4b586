"""Keep a Store in sync with the objects of a kind: list them once, then watch from the resource version of
the list.

A watch ends after the requested timeout, and the next watch continues from the last version. If the version
has expired (410) or watches fail repeatedly, the objects are listed again. Objects that are missing from the
new list are deleted from the store.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

from kubernetes.client.exceptions import ApiException
from urllib3 import HTTPResponse
from urllib3.exceptions import HTTPError, ReadTimeoutError

from harness.core.kubernetes import Kube, Object
from harness.core.kubernetes_retries import reason_of
from harness.torchrun_controller.runtime.kinds import Kind
from harness.torchrun_controller.runtime.object_cache import Change, Store

log = logging.getLogger(__name__)
SERVER_SECONDS = 600
"""The duration, in seconds, that the controller requests for each watch."""
SILENCE_SECONDS = 120.0
"""The timeout in seconds for a connection without data.

The API server sends a bookmark about once a minute. Without this timeout, a frozen connection would never be
detected.
"""
LIST_SECONDS = 60.0
PAGE = 500
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0
NOT_FOUND, EXPIRED = 404, 410
PATIENCE = 4
"""After this number of consecutive failed or silent watches, the objects are listed again. After this number
of consecutive lists that are older than the store, the API server's data is considered restored from a
backup."""
OnChange = Callable[[Kind, Change], None]


class Expired(Exception):
    """Raised if the API server no longer has the resource version from which to watch."""


class Informer(threading.Thread):
    """A thread that watches one kind and updates the kind's store.

    After each update, the thread calls `on_change` with the change.
    """

    def __init__(
        self, kube: Kube, kind: Kind, namespace: str | None, store: Store, on_change: OnChange
    ) -> None:
        super().__init__(name=f"watch {kind.plural}", daemon=True)
        self.kube, self.kind, self.store, self.on_change = kube, kind, store, on_change
        self.path = kind.path(namespace)
        self.synced = threading.Event()
        """An event that is set once the first list is in the store."""
        self.stopped = threading.Event()
        self._older_lists = 0
        """The number of consecutive lists that were older than the store."""
        self._silent_watches = 0
        """The number of consecutive watches in which the API server sent nothing."""

    def run(self) -> None:
        failures, is_listed = 0, False
        while not self.stopped.is_set():
            try:
                if not is_listed:
                    self._list()
                    is_listed = True
                self._watch()
                failures, pause = 0, FIRST_PAUSE
            except Expired:
                is_listed, pause = False, FIRST_PAUSE
            except Exception as error:  # If the thread ended here, the store would never be updated again.
                failures += 1
                is_listed = is_listed and failures < PATIENCE
                pause = min(FIRST_PAUSE * 2**failures, LONGEST_PAUSE)
                reason = self._missing_version(error) or _short(error)
                log.warning("watch of %s: %s; retrying in %.1f s", self.kind.plural, reason, pause)
            self.stopped.wait(pause)

    def _missing_version(self, error: Exception) -> str:
        """Return a message if the API server does not serve this version of the kind. Otherwise, return "".

        The controller is not ready until the API server serves all versions that it watches.
        """
        if not isinstance(error, ApiException) or error.status != NOT_FOUND:
            return ""
        return (
            f"the API server does not serve {self.kind.kind} in {self.kind.api}: install a release "
            "of its CRD that serves this version"
        )

    def _list(self) -> None:
        """List all objects from etcd, because the API server's own cache may be outdated."""
        items: list[Object] = []
        query = {"limit": str(PAGE), **self._selected()}
        while True:
            response = self._request(query, LIST_SECONDS).json()
            items += [self.kind.trim(item) for item in response["items"]]
            continue_token = response["metadata"].get("continue")
            if not continue_token:
                break
            query["continue"] = continue_token
        for change in self._replace(items, int(response["metadata"]["resourceVersion"])):
            self.on_change(self.kind, change)
        self.synced.set()

    def _replace(self, items: list[Object], version: int) -> list[Change]:
        """Put the listed objects into the store, and return the changes.

        If the list is older than the store, the API server is behind, and the list is refused. If PATIENCE
        consecutive lists are older, the API server's data was restored from a backup.
        """
        try:
            changes = self.store.replace(items, version)
        except ValueError:
            self._older_lists += 1
            if self._older_lists < PATIENCE:
                raise
            log.warning(
                "%s: the API server's data is older than before (version %d instead of %d), as after a "
                "restore from a backup; all objects are read again",
                self.kind.plural,
                version,
                self.store.version,
            )
            changes = self.store.rewind(items, version)
        self._older_lists = 0
        return changes

    def _watch(self) -> None:
        """Apply changes until the watch ends or sends no data for SILENCE_SECONDS."""
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": str(self.store.version),
            "timeoutSeconds": str(SERVER_SECONDS),
            **self._selected(),
        }
        response = self._request(query, SILENCE_SECONDS)
        try:
            for event in _lines(response):
                self._silent_watches = 0
                self._apply(event)
                if self.stopped.is_set():
                    break
        except ReadTimeoutError:
            # The next watch continues from this version. An API server whose data was restored from a backup
            # sends nothing until it reaches this version, so the objects are listed after several silent
            # watches.
            self._silent_watches += 1
            if self._silent_watches >= PATIENCE:
                self._silent_watches = 0
                raise Expired(f"{PATIENCE} watches without data") from None
        finally:
            response.close()

    def _apply(self, event: dict[str, Any]) -> None:
        item = event["object"]
        match event["type"]:
            case "ADDED" | "MODIFIED":
                change = self.store.changed(self.kind.trim(item))
            case "DELETED":
                change = self.store.deleted(self.kind.trim(item))
            case "BOOKMARK":
                self.store.reached(int(item["metadata"]["resourceVersion"]))
                return
            case _:  # After any ERROR event, all objects are listed again.
                raise Expired(str(item)[:200])
        if change is not None:
            self.on_change(self.kind, change)

    def _request(self, query: dict[str, str], seconds: float) -> HTTPResponse:
        try:
            return self.kube.fetch(self.path, query, seconds=seconds)
        except ApiException as error:
            if error.status == EXPIRED:
                raise Expired from None
            raise

    def _selected(self) -> dict[str, str]:
        selectors = {"labelSelector": self.kind.selector, "fieldSelector": self.kind.fields}
        return {name: selector for name, selector in selectors.items() if selector}


def _lines(response: HTTPResponse) -> Iterator[dict[str, Any]]:
    """Yield the events of a watch.

    An incomplete last line is dropped, because the next watch repeats its event.
    """
    rest = b""
    for chunk in response.stream(None, decode_content=True):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.strip():
                yield json.loads(line)


def _short(error: Exception) -> str:
    if isinstance(error, ApiException | HTTPError):
        return reason_of(error)
    return f"{type(error).__name__}: {str(error)[:200]}"
