"""Send requests with retries, because a tracker or the API server's proxy can fail for a short time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import httpx
from tenacity import (
    RetryCallState,
    RetryError,
    Retrying,
    retry_if_exception_type,
    stop_after_delay,
    wait_exponential,
)

from harness.core.errors import HarnessError, WaitError


class _TemporaryError(Exception):
    """Raised if a request failed for a reason that might be temporary. The request is then sent again."""


class RejectedError(HarnessError):
    """Raised if the tracker, or a proxy in front of it, responded with an error status that a retry would not
    change."""

    def __init__(self, path: str, response: httpx.Response) -> None:
        super().__init__(
            f"the tracker responded to {path} with {response.status_code}: {response.text[:200]}",
            cause="tracker.unreachable",
        )
        self.response = response


def ask(
    client: httpx.Client,
    path: str,
    params: Mapping[str, Any],
    seconds: float,
    gone_reason: Callable[[], str | None] = lambda: None,
    *,
    body: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Send a GET request, or a POST request if there is a `body`. Return the JSON object in the response.

    Because of the retries, the tracker can receive a POST request more than once. Raises WaitError (cause
    tracker.unreachable) if there is no response within `seconds`. Raises HarnessError with the same cause if
    `gone_reason` returns a reason or the response is an error (RejectedError), and with the cause
    tracker.key_rejected if the status is 401.
    """

    def raise_if_gone(_: RetryCallState) -> None:
        reason = gone_reason()
        if reason is not None:
            raise HarnessError(reason, cause="tracker.unreachable")

    retryer = Retrying(
        retry=retry_if_exception_type(_TemporaryError),
        wait=wait_exponential(multiplier=0.1, max=2),
        stop=stop_after_delay(seconds),
        after=raise_if_gone,
    )
    try:
        response = retryer(_send, client, path, {k: v for k, v in params.items() if v is not None}, body)
    except RetryError as error:
        last_error = str(error.last_attempt.exception())
        awaited = f"a response from the tracker at {client.base_url} to {path}"
        raise WaitError(awaited, last_error, seconds, cause="tracker.unreachable") from None
    if response.status_code == 401:
        raise HarnessError(
            f"the tracker at {client.base_url} does not accept the key: {response.text[:200]}",
            hint="check PLUTO_API_KEY",
            cause="tracker.key_rejected",
        )
    if response.status_code != 200:
        raise RejectedError(path, response)
    try:
        document = response.json()
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise HarnessError(
            f"the tracker's response to {path} is not a JSON object", cause="tracker.unreachable"
        )
    return document


def _send(
    client: httpx.Client, path: str, params: Mapping[str, Any], body: Mapping[str, Any] | None
) -> httpx.Response:
    try:
        response = client.request("GET" if body is None else "POST", path, params=params, json=body)
    except httpx.TransportError as error:
        raise _TemporaryError(f"{type(error).__name__}: {error}") from error
    if response.status_code >= 500 or response.status_code == 429:
        raise _TemporaryError(f"{response.status_code} {response.text[:200]}")
    return response
