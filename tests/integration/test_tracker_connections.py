"""Responses on one connection are complete and in order, and no request waits for another one."""

from __future__ import annotations

import re
import socket
from contextlib import closing

import pytest
from tracker_server import KEY, Server, create

LENGTH = re.compile(rb"(?i)content-length: (\d+)")
LINE = b'{"time": 1, "step": 1, "data": {"a": 1}}'


def request(method: str, path: str, body: bytes = b"", run: int = 0) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: tracker\r\nX-Api-Key: {KEY}\r\nContent-Length: {len(body)}\r\n"
    return f"{head}X-Run-Id: {run}\r\nX-Run-Name: rank0\r\nX-Project-Name: e2e\r\n\r\n".encode() + body


@pytest.fixture
def there(server: Server) -> socket.socket:
    host, _, port = server.url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def answers(there: socket.socket, methods: list[str]) -> list[tuple[int, bytes]]:
    """Return (status, body) of one response per method. A response to HEAD has no body."""
    came, found = b"", []
    for method in methods:
        while b"\r\n\r\n" not in came:
            came += there.recv(65536) or pytest.fail("closed in the middle of an answer")
        head, _, came = came.partition(b"\r\n\r\n")
        length = LENGTH.search(head)
        assert length is not None, head
        size = 0 if method == "HEAD" else int(length[1])
        while len(came) < size:
            came += there.recv(65536) or pytest.fail("closed in the middle of an answer")
        found.append((int(head.split()[1]), came[:size]))
        came = came[size:]
    assert came == b"", "more than the answers"
    return found


def test_requests_that_came_together_are_answered_in_order(server: Server, there: socket.socket) -> None:
    """Contract: this includes HEAD, whose response has no body, rejected requests, and requests that are sent
    before a response has arrived."""
    with server.client() as client:
        run = create(client, "together")["runId"]
    asked = [
        request("HEAD", "/healthz"),
        request("POST", "/ingest/metrics", LINE, run),
        request("POST", "/ingest/metrics", b"nonsense", run),
        request("GET", "/ingest/metrics"),
        request("POST", "/ingest/metrics", LINE * 0, run),
        request("HEAD", "/healthz"),
        request("GET", "/healthz"),
        request("GET", "/openapi.json"),
    ]
    with closing(there):
        there.sendall(b"".join(asked))
        found = answers(there, [one.split()[0].decode() for one in asked])
        assert [status for status, _ in found] == [200, 200, 422, 405, 200, 200, 200, 200]
        assert found[6][1] == b'{"status":"ok"}'
        assert found[7][1].startswith(b'{"openapi"')
        there.sendall(request("HEAD", "/healthz"))
        assert answers(there, ["HEAD"]) == [(200, b"")]


def test_a_body_that_comes_slowly_is_taken(server: Server, there: socket.socket) -> None:
    """Contract: the server may start to handle a request before the end of its body has arrived."""
    with server.client() as client:
        run = create(client, "slowly")["runId"]
        body = b"\n".join([LINE] * 50)
        whole = request("POST", "/ingest/metrics", body, run)
        with closing(there):
            for at in range(0, len(whole), 97):
                there.sendall(whole[at : at + 97])
                client.get("/healthz")  # The server has read this part by now.
            assert answers(there, ["POST"])[0][0] == 200
        rows = client.get(f"/api/audit/points?runIds={run}").json()["points"]
    assert len(rows) == 50
