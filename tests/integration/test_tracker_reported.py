"""Attacks from public bug reports about other trackers and file servers. Each test names its report. The
server must reject the input, and its data must not change.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from tracker_server import KEY, Server, create

from harness.tracker.shared.keys import project_key

SECRET = "root:x:0:0"
"""The first bytes of /etc/passwd."""
UP = ("../" * 12, quote("../" * 12, safe=""), "..%252f" * 12, "....//" * 12, "..\\" * 12, "/")


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Server]:
    """Yield a server for one test."""
    server = Server(tmp_path).start()
    yield server
    server.stop()


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


@pytest.fixture
def bare(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, trust_env=False) as client:
        yield client


def upload(client: httpx.Client, run: int, name: str, body: bytes, kind: str) -> str:
    """Store a file, and return its download URL."""
    entry = {"fileName": name, "fileSize": len(body), "time": 1, "logName": name}
    headers = {"X-Run-Id": f"{run}", "X-Project-Name": "e2e"}
    address = client.post("/files", json={"files": [entry]}, headers=headers).json()[name][0][name]
    assert client.put(address, content=body, headers={"Content-Type": kind}).status_code == 200
    found: str = client.get(f"/api/runs/files?runId={run}&logName={quote(name)}").json()["files"][-1]["url"]
    return found


@pytest.mark.parametrize("up", UP)
def test_no_path_leads_out_of_the_folder_of_files(
    server: Server, client: httpx.Client, bare: httpx.Client, up: str
) -> None:
    """mlflow/mlflow#7166: GET /get-artifact?path=../../etc/passwd reads the server's files."""
    for path in (
        f"/files/get/{up}etc/passwd/9999999999/{'0' * 64}",
        f"/files/get/{up}tracker.db/9999999999/{'0' * 64}",
        f"/pages/static/{up}etc/passwd",
        f"/pages/static/{up}render.py",
        f"/o/harness/projects/{up}etc/passwd",
    ):
        answer = bare.get(path)
        assert answer.status_code in {303, 403, 404}, path
        assert SECRET not in answer.text


@pytest.mark.parametrize(
    "name", ["../../escaped", "/tmp/escaped", "..\\escaped", ".", "..", "a\x00b", "\r\nX: y"]
)
def test_a_file_name_creates_no_path(server: Server, client: httpx.Client, name: str) -> None:
    """aimhubio/aim#3424: a file name with ../ creates files outside the repository."""
    before = set(server.folder.rglob("*"))
    run = create(client, None)["runId"]
    entry = {"fileName": name, "fileSize": 1, "time": 1, "logName": name}
    headers = {"X-Run-Id": f"{run}", "X-Project-Name": "e2e"}
    answer = client.post("/files", json={"files": [entry]}, headers=headers)
    assert answer.status_code == 200
    address = answer.json()[name][0][name]
    assert client.put(address, content=b"x").status_code == 200
    paths = set(server.folder.rglob("*")) - before
    assert all(path.parent == server.db.with_name("tracker.db.files") for path in paths if path.is_file())
    assert "escaped" not in str(paths)
    download = client.get(client.get(f"/api/runs/files?runId={run}").json()["files"][0]["url"])
    assert "\n" not in download.headers["content-disposition"]
    assert ".." not in download.headers["content-disposition"].split("''")[1].split("/")


def test_project_name_with_path_is_only_name(server: Server, client: httpx.Client) -> None:
    """google/tsunami-security-scanner-plugins#611 (CVE-2024-1483): an address with #/../../ as a name."""
    for name in ("http:///#/../../../../etc/", "file:///etc/passwd", "../../etc"):
        run = create(client, None, projectName=name, runName=name)
        assert client.get(f"/api/runs/{run['runId']}").json()["projectName"] == name
        assert SECRET not in client.get(f"/api/runs/list?projectName={quote(name, safe='')}").text


@pytest.mark.parametrize(
    ("name", "kind", "body"),
    [
        ("a.html", "text/html", b"<script>alert(1)</script>"),
        ("a.svg", "image/svg+xml", b'<svg xmlns="http://www.w3.org/2000/svg"><script>1</script></svg>'),
        ("a.txt", "text/plain, text/html", b"<script>1</script>"),
        ("a.xml", "text/xml", b'<?xml-stylesheet href="data:,"?><a/>'),
        ("a.pdf", "application/pdf", b"%PDF-1.4"),
    ],
)
def test_a_stored_file_runs_no_script(
    client: httpx.Client, bare: httpx.Client, name: str, kind: str, body: bytes
) -> None:
    """open-webui/open-webui#24372, Comfy-Org/ComfyUI#6034: files are served with the uploader's type."""
    run = create(client, None)["runId"]
    answer = bare.get(upload(client, run, name, body, kind))
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in answer.headers["content-security-policy"]
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"


def test_stored_text_runs_no_script_on_any_page(client: httpx.Client, bare: httpx.Client) -> None:
    """aimhubio/aim#3333: markup in a report runs in the browser of another user."""
    mark = '"><img src=x onerror=alert(1)><script>alert(1)</script>'
    run = create(client, None, runName=mark, projectName=mark, tags=[mark], config=json.dumps({mark: mark}))
    number = {"runId": run["runId"]}
    client.post("/api/runs/notes/update", json={**number, "notes": mark})
    client.post("/api/runs/alert", json={**number, "alert": {"title": mark, "body": mark, "level": mark}})
    headers = {"X-Run-Id": f"{run['runId']}", "X-Project-Name": quote(mark), "X-Run-Name": "r"}
    line = {"time": 1, "message": mark, "lineNumber": 1, "logType": mark}
    assert client.post("/ingest/logs", content=json.dumps(line), headers=headers).status_code == 200
    assert bare.post("/login", data={"key": KEY}).status_code == 303
    start = run["url"]
    for tab in ("", "/logs", "/files", "/data", "/config", "/ranks"):
        answer = bare.get(start + tab)
        assert answer.status_code == 200, tab
        assert "<img src=x" not in answer.text
        assert "<script>alert" not in answer.text
        assert "script-src 'self'" in answer.headers["content-security-policy"]
    search = bare.get("/o/harness/projects/e2e", params={"search": mark, "sort": mark})
    assert "<script>alert" not in search.text


def test_a_download_url_is_not_an_upload_url(client: httpx.Client, bare: httpx.Client) -> None:
    """boto/boto3#2665, jangerhofer/serverlessS3Upload#1: a presigned URL can be used again."""
    run = create(client, None)["runId"]
    read = upload(client, run, "a.txt", b"true", "text/plain")
    assert bare.put(read.replace("/files/get/", "/files/put/"), content=b"fake").status_code == 403
    assert bare.get(read).content == b"true"


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1"])
def test_another_site_reads_and_writes_nothing(server: Server, bare: httpx.Client, origin: str) -> None:
    """tensorflow/tensorboard#4597, aimhubio/aim#3412: another site sends requests with the user's cookie."""
    assert bare.post("/login", data={"key": KEY}).status_code == 303
    headers = {"Origin": origin}
    page = bare.get("/o/harness/projects", headers=headers)
    assert not {name for name in page.headers if name.startswith("access-control-")}
    preflight = bare.request(
        "OPTIONS", "/api/runs/create", headers={**headers, "Access-Control-Request-Method": "POST"}
    )
    assert preflight.status_code == 405
    assert not {name for name in preflight.headers if name.startswith("access-control-")}
    for path in ("/api/runs/create", "/api/pages/link", "/api/audit/claims", "/files", "/ingest/metrics"):
        assert bare.post(path, content="{}", headers=headers).status_code == 401, path
    assert bare.post("/login", data={"key": KEY}, headers=headers).status_code == 403
    assert bare.post("/logout", headers=headers).status_code == 303
    cross = {"Sec-Fetch-Site": "cross-site"}
    assert bare.post("/login", data={"key": KEY}, headers=cross).status_code == 403
    assert bare.get("/o/harness/projects").status_code == 200, "the session is still open"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example"])
def test_another_host_name_gives_no_access(server: Server, bare: httpx.Client, host: str) -> None:
    """mlflow/mlflow#17910: DNS rebinding lets another site read a tracker on loopback."""
    headers = {"Host": host}
    for path in ("/o/harness/projects", "/pages/pulse?runs=1", "/api/runs/projects", "/api/audit/runs"):
        assert bare.get(path, headers=headers).status_code in {303, 401}, path
    answer = bare.get("/", headers=headers)
    assert host not in answer.headers["location"], "no redirect to the name in the request"


@pytest.mark.parametrize("header", ["X-Forwarded-For", "X-Real-IP", "Forwarded", "X-Forwarded-Host"])
def test_a_forged_address_gives_no_further_attempts(fresh: Server, header: str) -> None:
    """ZerosAndOnesLLC/AiFw#165, oryx-labs/oryxos#189: X-Forwarded-For is trusted, or locks out everybody. A
    project's key, a one-time link and an open session always work.
    """
    with httpx.Client(base_url=fresh.url, trust_env=False) as client, fresh.client() as own:
        before = client.post("/login", data={"key": KEY})
        assert before.status_code == 303
        codes = [
            client.post(
                "/login", data={"key": f"wrong{number}"}, headers={header: f"10.0.0.{number}"}
            ).status_code
            for number in range(30)
        ]
        assert set(codes[:10]) == {401}
        assert 429 in codes
        assert own.post("/api/slug").status_code == 200
        assert client.get("/o/harness/projects").status_code == 200
        once = own.post("/api/pages/link").json()["once"]
        with httpx.Client(base_url=fresh.url, trust_env=False) as other:
            assert other.post("/login", data={"key": project_key(KEY, "e2e")}).status_code == 303
        with httpx.Client(base_url=fresh.url, trust_env=False) as other:
            assert "set-cookie" in other.get(f"/login?once={once}").headers


def test_a_throttled_login_says_how_long_it_lasts(fresh: Server) -> None:
    """The tracker's own key is not tried while the login is throttled, so nobody can guess it faster."""
    with httpx.Client(base_url=fresh.url, trust_env=False) as client:
        answers = [client.post("/login", data={"key": "wrong"}) for _ in range(60)]
        refused = next(one for one in answers if one.status_code == 429)
        assert 0 < int(refused.headers["retry-after"]) <= 10
        assert "Try again in" in refused.text


def test_a_cookie_that_was_planted_is_not_used(server: Server, bare: httpx.Client) -> None:
    """ServiceStack/Issues#240, civiform/civiform#6975: session fixation, a cookie after the logout."""
    first = bare.post("/login", data={"key": KEY}).headers["set-cookie"].partition(";")[0]
    assert bare.post("/logout").status_code == 303
    with httpx.Client(base_url=server.url, headers={"Cookie": first}, trust_env=False) as copy:
        assert copy.get("/o/harness/projects").status_code == 303
        again = copy.post("/login", data={"key": KEY}).headers["set-cookie"].partition(";")[0]
        assert again != first
        assert copy.get("/o/harness/projects").status_code == 303


def test_two_content_lengths_and_encodings_are_refused(server: Server) -> None:
    """Request smuggling behind a proxy: a request with two framings never gets a second response."""
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    for framing in (
        "Content-Length: 0\r\nContent-Length: 40\r\n",
        "Content-Length: 40\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
    ):
        smuggled = "GET /api/runs/projects HTTP/1.1\r\nHost: t\r\n\r\n"
        with socket.create_connection((host, int(port)), timeout=30) as there:
            there.sendall(f"POST /login HTTP/1.1\r\nHost: t\r\n{framing}\r\n0\r\n\r\n{smuggled}".encode())
            there.shutdown(socket.SHUT_WR)
            answer = b""
            while part := there.recv(65536):
                answer += part
        assert answer.count(b"HTTP/1.1 ") <= 2
        assert b" 200 " not in answer.replace(b"HTTP/1.1 200 OK\r\ncontent-type: text/html", b""), framing
