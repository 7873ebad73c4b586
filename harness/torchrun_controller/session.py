"""How kopf reaches the API server: as the rest of the controller does, with the token of the moment."""

from __future__ import annotations

from collections.abc import Callable

import aiohttp
import kopf

from harness.core.kubernetes import Kube


def connection(kube: Kube) -> kopf.ConnectionInfo:
    """Return server and certificates. The token is not among them: it changes (`connected`)."""
    found = kube.configuration
    return kopf.ConnectionInfo(
        server=found.host,
        ca_path=found.ssl_ca_cert,
        insecure=not found.verify_ssl,
        certificate_path=found.cert_file,
        private_key_path=found.key_file,
        username=found.username or None,
        password=found.password or None,
    )


def connected(kube: Kube, answered: Callable[[str, str, int], None]) -> kopf.AiohttpSession:
    """Return a session for kopf, which closes it. `answered` is told method, URL and status of each answer.

    A token that kopf were given would stay the same until the API server refuses it.
    """

    async def each(
        request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        bearer = kube.configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        if bearer:
            request.headers["Authorization"] = bearer
        response = await handler(request)
        answered(request.method, str(request.url), response.status)
        return response

    info = connection(kube)
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
        headers=info.as_http_headers(),
        middlewares=[each],
    )
    return kopf.AiohttpSession(server=info.server, aiohttp_session=session)
