"""An API server on loopback that serves the objects and logs of a recorded bundle, read-only.

It records every request. Access to a kind can be forbidden, as for a user without permission to list it.
"""

from __future__ import annotations

import json
import queue
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import yaml

from harness.attach.resources import AROUND, TARGETS, Resource
from harness.evidence import Bundle

Object = dict[str, Any]
TOKEN = "token-of-u"
"""The bearer token of the user in the kubeconfig."""
RESOURCES = {each.kind.name: each for each in (*TARGETS, *AROUND)}


class BundleApi(ThreadingHTTPServer):
    """Serves `objects`, which maps kinds to objects, and `logs`, which maps (pod, container) to text."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, list[Object]] = {name: [] for name in RESOURCES}
        self.logs: dict[tuple[str, str], str] = {}
        self.previous: dict[tuple[str, str], str] = {}
        self.forbidden: set[str] = set()
        self.unserved: set[str] = set()
        self.secrets: dict[str, dict[str, str]] = {}
        """Maps the name of each Secret to its data in base64."""
        self.services: dict[str, str] = {}
        """Maps "<namespace>/<name>:<port>" of each Service to the URL to which the proxy forwards
        requests."""
        self.requests: list[tuple[str, str]] = []
        self.page = 500
        self.before: Callable[[str], None] = lambda path: None
        self.refusal: Callable[[str, dict[str, str]], int | None] = lambda path, query: None
        """Returns the HTTP status with which a request for a path and query fails, or None."""
        self.changes: dict[str, queue.Queue[Object | None]] = {name: queue.Queue() for name in RESOURCES}
        """Maps each kind to the events that its watch reports. None ends the watch."""
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def change(self, kind: str, item: Object, change: str = "MODIFIED") -> None:
        """Send an object's change to the watch of its kind, and serve the object's new state."""
        others = [each for each in self.objects[kind] if each["metadata"]["name"] != item["metadata"]["name"]]
        self.objects[kind] = others if change == "DELETED" else [*others, item]
        self.changes[kind].put({"type": change, "object": item})

    def load(self, bundle: Bundle, until: float) -> None:
        """Serve the objects that existed at a time, with the logs of their pods."""
        from harness.core.clock import seconds

        for kind in RESOURCES:
            last = {}
            for state in bundle.history(kind):
                if (seconds(state.received_at) or 0.0) <= until:
                    last[state.uid] = state
            self.objects[kind] = [s.object for s in last.values() if s.type != "DELETED"]
        for path in (bundle.path / "logs").glob("*.log"):
            for pod in self.objects["pod"]:
                name = pod["metadata"]["name"]
                if path.stem.startswith(f"{name}-"):
                    self.logs[name, path.stem.removeprefix(f"{name}-")] = path.read_text()

    def kubeconfig(self, folder: Path) -> Path:
        path = folder / "kubeconfig"
        server = f"http://127.0.0.1:{self.server_address[1]}"
        context = {"cluster": "c", "user": "u", "namespace": "team"}
        path.write_text(
            yaml.safe_dump(
                {
                    "clusters": [{"name": "c", "cluster": {"server": server}}],
                    "contexts": [{"name": "c", "context": context}],
                    "users": [{"name": "u", "user": {"token": TOKEN}}],
                    "current-context": "c",
                }
            )
        )
        return path


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: BundleApi

    def _any(self) -> None:
        url = urlsplit(self.path)
        self.server.requests.append((self.command, url.path))
        self.server.before(url.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        if self.command != "GET":
            self._answer(405, _status(405, "MethodNotAllowed", "this server is read-only"))
            return
        self._get(url.path, query)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _any

    def _get(self, path: str, query: dict[str, str]) -> None:
        if (code := self.server.refusal(path, query)) is not None:
            self._answer(code, _status(code, "Refused", f"this server refuses with {code}"))
            return
        if (document := _discovery(path)) is not None:
            self._answer(200, document)
            return
        if path.endswith("/log"):
            self._log(path, query)
            return
        if "/secrets/" in path:
            self._secret(path.rpartition("/")[2])
            return
        if proxied := re.fullmatch(r"/api/v1/namespaces/([^/]+)/services/([^/]+)/proxy/(.*)", path):
            self._proxy(f"{proxied[1]}/{proxied[2]}", proxied[3])
            return
        found = _resource(path)
        if found is None or found[0].kind.name in self.server.unserved:
            self._text(404, "404 page not found")
            return
        resource, name = found
        kind = resource.kind.name
        if kind in self.server.forbidden:
            message = f'{resource.plural} is forbidden: User "u" cannot list resource "{resource.plural}"'
            self._answer(403, _status(403, "Forbidden", message))
            return
        if query.get("watch"):
            self._watch(self.server.changes[kind])
            return
        items = self.server.objects[kind]
        if name:
            own = [item for item in items if item["metadata"]["name"] == name]
            missing = _status(404, "NotFound", f'{resource.plural} "{name}" not found')
            self._answer(200, own[0]) if own else self._answer(404, missing)
            return
        if " " in (selector := query.get("labelSelector", "")).strip():
            self._answer(400, _status(400, "BadRequest", f"unable to parse requirement: {selector}"))
            return
        for part in filter(None, selector.split(",")):
            key, equals, value = part.partition("=")
            labels = [item["metadata"].get("labels") or {} for item in items]
            has = [each.get(key) == value if equals else key in each for each in labels]
            items = [item for item, chosen in zip(items, has, strict=True) if chosen]
        start = int(query.get("continue", "0"))
        page = items[start : start + self.server.page]
        further = str(start + len(page)) if start + len(page) < len(items) else ""
        self._answer(200, {"metadata": {"resourceVersion": "1", "continue": further}, "items": page})

    def _watch(self, changes: queue.Queue[Object | None]) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while (change := changes.get()) is not None:
            line = json.dumps(change).encode() + b"\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def _secret(self, name: str) -> None:
        data = self.server.secrets.get(name)
        if "secret" in self.server.forbidden:
            message = f'secrets "{name}" is forbidden: User "u" cannot get resource "secrets"'
            self._answer(403, _status(403, "Forbidden", message))
        elif data is None:
            self._answer(404, _status(404, "NotFound", f'secrets "{name}" not found'))
        else:
            self._answer(200, {"metadata": {"name": name}, "data": data})

    def _proxy(self, service: str, rest: str) -> None:
        """Forward a request as the API server's proxy does, which removes the Authorization header."""
        server = self.server.services.get(service)
        name = service.partition("/")[2].partition(":")[0]
        user = "u" if self.headers["Authorization"] == f"Bearer {TOKEN}" else "system:anonymous"
        if "services/proxy" in self.server.forbidden or user != "u":
            message = f'services "{name}" is forbidden: User "{user}" cannot get resource "services/proxy"'
            self._answer(403, _status(403, "Forbidden", message))
        elif server is None:
            self._answer(404, _status(404, "NotFound", f'services "{name}" not found'))
        else:
            headers = {key: value for key, value in self.headers.items() if key.lower() == "x-api-key"}
            query = urlsplit(self.path).query
            found = httpx.get(f"{server}/{rest}?{query}", headers=headers, trust_env=False)
            self._send(found.status_code, found.headers["content-type"], found.content)

    def _log(self, path: str, query: dict[str, str]) -> None:
        if "log" in self.server.forbidden:
            self._answer(
                403, _status(403, "Forbidden", 'pods/log is forbidden: User "u" cannot get resource')
            )
            return
        logs = self.server.previous if query.get("previous") else self.server.logs
        text = logs.get((path.split("/")[-2], query["container"]))
        if text is None:
            self._answer(404, _status(404, "NotFound", "the log is gone"))
            return
        lines = text.splitlines(keepends=True)
        text = "".join(lines[-int(query["tailLines"]) :] if "tailLines" in query else lines)
        self._text(200, text[: int(query.get("limitBytes", len(text)))])

    def _answer(self, code: int, body: object) -> None:
        self._send(code, "application/json", json.dumps(body).encode())

    def _text(self, code: int, text: str) -> None:
        self._send(code, "text/plain", text.encode())

    def _send(self, code: int, kind: str, content: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


def _status(code: int, reason: str, message: str) -> Object:
    return {
        "kind": "Status",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
        "apiVersion": "v1",
    }


def _discovery(path: str) -> Object | None:
    """Return the API discovery document at a path, or None."""
    versions = {each.kind.api_version for each in RESOURCES.values()}
    groups: dict[str, list[Object]] = {}
    for version in sorted(versions - {"v1"}):
        found = {"groupVersion": version, "version": version.partition("/")[2]}
        groups.setdefault(version.partition("/")[0], []).append(found)
    if path == "/version":
        return {"major": "1", "minor": "36", "gitVersion": "v1.36.0"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        listed = [
            {"name": name, "versions": of, "preferredVersion": of[-1]} for name, of in sorted(groups.items())
        ]
        return {"kind": "APIGroupList", "groups": listed}
    version = path.removeprefix("/apis/").removeprefix("/api/")
    if version not in versions:
        return None
    own = [each for each in RESOURCES.values() if each.kind.api_version == version]
    resources = [
        {
            "name": each.plural,
            "kind": each.kind.kind,
            "singularName": each.kind.name,
            "namespaced": each.kind.namespaced,
            "verbs": ["get", "list", "watch"],
        }
        for each in own
    ]
    return {"kind": "APIResourceList", "groupVersion": version, "resources": resources}


def _resource(path: str) -> tuple[Resource, str] | None:
    """Return the resource in a path, and the name of the object, or "" for a list."""
    words = path.strip("/").split("/")
    for resource in RESOURCES.values():
        root = resource.path("NAMESPACE").strip("/").split("/")
        if len(words) not in (len(root), len(root) + 1):
            continue
        if all(a in (b, "NAMESPACE") for a, b in zip(root, words, strict=False)):
            return resource, words[len(root)] if len(words) > len(root) else ""
    return None
