"""Post Events. A job or queue has one Event object per reason, whose count grows with each repetition.

If an Event cannot be posted, the reconcile continues.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import NamedTuple

from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic.exceptions import DynamicApiError
from urllib3.exceptions import HTTPError

from harness.core.kubernetes import Kube, Object
from harness.core.kubernetes_retries import reason_of
from harness.torchrun_controller.api import names
from harness.torchrun_controller.api.condition_type import stamp
from harness.torchrun_controller.decide.events import Event, merged
from harness.torchrun_controller.runtime.logging_setup import about
from harness.torchrun_controller.runtime.metrics import Metrics

log = logging.getLogger(__name__)
FORBIDDEN, NOT_FOUND, CONFLICT = 403, 404, 409
ORDER = f"{names.GROUP}/transition"
"""The annotation on an Event that contains the `order` of the last transition that the Event reports."""
LATEST = timedelta(minutes=15)
"""No Event is posted for a transition that is older than this.

The API server keeps Events for an hour, so no Event is posted twice.
"""
SILENCE_SECONDS = 300.0
"""After the API server has responded that posting an Event is forbidden, no Events are posted for this number
of seconds."""


ATTEMPTS = 3


class _Posted(NamedTuple):
    """An Event that is stored in the API server."""

    order: int
    """The `order` of the last transition that the Event reports."""
    document: Object | None


NEVER = _Posted(-1, None)


class Recorder:
    """Posts each Event about a job or queue only once, even if another controller is running."""

    def __init__(self, kube: Kube, metrics: Metrics, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.kube, self.metrics, self.monotonic = kube, metrics, monotonic
        self._posted_events: dict[tuple[str, str, str], tuple[str, dict[str, _Posted]]] = {}
        self._silent_until = 0.0
        self._lock = threading.Lock()

    def forget(self, kind: str, namespace: str, name: str) -> None:
        """Forget which Events were posted about an object that was deleted."""
        with self._lock:
            self._posted_events.pop((kind, namespace, name), None)

    def record(self, involved: Object, events: list[Event], now: datetime) -> None:
        """Post the Events that have not been posted yet. Log API errors instead of raising them."""
        if self.monotonic() < self._silent_until:
            return
        posted = self._posted_for(involved)
        for event_group in _groups([event for event in events if self._is_due(involved, event, posted, now)]):
            event = merged(event_group)
            name, since = _name(involved, event), stamp(event.since or now)
            last = posted.get(name, NEVER)
            try:
                stored = self._post(involved, name, event, since, last.document)
            except (ApiException, DynamicApiError, HTTPError) as error:
                self._failed(involved, event, error)
                return
            posted.update({_name(involved, each): _Posted(each.order, None) for each in event_group})
            posted[name] = stored

    def _is_due(self, involved: Object, event: Event, posted: dict[str, _Posted], now: datetime) -> bool:
        """Return whether an Event must be posted now. This is the case if it has not been posted yet and its
        transition is neither too recent nor too old."""
        if posted.get(_name(involved, event), NEVER).order >= event.order:
            return False
        return event.since is None or event.not_before <= now - event.since <= LATEST

    def _posted_for(self, involved: Object) -> dict[str, _Posted]:
        metadata = involved["metadata"]
        key = (str(involved["kind"]), metadata["namespace"], metadata["name"])
        with self._lock:
            uid, posted = self._posted_events.get(key, ("", {}))
            if uid != metadata["uid"]:
                uid, posted = metadata["uid"], {}
                self._posted_events[key] = (uid, posted)
        return posted

    def _post(self, involved: Object, name: str, event: Event, at: str, existing: Object | None) -> _Posted:
        """Create or update the Event. `existing` is the Event as this process last wrote it, or None.

        The first transition and each repetition need only one request. The Event is read only if another
        process has written it, or if the API server has deleted the Event after an hour.
        """
        resource, namespace = self.kube.resource("v1", "Event"), involved["metadata"]["namespace"]
        for _ in range(ATTEMPTS):
            try:
                if existing is None:
                    body = _document(involved, name, event, at)
                    response = resource.create(body=body, namespace=namespace)
                else:
                    last = int(((existing["metadata"].get("annotations") or {}).get(ORDER)) or 0)
                    if last >= event.order:
                        return _Posted(last, existing)
                    response = resource.replace(
                        body=_repeated(existing, event, at), name=name, namespace=namespace
                    )
                return _Posted(event.order, response.to_dict())
            except (ApiException, DynamicApiError) as error:
                if error.status not in (CONFLICT, NOT_FOUND):
                    raise
            existing = self.kube.get("v1", "Event", name, namespace)
        return NEVER  # Other writers caused conflicts. The next reconcile tries again.

    def _failed(
        self, involved: Object, event: Event, error: ApiException | DynamicApiError | HTTPError
    ) -> None:
        self.metrics.events_failed.inc()
        body = str(getattr(error, "body", "") or "")
        if "NamespaceTerminating" in body or "being terminated" in body:
            return
        if getattr(error, "status", None) == FORBIDDEN:
            self._silent_until = self.monotonic() + SILENCE_SECONDS
        metadata, kind = involved["metadata"], "job" if involved["kind"] == names.JOB_KIND else "queue"
        reason = reason_of(error) if isinstance(error, ApiException | HTTPError) else str(error)[:200]
        log.warning(
            "cannot post Event %s: %s",
            event.reason,
            reason,
            extra=about(kind, metadata["namespace"], metadata["name"]),
        )


def _name(involved: Object, event: Event) -> str:
    return event.name(involved["metadata"]["name"], involved["metadata"]["uid"])


def _groups(events: list[Event]) -> list[list[Event]]:
    """Group the Events to post, in order: all normal Events form one group, and each warning forms its own
    group."""
    usual = [event for event in events if not event.warning]
    groups = [[event] for event in events if event.warning or event in usual[-1:]]
    return [usual if group == usual[-1:] else group for group in groups]


def _document(involved: Object, name: str, event: Event, at: str) -> Object:
    metadata = involved["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": name,
            "namespace": metadata["namespace"],
            "annotations": {ORDER: str(event.order)},
        },
        "involvedObject": {
            "apiVersion": names.API,
            "kind": involved["kind"],
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        },
        "type": "Warning" if event.warning else "Normal",
        "reason": event.reason,
        "message": event.message,
        "source": {"component": names.FIELD_MANAGER},
        "reportingComponent": names.FIELD_MANAGER,
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }


def _repeated(existing: Object, event: Event, at: str) -> Object:
    metadata = existing["metadata"]
    annotations = {**(metadata.get("annotations") or {}), ORDER: str(event.order)}
    return {
        **existing,
        "metadata": {**metadata, "annotations": annotations},
        "message": event.message,
        "lastTimestamp": at,
        "count": int(existing.get("count") or 1) + 1,
    }
