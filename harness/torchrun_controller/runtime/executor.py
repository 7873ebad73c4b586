"""Read the current state from the API server, and execute actions.

Every write is safe to repeat. An object is created under a fixed name and deleted by its UID, and a status
replaces only the version that was read. Therefore two controllers never create an object twice, and writes
based on old state fail. The callback `wrote` receives the API server's response to each write, so that the
next reconcile uses the response.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic.exceptions import DynamicApiError
from pydantic import BaseModel
from urllib3.exceptions import HTTPError

from harness.core.kubernetes import Kube, Object
from harness.torchrun_controller.api import names
from harness.torchrun_controller.api.rejected import Rejected, rejected
from harness.torchrun_controller.decide.decisions import (
    Action,
    Check,
    Create,
    Delete,
    DeleteParts,
    Finalizers,
)
from harness.torchrun_controller.decide.pod_start_delays import time_of
from harness.torchrun_controller.runtime.kinds import Kind

NOT_FOUND, CONFLICT = 404, 409
LOG_SECONDS = 5.0
ACCEPTED_SECONDS = 5.0
"""After the API server has accepted a pod, equal pods are not checked for this number of seconds. This saves
dry runs in a burst of equal jobs."""
STRICT = ("fieldValidation", "Strict")
"""A query parameter that makes the API server reject unknown and duplicate fields instead of dropping them.
"""
CHANGES = (NOT_FOUND, CONFLICT)


EVENTS_PER_PAGE, MAX_EVENT_PAGES = 1000, 20
LOCKS = 16


def _locks(number: int) -> tuple[threading.Lock, ...]:
    return tuple(threading.Lock() for _ in range(number))


def _with_request(error: Exception, verb: str, document: Object) -> Exception:
    """Return the error, with a note about the request that failed."""
    kind, name = document["kind"], document["metadata"]["name"]
    error.add_note(
        f"the failed request was to {verb} {kind} {name}: check the admission webhooks for {kind}s"
    )
    return error


@dataclass
class Cluster:
    """Reads and writes the cluster's objects through the API server, without the watch caches."""

    kube: Kube
    kai: bool = False
    wrote: Callable[[Object], None] = lambda _: None
    created_jobsets: set[str] = field(default_factory=set)
    """The UIDs of the JobSets that this process has created, but has not yet written to their jobs'
    statuses."""
    monotonic: Callable[[], float] = time.monotonic
    _accepted: dict[str, float] = field(default_factory=dict)
    """The time at which each pod was last accepted. The key is the pod's JSON, with a fixed name in place of
    the job's name."""
    _checking: tuple[threading.Lock, ...] = field(default_factory=lambda: _locks(LOCKS))
    """Locks for dry runs. Equal pods use the same lock, so that a burst of equal jobs needs only one dry
    run."""

    # -- read objects ----------------------------------------------------------------------------------
    def one(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """Return the current object from the API server, or None if it does not exist."""
        item = self.kube.get(kind.api, kind.kind, name, namespace)
        return kind.trim(item) if item is not None else None

    def of(self, kind: Kind, namespace: str, value: str) -> list[Object]:
        """Return the current objects whose label `kind.label` has the value `value`."""
        objects = self.kube.objects(kind.api, kind.kind, namespace, f"{kind.label}={value}")
        return [kind.trim(item) for item in objects]

    def names(self, kind: Kind) -> frozenset[str]:
        """Return the current names of all objects of a cluster-scoped kind."""
        return frozenset(item["metadata"]["name"] for item in self.kube.objects(kind.api, kind.kind))

    def events(self, namespace: str, selector: str) -> list[Object]:
        """Return a namespace's Events that match a field selector, oldest first.

        At most MAX_EVENT_PAGES pages are read. The API server orders the Events by name and not by time, so
        the first page alone may lack the Events about a job.
        """
        path = f"/api/v1/namespaces/{namespace}/events"
        query = {"fieldSelector": selector, "limit": str(EVENTS_PER_PAGE)}
        events: list[Object] = []
        for _ in range(MAX_EVENT_PAGES):
            response = self.kube.fetch(path, query).json()
            events += response["items"]
            query["continue"] = (response.get("metadata") or {}).get("continue") or ""
            if not query["continue"]:
                break
        return sorted(events, key=time_of)

    def last_line(self, namespace: str, pod: str) -> datetime | None:
        """Return the time of the last line in a trainer's log, or None if the log is empty or could not be
        read."""
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}/log"
        query = {"container": names.TRAINER, "tailLines": "1", "timestamps": "true"}
        try:
            text = self.kube.fetch(path, query, seconds=LOG_SECONDS).read().decode(errors="replace")
            return datetime.fromisoformat(f"{text[:19]}+00:00") if text else None
        except (ApiException, HTTPError, ValueError):
            return None

    # -- write a status and execute actions ------------------------------------------------------------
    def write_status(self, current: Object, status: BaseModel | Object, *, acting: bool) -> bool:
        """Write a status if it differs from the status in `current`.

        Return whether `current` was up to date. If `current` was outdated, the object has changed or has been
        deleted, and the caller must reconcile again. If `acting` is true, an unchanged status is written too.
        The write verifies that `current` is up to date before an action is executed.
        """
        document = (
            status
            if isinstance(status, dict)
            else status.model_dump(by_alias=True, exclude_none=True, mode="json")
        )
        if document == (current.get("status") or {}) and not acting:
            return True
        metadata = current["metadata"]
        body = {
            "apiVersion": names.API,
            "kind": current["kind"],
            "metadata": {
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "resourceVersion": metadata["resourceVersion"],
            },
            "status": document,
        }
        resource = self.kube.resource(names.API, current["kind"])
        try:
            response = resource.status.replace(
                body=body, name=metadata["name"], namespace=metadata["namespace"]
            )
        except (DynamicApiError, ApiException) as error:
            if error.status in CHANGES:
                self._renew(current)
                return False
            raise
        self.wrote(response.to_dict())
        return True

    def _renew(self, current: Object) -> None:
        """Read an outdated object again. If the object has been deleted, the watch reports the deletion."""
        metadata = current["metadata"]
        newer = self.kube.get(names.API, current["kind"], metadata["name"], metadata["namespace"])
        if newer is not None:
            self.wrote(newer)

    def do(self, current: Object, action: Action) -> None:
        """Execute an action for a job or a queue.

        An action can safely be repeated. Raises Rejected if the API server rejects an object.
        """
        namespace = current["metadata"]["namespace"]
        match action:
            case Check(document, generic):
                self._check_once(document, json.dumps(generic, sort_keys=True))
            case Create(document):
                self._create(document)
            case DeleteParts(uid):
                for api, kind in (("v1", "Secret"), ("apps/v1", "StatefulSet")):
                    parts = self.kube.resource(api, kind)
                    parts.delete(namespace=namespace, label_selector=f"{names.PART_LABEL}={uid}")
            case Delete():
                self._delete(action, namespace)
            case Finalizers(finalizers):
                self._finalizers(current, finalizers)

    def _check_once(self, document: Object, fingerprint: str) -> None:
        """Check an object in a dry run, unless an object with an equal `fingerprint` was accepted recently.

        Raises Rejected.
        """
        with self._checking[hash(fingerprint) % LOCKS]:
            now = self.monotonic()
            if now - self._accepted.get(fingerprint, -ACCEPTED_SECONDS) < ACCEPTED_SECONDS:
                return
            self.check(document)
            recent = {key: at for key, at in [*self._accepted.items()] if now - at < ACCEPTED_SECONDS}
            self._accepted = {**recent, fingerprint: now}

    def check(self, document: Object) -> None:
        """Let the API server validate an object in a dry run, without storing it.

        Raises Rejected if the API server rejects the object, unless the reason is a webhook that does not
        support dry runs.
        """
        try:
            self.kube.resource(document["apiVersion"], document["kind"]).create(
                body=document,
                namespace=document["metadata"].get("namespace"),
                field_manager=names.FIELD_MANAGER,
                dry_run="All",
                query_params=[STRICT],
                serialize=False,
            )
        except (DynamicApiError, ApiException) as error:
            refusal = rejected(document, error)
            if error.status != CONFLICT and not (isinstance(refusal, Rejected) and refusal.no_dry_run):
                raise _with_request(refusal, "check", document) from None
        except HTTPError as error:
            raise _with_request(error, "check", document) from None

    def _create(self, document: Object) -> None:
        resource = self.kube.resource(document["apiVersion"], document["kind"])
        try:
            response = resource.create(
                body=document,
                namespace=document["metadata"].get("namespace"),
                field_manager=names.FIELD_MANAGER,
                query_params=[STRICT],
            ).to_dict()
        except (DynamicApiError, ApiException) as error:
            if error.status != CONFLICT:
                raise _with_request(rejected(document, error), "create", document) from None
            self._check_owner(document)
            return
        except HTTPError as error:
            raise _with_request(error, "create", document) from None
        if document["kind"] == "JobSet":
            self.created_jobsets.add(response["metadata"]["uid"])
        self.wrote(response)

    def _check_owner(self, document: Object) -> None:
        """Raise Rejected if a claim exists that the controller did not create for this job or queue.

        A claim's name consists of the job's or the queue's name and a suffix. Without this check, a job could
        mount any claim whose name ends with one of these suffixes, e.g. a claim from the `resources` of
        another queue.
        """
        kind, metadata = document["kind"], document["metadata"]
        if kind != "PersistentVolumeClaim":
            return
        existing = self.kube.get(document["apiVersion"], kind, metadata["name"], metadata["namespace"])
        of_queue = metadata["name"].endswith(names.DATASETS) or names.JOB_LABEL not in metadata["labels"]
        label = names.QUEUE_LABEL if of_queue else names.JOB_LABEL
        if (
            existing is not None
            and (existing["metadata"].get("labels") or {}).get(label) != metadata["labels"][label]
        ):
            kind_of = "queue" if of_queue else "job"
            message = (
                f"the claim exists, but does not belong to this {kind_of}: rename the {kind_of}, or name "
                "the claim in claimName"
            )
            raise Rejected(document, ApiException(status=CONFLICT, reason=message))

    def _delete(self, action: Delete, namespace: str) -> None:
        self.created_jobsets.discard(action.uid)
        preconditions = {"uid": action.uid}
        if action.resource_version is not None:
            preconditions["resourceVersion"] = action.resource_version
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": preconditions,
            # The object remains, with a deletion timestamp, until its pods are deleted. A new object of the
            # same name can be created only after that, so its pods cannot communicate with the old pods.
            "propagationPolicy": "Foreground",
        }
        resource = self.kube.resource(action.api_version, action.kind)
        try:
            response = resource.delete(
                name=action.name, namespace=namespace if resource.namespaced else None, body=options
            ).to_dict()
        except (DynamicApiError, ApiException) as error:
            if error.status not in CHANGES:
                raise
            return
        if response.get("kind") == action.kind:  # The object still exists, with a deletion timestamp.
            self.wrote(response)

    def _finalizers(self, current: Object, finalizers: list[str]) -> None:
        metadata = current["metadata"]
        patch = {"metadata": {"finalizers": finalizers, "resourceVersion": metadata["resourceVersion"]}}
        try:
            self.kube.resource(names.API, current["kind"]).patch(
                name=metadata["name"],
                namespace=metadata["namespace"],
                body=patch,
                content_type="application/merge-patch+json",
            )
        except (DynamicApiError, ApiException) as error:
            if error.status not in CHANGES:
                raise
