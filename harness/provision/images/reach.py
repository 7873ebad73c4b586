"""Check whether published images can be pulled here: the registries and the manifests' hosts answer."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit
from urllib.request import getproxies

import httpx

from harness.core.beside import within
from harness.provision.images.versions import Registry

SECONDS = 3.0
ADDRESS_SECONDS = 7.0
"""getaddrinfo has no limit of its own: where questions are dropped it takes 10 s for each DNS server. A lost
question is asked again after 5 s, and may be answered then."""
_LOCAL = {"localhost", "127.0.0.1", "[::1]"}
_DOCKER_HUB = "registry-1.docker.io"


def registry_host(reference: str) -> str:
    """Return host and port of an image reference, as Docker reads it. A reference without a host is
    docker.io.
    """
    first, slash, _ = reference.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return first
    return "docker.io"


def api_url(host: str) -> str:
    """Return the URL where a registry host says that it is one. Loopback is plain HTTP, as in Docker."""
    name = _DOCKER_HUB if host in {"docker.io", "index.docker.io"} else host
    scheme = "http" if name.partition(":")[0] in _LOCAL else "https"
    return f"{scheme}://{name}/v2/"


def unreached(registry: Registry) -> list[str]:
    """Return what does not answer, and how. Empty when everything that is pulled or downloaded can be
    reached. Hosts without an address are all that is returned where there are any: nothing is asked then.
    """
    hosts = {registry_host(reference) for reference in registry.images()}
    checks = [(api_url(host), {200, 401}) for host in sorted(hosts)]
    checks += [(controller.manifest, {200}) for controller in (registry.jobset, registry.kueue)]
    # Before there is a client: it reads the machine's certificates, 0.1 s of a processor.
    urls = [url for url, _ in checks]
    found = within(ADDRESS_SECONDS, _nameless, urls)
    late = f"no address within {ADDRESS_SECONDS:g} s"
    if nameless := [*filter(None, (found.get(url, f"{url}: {late}") for url in urls))]:
        return nameless
    with (
        ThreadPoolExecutor(len(checks)) as pool,
        httpx.Client(timeout=SECONDS, follow_redirects=True) as client,
    ):
        return [*filter(None, pool.map(lambda check: _answer(client, *check), checks))]


def _nameless(url: str) -> str:
    """Return why a URL's host has no address, or "". Where there is a proxy, that one looks for it."""
    if getproxies():
        return ""
    try:
        socket.getaddrinfo(urlsplit(url).hostname, None)
    except OSError as error:
        return f"{url}: {error}"
    return ""


def _answer(client: httpx.Client, url: str, expected: Iterable[int]) -> str:
    """ "" for an expected status. A proxy that forbids a host also answers, with another one."""
    try:
        status = client.head(url).status_code
    except httpx.HTTPError as error:
        return f"{url}: {error or type(error).__name__}"
    return "" if status in expected else f"{url}: HTTP {status}"
