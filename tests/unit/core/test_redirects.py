"""No client sends a credential to another server because the one that it knows redirects there.

Reports in public of the same kind: kubernetes/kubernetes#112513 (CVE-2022-3172: an aggregated API server
redirects clients, which send it their credentials), oryx-labs/oryxos#231 and parnurzeal/gorequest#298 (an
API key is kept), snapview/tungstenite-rs#551 and microsoft/playwright#29246 (a WebSocket keeps a token).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from loopback import kube_of
from websocket import WebSocketException

from harness.attach.tracker import SECONDS
from harness.core import http_client, service_proxy
from harness.core.deadlines import Deadline
from harness.core.errors import HarnessError
from harness.launch import huggingface_access
from harness.observe import container_inspection
from harness.torchrun_sync import exec_channel
from harness.torchrun_sync.channel import Cut
from harness.tracker.client import claim
from harness.tracker.client.hosted import HostedAudit
from harness.tracker.client.retry import ask
from harness.workers.training.object_store import Bucket, Failed

SECRET = "a-key-of-the-user"
STATUSES = (302, 307)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    target: str | None = None
    status = 307
    seen: list[str]

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.seen.append(f"{self.requestline}\n{self.headers}")
        body = b"{}"
        self.send_response(200 if self.target is None else self.status)
        if self.target is not None:
            scheme = "ws" if self.headers.get("Upgrade") else "http"
            self.send_header("Location", f"{scheme}://{self.target}{self.path}")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _answer

    def log_message(self, *_: object) -> None:
        pass


def serve(target: str | None = None, status: int = 307) -> tuple[ThreadingHTTPServer, list[str]]:
    seen: list[str] = []
    handler = type("Handler", (_Handler,), {"target": target, "status": status, "seen": seen})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    return server, seen


def _s3(port: int, act: Callable[[Bucket], object]) -> None:
    environment = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ACCESS_KEY_ID": "id"}
    with suppress(Failed):
        act(Bucket("b", {**environment, "AWS_SECRET_ACCESS_KEY": "x", "AWS_SESSION_TOKEN": SECRET}, tries=1))


def _client(port: int) -> Any:
    headers = {"Authorization": f"Bearer {SECRET}", "X-Api-Key": SECRET}
    return http_client.client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=5)


def _pod_exec(port: int, folder: Path) -> None:
    kube = kube_of(port, folder, {"token": SECRET})
    pod = {"metadata": {"name": "p", "namespace": "n"}}
    with suppress(Exception):
        container_inspection._exec(kube, pod, "c", "true")


def _sync(port: int, folder: Path) -> None:
    kube = kube_of(port, folder, {"token": SECRET})
    with suppress(HarnessError, OSError, WebSocketException, Cut):
        exec_channel._socket(kube, "n", "p", "c", ["true"], Deadline.after(5))


def _service(port: int, folder: Path) -> None:
    service = service_proxy.service_of("http://tracker.n.svc:80", "n")
    assert service is not None
    client = service_proxy.client(kube_of(port, folder, {"token": SECRET}), service, {"X-Api-Key": SECRET})
    with suppress(HarnessError):
        ask(client, "api/audit/runs", {}, SECONDS)


def _hosted(port: int, _: Path) -> None:
    audit = HostedAudit(f"http://127.0.0.1:{port}", SECRET, seconds=2)
    with suppress(HarnessError):
        audit.runs(external_id="e", project="p", job_name=None)


def _ask(port: int) -> None:
    with suppress(HarnessError):
        ask(_client(port), "/api/audit/runs", {}, 2)


def _api(port: int, folder: Path) -> None:
    with suppress(Exception):
        kube_of(port, folder, {"token": SECRET}).objects("v1", "Pod")


CLIENTS: dict[str, Callable[[int, Path], object]] = {
    "s3 read": lambda port, _: _s3(port, lambda bucket: bucket.read("k", 10)),
    "s3 list": lambda port, _: _s3(port, lambda bucket: list(bucket.items("p"))),
    "s3 write": lambda port, _: _s3(port, lambda bucket: bucket.put("k", b"x")),
    "s3 delete": lambda port, _: _s3(port, lambda bucket: bucket._abort("k", "u")),
    "hosted Pluto": _hosted,
    "tracker": lambda port, _: _ask(port),
    "claim of a run": lambda port, _: claim.release(_client(port), "launch"),
    "service through the API server": _service,
    "Hugging Face hub": lambda port, _: huggingface_access.check(
        "a/b", SECRET, lambda _: None, {"HF_ENDPOINT": f"http://127.0.0.1:{port}"}
    ),
    "API server": _api,
    "exec in a pod": _pod_exec,
    "exec of a sync": _sync,
}


@pytest.fixture(params=STATUSES)
def servers(request: pytest.FixtureRequest) -> Iterator[tuple[int, list[str], list[str]]]:
    """The port of a server that redirects to another one, and what each of them received."""
    other, received = serve()
    origin, asked = serve(f"localhost:{other.server_port}", request.param)
    yield origin.server_port, asked, received
    for server in (origin, other):
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("name", CLIENTS)
def test_a_redirect_takes_no_credential_along(
    servers: tuple[int, list[str], list[str]], tmp_path: Path, name: str
) -> None:
    """Contract: the known server gets the credential; the other one gets no header with a key."""
    port, asked, received = servers
    CLIENTS[name](port, tmp_path)
    assert any(SECRET in request for request in asked), "the client sent no credential, so nothing is tested"
    headers = "\n".join(received).lower()
    assert SECRET not in headers
    assert not [name for name in ("authorization:", "x-amz-", "x-api-key:", "cookie:") if name in headers]


def test_redirect_of_s3_is_error_with_its_target(
    servers: tuple[int, list[str], list[str]],
) -> None:
    """Contract: the message names the server to configure, because a signature is for one server only."""
    port, _, _ = servers
    environment = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
    with pytest.raises(Failed, match="redirects to http://localhost:"):
        Bucket("b", environment, tries=1).read("k", 10)


@pytest.mark.parametrize("options", [{"headers": {"X-Api-Key": SECRET}}, {"auth": ("u", SECRET)}])
def test_a_client_with_a_credential_cannot_follow_redirects(options: dict[str, Any]) -> None:
    """Contract: httpx removes only Authorization, so a client with a credential never follows a redirect."""
    with pytest.raises(ValueError, match="redirect"):
        http_client.client(follow_redirects=True, **options)
