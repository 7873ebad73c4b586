"""A real HTTP proxy on loopback, which counts its requests and can require a user name and a password."""

from __future__ import annotations

import base64
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


@dataclass
class ProxyServer:
    """A running proxy. `asked` contains a line for each accepted request, and `refused` a line for each
    rejected one."""

    port: int
    credentials: str = ""
    asked: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    elsewhere: dict[str, int] = field(default_factory=dict)
    """Maps host names to the loopback ports to which requests for these hosts are sent."""

    @property
    def url(self) -> str:
        user = f"{self.credentials}@" if self.credentials else ""
        return f"http://{user}127.0.0.1:{self.port}"

    def address(self, host: str, port: int) -> tuple[str, int]:
        return ("127.0.0.1", self.elsewhere[host]) if host in self.elsewhere else (host, port)


@contextmanager
def proxy_server(credentials: str = "") -> Iterator[ProxyServer]:
    """Run a proxy until the end of the block. `credentials` is USER:PASSWORD, or "" if none are required."""

    class Handler(BaseHTTPRequestHandler):
        def do_CONNECT(self) -> None:
            if not self._accepted():
                return
            host, _, port = self.path.rpartition(":")
            try:
                upstream = socket.create_connection(state.address(host.strip("[]"), int(port)), 10)
            except OSError:
                self.send_error(502)
                return
            with upstream:
                self.send_response(200)
                self.end_headers()
                self.wfile.flush()
                _relay(self.connection, upstream)

        def do_GET(self) -> None:
            """Forward a request with an absolute URL, whose connection is closed after the response."""
            if not self._accepted():
                return
            parts = urlsplit(self.path)
            address = state.address(parts.hostname or "", parts.port or 80)
            path = parts.path + (f"?{parts.query}" if parts.query else "")
            head = f"{self.command} {path} HTTP/1.0\r\nHost: {parts.netloc}\r\n\r\n"
            with socket.create_connection(address, 10) as upstream:
                upstream.sendall(head.encode())
                while data := upstream.recv(65536):
                    self.connection.sendall(data)
            self.close_connection = True

        do_HEAD = do_GET

        def _accepted(self) -> bool:
            line = f"{self.command} {self.path}"
            wanted = "Basic " + base64.b64encode(state.credentials.encode()).decode()
            if state.credentials and self.headers.get("Proxy-Authorization") != wanted:
                state.refused.append(line)
                self.send_response(407)
                self.send_header("Proxy-Authenticate", 'Basic realm="proxy"')
                self.send_header("Content-Length", "0")
                self.end_headers()
                return False
            state.asked.append(line)
            return True

        def log_message(self, format: str, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    state = ProxyServer(http.server_port, credentials)
    thread = threading.Thread(target=http.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield state
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


def _relay(one: socket.socket, other: socket.socket) -> None:
    """Copy bytes in both directions until one side closes its connection."""
    while True:
        for source in select.select([one, other], [], [])[0]:
            try:
                data = source.recv(65536)
                (other if source is one else one).sendall(data)
            except OSError:
                return
            if not data:
                return
