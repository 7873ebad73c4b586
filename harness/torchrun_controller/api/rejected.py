"""Describe an object that the API server rejected, with the server's error message."""

from __future__ import annotations

import json
import re
from typing import Any

from kubernetes.client.exceptions import ApiException

from harness.core.kubernetes import Object

BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, TOO_LARGE, INVALID = 400, 401, 403, 413, 422
TRANSIENT = (0, UNAUTHORIZED, 429, 503, 504)
"""HTTP status codes of errors that are not caused by the object in the request. A request that fails with one
of them is retried."""
MAX_SENTENCE = 4000
_NO_DRY_RUN = "does not support dry run"
"""The end of the API server's error message if a webhook has side effects and was registered before
Kubernetes 1.22. Such a webhook is called for create requests, but cannot be called for dry runs.
"""
_QUOTA = re.compile(r"exceeded quota: ")
"""Matches error messages from the ResourceQuota admission plugin. Nothing else in the response identifies the
plugin."""


class Rejected(Exception):
    """Raised if the API server rejected a create request, either permanently or because of the cluster's
    current state."""

    def __init__(self, document: Object, error: ApiException) -> None:
        body = _body(error)
        self.kind, self.name = str(document["kind"]), str(document["metadata"]["name"])
        self.reason = str(body.get("reason") or error.reason or "Rejected").replace(" ", "") or "Rejected"
        self.sentence = str(body.get("message") or error.reason or f"HTTP {error.status}")[:MAX_SENTENCE]
        self.final = _final(int(error.status or 0), body)
        """Whether the API server would always reject this object, whatever the state of the cluster."""
        super().__init__(f"the API server refuses {self.kind} {self.name}: {self.sentence}")

    @property
    def no_dry_run(self) -> bool:
        """Return whether a webhook rejected the request only because it does not support dry runs."""
        return self.reason == "BadRequest" and self.sentence.endswith(_NO_DRY_RUN)

    @property
    def by_quota(self) -> bool:
        """Return whether a ResourceQuota rejected the request.

        A retry can succeed once other pods have ended and freed quota.
        """
        return self.reason == "Forbidden" and _QUOTA.search(self.sentence) is not None


def rejected(document: Object, error: ApiException) -> ApiException | Rejected:
    """Return the error for a rejected object as Rejected. A transient error is returned unchanged."""
    return error if int(error.status or 0) in TRANSIENT else Rejected(document, error)


def _final(status: int, body: dict[str, Any]) -> bool:
    """Return whether an error response means that the object itself is invalid.

    A policy can also respond with 422, but its response does not name a field.
    """
    if status == INVALID:
        causes = (body.get("details") or {}).get("causes") or []
        return bool(causes) and all(cause.get("field") for cause in causes)
    return status in (BAD_REQUEST, TOO_LARGE)


def _body(error: ApiException) -> dict[str, Any]:
    try:
        status = json.loads(error.body or "")
    except (TypeError, ValueError):
        return {}
    return status if isinstance(status, dict) else {}
