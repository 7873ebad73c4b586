"""The controller's HTTP server, which serves /metrics, /healthz (fails if a component is stuck) and
/readyz."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import CollectorRegistry

LATE_SECONDS = 120.0
"""A component that has made no progress for this number of seconds is considered stuck. A request to an API
server that does not respond fails earlier, even with its retry."""


class Health:
    """Records the progress of the process's components.

    A component is monitored as soon as it has reported progress once.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.monotonic = monotonic
        self.ready = threading.Event()
        self._last: dict[str, float] = {}

    def moves(self, part: str) -> None:
        """Record that a component is making progress."""
        self._last[part] = self.monotonic()

    def ends(self, part: str) -> None:
        """Stop monitoring a component."""
        self._last.pop(part, None)

    def stuck(self) -> list[str]:
        """Return the components that have made no progress for LATE_SECONDS."""
        now = self.monotonic()
        return [part for part, last in list(self._last.items()) if now - last > LATE_SECONDS]


class Server(ThreadingHTTPServer):
    """An HTTP server on all addresses, including IPv6. It runs in its own threads."""

    daemon_threads = True

    def __init__(self, port: int, health: Health, registry: CollectorRegistry) -> None:
        self.health, self.registry = health, registry
        dual_stack = socket.has_dualstack_ipv6()
        self.address_family = socket.AF_INET6 if dual_stack else socket.AF_INET
        super().__init__(("", port), Handler)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def start(self) -> None:
        threading.Thread(target=self.serve_forever, name="http", daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = 10
    """The number of seconds after which an idle connection is closed, so that it does not occupy a thread."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            encode, kind = choose_encoder(self.headers.get("Accept") or "")
            self._answer(200, encode(self.server.registry), kind)
        elif path == "/healthz":
            stuck_components = self.server.health.stuck()
            self._answer(
                503 if stuck_components else 200,
                f"stuck: {', '.join(stuck_components)}\n" if stuck_components else "ok\n",
            )
        elif path == "/readyz":
            ready = self.server.health.ready.is_set()
            self._answer(200 if ready else 503, "ok\n" if ready else "not yet\n")
        else:
            self._answer(404, "expected /metrics, /healthz or /readyz\n")

    def _answer(self, code: int, body: str | bytes, kind: str = "text/plain; charset=utf-8") -> None:
        content = body.encode() if isinstance(body, str) else body
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Do not log requests, because probes send one every few seconds."""
