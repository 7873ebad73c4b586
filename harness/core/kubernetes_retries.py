"""A REST client for the API server that sets a default timeout and retries requests without a response."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from kubernetes import client
from kubernetes.client import rest
from kubernetes.client.exceptions import ApiException
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_delay, wait_fixed
from urllib3.exceptions import HTTPError
from urllib3.util.ssl_ import create_urllib3_context

from harness.core.deadlines import Deadline

CONNECT_SECONDS, READ_SECONDS = 5.0, 15.0
RETRY_SECONDS = 20.0
"""The number of seconds for which a request without a response is retried, because the API server might be
restarting."""
PAUSE_SECONDS = 0.5
"""The number of seconds to wait before each retry."""
OnRetry = Callable[[str, str], None]
OnResponse = Callable[[str, str, int], None]


def _ignore(*arguments: object) -> None:
    del arguments


class Requests(rest.RESTClientObject):  # type: ignore[misc]
    """A REST client with a default timeout.

    The client retries requests that are safe to repeat, and calls `on_retry` if a retry succeeded. It does
    not retry watches, log streams and requests with their own timeout, because their callers handle errors.
    """

    def __init__(self, configuration: client.Configuration) -> None:
        super().__init__(configuration)
        with suppress(OSError):  # Connections later raise an error for an unreadable certificate file.
            _share_context(self.pool_manager.connection_pool_kw)
        self.on_retry: OnRetry = _ignore
        self.on_response: OnResponse = _ignore

    def request(
        self,
        method: str,
        url: str,
        headers: Any = None,
        body: Any = None,
        post_params: Any = None,
        _request_timeout: Any = None,
    ) -> Any:
        has_timeout = _request_timeout is not None
        stream = "watch=" in url or "follow=" in url
        timeout = _request_timeout if has_timeout else (CONNECT_SECONDS, None if stream else READ_SECONDS)
        reasons: list[str] = []

        def note(state: RetryCallState) -> None:
            error = state.outcome.exception() if state.outcome else None
            reasons.append(reason_of(error) if isinstance(error, HTTPError) else "lost")

        retryer = Retrying(
            retry=retry_if_exception_type(HTTPError),
            stop=stop_after_delay(0 if has_timeout or stream or method == "POST" else RETRY_SECONDS),
            wait=wait_fixed(PAUSE_SECONDS),
            before_sleep=note,
            reraise=True,
        )
        response = retryer(super().request, method, url, headers, body, post_params, timeout)
        self.on_response(method, url, int(response.status))
        if reasons:
            self.on_retry(
                f"{method} {url.partition('?')[0]}", f"{reasons[0]}; succeeded on attempt {len(reasons) + 1}"
            )
        return response


def _share_context(options: dict[str, Any]) -> None:
    """Make all of a client's connections use the same SSL context.

    Otherwise, each connection that uses a client certificate would read the files and check the key again,
    which takes 4 ms of CPU time. Connections that use a token still read the certificate authority each time,
    because its file can change while the process is running.
    """
    context = as_kubectl(create_urllib3_context(cert_reqs=options["cert_reqs"]))
    authority = options["ca_certs"] or options["ca_cert_data"]
    if not authority and options["cert_reqs"] == ssl.CERT_REQUIRED:
        context.load_default_certs()
    options["ssl_context"] = context
    if not options.get("cert_file"):
        return
    context.load_cert_chain(options["cert_file"], options["key_file"])
    if authority:
        context.load_verify_locations(options["ca_certs"], None, options["ca_cert_data"])
    read = ("cert_file", "key_file", "ca_certs", "ca_cert_data")
    options.update(dict.fromkeys(read))


def as_kubectl(context: ssl.SSLContext) -> ssl.SSLContext:
    """Make an SSL context accept the same certificates as kubectl, and return it.

    Since Python 3.13, SSL contexts by default require extensions that the certificate authorities of EKS and
    MicroK8s do not have (kubernetes-client/python#2394).
    """
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def reason_of(error: ApiException | HTTPError) -> str:
    """Return the API server's error message.

    If there was no response, return urllib3's reason without the connection pool and URL.
    """
    if isinstance(error, ApiException):
        if not error.status:  # If the TLS handshake fails, the error has no status.
            return " ".join(str(error.reason).split())
        try:
            return f"HTTP {error.status}: {json.loads(error.body or '')['message']}"
        except (ValueError, TypeError, KeyError):
            return f"HTTP {error.status}: {error.reason}"
    return f"{type(error).__name__}: {str(error).rpartition(': ')[2]}"


def pause(deadline: Deadline) -> None:
    """Sleep between two attempts to reach an API server, but not beyond the deadline.

    The harness has to poll here, because a server that does not respond cannot be watched.
    """
    time.sleep(min(PAUSE_SECONDS, deadline.remaining))
