"""A container that prints endless output when the harness inspects it, through a real WebSocket on
loopback."""

from __future__ import annotations

import base64
import hashlib
import socketserver
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from websocket import ABNF

from harness.core.kubernetes import Kube
from harness.observe import container_inspection as inspection

POD = {"metadata": {"name": "p", "namespace": "n"}, "spec": {"containers": [{"name": "main"}]}}
ACCEPT = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
STDOUT = b"\x01"


class _Endless(socketserver.StreamRequestHandler):
    """Accepts an exec request, and repeatedly sends 64 KiB of output until the client closes the
    connection."""

    def handle(self) -> None:
        headers = dict(
            line.strip().split(b": ", 1) for line in iter(self.rfile.readline, b"\r\n") if b": " in line
        )
        key = {name.lower(): value for name, value in headers.items()}[b"sec-websocket-key"]
        accept = base64.b64encode(hashlib.sha1(key + ACCEPT).digest())
        self.wfile.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Protocol: v4.channel.k8s.io\r\nSec-WebSocket-Accept: " + accept + b"\r\n\r\n"
        )
        frame = ABNF.create_frame(STDOUT + b"x" * (64 << 10), ABNF.OPCODE_BINARY)
        frame.mask_value = 0
        data = frame.format()
        with suppress(OSError):
            while True:
                self.wfile.write(data)


@pytest.fixture
def kube(tmp_path: Path) -> Iterator[Kube]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Endless) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        config = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [
                {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_address[1]}"}}
            ],
            "users": [{"name": "u", "user": {}}],
        }
        path = tmp_path / "kubeconfig"
        path.write_text(yaml.safe_dump(config))
        yield Kube(path)
        server.shutdown()


def test_output_without_end_is_an_error(kube: Kube, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract: a container cannot make the harness use unlimited memory or time."""
    monkeypatch.setattr(inspection, "MAX_OUTPUT", 1 << 20)
    [found] = inspection.inspect_pods(kube, [POD], network=False)
    assert found.error == "OSError: the command's output exceeded 1 MiB, or the command ran longer than 15 s"
