"""The Kubernetes client against a server that is frozen, gone for a moment, or gone for good."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kubernetes.client.exceptions import ApiException
from loopback import OK, Server
from urllib3.exceptions import HTTPError

from harness.cli.main import main
from harness.core import kubernetes_retries as module
from harness.core.errors import HarnessError
from harness.core.kubernetes import Kube, events, reached, request_error
from harness.core.kubernetes_retries import reason_of
from harness.observe.api_server_outages import Heartbeat

Serve = Callable[[Callable[[int], bytes | str]], tuple[Server, Kube]]


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """A server and a client of it, whose patience is short."""
    monkeypatch.setattr(module, "READ_SECONDS", 0.3)
    monkeypatch.setattr(module, "RETRY_SECONDS", 1.0)
    servers = []

    def start(answer: Callable[[int], bytes | str]) -> tuple[Server, Kube]:
        server = Server(answer)
        servers.append(server)
        return server, server.kube(tmp_path)

    yield start
    for server in servers:
        server.close()


def test_a_frozen_server_is_told_in_time(serve: Serve) -> None:
    """A paused control plane accepts connections and answers nothing."""
    server, kube = serve(lambda asked: "frozen")
    with (
        pytest.raises(HarnessError, match=r"the API server did not respond: ReadTimeoutError") as raised,
        reached(),
    ):
        kube.fetch("/api/v1/nodes")
    assert raised.value.cause == "cluster.unreachable"
    assert server.asked < 10


def test_a_server_with_another_certificate_is_one_sentence(serve: Serve) -> None:
    """The Kubernetes client turns urllib3's SSLError into an ApiException with status 0."""
    text = "SSLError\n[SSL: CERTIFICATE_VERIFY_FAILED] Hostname mismatch, not valid for '10.0.0.1'"
    with (
        pytest.raises(HarnessError, match="TLS connection to the API server failed: SSLError") as raised,
        reached(),
    ):
        raise ApiException(status=0, reason=text)
    assert raised.value.cause == "cluster.unreachable"
    assert "tls-server-name" in raised.value.hint


@pytest.mark.parametrize(("status", "cause"), [(500, "unhealthy"), (403, "forbidden"), (404, "unhealthy")])
def test_no_command_prints_a_traceback_for_an_http_error(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str], status: int, cause: str
) -> None:
    """Contract: whatever the API server responds, a command prints one sentence and exits with 2."""
    serve(lambda asked: b"HTTP/1.1 %d Refused\r\nContent-Length: 0\r\n\r\n" % status)
    with pytest.raises(SystemExit) as ended:
        main(["preflight", "--kubeconfig", str(tmp_path / "kubeconfig")])
    printed = capsys.readouterr().err
    assert ended.value.code == 2
    assert f"HTTP {status}" in printed
    assert "Traceback" not in printed
    problem = request_error(ApiException(status=status))
    assert problem is not None
    assert problem.cause == f"cluster.{cause}"


def test_a_brief_server_outage_is_a_reported_retry(serve: Serve) -> None:
    server, kube = serve(lambda asked: OK if asked > 2 else "reset")
    retries: list[tuple[str, str]] = []
    kube.on_retry = lambda what, reason: retries.append((what, reason))
    kube.api.call_api("GET", f"http://127.0.0.1:{server.port}/api/v1/pods?limit=1")
    assert [what for what, _ in retries] == [f"GET http://127.0.0.1:{server.port}/api/v1/pods"]
    assert retries[0][1].startswith("ProtocolError")
    assert retries[0][1].endswith("succeeded on attempt 3")


@pytest.mark.parametrize("method", ["POST", "GET"])
def test_what_must_not_be_made_twice_is_not(serve: Serve, method: str) -> None:
    """A request that is not safe to repeat is sent once. A caller with its own timeout repeats it itself."""
    server, kube = serve(lambda asked: "reset")
    timeout = None if method == "POST" else 3
    with pytest.raises(HTTPError):
        kube.api.call_api(method, f"http://127.0.0.1:{server.port}/x", body={}, _request_timeout=timeout)
    assert server.asked == 1


def test_a_stream_may_be_silent_for_long(serve: Serve) -> None:
    """A stream without events has not failed."""
    server, kube = serve(lambda asked: "frozen")
    failed: list[BaseException] = []

    def watch() -> None:
        try:
            kube.api.call_api("GET", f"http://127.0.0.1:{server.port}/api/v1/pods?watch=True")
        except HTTPError as error:
            failed.append(error)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    watching.join(1)
    assert watching.is_alive()
    assert failed == []


def test_a_gap_is_told_when_it_is_over(serve: Serve) -> None:
    _, kube = serve(lambda asked: OK if asked != 2 else "reset")
    gaps: list[str] = []
    heart = Heartbeat(kube, gaps.append)
    assert (heart.ask(), heart.silent) == (True, 0.0)
    assert not heart.ask()
    assert heart.silent > 0
    assert gaps == []
    assert (heart.ask(), heart.silent) == (True, 0.0)
    heart.stop()
    assert len(gaps) == 1
    assert "without a response (ProtocolError" in gaps[0]


def test_server_that_stays_away_is_told_at_end(serve: Serve) -> None:
    _, kube = serve(lambda asked: b"HTTP/1.1 500 not ready\r\nContent-Length: 0\r\n\r\n")
    gaps: list[str] = []
    heart = Heartbeat(kube, gaps.append)
    heart.ask()
    heart.stop()
    heart.stop()
    assert len(gaps) == 1
    assert gaps[0].endswith("(HTTP 500); it did not recover")


def test_a_truncated_watch_line_is_a_broken_connection() -> None:
    """Contract: the client cannot handle such a line, so the caller starts the watch again."""

    class Cut:
        status = 200

        def get(self, **_: object) -> Cut:
            return self

        def stream(self, **_: object) -> Iterator[bytes]:
            yield b'{"type": "ADDED", "object": {}}\n'
            yield b'{"type": "MODIF\n'

        def close(self) -> None: ...

        def release_conn(self) -> None: ...

    seen = events(Cut(), timeout=1)
    assert next(seen)["type"] == "ADDED"
    with pytest.raises(HTTPError):
        next(seen)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('{"message": "pods \\"x\\" is forbidden: no budget"}', 'HTTP 403: pods "x" is forbidden: no budget'),
        ("<html>", "HTTP 403: Forbidden"),
        ("[]", "HTTP 403: Forbidden"),
        (None, "HTTP 403: Forbidden"),
    ],
)
def test_an_answer_is_told_by_its_own_sentence(body: str | None, reason: str) -> None:
    """Contract: no headers and no traceback of the client, whatever the body is."""
    error = ApiException(status=403, reason="Forbidden")
    error.body = body
    assert reason_of(error) == reason
