"""The init container's script that fetches a workspace from git sends the password only to its server."""

from __future__ import annotations

import base64
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from harness.torchrun_controller.objects.workspace import GIT

CREDENTIALS = f"Basic {base64.b64encode(b'robot:hunter2').decode()}"


@contextmanager
def git_server(moved_to: str = "") -> Iterator[tuple[int, list[str]]]:
    """Yield the port of a server that redirects or demands a password, and the passwords that it received."""
    received: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            received.extend(filter(None, [self.headers.get("Authorization")]))
            self.send_response(302 if moved_to else 401)
            if moved_to:
                self.send_header("Location", f"{moved_to}{self.path}")
            else:
                self.send_header("WWW-Authenticate", "Basic realm=git")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port, received
    finally:
        server.shutdown()
        server.server_close()


def fetch(url: str, folder: Path) -> int:
    """Run the script, which fails, because no server has a repository. Return its exit code."""
    secret = {"GIT_USERNAME": "robot", "GIT_PASSWORD": "hunter2"}
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "URL": url, "REF": "HEAD", "SHARED": "false"}
    command = ["bash", "-c", GIT]
    return subprocess.run(command, cwd=folder, env=env | secret, timeout=60, check=False).returncode


def test_password_is_sent_to_server_of_url(tmp_path: Path) -> None:
    with git_server() as (port, received):
        assert fetch(f"http://127.0.0.1:{port}/team/code.git", tmp_path) != 0
    assert CREDENTIALS in received


def test_password_is_not_sent_to_target_of_redirect(tmp_path: Path) -> None:
    """Contract: hegsie/gitnado #411: a credential helper that responds for every server leaks the
    password."""
    with (
        git_server() as (elsewhere, received),
        git_server(f"http://localhost:{elsewhere}") as (port, _),
    ):
        assert fetch(f"http://127.0.0.1:{port}/team/code.git", tmp_path) != 0
    assert received == []


@pytest.mark.parametrize("url", ["ext::sh -c touch% /tmp/pwned", "--upload-pack=touch /tmp/pwned"])
def test_a_url_that_is_a_command_is_not_run(url: str, tmp_path: Path) -> None:
    """Contract: Git's transports that run programs remain disabled, and a URL is never interpreted as an
    option."""
    url = url.replace("/tmp/pwned", str(tmp_path / "pwned"))
    assert fetch(url, tmp_path) != 0
    assert not (tmp_path / "pwned").exists()
