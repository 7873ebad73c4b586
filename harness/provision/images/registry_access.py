"""Check whether published images can be used, i.e. whether the registries and the manifest hosts respond.

`harness doctor` and launches use the same check. A host that does not respond is tried again with a longer
time limit, so that a single slow response does not count as a failure.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import httpx

from harness.core import proxies
from harness.core.concurrency import within
from harness.core.errors import UsageError
from harness.core.http_client import client
from harness.provision.images.versions import Registry

TRY_SECONDS = (4.0, 12.0)
"""The time limits, in seconds, of the first and the second attempt to reach a host."""
ADDRESS_SECONDS = 7.0
"""The number of seconds after which the harness stops waiting for getaddrinfo, which has no timeout of its
own. If DNS queries are dropped, getaddrinfo takes 10 s per server. A lost query is sent again after 5 s.
"""
_LOCAL = {"localhost", "127.0.0.1", "[::1]"}
_DOCKER_HUB = "registry-1.docker.io"


def registry_host(reference: str) -> str:
    """Return the host and port of an image reference, as parsed by Docker. The default host is docker.io."""
    first, slash, _ = reference.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return first
    return "docker.io"


def api_url(host: str) -> str:
    """Return the base URL of a registry's API. As in Docker, loopback addresses use plain HTTP."""
    name = _DOCKER_HUB if host in {"docker.io", "index.docker.io"} else host
    scheme = "http" if name.partition(":")[0] in _LOCAL else "https"
    return f"{scheme}://{name}/v2/"


def unreached(registry: Registry) -> list[str]:
    """Return a message for each registry or host that does not respond.

    If the harness does not support the configured proxy, only a message about the proxy is returned. If some
    host names cannot be resolved, only messages about these names are returned. In both cases, no request is
    sent.
    """
    hosts = {registry_host(reference) for reference in registry.images()}
    checks = [(api_url(host), {200, 401}) for host in sorted(hosts)]
    checks += [(controller.manifest, {200}) for controller in (registry.jobset, registry.kueue)]
    # No client is created before this check, because creating one reads all certificates, which takes 0.1 s
    # of CPU time.
    urls = [url for url, _ in checks]
    try:
        direct = [url for url in urls if proxies.proxy_of(url) is None]
    except UsageError as error:
        return [error.message]
    errors = within(ADDRESS_SECONDS, _resolution_error, direct)
    timeout_message = f"no address within {ADDRESS_SECONDS:g} s"
    if address_errors := [*filter(None, (errors.get(url, f"{url}: {timeout_message}") for url in direct))]:
        return address_errors
    with (
        ThreadPoolExecutor(len(checks)) as pool,
        client(follow_redirects=True) as http_client,
    ):
        return [*filter(None, pool.map(lambda check: _answer(http_client, *check), checks))]


def _resolution_error(url: str) -> str:
    """Return why the host name in a URL cannot be resolved, or "" if it can be resolved."""
    try:
        socket.getaddrinfo(urlsplit(url).hostname, None)
    except OSError as error:
        return f"{url}: {error}"
    return ""


def _answer(client: httpx.Client, url: str, expected: Iterable[int]) -> str:
    """Return "" if a host responds with an expected status, and otherwise the last error.

    A proxy that blocks the host responds with another status. In this case, the request is not retried.
    """
    problem = ""
    for seconds in TRY_SECONDS:
        try:
            status = client.head(url, timeout=seconds).status_code
        except httpx.HTTPError as error:
            suffix = f" (after {seconds:g} s)" if isinstance(error, httpx.TimeoutException) else ""
            problem = f"{url}: {str(error) or type(error).__name__}{suffix}"
            if isinstance(error, httpx.ProxyError):
                break
            continue
        if status in expected:
            return ""
        problem = f"{url}: HTTP {status}"
        if status < 500 and status != 429:
            break
    return problem
