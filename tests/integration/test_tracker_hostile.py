"""Invalid or malicious requests: the tracker keeps running, reports the error, and remains readable."""

from __future__ import annotations

import io
import json
import re
import socket
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from kubernetes.utils.quantity import parse_quantity
from tracker_server import KEY, Server, create, log_metrics

from harness.provision.controllers.tracker import MEMORY
from harness.tracker.client.audit import EmbeddedAudit
from harness.tracker.server.connections import HEAD_SECONDS

IDS = count()
HALF = "\ud800"
"""Half of a surrogate pair, as in a path that os.fsdecode returned."""
RUN = {"runName": "r", "projectName": "e2e"}
LINE = b'{"time": 1, "step": 1, "data": {"a": 1}}'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("hostile"), "--max-file-mib", "8").start()
    yield server
    assert server.stop() == 0


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


@pytest.fixture
def run_id(client: httpx.Client) -> int:
    """Return a new run."""
    found: int = create(client, f"run-{next(IDS)}")["runId"]
    return found


def came_to_nothing(client: httpx.Client) -> dict[str, list[dict[str, Any]]]:
    """Return the failed, rejected and interrupted requests."""
    found: dict[str, list[dict[str, Any]]] = client.get("/api/audit/failures").json()
    return found


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("create", {**RUN, "config": json.dumps({"path": HALF})}),
        ("create", {**RUN, "systemMetadata": json.dumps({"os_info": {HALF: 1}})}),
        ("create", {**RUN, "runName": HALF}),
        ("status/update", {"status": "FAILED", "statusMetadata": json.dumps([HALF])}),
        ("config/update", {"config": json.dumps({HALF: 1})}),
        ("tags/update", {"tags": [HALF]}),
        ("logName/add", {"logType": "METRIC", "logName": [HALF]}),
        ("alert", {"alert": {"title": HALF}}),
        ("modelGraph/create", {"graph": {HALF: 1}}),
    ],
)
def test_half_a_character_is_refused_everywhere(
    client: httpx.Client, run_id: int, path: str, body: dict[str, Any]
) -> None:
    """Contract: every route responds with 400, even if the half is inside nested JSON, and the run remains
    readable."""
    whole = {"runId": run_id, **body}
    raw = json.dumps(whole, ensure_ascii=False).encode(errors="surrogatepass")
    for content in (json.dumps(whole).encode(), raw):
        answer = client.post(f"/api/runs/{path}", content=content)
        # In the bytes of nested JSON, there is only its escape sequence, with the same text as the first one.
        assert answer.status_code == 400, (content, answer.text)
    external = client.get(f"/api/runs/details/{run_id}").json()["externalId"]
    shown = client.get("/api/audit/runs", params={"externalId": external, "projectName": "e2e"})
    assert [run["runId"] for run in shown.json()["runs"]] == [run_id]


def test_what_an_older_tracker_stored_can_be_read(server: Server, client: httpx.Client, run_id: int) -> None:
    """Contract: half of a surrogate pair that is already in the database is shown as its escape sequence."""
    with sqlite3.connect(server.db) as db:
        db.execute("UPDATE runs SET config = ? WHERE id = ?", (json.dumps({"path": HALF}), run_id))
    answer = client.get(f"/api/runs/details/{run_id}")
    assert answer.status_code == 200
    assert json.loads(answer.text)["config"] == {"path": HALF}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/runs/details/--5"),
        ("GET", "/api/runs/details/" + "9" * 5000),
        ("GET", "/api/runs/" + "9" * 5000),
        ("GET", "/api/runs/" + "9" * 19),
        ("GET", "/api/runs/details/by-display-id/" + "A" * 5000),
        ("GET", "/api/runs/logs?runId=--5"),
        ("GET", "/api/runs/logs?runId=" + "9" * 5000),
        ("GET", "/api/audit/points"),
        ("GET", "/api/audit/points?runIds=--1"),
        ("GET", "/files/get/a/b/c"),
        ("GET", "/files/get/%00/9999999999/é"),
        ("POST", "/api/runs/create"),
        ("POST", "/ingest/metrics"),
        ("POST", "/files"),
    ],
)
def test_nonsense_is_the_senders_mistake(client: httpx.Client, method: str, path: str) -> None:
    """Contract: the response has a 4xx status, and the connection stays open."""
    answer = client.request(method, path)
    assert 400 <= answer.status_code < 500, answer.text
    assert answer.headers.get("connection") != "close"


def test_two_projects_share_no_display_id(client: httpx.Client) -> None:
    """Contract: a resume by display id, which contains no project, finds exactly the run with this id."""
    runs = [create(client, None, projectName=f"unify-{name}") for name in ("test", "team", "tests", "te")]
    assert len({one["displayId"] for one in runs}) == 4
    for one in runs:
        resumed = client.post("/api/runs/resume", json={"displayId": one["displayId"]}).json()
        assert (resumed["runId"], resumed["projectName"]) == (one["runId"], one["projectName"])


def test_a_display_id_of_two_projects_is_not_guessed(server: Server, client: httpx.Client) -> None:
    """Contract: in an older database with shared prefixes, the project identifies the run. Without a project,
    the status is 409."""
    one, two = (create(client, None, projectName=name) for name in ("older-a", "older-b"))
    with sqlite3.connect(server.db) as db:
        ids = (one["runId"], two["runId"])
        db.execute("UPDATE runs SET display_id = 'OLD-1' WHERE id IN (?, ?)", ids)
    answer = client.post("/api/runs/resume", json={"displayId": "OLD-1"})
    assert answer.status_code == 409
    assert "older-a, older-b" in answer.json()["error"]
    response = client.post("/api/runs/resume", json={"displayId": "OLD-1", "projectName": "older-b"})
    assert response.json()["runId"] == two["runId"]
    assert client.get("/api/runs/details/by-display-id/OLD-1").status_code == 409


def announced(client: httpx.Client, run_id: int, size: int, name: str = "a.txt") -> str:
    """Announce a file, and return its upload URL."""
    entry = {"fileName": name, "fileSize": size, "time": 1, "logName": name}
    headers = {"X-Run-Id": f"{run_id}", "X-Project-Name": "e2e"}
    found: str = client.post("/files", json={"files": [entry]}, headers=headers).json()[name][0][name]
    return found


def connected(server: Server) -> socket.socket:
    """Open a connection to the server."""
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def test_upload_without_token_is_refused_before_its_bytes(server: Server) -> None:
    """Contract: the response arrives before the body is sent, so none of the body is stored."""
    with connected(server) as there:
        path = b"/files/put/guessed/9999999999/" + b"0" * 64
        there.sendall(b"PUT " + path + b" HTTP/1.1\r\nHost: t\r\nContent-Length: 60000000\r\n\r\n")
        assert b" 403 " in there.recv(65536)


def test_unfinished_uploads_take_no_memory(server: Server, client: httpx.Client, run_id: int) -> None:
    """Contract: the bytes of an upload are written to disk as they arrive. If the upload is interrupted,
    nothing is left."""
    before = resident(server)
    open_, most = [], 7 << 20
    for _ in range(8):
        path = announced(client, run_id, most + 1).removeprefix(server.url)
        there = connected(server)
        there.sendall(f"PUT {path} HTTP/1.1\r\nHost: t\r\nContent-Length: {most + 1}\r\n\r\n".encode())
        there.sendall(b"x" * most)
        open_.append(there)
    folder = server.db.with_name(server.db.name + ".files")
    buffered = io.DEFAULT_BUFFER_SIZE  # The last bytes received may still be in the buffer of the open file.
    settled(lambda: sum(path.stat().st_size for path in folder.iterdir()) > 8 * (most - buffered))
    assert resident(server) - before < 3 * most
    for there in open_:
        there.close()
    settled(lambda: not list(folder.iterdir()))
    assert any("hung up" in one["reason"] for one in came_to_nothing(client)["hungUp"])
    assert client.get("/api/runs/files", params={"runId": run_id}).json() == {"files": []}


def test_file_is_what_was_announced_and_its_link_ends(
    server: Server, client: httpx.Client, run_id: int
) -> None:
    """Contract: a file of another size is rejected, a browser must not execute a rank's file, and links
    expire."""
    assert client.put(announced(client, run_id, 5), content=b"1234").status_code == 400
    html = {"Content-Type": "text/html"}
    there = announced(client, run_id, 8, "b.html")
    assert client.put(there, content=b"<script>", headers=html).status_code == 200
    (file,) = client.get("/api/runs/files", params={"runId": run_id}).json()["files"]
    with httpx.Client(trust_env=False) as bare:
        answer = bare.get(file["url"])
        assert (answer.content, answer.headers["content-type"]) == (b"<script>", "application/octet-stream")
        assert answer.headers["x-content-type-options"] == "nosniff"
        start, until, seal = file["url"].rsplit("/", 2)
        assert 0 < int(until) - time.time() <= 3600
        assert bare.get(f"{start}/{int(until) + 1}/{seal}").status_code == 403


@pytest.mark.nightly
def test_idle_connections_close_and_stop_nobody(server: Server, client: httpx.Client) -> None:
    """Contract: 1100 idle connections do not prevent another one from sending a request, and are closed."""
    idle = [connected(server) for _ in range(1100)]
    slow = connected(server)
    slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: ")
    assert client.get("/healthz").status_code == 200
    with httpx.Client(base_url=server.url, trust_env=False) as another:
        assert another.get("/healthz").status_code == 200
    for there in [*idle, slow]:
        there.settimeout(HEAD_SECONDS + 30)
        assert there.recv(1) == b""
        there.close()


@pytest.mark.parametrize(
    "endless",
    [
        b"GET /" + b"a" * 9_000_000,
        b"GET / HTTP/1.1\r\nX: " + b"a" * 9_000_000,
        b"GET / HTTP/1.1\r\n" + b"X: a\r\n" * 1_500_000,
        b"POST /api/slug HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"X: a\r\n" * 1_500_000,
        b"POST /api/slug HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"x" * 9_000_000,
    ],
)
def test_a_head_without_end_takes_no_memory(server: Server, client: httpx.Client, endless: bytes) -> None:
    """Contract: if the path, a header, all headers or the trailers exceed 64 KiB, the connection is closed.

    During the first attempt, the server also loads code and fills its allocator.
    """

    def attack() -> int:
        with connected(server) as there, suppress(OSError):
            there.sendall(endless)
            while there.recv(65536):
                pass
        return resident(server)

    assert client.get("/healthz").status_code == 200
    sizes = [attack() for _ in range(4)]
    assert sizes[-1] - sizes[0] < 2 << 20, sizes
    assert client.get("/healthz").status_code == 200


@pytest.mark.parametrize("upgrade", ["h2c", "websocket"])
def test_another_protocol_is_refused_at_once(
    server: Server, client: httpx.Client, run_id: int, upgrade: str
) -> None:
    """Contract: a client that requests another protocol gets an error, and none of its rows is acknowledged
    without being stored."""
    head = f"POST /ingest/metrics HTTP/1.1\r\nHost: t\r\nX-Api-Key: {KEY}\r\nX-Run-Id: {run_id}\r\n"
    head += f"X-Project-Name: e2e\r\nConnection: Upgrade\r\nUpgrade: {upgrade}\r\n"
    with connected(server) as there:
        there.sendall(f"{head}Content-Length: {len(LINE)}\r\n\r\n".encode() + LINE)
        answer = b""
        while part := there.recv(65536):
            answer += part
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.endswith(b"This server only supports HTTP/1.1. Do not send an Upgrade header.")
    assert list(EmbeddedAudit(client).points([run_id])) == []


def test_a_body_in_parts_of_one_byte_is_taken(client: httpx.Client, run_id: int) -> None:
    """Contract: the size limit of a request's head does not apply to its body, however the body is framed."""
    lines = b"\n".join([LINE] * 4000)
    parts = (lines[at : at + 1] for at in range(len(lines)))
    headers = {"X-Run-Id": f"{run_id}", "X-Project-Name": "e2e"}
    assert client.post("/ingest/metrics", content=parts, headers=headers).status_code == 200
    assert len(list(EmbeddedAudit(client).points([run_id]))) == 4000


@pytest.mark.nightly
def test_one_slow_query_keeps_nobody_waiting(server: Server, client: httpx.Client, run_id: int) -> None:
    """Contract: reads of a run's list do not wait behind reads of its points."""
    rows = b"\n".join(
        b'{"time": 1, "step": %d, "data": {%s}}'
        % (step, b", ".join(b'"m%d": 1' % name for name in range(100)))
        for step in range(500)
    )
    assert log_metrics(client, run_id, rows.decode()).status_code == 200
    waiting = []
    for _ in range(12):
        there = connected(server)
        query = f"/api/runs/statistics?runId={run_id}&projectName=e2e"
        there.sendall(f"GET {query} HTTP/1.1\r\nHost: t\r\nX-Api-Key: {KEY}\r\n\r\n".encode())
        waiting.append(there)
    began = time.monotonic()
    assert client.get("/api/runs/projects").status_code == 200
    quick = time.monotonic() - began
    for there in waiting:
        assert b" 200 " in there.recv(65536)
        there.close()
    assert quick < (time.monotonic() - began) / 2


def test_three_ways_to_come_to_nothing_are_told_apart(
    server: Server, client: httpx.Client, run_id: int
) -> None:
    """Contract: a rejected line, and a sender that closed its connection, do not count as failures of the
    tracker."""
    failed = came_to_nothing(client)["failures"]
    assert log_metrics(client, run_id, '{"time": 1, "step": 1, "data": {"a": "x"}}').status_code == 422
    with connected(server) as there:
        head = f"POST /ingest/metrics HTTP/1.1\r\nHost: t\r\nX-Api-Key: {KEY}\r\nX-Run-Id: {run_id}\r\n"
        there.sendall(
            f"{head}X-Project-Name: e2e\r\nX-Run-Name: rank9\r\nContent-Length: 999\r\n\r\n".encode()
        )
        there.sendall(LINE)
        time.sleep(0.2)
    settled(lambda: any(one["sender"] == "rank9" for one in came_to_nothing(client)["hungUp"]))
    assert came_to_nothing(client)["failures"] == failed
    refused = [one for one in EmbeddedAudit(client).refused([run_id]) if one.run_id == run_id]
    assert [(one.sender, one.count) for one in refused] == [("rank0", 1)]
    assert "422: line 1: data.a: expected a number" in refused[0].reason


def test_a_request_that_says_no_run_is_refused(client: httpx.Client, run_id: int) -> None:
    """Contract: rows without X-Run-Id or X-Project-Name could not be found again."""
    for headers in ({"X-Run-Id": f"{run_id}"}, {"X-Project-Name": "e2e"}, {}):
        assert client.post("/ingest/metrics", content=LINE, headers=headers).status_code == 400


def test_a_brought_run_keeps_its_times(client: httpx.Client) -> None:
    """Contract: an imported run keeps its createdAt and statusUpdated, which are in milliseconds."""
    run = create(client, None, createdAt=86_400_000)
    body = {"runId": run["runId"], "status": "COMPLETED", "statusUpdated": 86_401_000}
    client.post("/api/runs/status/update", json=body)
    shown = client.get(f"/api/runs/details/{run['runId']}").json()
    assert shown["createdAt"] == "1970-01-02T00:00:00.000Z"
    assert shown["statusUpdated"] == "1970-01-02T00:00:01.000Z"


def resident(server: Server) -> int:
    """Return the bytes of memory that the server's process holds."""
    assert server.pid is not None
    with open(f"/proc/{server.pid}/statm") as file:
        return int(file.read().split()[1]) * 4096


def settled(holds: Any, seconds: float = 20) -> None:
    """Wait until a condition is true."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.nightly
def test_large_requests_at_once_stay_within_the_limit(server: Server, run_id: int) -> None:
    """Contract: their total memory is limited, and far below the memory limit of the Deployment."""
    rows = "\n".join(json.dumps({"time": 1, "step": step, "data": {"a": step}}) for step in range(300_000))
    with ThreadPoolExecutor(8) as pool:
        codes = list(pool.map(lambda rank: _sent(server, run_id, rows, rank), range(8)))
    assert set(codes) <= {200, 429}
    assert 200 in codes
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{server.pid}/status").read_text())
    assert peak is not None
    assert int(peak[1]) * 1024 < float(parse_quantity(MEMORY)) / 2


def _sent(server: Server, run_id: int, rows: str, rank: int) -> int:
    with server.client() as client:
        client.timeout = httpx.Timeout(120)
        return log_metrics(client, run_id, rows, f"rank{rank}").status_code
