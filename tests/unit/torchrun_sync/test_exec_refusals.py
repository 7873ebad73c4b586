"""What an exec that the API server, the kubelet or containerd refuses means to who wants to bring code."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from harness.core.deadlines import Deadline
from harness.core.errors import HarnessError
from harness.core.kubernetes import Kube
from harness.torchrun_sync.channel import ContainerGone, Cut, PodRefused
from harness.torchrun_sync.exec_channel import ExecChannel, opening


class Refuses(BaseHTTPRequestHandler):
    """Answers the WebSocket's request with `status` and `message`."""

    status, message = 500, ""

    def do_GET(self) -> None:
        body = json.dumps({"kind": "Status", "message": self.message}).encode()
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def kube(tmp_path: Path) -> Iterator[Kube]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Refuses)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    document = {
        "current-context": "one",
        "contexts": [{"name": "one", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "users": [{"name": "u", "user": {}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(document))
    yield Kube(path)
    server.shutdown()


@pytest.mark.parametrize(
    ("status", "message", "error"),
    [
        (500, 'container not found ("workspace")', ContainerGone),
        (500, 'unable to upgrade connection: container not found ("trainer")', ContainerGone),
        (404, 'pods "demo-node-0-0-x" not found', ContainerGone),
        (404, "unable to upgrade connection: pod does not exist", ContainerGone),
        (400, "pod demo-node-0-0-x does not have a host assigned", ContainerGone),
        (400, "cannot exec into a container in a completed pod; current phase is Failed", ContainerGone),
        (502, "error dialing backend: dial tcp 10.0.0.1:10250: connect: connection refused", Cut),
        (500, "error dialing backend: remote error: tls: internal error", Cut),
        (403, 'pods "demo" is forbidden: User "a" cannot create resource "pods/exec"', PodRefused),
    ],
)
def test_a_refused_exec(
    kube: Kube, monkeypatch: pytest.MonkeyPatch, status: int, message: str, error: type[HarnessError]
) -> None:
    """Contract: a container that does not run is waited for, a connection is tried again, a missing right is
    the user's to change."""
    monkeypatch.setattr(Refuses, "status", status)
    monkeypatch.setattr(Refuses, "message", message)
    start = opening(kube, "team", "demo-node-0-0-x", "workspace", "/app/.torchrun", "/dev/shm/sync")
    with pytest.raises(error) as raised:
        start("session", Deadline.after(10))
    assert type(raised.value) is error
    assert message in raised.value.message


@pytest.mark.parametrize(
    "message",
    [
        "error executing command in container: container is in CONTAINER_EXITED state",
        "failed to start exec: OCI runtime exec failed: cannot exec in a stopped container: unknown",
        "failed to load task: no running task found: task 5f0d not found: not found",
    ],
)
def test_container_that_ended_between_request_and_its_exec(message: str) -> None:
    """Contract: containerd's words come after the connection was taken, and mean the same."""
    status = json.dumps({"status": "Failure", "message": message}).encode()
    with pytest.raises(ContainerGone):
        ExecChannel("demo", None)._ended(status)  # type: ignore[arg-type]
