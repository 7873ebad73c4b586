"""Reach a Service in the cluster through the API server's proxy, which works wherever the kubeconfig
works."""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx

from harness.core.http_client import client_of
from harness.core.kubernetes import Kube
from harness.core.kubernetes_retries import as_kubectl

_NAME = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_SERVICE = re.compile(rf"({_NAME})(?:\.({_NAME})\.svc(?:\.[-a-z0-9.]+)?)?\.?")
"""Matches a host name that only the cluster's DNS resolves. A name without a dot is a Service in the pod's
own namespace."""
_LOCAL = ("localhost",)


@dataclass(frozen=True)
class Service:
    """A Service and its port, as given in a URL."""

    namespace: str
    name: str
    port: int
    scheme: str = "http"

    @property
    def proxied(self) -> str:
        """Return the Service's name as it appears in the API server's proxy paths and in the resourceNames of
        RBAC rules."""
        return f"{'https:' if self.scheme == 'https' else ''}{self.name}:{self.port}"


def service_of(url: str, namespace: str) -> Service | None:
    """Return the Service to which a URL refers, or None if its host is not a name in the cluster's DNS.

    `namespace` is the namespace of the pods that use the URL.
    """
    parts = urlsplit(url)
    match = _SERVICE.fullmatch(parts.hostname or "")
    if match is None or parts.hostname in _LOCAL or parts.hostname.isdecimal():  # type: ignore[union-attr]
        return None
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return Service(match[2] or namespace, match[1], port, parts.scheme)


def client(kube: Kube, service: Service, headers: dict[str, str]) -> httpx.Client:
    """Return an HTTP client for a Service.

    `headers` must not contain Authorization, because the API server's proxy does not forward it to the
    Service.
    """
    c = kube.configuration
    context = as_kubectl(ssl.create_default_context(cafile=c.ssl_ca_cert))
    if not c.verify_ssl:  # The kubeconfig sets insecure-skip-tls-verify.
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if c.cert_file:
        context.load_cert_chain(c.cert_file, c.key_file)
    extensions = {"sni_hostname": c.tls_server_name} if c.tls_server_name else {}
    token = c.get_api_key_with_prefix("BearerToken", alias="authorization")
    return client_of(
        kube.proxy,
        context,
        base_url=f"{c.host}/api/v1/namespaces/{service.namespace}/services/{service.proxied}/proxy/",
        headers={**headers, **({"Authorization": token} if token else {})},
        timeout=30,
        event_hooks={"request": [lambda request: request.extensions.update(extensions)]},
    )
