"""WebSockets to the API server that do not follow redirects.

websocket-client follows up to three redirects and sends the Authorization header to each target, even on
another host. In contrast, urllib3 removes the header, and httpx does not follow redirects by default.
"""

from __future__ import annotations

from typing import Any

from kubernetes.stream import ws_client
from websocket import WebSocket


class DirectWebSocket(WebSocket):
    """A WebSocket whose `connect` raises WebSocketException if the server redirects."""

    def connect(self, url: str, **options: Any) -> None:
        super().connect(url, **{**options, "redirect_limit": 0})  # type: ignore[no-untyped-call]


def refuse_redirects() -> None:
    """Make the Kubernetes client use DirectWebSocket, because the client has no option that disables
    redirects."""
    ws_client.WebSocket = DirectWebSocket
