"""Uploads and downloads of files: what a URL permits and how often, and the limit for the total size of all
files."""

from __future__ import annotations

import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tracker_server import KEY, Server, create, finished

from harness.faults.files import tracker_proxy
from harness.tracker.api import media_types
from harness.tracker.shared import signed_links

IDS = count()
MIB = 1 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("uploads")
    server = Server(folder, "--max-file-mib", "4", "--max-files-mib", "8").start()
    yield server
    assert server.stop() == 0


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


@pytest.fixture
def bare() -> Iterator[httpx.Client]:
    """Yield a client without a key."""
    with httpx.Client(trust_env=False) as client:
        yield client


@pytest.fixture
def run_id(client: httpx.Client) -> int:
    found: int = create(client, f"run-{next(IDS)}")["runId"]
    return found


def announced(client: httpx.Client, run_id: int, size: int, name: str = "a.txt") -> str:
    """Announce a file, and return its upload URL."""
    entry = {"fileName": name, "fileSize": size, "time": 1, "logName": "a"}
    headers = {"X-Run-Id": f"{run_id}", "X-Project-Name": "e2e"}
    answer = client.post("/files", json={"files": [entry]}, headers=headers)
    assert answer.status_code == 200, answer.text
    found: str = answer.json()["a"][0][name]
    return found


def files(client: httpx.Client, run_id: int) -> list[dict[str, object]]:
    found: list[dict[str, object]] = client.get(f"/api/runs/files?runId={run_id}").json()["files"]
    return found


def stored_bytes(server: Server) -> int:
    """Return the total size in bytes of all files on disk, complete or not."""
    return sum(path.stat().st_size for path in server.db.with_name("tracker.db.files").iterdir())


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_download_url_writes_nothing_and_upload_url_reads_nothing(
    client: httpx.Client, bare: httpx.Client, run_id: int, server: Server
) -> None:
    upload = announced(client, run_id, 4)
    assert bare.put(upload, content=b"true").status_code == 200
    (file,) = files(client, run_id)
    read = str(file["url"])
    tail = read.split("/files/get/")[1]
    token = tail.partition("/")[0]
    for path in (f"/files/put/{tail}", f"/files/put/{token}", f"/files/put/{token}/1/x"):
        assert bare.put(server.url + path, content=b"fake").status_code in {403, 404}, path
    assert bare.put(read, content=b"fake").status_code == 405
    assert bare.get(upload).status_code == 405
    assert bare.get(upload.replace("/put/", "/get/")).status_code == 403
    assert bare.get(read).content == b"true"


def test_an_upload_url_stores_one_file(client: httpx.Client, bare: httpx.Client, run_id: int) -> None:
    """Contract: the same bytes are accepted again, because the client may not have received the response.
    Different bytes are rejected."""
    upload = announced(client, run_id, 4)
    assert bare.put(upload, content=b"12").status_code == 400
    assert bare.put(upload, content=b"1234").status_code == 200
    assert bare.put(upload, content=b"1234").status_code == 200
    assert bare.put(upload, content=iter([b"12", b"34"])).status_code == 200
    for other in (b"1235", b"5234"):
        assert bare.put(upload, content=other).status_code == 409
    assert bare.put(upload, content=b"123").status_code == 400
    assert bare.put(upload, content=iter([b"123"])).status_code == 409
    assert bare.put(upload, content=iter([b"1234", b"5"])).status_code == 413
    (file,) = files(client, run_id)
    assert bare.get(str(file["url"])).content == b"1234"


def test_an_upload_url_expires(
    client: httpx.Client, bare: httpx.Client, run_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload = announced(client, run_id, 4)
    start, end, seal = upload.rsplit("/", 2)
    assert 0 < int(end) - time.time() <= 3600
    assert bare.put(f"{start}/{int(end) + 1}/{seal}", content=b"1234").status_code == 403
    token = start.rpartition("/")[2]
    past = time.time() - signed_links.SECONDS - 1
    monkeypatch.setattr("harness.tracker.shared.signed_links.time.time", lambda: past)
    late = signed_links.link(KEY, "upload", token)
    assert bare.put(f"{start.rpartition('/')[0]}/{late}", content=b"1234").status_code == 403


def test_simultaneous_uploads_of_one_file_store_one(
    server: Server, client: httpx.Client, bare: httpx.Client, run_id: int
) -> None:
    """Contract: the second upload is asked to retry. The retry gets the response for a used URL."""
    upload = announced(client, run_id, 4)
    with begun(upload, 4) as there:
        until(lambda: list(server.db.with_name("tracker.db.files").glob(".*")))
        assert bare.put(upload, content=b"1235").status_code == 429
        there.sendall(b"1234")
        assert b" 200 " in there.recv(65536)
    assert bare.put(upload, content=b"1235").status_code == 409
    assert len(files(client, run_id)) == 1


def begun(upload: str, size: int) -> socket.socket:
    """Send the head of an upload without its body."""
    parts = urlsplit(upload)
    there = socket.create_connection((parts.hostname, parts.port), timeout=60)
    there.sendall(f"PUT {parts.path} HTTP/1.1\r\nHost: t\r\nContent-Length: {size}\r\n\r\n".encode())
    return there


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Server]:
    """Yield a server that stores at most 4 MiB."""
    server = Server(tmp_path, "--max-file-mib", "2", "--max-files-mib", "4").start()
    yield server
    server.stop()


def test_parallel_uploads_do_not_exceed_the_limit(small: Server) -> None:
    """Contract: the space for an upload is reserved before its body is read, and released after its end."""
    size, open_ = 2 * MIB, list[socket.socket]()
    with small.client() as client:
        run_id = create(client)["runId"]
        uploads = [announced(client, run_id, size) for _ in range(6)]
        for upload in uploads[:2]:
            there = begun(upload, size)
            there.sendall(b"x" * (size - 1))
            open_.append(there)
        until(lambda: stored_bytes(small) >= 2 * size - 2 * MIB // 8)
        for upload in uploads[2:]:
            with begun(upload, size) as there:
                assert b" 507 " in there.recv(65536), "it is refused before its body"
        assert stored_bytes(small) <= 4 * MIB
        open_[0].close()
        until(lambda: client.put(uploads[2], content=b"x" * size).status_code == 200)
        open_[1].sendall(b"x")
        assert b" 200 " in open_[1].recv(65536)
        assert client.put(uploads[3], content=b"x" * size).status_code == 507
        assert stored_bytes(small) == 4 * MIB
        assert len(files(client, run_id)) == 2


def test_a_negative_size_frees_no_space(client: httpx.Client, run_id: int) -> None:
    entry = {"fileName": "a", "fileSize": -(1 << 40), "time": 1, "logName": "a"}
    headers = {"X-Run-Id": f"{run_id}", "X-Project-Name": "e2e"}
    assert client.post("/files", json={"files": [entry]}, headers=headers).status_code == 400


class LostResponses:
    """Selects the first uploads as those whose responses the proxy loses. See tracker_proxy.Trouble."""

    def __init__(self, number: int) -> None:
        self.left, self.uploads = number, list[bytes]()

    def strikes(self, path: str, body: bytes) -> bool:
        if not path.startswith("/files/put/"):
            return False
        self.uploads.append(body)
        self.left -= 1
        return self.left >= 0


def test_the_client_survives_lost_responses_of_uploads(
    server: Server, client: httpx.Client, bare: httpx.Client, tmp_path: Path
) -> None:
    """Contract: the unmodified client sends the file again, and the run contains it once."""
    trouble = LostResponses(2)
    arguments = SimpleNamespace(mode="drop", upstream=server.url)

    class Proxy(tracker_proxy.Proxy):
        pass

    Proxy.arguments, Proxy.trouble = arguments, trouble  # type: ignore[assignment]
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{proxy.server_address[1]}"
        urls = {f"PLUTO_URL_{part}": url for part in ("APP", "API", "INGEST", "PY")}
        finished(server.pluto(tmp_path, "log", "0", "2", PLUTO_RUN_ID="lost-uploads", **urls))
    finally:
        proxy.shutdown()
        proxy.server_close()
    assert trouble.uploads == [b"kept"] * 3
    (file,) = files(client, create(client, "lost-uploads")["runId"])
    assert bare.get(str(file["url"])).content == b"kept"


@pytest.mark.parametrize(
    ("sent", "served"),
    [
        ("text/plain, text/html", "application/octet-stream"),
        ("text/plain;charset=utf-7", "text/plain; charset=utf-8"),
        ("text/html", "application/octet-stream"),
        ("image/svg+xml", "application/octet-stream"),
        ("image/png;x=, text/html", "image/png"),
        ("audio/x+xml", "application/octet-stream"),
        ("application/json ; x=1", "application/json"),
        ("application/xhtml+xml", "application/octet-stream"),
        ("text/plain text/html", "application/octet-stream"),
        ("TEXT/PLAIN", "text/plain; charset=utf-8"),
        ("multipart/x-mixed-replace; boundary=a", "application/octet-stream"),
        ("", "application/octet-stream"),
    ],
)
def test_a_file_is_never_active_content(
    server: Server, client: httpx.Client, bare: httpx.Client, run_id: int, sent: str, served: str
) -> None:
    upload = announced(client, run_id, 8, '../"a\r\nX: y".html')
    assert bare.put(upload, content=b"<script>", headers={"Content-Type": sent}).status_code == 200
    answer = bare.get(str(files(client, run_id)[0]["url"]))
    assert answer.headers["content-type"] == served
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in answer.headers["content-security-policy"]
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    shown = answer.headers["content-disposition"]
    assert shown.startswith("attachment" if served == "application/octet-stream" else "inline")
    assert shown.endswith("filename*=utf-8''%22aX%3A%20y%22.html")


SAFE = st.sampled_from(sorted(media_types.INLINE))


@given(st.text() | st.tuples(SAFE, st.text()).map("".join))
def test_any_content_type_is_a_safe_one(header: str) -> None:
    kind = media_types.media_type(header)
    assert kind in media_types.INLINE | {media_types.UNKNOWN}
    assert kind == media_types.UNKNOWN or header.strip(" \t").lower().startswith(kind)
    assert not kind.endswith(("+xml", "/xml", "html", "javascript"))


def test_an_older_trackers_content_type_is_not_trusted(
    server: Server, client: httpx.Client, bare: httpx.Client, run_id: int
) -> None:
    bare.put(announced(client, run_id, 1), content=b"x")
    with sqlite3.connect(server.db) as db:
        db.execute("UPDATE files SET content_type = 'text/plain, text/html' WHERE run_id = ?", (run_id,))
    answer = bare.get(str(files(client, run_id)[0]["url"]))
    assert answer.headers["content-type"] == "application/octet-stream"
