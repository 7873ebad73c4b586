"""A channel to a command in a container.

The channel uses the WebSocket of an exec session, like `kubectl exec`.
"""

from __future__ import annotations

import json
import re
import ssl
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from kubernetes import client
from kubernetes.stream.ws_client import get_websocket_url
from websocket import (
    WebSocket,
    WebSocketBadStatusException,
    WebSocketException,
    WebSocketTimeoutException,
)

from harness.core.deadlines import Deadline
from harness.core.kubernetes import Kube
from harness.core.websockets import DirectWebSocket
from harness.torchrun_sync import pod_script
from harness.torchrun_sync.channel import ContainerGone, Cut, Open, PodRefused

STDIN, STDOUT, STDERR, ERROR = range(4)
PROTOCOLS = ["v5.channel.k8s.io", "v4.channel.k8s.io"]
STDERR_BYTES = 4000
"""The number of bytes to keep from the end of the command's stderr, which explains why the command ended."""
NO_PYTHON = "the container needs python3, 3.9 or later, on its PATH"
NOT_RUNNING = re.compile(
    r"container not found|pod does not exist|in a completed pod|does not have a host assigned"
    r"|CONTAINER_(?:EXITED|CREATED)"
    r"|(?:stopped|not running|deleted) (?:container|state)|container .* is not running|task .* not found"
)
"""Matches the error messages with which the API server, the kubelet and containerd report that a container is
not running."""


class ExecChannel:
    """A channel to the stdin and stdout of a command in a container."""

    def __init__(self, name: str, socket: WebSocket) -> None:
        self._name, self._socket = name, socket
        self._stderr = b""

    def send(self, data: bytes, deadline: Deadline) -> None:
        try:
            self._socket.settimeout(max(deadline.remaining, 0.001))
            self._socket.send_binary(bytes([STDIN]) + data)
        except (WebSocketException, OSError) as error:
            raise self._cut(error) from None

    def receive(self, deadline: Deadline) -> bytes:
        while True:
            try:
                self._socket.settimeout(max(deadline.remaining, 0.001))
                _, data = self._socket.recv_data()
            except (WebSocketException, OSError) as error:
                raise self._cut(error) from None
            channel, piece = data[:1], data[1:]
            if channel == bytes([STDOUT]) and piece:
                return bytes(piece)
            if channel == bytes([STDERR]):
                self._stderr = (self._stderr + piece)[-STDERR_BYTES:]
            elif channel == bytes([ERROR]) and piece:
                self._ended(piece)

    def close(self) -> None:
        """Close the socket without a WebSocket close handshake, which would wait for the server."""
        self._socket.shutdown()  # type: ignore[no-untyped-call]

    def _cut(self, error: Exception) -> Cut:
        reason = (
            "no data was transferred before the deadline"
            if isinstance(error, WebSocketTimeoutException | TimeoutError)
            else f"the exec stream ended: {error or type(error).__name__}"
        )
        return Cut(f"{reason}{self._last_lines()}")

    def _ended(self, status: bytes) -> None:
        """Raise the exception that corresponds to the exec status, which the API server sends after the
        command has ended.

        Raises ContainerGone if the container is not running, PodRefused if the receiver cannot start in it,
        and Cut otherwise.
        """
        try:
            message = str(json.loads(status).get("message", ""))
        except ValueError:
            message = status.decode(errors="replace")
        if NOT_RUNNING.search(message):
            raise ContainerGone(f"{self._name}: {message}")
        if "executable file not found" in message or "no such file" in message:
            raise PodRefused(f"{self._name}: the container has no python3", hint=NO_PYTHON)
        text = f"{message or 'ended'}{self._last_lines()}"
        if "exit code 1" in message and "Traceback" in text:
            raise PodRefused(f"{self._name}: the receiver did not start: {text}", hint=NO_PYTHON)
        raise Cut(f"the receiver ended: {text}")

    def _last_lines(self) -> str:
        lines = self._stderr.decode(errors="replace").strip().splitlines()[-3:]
        return f"; its last output: {' / '.join(lines)}" if lines else ""


def opening(kube: Kube, namespace: str, pod: str, container: str, root: str, control: str) -> Open:
    """Return a function that starts a receiver in the container and returns a channel to the receiver."""

    def start(session: str, deadline: Deadline) -> ExecChannel:
        command, program = pod_script.receiver(session, root, control)
        channel = ExecChannel(pod, _socket(kube, namespace, pod, container, command, deadline))
        channel.send(program, deadline)
        return channel

    return start


def _socket(
    kube: Kube, namespace: str, pod: str, container: str, command: list[str], deadline: Deadline
) -> WebSocket:
    path = f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(pod)}/exec"
    query: list[tuple[str, Any]] = [("container", container), ("command", command)]
    query += [(stream, "true") for stream in ("stdin", "stdout", "stderr")]
    url = get_websocket_url(f"{kube.configuration.host}{path}", query)
    headers: dict[str, str] = {}
    kube.api.update_params_for_auth(headers, [], ["BearerToken"], path, "GET", None)
    options: dict[str, Any] = {"header": headers, "subprotocols": PROTOCOLS, "timeout": deadline.remaining}
    options |= kube.websocket_options()
    socket = DirectWebSocket(sslopt=_tls(kube.configuration), skip_utf8_validation=True)
    try:
        socket.connect(url, **options)
    except WebSocketBadStatusException as error:
        text = f"{pod}: the API server refused the exec request: HTTP {error.status_code} {_message(error)}"
        if error.status_code == HTTPStatus.NOT_FOUND or NOT_RUNNING.search(text):
            raise ContainerGone(text) from None
        if error.status_code >= 500:
            raise Cut(text) from None
        raise PodRefused(
            text, hint="check that you have permission to create pods/exec, and that the pod is running"
        ) from None
    except (WebSocketException, OSError) as error:
        raise Cut(f"{pod}: the exec stream could not be opened: {error or type(error).__name__}") from None
    return socket


def _tls(configuration: client.Configuration) -> dict[str, Any]:
    """Return the TLS options for a WebSocket, according to the kubeconfig.

    The Kubernetes client's own create_websocket is not used, because it connects without a timeout.
    """
    options = {
        "cert_reqs": ssl.CERT_REQUIRED if configuration.verify_ssl else ssl.CERT_NONE,
        "check_hostname": configuration.verify_ssl and configuration.assert_hostname is not False,
        "ca_certs": configuration.ssl_ca_cert,
        "certfile": configuration.cert_file,
        "keyfile": configuration.key_file,
        "server_hostname": configuration.tls_server_name,
    }
    return {name: value for name, value in options.items() if value is not None}


def _message(error: WebSocketBadStatusException) -> str:
    body = bytes(error.resp_body or b"").decode(errors="replace")
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body[:STDERR_BYTES] or str(error)
