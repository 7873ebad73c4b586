"""An API server on loopback that answers as a test says: with bytes, not at all, or by closing."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path

import yaml

from harness.core.kubernetes import Kube


def body(text: bytes) -> bytes:
    """An answer with this body."""
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(text), text)


OK = body(b"{}")


def kube_of(port: int, folder: Path, user: dict[str, str] | None = None) -> Kube:
    """Return a client of an API server on loopback, by a kubeconfig in `folder`."""
    config = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": user or {}}],
        "current-context": "c",
    }
    (folder / "kubeconfig").write_text(yaml.safe_dump(config))
    return Kube(folder / "kubeconfig")


class Server:
    """Speaks HTTP on loopback; `answer` says what becomes of each connection: bytes, "reset" or "frozen"."""

    def __init__(self, answer: Callable[[int], bytes | str]) -> None:
        self.answer = answer
        self.asked = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._open: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.asked += 1
            answer = self.answer(self.asked)
            if isinstance(answer, bytes):
                connection.recv(65536)
                connection.sendall(answer)
                connection.close()
            elif answer == "reset":
                connection.close()
            else:
                self._open.append(connection)

    def kube(self, folder: Path) -> Kube:
        return kube_of(self.port, folder)

    def close(self) -> None:
        self._socket.close()
        for connection in self._open:
            connection.close()
