"""An API server on loopback that lists and watches PriorityClasses, as a test has it do."""

from __future__ import annotations

import json
import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from loopback import kube_of

from harness.core.kubernetes import Kube

Object = dict[str, Any]
END = None
"""What ends a watch."""


def item(name: str, version: int) -> Object:
    return {"metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}}


class WatchServer(ThreadingHTTPServer):
    """`lists` are the answers to lists, the last one for ever; `watched` is what watches are told."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.lists: list[tuple[int, list[Object]] | int] = []
        """(version, items), or the status of a refusal."""
        self.watched: queue.Queue[bytes | int | None] = queue.Queue()
        """A line; the status that refuses the watch; END."""
        self.page = 100
        self.token: str | None = None
        self.asked: list[dict[str, str]] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def tell(self, kind: str, found: Object) -> None:
        self.watched.put(json.dumps({"type": kind, "object": found}).encode() + b"\n")

    def kube(self, folder: Path, user: dict[str, str] | None = None) -> Kube:
        return kube_of(self.server_address[1], folder, user)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: WatchServer

    def do_GET(self) -> None:
        query = {key: values[0] for key, values in parse_qs(urlsplit(self.path).query).items()}
        self.server.asked.append(query)
        if self.server.token is not None and self.headers["Authorization"] != f"Bearer {self.server.token}":
            self._answer(401, {"message": "Unauthorized"})
        elif "watch" in query:
            self._watch()
        else:
            self._list(query)

    def _list(self, query: dict[str, str]) -> None:
        lists = self.server.lists
        answer = lists[0] if len(lists) == 1 or "continue" in query else lists.pop(0)
        if isinstance(answer, int):
            self._answer(answer, {"message": "no"})
            return
        version, items = answer
        start = int(query.get("continue", "0"))
        page = items[start : start + self.server.page]
        further = str(start + len(page)) if start + len(page) < len(items) else ""
        self._answer(200, {"metadata": {"resourceVersion": str(version), "continue": further}, "items": page})

    def _watch(self) -> None:
        first = self.server.watched.get()
        if isinstance(first, int):
            self._answer(first, {"message": "too old" if first == 410 else "busy"})
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        line = first
        while isinstance(line, bytes):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            self.wfile.flush()
            line = self.server.watched.get()
        self.wfile.write(b"0\r\n\r\n")

    def _answer(self, code: int, body: object) -> None:
        content = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass
