"""An API server on loopback that keeps Events, and refuses what a real one refuses."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from loopback import kube_of

from harness.core.kubernetes import Kube

EVENTS = {"name": "events", "kind": "Event", "namespaced": True, "verbs": ["create", "get", "update"]}
KINDS = {
    "/version": {"kind": "Info", "major": "1", "minor": "36"},
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "groups": []},
    "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": [EVENTS]},
}


class EventsServer(ThreadingHTTPServer):
    """`token`: the one that it takes; without one it takes all. `refusal`: the answer to all writes."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.token: str | None = None
        self.refusal: tuple[int, str] | None = None
        self.stored: dict[str, dict[str, Any]] = {}
        self.writes: list[str] = []
        self.asked = 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def kube(self, folder: Path, user: dict[str, str] | None = None) -> Kube:
        return kube_of(self.server_address[1], folder, user)


class _Handler(BaseHTTPRequestHandler):
    server: EventsServer

    def do_GET(self) -> None:
        if self.server.token is not None and self.headers["Authorization"] != f"Bearer {self.server.token}":
            self._answer(401, {"message": "Unauthorized"})
        elif self.path in KINDS:
            self._answer(200, KINDS[self.path])
        elif (found := self.server.stored.get(self.path.rpartition("/")[2])) is not None:
            self._answer(200, found)
        else:
            self._answer(404, {"message": "not found"})

    def do_POST(self) -> None:
        found = self._read()
        name = found["metadata"]["name"]
        self.server.writes.append(f"create {found['reason']}")
        if self.server.refusal:
            code, message = self.server.refusal
            self._answer(code, {"message": message})
        elif name in self.server.stored:
            self._answer(409, {"message": "there already"})
        else:
            self._store(found, 1)

    def do_PUT(self) -> None:
        found = self._read()
        self.server.writes.append(f"update {found['reason']}")
        version = self.server.stored[found["metadata"]["name"]]["metadata"]["resourceVersion"]
        if found["metadata"]["resourceVersion"] != version:
            self._answer(409, {"message": "changed meanwhile"})
        else:
            self._store(found, int(version) + 1)

    def _store(self, found: dict[str, Any], version: int) -> None:
        found["metadata"]["resourceVersion"] = str(version)
        self.server.stored[found["metadata"]["name"]] = found
        self._answer(200, found)

    def _read(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        return found

    def _answer(self, code: int, body: object) -> None:
        self.server.asked += 1
        content = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass
