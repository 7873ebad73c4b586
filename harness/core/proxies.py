"""Choose the HTTP proxy for a request, and the proxy variables for other programs.

Programs and libraries interpret HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY differently. Some send
requests for loopback addresses to the proxy, some reject NO_PROXY entries such as `[::1]` or `fe80::/10`,
some ignore the user name, and some read only one of NO_PROXY and no_proxy. The harness therefore chooses the
proxy itself:

- Requests to loopback addresses, to names inside a cluster, and to hosts in NO_PROXY or no_proxy do not use a
  proxy.
- A kubeconfig's `proxy-url` overrides the variables and NO_PROXY, as in kubectl.
- Credentials are sent only in the Proxy-Authorization header and do not appear in any other text.
"""

from __future__ import annotations

import base64
import ipaddress
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, urlsplit

from harness.core.errors import UsageError

VARIABLES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
EXCEPTIONS: Final = "NO_PROXY"
LOOPBACK: Final = ("localhost", "127.0.0.1", "127.0.0.0/8", "::1")
"""The loopback addresses as NO_PROXY entries. Not all programs support address ranges."""
_CLUSTER_NAMES: Final = (".svc", ".cluster.local")
_CLUSTER_HOST: Final = "KUBERNETES_SERVICE_HOST"
"""The environment variable that contains the API server's address in all pods."""
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Proxy:
    """An HTTP proxy. Its string form is a URL without credentials."""

    scheme: str
    host: str
    port: int
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)

    @classmethod
    def parse(cls, text: str, source: str) -> Proxy:
        """Parse a proxy's URL.

        `source` is the name of the URL's source for messages, such as the name of an environment variable.

        A URL without a scheme is an http:// URL, as in curl and Go. Raises UsageError, with a message that
        omits the URL's credentials, if the harness does not support the proxy.
        """
        url = text.strip() if "://" in text else f"http://{text.strip()}"
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port, parts = None, None, urlsplit("")
        if not host:
            raise UsageError(
                f"{source}: expected the URL of a proxy, such as http://proxy:3128, "
                f"found {without_credentials(text)}",
                hint="correct this setting, or remove it if you do not use a proxy",
            )
        if parts.scheme not in _PORTS:
            raise UsageError(
                f"{source}: expected an http:// or https:// proxy, found a {parts.scheme}:// proxy, which "
                "the harness's clients do not support",
                hint="use the proxy's HTTP port, or an HTTP proxy that forwards requests to this proxy",
            )
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        return cls(parts.scheme, host, port or _PORTS[parts.scheme], user, password)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    @property
    def credentials(self) -> tuple[str, str] | None:
        """Return the user name and password, or None if the proxy does not need credentials."""
        return (self.user, self.password) if self.user or self.password else None

    @property
    def headers(self) -> dict[str, str]:
        """Return the Proxy-Authorization header, or {} if the proxy needs no credentials.

        The header's name is in lower case, as in urllib3.
        """
        if self.credentials is None:
            return {}
        encoded = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        return {"proxy-authorization": f"Basic {encoded}"}


def proxy_of(
    url: str, environment: Mapping[str, str] = os.environ, *, fallback: str = "ALL_PROXY"
) -> Proxy | None:
    """Return the proxy for a request to a URL, or None for a direct connection.

    If the proxy variable for the URL's scheme is not set, the variable named by `fallback` is read. Raises
    UsageError for a proxy that the harness does not support.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 0)
    for name in filter(None, (f"{parts.scheme.upper()}_PROXY", fallback)):
        if text := _value(name, environment):
            return None if bypassed(host, port, environment) else Proxy.parse(text, name)
    return None


def proxy_of_cluster(
    server: str, proxy_url: str | None, environment: Mapping[str, str] = os.environ
) -> Proxy | None:
    """Return the proxy for an API server, following kubectl's rules.

    `proxy_url` is the cluster's proxy-url in the kubeconfig. kubectl does not read ALL_PROXY. Raises
    UsageError for a proxy that the harness does not support.
    """
    if proxy_url:
        return Proxy.parse(proxy_url, "proxy-url of the kubeconfig")
    return proxy_of(server, environment, fallback="")


def bypassed(host: str, port: int, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether requests to a host go directly to the host, even if the environment sets a proxy."""
    name = host.lower().rstrip(".")
    if is_loopback(name) or name.endswith(_CLUSTER_NAMES) or name == environment.get(_CLUSTER_HOST):
        return True
    return any(_matches(entry, name, port) for entry in _exceptions(environment))


def is_loopback(host: str) -> bool:
    """Return whether a host name or address refers to this machine's loopback interface."""
    address = _address(host)
    return host == "localhost" or host.endswith(".localhost") or (address is not None and address.is_loopback)


def with_exceptions(environment: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of an environment in which all programs connect directly to loopback addresses.

    If a proxy is set, NO_PROXY and no_proxy both contain the entries from both variables and the loopback
    addresses.
    """
    if not any(_value(name, environment) for name in VARIABLES):
        return dict(environment)
    entries = [*_exceptions(environment)]
    # curl and urllib support `*` only if it is the whole value.
    text = "*" if "*" in entries else ",".join(dict.fromkeys([*entries, *LOOPBACK]))
    return {**environment, EXCEPTIONS: text, EXCEPTIONS.lower(): text}


def for_containers(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a program that passes its proxy variables to containers.

    Variables with a proxy on a loopback address are removed, because containers with their own network cannot
    reach it.
    """
    removed = unreachable_from_containers(environment)
    return {name: value for name, value in with_exceptions(environment).items() if name not in removed}


def unreachable_from_containers(environment: Mapping[str, str]) -> list[str]:
    """Return the names of the proxy variables whose proxy is on one of this machine's loopback addresses."""
    return [
        name for name in names(environment) if name.upper() in VARIABLES and _on_loopback(environment[name])
    ]


def names(environment: Mapping[str, str]) -> list[str]:
    """Return the names, in upper and lower case, of the proxy variables that have a value."""
    every = (*VARIABLES, EXCEPTIONS)
    return [each for name in every for each in (name, name.lower()) if environment.get(each)]


def secrets(environment: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Yield the passwords in the proxy variables. A percent-encoded password is yielded in both forms,
    encoded and decoded."""
    for name in VARIABLES:
        for text in filter(None, (environment.get(name), environment.get(name.lower()))):
            yield from passwords(text)


def passwords(url: str) -> Iterator[str]:
    """Yield the password in a URL. A percent-encoded password is yielded in both forms, encoded and
    decoded."""
    if match := re.search(r"^(?:\w+://)?[^/@:]*:(.+)@", url.strip()):
        yield from dict.fromkeys((match[1], unquote(match[1])))


def without_credentials(url: str) -> str:
    """Return a URL for use in a message, without its user name and password."""
    return re.sub(r"^(\s*(?:\w+://)?).*@", r"\1***@", url)


def _value(name: str, environment: Mapping[str, str]) -> str:
    """Return a proxy variable's value. As in Python and curl, the lower-case name takes precedence."""
    lower = name.lower()
    return (environment[lower] if lower in environment else environment.get(name, "")).strip()


def _exceptions(environment: Mapping[str, str]) -> Iterable[str]:
    """Return the entries in NO_PROXY and no_proxy, without brackets around addresses."""
    text = ",".join(environment.get(name, "") for name in (EXCEPTIONS, EXCEPTIONS.lower()))
    entries = (entry.strip().lower() for entry in re.split(r"[,\s]+", text))
    return dict.fromkeys(re.sub(r"^\[(.*)\]$", r"\1", entry) for entry in entries if entry)


def _matches(entry: str, host: str, port: int) -> bool:
    """Return whether a NO_PROXY entry matches a host.

    An entry is `*`, a name, an address or an address range, optionally with a port. A name, with or without a
    leading dot or `*.`, also matches its subdomains.
    """
    if entry == "*":
        return True
    name, colon, number = entry.rpartition(":")
    if colon and number.isdecimal() and (":" not in name or name.endswith("]")):
        if int(number) != port:
            return False
        entry = name.strip("[]")
    address = _address(host)
    if address is not None:
        try:
            return address in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    domain = entry.removeprefix("*").lstrip(".")
    return bool(domain) and (host == domain or host.endswith(f".{domain}"))


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _on_loopback(url: str) -> bool:
    try:
        return is_loopback(urlsplit(url if "://" in url else f"http://{url}").hostname or "")
    except ValueError:
        return False
