"""Create HTTP clients that choose the proxy for each request according to harness.core.proxies.

httpx itself rejects some valid NO_PROXY values and does not support address ranges in them.
"""

from __future__ import annotations

import ssl
import threading
from typing import Any

import httpx

from harness.core import proxies
from harness.core.errors import UsageError
from harness.core.proxies import Proxy


def client(**options: Any) -> httpx.Client:
    """Return an httpx.Client with the given options. Requests that need an unsupported proxy raise
    httpx.ProxyError.

    A client with headers or credentials does not follow redirects. On a redirect to another server, httpx
    would remove only the Authorization header from the request.
    """
    if options.get("follow_redirects") and {"headers", "auth", "cookies"} & options.keys():
        raise ValueError("a client with credentials cannot follow redirects")
    return httpx.Client(transport=_Routed(), **options)


def client_of(proxy: Proxy | None, verify: ssl.SSLContext, **options: Any) -> httpx.Client:
    """Return an httpx.Client for one server whose proxy has already been chosen."""
    return httpx.Client(transport=_transport(proxy, verify), **options)


class _Routed(httpx.BaseTransport):
    """A transport with one connection pool per proxy, and one for direct connections."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pools: dict[Proxy | None, httpx.HTTPTransport] = {}
        self._verify: ssl.SSLContext | None = None

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        try:
            proxy = proxies.proxy_of(str(request.url))
        except UsageError as error:
            raise httpx.ProxyError(error.message, request=request) from None
        return self._pool(proxy).handle_request(request)

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()

    def _pool(self, proxy: Proxy | None) -> httpx.HTTPTransport:
        with self._lock:
            if self._verify is None:  # Done once, because reading the CA certificates takes 0.1 s of CPU.
                self._verify = httpx.create_ssl_context()
            if proxy not in self._pools:
                self._pools[proxy] = _transport(proxy, self._verify)
            return self._pools[proxy]


def _transport(proxy: Proxy | None, verify: ssl.SSLContext) -> httpx.HTTPTransport:
    through = None if proxy is None else httpx.Proxy(str(proxy), auth=proxy.credentials)
    return httpx.HTTPTransport(verify=verify, proxy=through)
