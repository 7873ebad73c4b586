"""Objects that the API server rejected, with the server's error message."""

from __future__ import annotations

import json
import re
from typing import Any

from kubernetes.client.exceptions import ApiException

from harness.core.kubernetes import Object

BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, TOO_LARGE, INVALID = 400, 401, 403, 413, 422
TRANSIENT = (0, UNAUTHORIZED, 429, 503, 504)
"""HTTP status codes that are not about the object: the request is retried."""
MAX_SENTENCE = 4000
_NO_DRY_RUN = "does not support dry run"
"""The end of the error of a webhook with side effects, registered before Kubernetes 1.22. A real create
request would call the webhook."""
_QUOTA = re.compile(r"exceeded quota: ")
"""In errors of the admission plugin ResourceQuota. No other field of the response identifies the plugin."""


class Rejected(Exception):
    """A create request that the API server rejected, permanently or in the current state of the cluster."""

    def __init__(self, document: Object, error: ApiException) -> None:
        body = _body(error)
        self.kind, self.name = str(document["kind"]), str(document["metadata"]["name"])
        self.reason = str(body.get("reason") or error.reason or "Rejected").replace(" ", "") or "Rejected"
        self.sentence = str(body.get("message") or error.reason or f"HTTP {error.status}")[:MAX_SENTENCE]
        self.final = _final(int(error.status or 0), body)
        """Whether the same object would be rejected again in any state of the cluster."""
        super().__init__(f"the API server refuses {self.kind} {self.name}: {self.sentence}")

    @property
    def no_dry_run(self) -> bool:
        """Return whether a webhook rejected the request only because it does not support dry runs."""
        return self.reason == "BadRequest" and self.sentence.endswith(_NO_DRY_RUN)

    @property
    def by_quota(self) -> bool:
        """Return whether a ResourceQuota is used up. Pods that end free quota."""
        return self.reason == "Forbidden" and _QUOTA.search(self.sentence) is not None


def rejected(document: Object, error: ApiException) -> ApiException | Rejected:
    """Return the rejection that an error response stands for, or the error itself if a retry may succeed."""
    return error if int(error.status or 0) in TRANSIENT else Rejected(document, error)


def _final(status: int, body: dict[str, Any]) -> bool:
    """Return whether the object itself is invalid. A policy also rejects with 422, but names no field."""
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
