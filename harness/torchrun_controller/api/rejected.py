"""Refusals by the API server, as data: what was refused, and the server's own sentence."""

from __future__ import annotations

import json
import re
from typing import Any

from kubernetes.client.exceptions import ApiException

from harness.core.kubernetes import Object

BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, TOO_LARGE, INVALID = 400, 401, 403, 413, 422
TRANSIENT = (0, UNAUTHORIZED, 429, 503, 504)
"""Statuses that say nothing about the object: the request is repeated."""
MAX_SENTENCE = 4000
_NO_DRY_RUN = "does not support dry run"
"""Of a webhook with side effects, registered before Kubernetes 1.22. It would be called at a real create."""
_QUOTA = re.compile(r"exceeded quota: ")
"""Of the admission plugin ResourceQuota. Its status has no field that tells it from other refusals."""


class Rejected(Exception):
    """A create that the API server refused, for good or as the cluster is now."""

    def __init__(self, document: Object, error: ApiException) -> None:
        body = _body(error)
        self.kind, self.name = str(document["kind"]), str(document["metadata"]["name"])
        self.reason = str(body.get("reason") or error.reason or "Rejected").replace(" ", "") or "Rejected"
        self.sentence = str(body.get("message") or error.reason or f"HTTP {error.status}")[:MAX_SENTENCE]
        self.final = _final(int(error.status or 0), body)
        """Whether the same object would be refused again, whatever else the cluster has."""
        super().__init__(f"the API server refuses {self.kind} {self.name}: {self.sentence}")

    @property
    def no_dry_run(self) -> bool:
        """Return whether a webhook alone refuses the dry run, which says nothing about the object."""
        return self.reason == "BadRequest" and self.sentence.endswith(_NO_DRY_RUN)

    @property
    def by_quota(self) -> bool:
        """Return whether a ResourceQuota is used up. Pods that end make room."""
        return self.reason == "Forbidden" and _QUOTA.search(self.sentence) is not None


def rejected(document: Object, error: ApiException) -> ApiException | Rejected:
    """Return the refusal that an answer stands for, or the error where the request is to be repeated."""
    return error if int(error.status or 0) in TRANSIENT else Rejected(document, error)


def _final(status: int, body: dict[str, Any]) -> bool:
    """Return whether an object itself is wrong. A policy that refuses it answers 422 too, without a field."""
    if status == INVALID:
        causes = (body.get("details") or {}).get("causes") or []
        return bool(causes) and all(cause.get("field") for cause in causes)
    return status in (BAD_REQUEST, TOO_LARGE)


def _body(error: ApiException) -> dict[str, Any]:
    try:
        found = json.loads(error.body or "")
    except (TypeError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
