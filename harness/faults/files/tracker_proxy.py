"""A proxy in front of the tracker that simulates network and server faults.

    python3 tracker_proxy.py MODE [--only PREFIX] [--after N] [--seconds S] [--status CODE] [--delay S]

MODE determines what happens to an affected request:
    error    the proxy responds with --status and does not forward the request
    slow     the proxy forwards the request after --delay seconds
    drop     the proxy forwards the request, and then closes the connection without a response
    swallow  the proxy responds with 200 and does not forward the request

The fault begins after --after posts of points and lasts for --seconds (0 means forever). It affects requests
whose path begins with --only. All other requests are forwarded unchanged. The proxy prints one line for each
affected request. It runs in a pod, from the tracker's image, and uses only the standard library. Requests
with a body need a Content-Length.
"""

from __future__ import annotations

import argparse
import threading
import time
from http.client import HTTPConnection, HTTPException, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

POINTS = "/ingest/metrics"
UPSTREAM_SECONDS = 60
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"}


class Trouble:
    """Decides which requests the fault affects."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._lock = threading.Lock()
        self._posts = 0
        self._start: float | None = None

    def strikes(self, path: str, body: bytes) -> bool:
        """Count the request, and return whether the fault affects it.

        Requests with the client's system metrics are not counted, because the client sends them before any
        point.
        """
        with self._lock:
            if self._start is None and self._posts >= self._arguments.after:
                self._start = time.monotonic()
            self._posts += path.startswith(POINTS) and b'"sys/' not in body
            start = self._start
        duration = self._arguments.seconds
        is_active = start is not None and (not duration or time.monotonic() < start + duration)
        return is_active and path.startswith(self._arguments.only)


class Proxy(BaseHTTPRequestHandler):
    """Handles one client connection."""

    protocol_version = "HTTP/1.1"
    arguments: argparse.Namespace
    trouble: Trouble

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/healthz":
            self._answer(200, b"ok")
            return
        is_affected = self.trouble.strikes(self.path, body)
        mode = self.arguments.mode if is_affected else "pass"
        if is_affected:
            print(f"{mode}: {self.command} {self.path} of {self.client_address[0]}", flush=True)
        if mode == "error":
            reason = b"Invalid API key" if self.arguments.status == 401 else b"struck by a fault"
            self._answer(self.arguments.status, b'{"error":"%s"}' % reason)
            return
        if mode == "swallow":
            self._answer(200, b'{"success":true}')
            return
        if mode == "slow":
            time.sleep(self.arguments.delay)
        try:
            answer, content = self._pass_on(body)
        except (OSError, HTTPException) as error:
            self._answer(502, f"{type(error).__name__}: {error}".encode())
            return
        if mode == "drop":
            self.close_connection = True
            return
        headers = [(name, value) for name, value in answer.getheaders() if name.lower() not in HOP_BY_HOP]
        self._answer(answer.status, content, headers)

    do_GET = do_POST = do_PUT = _handle

    def _pass_on(self, body: bytes) -> tuple[HTTPResponse, bytes]:
        upstream = urlsplit(self.arguments.upstream)
        assert upstream.hostname is not None
        connection = HTTPConnection(upstream.hostname, upstream.port, timeout=UPSTREAM_SECONDS)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            return answer, answer.read()
        finally:
            connection.close()

    def _answer(self, status: int, content: bytes, headers: list[tuple[str, str]] | None = None) -> None:
        self.send_response(status)
        for name, value in headers or [("Content-Type", "application/json")]:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Suppress request logging, so that only affected requests are printed."""


def main() -> None:
    parser = argparse.ArgumentParser(description="A proxy in front of the tracker, with one fault.")
    parser.add_argument("mode", choices=["error", "slow", "drop", "swallow"])
    parser.add_argument("--only", default="/")
    parser.add_argument("--after", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--status", type=int, default=503)
    parser.add_argument("--delay", type=float, default=30)
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--upstream", default="http://tracker.harness-system.svc.cluster.local:8080")
    Proxy.arguments = parser.parse_args()
    Proxy.trouble = Trouble(Proxy.arguments)
    ThreadingHTTPServer(("", Proxy.arguments.port), Proxy).serve_forever()


if __name__ == "__main__":
    main()
