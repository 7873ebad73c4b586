"""Read objects and logs from the API server, using only GET requests."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from harness.attach.resources import Resource
from harness.core.deadlines import Deadline
from harness.core.errors import HarnessError, UsageError
from harness.core.kubernetes import Kube, Object
from harness.core.kubernetes_retries import reason_of

PAGE = 500
"""Maximum number of objects in one response."""
SECONDS = 20.0
"""Timeout of a request, in seconds."""
RETRY_SECONDS, PAUSE_SECONDS = 20.0, 0.5
"""A request to a busy API server is retried for RETRY_SECONDS, with a pause of PAUSE_SECONDS before each
retry."""
BUSY = (429, 500, 502, 503, 504)
"""HTTP statuses of an API server that is overloaded, restarting, or unable to reach its database."""
_EXPIRED = 410
"""HTTP status for an expired resource version or `continue` token."""


class Forbidden(HarnessError):
    """Raised if the user is not allowed to read a required object."""

    def __init__(self, kind: str, namespace: str, option: str = "") -> None:
        super().__init__(
            f"you are not permitted to read {kind} in namespace {namespace}",
            hint=f"ask for the Role that `harness attach --print-rbac -n {namespace}{option}` prints",
            cause="cluster.forbidden",
        )


class NotNow(HarnessError):
    """Raised if the API server does not respond or is busy. The same request may succeed later."""


@dataclass
class Reader:
    """Reads objects and logs in one namespace.

    `unread` contains the reason for each kind that could not be read.
    """

    kube: Kube
    namespace: str
    unread: dict[str, str] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)
    """Requested kinds that the cluster does not serve."""

    def get(self, resource: Resource, name: str, *, retry: bool = True) -> Object | None:
        """Return an object, or None if the object or its kind does not exist.

        Raises NotNow if the API server does not respond or is busy, and HarnessError if the API server
        rejects the request. With `retry`, requests to a busy API server are retried for RETRY_SECONDS.
        """
        try:
            item = self._json(resource.path(self.namespace, name), retry=retry)
        except ApiException as error:
            if error.status == 404:
                return None
            raise self._problem(error, f"{resource.kind.kind} {name}") from error
        return {"apiVersion": resource.kind.api_version, "kind": resource.kind.kind, **item}

    def all(self, resource: Resource, labels: str = "", needed: bool = False) -> list[Object]:
        """Return the objects of a kind.

        If the API server rejects the request, record the reason in `unread` and return []. Raises
        HarnessError if the API server does not respond, or if it rejects a request for a kind that is
        `needed`. Raises UsageError for an invalid selector.
        """
        try:
            return list(self._pages(resource, labels))
        except ApiException as error:
            if error.status == 404:
                self.absent.add(resource.kind.name)
                return []
            if error.status == 400 and labels:
                raise UsageError(
                    f"the API server rejects the selector {labels}: {reason_of(error)}",
                    hint="for example: -l app=train,tier!=test",
                ) from error
            if needed or not error.status:
                raise self._problem(error, resource.plural) from error
            self.unread[resource.kind.name] = reason_of(error)
            return []

    def log(
        self, pod: str, container: str, *, limit: int, previous: bool = False, tail: int | None = None
    ) -> bytes:
        """Return at most `limit` bytes of a container's log. Raises ApiException or HTTPError."""
        query = {"container": container, "timestamps": "true", "limitBytes": str(limit)}
        query |= {"previous": "true"} if previous else {}
        query |= {"tailLines": str(tail)} if tail else {}
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}/log"
        return bytes(self.kube.fetch(path, query, seconds=SECONDS).data)

    def secret(self, name: str) -> dict[str, str]:
        """Return the base64-encoded entries of a Secret. Raises HarnessError if it cannot be read."""
        try:
            item = self._json(f"/api/v1/namespaces/{self.namespace}/secrets/{name}")
        except ApiException as error:
            if error.status == 404:
                raise HarnessError(
                    f"there is no Secret {name} in namespace {self.namespace}",
                    hint="use --secret to name another Secret",
                    cause="tracker.unreachable",
                ) from None
            raise self._problem(error, f"Secret {name}", f" --secret {name}") from error
        return {str(key): str(value) for key, value in (item.get("data") or {}).items()}

    def _pages(self, resource: Resource, labels: str) -> Iterator[Object]:
        query = {"limit": str(PAGE), **({"labelSelector": labels} if labels else {})}
        query |= {"fieldSelector": f"metadata.name={self.namespace}"} if resource.kind.own else {}
        kind = resource.kind
        path = resource.path(self.namespace)
        while True:
            try:
                page = self._json(path, query)
            except ApiException as error:
                if error.status != _EXPIRED or "continue" not in query:
                    raise
                # The list starts again from the first page, so an object may be yielded twice. The caller
                # uses the object's last state.
                query.pop("limit"), query.pop("continue")
                page = self._json(path, query)
            for item in page.get("items") or []:
                yield {"apiVersion": kind.api_version, "kind": kind.kind, **item}
            following = (page.get("metadata") or {}).get("continue")
            if not following:
                return
            query["continue"] = following

    def _json(self, path: str, query: dict[str, str] | None = None, *, retry: bool = True) -> Object:
        """Return the response to a GET request. With `retry`, requests to a busy API server are retried.

        Raises ApiException if the request is rejected, and NotNow if there is no response.
        """
        deadline = Deadline.after(RETRY_SECONDS if retry else 0)
        while True:
            try:
                response: Object = json.loads(self.kube.fetch(path, query, seconds=SECONDS).data)
            except ApiException as error:
                if error.status not in BUSY or deadline.passed:
                    raise
                time.sleep(min(PAUSE_SECONDS, deadline.remaining))
                continue
            except HTTPError as error:
                raise NotNow(
                    f"the API server did not respond: {reason_of(error)}",
                    hint="check the kubeconfig and its context with `kubectl get pods`",
                    cause="cluster.unreachable",
                ) from error
            except ValueError as error:
                raise HarnessError(
                    f"expected JSON from the API server at {path}, but the response is not valid JSON",
                    cause="cluster.unreachable",
                ) from error
            return response

    def _problem(self, error: ApiException, subject: str, option: str = "") -> HarnessError:
        if error.status in (401, 403):
            return Forbidden(subject, self.namespace, option)
        text = f"{subject} could not be read: {reason_of(error)}"
        if not error.status:  # TLS failed.
            return NotNow(
                text,
                hint="check the kubeconfig and its context with `kubectl get pods`",
                cause="cluster.unreachable",
            )
        if error.status in BUSY:
            return NotNow(text, hint="attach again when the API server is ready", cause="cluster.unhealthy")
        hint = "check with `kubectl version` that the kubeconfig's server is a Kubernetes API server"
        return HarnessError(text, hint=hint, cause="cluster.unhealthy")
