"""Reach a Service of the cluster through the proxy of the API server, wherever the kubeconfig works."""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx

from harness.core.http_client import client_of
from harness.core.kubernetes import Kube
from harness.core.retries import as_kubectl

_NAME = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_SERVICE = re.compile(rf"({_NAME})(?:\.({_NAME})\.svc(?:\.[-a-z0-9.]+)?)?\.?")
"""A host that only the DNS of the cluster resolves. A name without a dot is in the namespace of the pod."""
_LOCAL = ("localhost",)


@dataclass(frozen=True)
class Service:
    """A port of a Service, as a URL names it."""

    namespace: str
    name: str
    port: int
    scheme: str = "http"

    @property
    def proxied(self) -> str:
        """Return the name of the Service in paths and roles of the API server's proxy."""
        return f"{'https:' if self.scheme == 'https' else ''}{self.name}:{self.port}"


def service_of(url: str, namespace: str) -> Service | None:
    """Return the Service that a URL names, or None if its host is not one of the cluster's DNS.

    `namespace` is that of the pods that use the URL.
    """
    parts = urlsplit(url)
    found = _SERVICE.fullmatch(parts.hostname or "")
    if found is None or parts.hostname in _LOCAL or parts.hostname.isdecimal():  # type: ignore[union-attr]
        return None
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return Service(found[2] or namespace, found[1], port, parts.scheme)


def client(kube: Kube, service: Service, headers: dict[str, str]) -> httpx.Client:
    """Return an HTTP client for a Service.

    The proxy strips the header Authorization, so the key is sent in another header.
    """
    c = kube.configuration
    context = as_kubectl(ssl.create_default_context(cafile=c.ssl_ca_cert))
    if not c.verify_ssl:  # insecure-skip-tls-verify in the kubeconfig
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if c.cert_file:
        context.load_cert_chain(c.cert_file, c.key_file)
    named = {"sni_hostname": c.tls_server_name} if c.tls_server_name else {}
    token = c.get_api_key_with_prefix("BearerToken", alias="authorization")
    return client_of(
        kube.proxy,
        context,
        base_url=f"{c.host}/api/v1/namespaces/{service.namespace}/services/{service.proxied}/proxy/",
        headers={**headers, **({"Authorization": token} if token else {})},
        timeout=30,
        event_hooks={"request": [lambda request: request.extensions.update(named)]},
    )
