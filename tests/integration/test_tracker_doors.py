"""Access to the tracker's pages, and the security headers of responses, tested without a browser."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from tracker_server import KEY, Server, create, log_metrics

from harness.tracker.pages import routes, sessions
from harness.tracker.pages.groups import charts, flat
from harness.tracker.shared.keys import launch_key, project_key

PATHS = {
    "/": "/",
    "/login": "/login",
    "/logout": "/logout",
    "/api/pages/link": "/api/pages/link",
    "/pages/static/{name}": "/pages/static/pages.js",
    "/pages/curves": "/pages/curves?series=1:m",
    "/pages/pulse": "/pages/pulse?runs=1",
    "/pages/logs": "/pages/logs?run=1",
}
OPEN = {"/", "/login", "/logout", "/pages/static/{name}"}


def browser(server: Server) -> httpx.Client:
    return httpx.Client(base_url=server.url, trust_env=False)


@contextmanager
def logged_in(server: Server, key: str = KEY) -> Iterator[httpx.Client]:
    with browser(server) as client:
        answer = client.post("/login", data={"key": key})
        assert answer.status_code == 303, answer.text
        yield client


@pytest.fixture
def run(server: Server) -> int:
    with server.client() as client:
        run_id: int = create(client, "seen", projectName="seen/by all?")["runId"]
        log_metrics(client, run_id, '{"time": 1, "step": 0, "data": {"m": 1}}')
    return run_id


@pytest.fixture
def inside(server: Server) -> Iterator[httpx.Client]:
    with logged_in(server) as client:
        yield client


def test_every_route_of_pages_is_behind_the_door(server: Server, run: int) -> None:
    """Contract: without a session, a page redirects to the login, and requests for data are rejected. New
    routes are included automatically."""
    with browser(server) as client:
        for route in routes.routes:
            if route.path in OPEN:
                continue
            path = PATHS.get(route.path) or re.sub(r":\w+}", "}", route.path).format(
                project="seen", run_id=run, tab="logs"
            )
            method = "POST" if "POST" in (route.methods or ()) else "GET"
            answer = client.request(method, path)
            if path.startswith(("/pages/", "/api/")):
                assert answer.status_code == 401, path
            else:
                assert answer.status_code == 303, path
                assert answer.headers["location"].startswith("/login?next=%2Fo%2F"), path
            assert "seen" not in answer.text


def test_the_address_that_the_client_prints_opens_the_run(server: Server, inside: httpx.Client) -> None:
    """Contract: this works even if the project's name contains a slash, a question mark and non-ASCII
    letters."""
    with server.client() as client:
        for name in ("e2e", "a/b", "q?x=1#y", "ünï 100%"):
            url = create(client, None, projectName=name, runName=f"run of {name}")["url"]
            assert inside.get(url).status_code == 200, url
            assert "<h1>run of " in inside.get(url).text
            with browser(server) as outside:
                asked = outside.get(url)
                back = outside.post(asked.headers["location"], data={"key": KEY}).headers["location"]
                assert "<h1>run of " in outside.get(back).text, back


def test_the_cookie_opens_pages_alone(server: Server, run: int) -> None:
    """Contract: scripts cannot read the cookie, it does not contain the key, and it gives no access to the
    API."""
    with browser(server) as client:
        answer = client.post("/login", data={"key": KEY})
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=lax" in cookie
        assert KEY not in cookie
        assert client.get(f"/api/runs/{run}").status_code == 401
        assert client.post("/api/pages/link").status_code == 401
        assert client.get("/o/harness/projects").status_code == 200
        name, value = next(iter(client.cookies.items()))
        for forged in (value[:-1], f"{value}x", value.swapcase(), "", "..", "9" * 5000):
            with holding(server, name, forged) as other:
                assert other.get("/o/harness/projects").status_code == 303, forged


def holding(server: Server, name: str, value: str) -> httpx.Client:
    """Return a client that sends a cookie, like a browser."""
    return httpx.Client(base_url=server.url, headers={"Cookie": f"{name}={value}"}, trust_env=False)


def cookie_of(answer: httpx.Response) -> tuple[str, str]:
    """Return the name and the value of the cookie that a response sets."""
    name, _, value = answer.headers["set-cookie"].partition(";")[0].partition("=")
    return name, value


def test_logout_ends_session_for_every_copy_of_cookie(server: Server) -> None:
    with browser(server) as client:
        name, value = cookie_of(client.post("/login", data={"key": KEY}))
        with holding(server, name, value) as copy:
            assert copy.get("/o/harness/projects").status_code == 200
            refused = client.post("/logout", headers={"Origin": "https://evil.example"})
            assert refused.status_code == 303
            assert copy.get("/o/harness/projects").status_code == 200, "another site ended the session"
            assert client.post("/logout").status_code == 303
            assert copy.get("/o/harness/projects").status_code == 303
            assert client.get("/o/harness/projects").status_code == 303


def test_login_never_uses_id_of_earlier_cookie(server: Server) -> None:
    """Contract: a session id planted by an attacker gives no access, and a second login ends the first
    session."""
    with browser(server) as client:
        name, first = cookie_of(client.post("/login", data={"key": KEY}))
    with holding(server, name, "planted") as planted:
        assert cookie_of(planted.post("/login", data={"key": KEY}))[1] != "planted"
        assert planted.get("/o/harness/projects").status_code == 303
    with holding(server, name, first) as earlier:
        assert earlier.get("/o/harness/projects").status_code == 200
        assert earlier.post("/login", data={"key": KEY}).status_code == 303
        assert earlier.get("/o/harness/projects").status_code == 303


@pytest.mark.parametrize(
    ("headers", "secure"),
    [
        ({}, False),
        ({"X-Forwarded-Proto": "http"}, False),
        ({"X-Forwarded-Proto": "https"}, True),
        ({"X-Forwarded-Proto": "HTTPS, http"}, True),
    ],
)
def test_the_cookie_is_secure_behind_tls(server: Server, headers: dict[str, str], secure: bool) -> None:
    with browser(server) as client:
        answer = client.post("/login", data={"key": KEY}, headers=headers)
        name, value = cookie_of(answer)
        assert name.startswith("__Host-") == secure
        assert ("; Secure" in answer.headers["set-cookie"]) == secure
    with holding(server, name, value) as client:
        assert client.get("/o/harness/projects", headers=headers).status_code == 200
        ended = client.post("/logout", headers=headers).headers["set-cookie"]
        assert ended.startswith(f"{name}=")
        assert ("; Secure" in ended) == secure


@pytest.fixture
def proxied(tmp_path: Path) -> Iterator[Server]:
    """Yield a server with a public URL."""
    server = Server(tmp_path, "--public-url", "https://tracker.example").start()
    yield server
    server.stop()


def test_behind_a_proxy_the_public_url_is_the_origin(proxied: Server) -> None:
    """Contract: a proxy that changes Host does not prevent the login, and the cookie is Secure."""
    with browser(proxied) as client:
        headers = {"Host": "10.0.0.1:8080", "Origin": "https://tracker.example"}
        answer = client.post("/login", data={"key": KEY}, headers=headers)
        assert answer.status_code == 303
        assert cookie_of(answer)[0].startswith("__Host-")
        headers["Origin"] = "https://evil.example"
        assert client.post("/login", data={"key": KEY}, headers=headers).status_code == 403


def test_a_session_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    store = sessions.Sessions()
    name = store.make(sessions.Session("p"))
    assert store.find(name) == sessions.Session("p")
    later = time.monotonic() + sessions.SECONDS + 1
    monkeypatch.setattr("harness.tracker.pages.sessions.time.monotonic", lambda: later)
    assert store.find(name) is None


def test_sessions_of_key_are_bounded_and_end_no_others() -> None:
    store = sessions.Sessions()
    other = store.make(sessions.Session())
    names = [store.make(sessions.Session("p")) for _ in range(sessions.MAX_SESSIONS + 1)]
    assert store.find(names[0]) is None
    assert all(store.find(name) for name in [other, *names[1:]])


@pytest.mark.parametrize("key", ["", "wrong", KEY[:-1], f"{KEY}x", "ü", "x" * 20_000])
def test_a_wrong_key_opens_nothing(server: Server, key: str) -> None:
    with browser(server) as client:
        answer = client.post("/login", data={"key": key})
        assert answer.status_code in {401, 413}
        assert "set-cookie" not in answer.headers
        assert not key or key not in answer.text


def test_a_link_opens_once_and_is_in_no_log(server: Server) -> None:
    """Contract: the second use of a link gets a message to create another link. Neither the secret nor the
    key is in the server's log."""
    with server.client() as own:
        once = own.post("/api/pages/link").json()["once"]
    with browser(server) as first, browser(server) as second:
        answer = first.get(f"/login?once={once}&next=/o/harness/projects/e2e")
        assert (answer.status_code, answer.headers["location"]) == (303, "/o/harness/projects/e2e")
        assert first.get("/o/harness/projects").status_code == 200
        refused = second.get(f"/login?once={once}")
        assert refused.status_code == 403
        assert "harness tracker open" in refused.text
        assert second.get("/o/harness/projects").status_code == 303
        second.get(f"/no/such/page?once={once}")
    log = server.log.read_text()
    assert once not in log
    assert KEY not in log


@pytest.mark.parametrize(
    "wanted", ["//evil.example", "https://evil.example", "/\\evil", "/o/x", "/api", "\r\nX: y"]
)
def test_the_login_leads_to_our_pages_alone(server: Server, wanted: str) -> None:
    with browser(server) as client:
        answer = client.post("/login", params={"next": wanted}, data={"key": KEY})
        assert (answer.status_code, answer.headers["location"]) == (303, "/o/harness/projects")


def test_forms_of_other_sites_are_refused(server: Server) -> None:
    with browser(server) as client:
        for origin in ("https://evil.example", "null"):
            assert client.post("/login", data={"key": KEY}, headers={"Origin": origin}).status_code == 403
        own = {"Origin": server.url}
        assert client.post("/login", data={"key": KEY}, headers=own).status_code == 303


def test_the_key_of_a_project_shows_that_project_alone(server: Server, run: int) -> None:
    with server.client() as own:
        mine = create(own, "mine", projectName="mine")["runId"]
        own.post("/api/runs/notes/update", json={"runId": run, "notes": "a secret note"})
    with logged_in(server, project_key(KEY, "mine")) as client:
        shown = client.get("/o/harness/projects").text
        assert "mine" in shown
        assert "seen" not in shown
        assert client.get(f"/o/harness/projects/mine/r{mine}").status_code == 200
        for path in (
            "/o/harness/projects/seen%2Fby%20all%3F",
            f"/o/harness/projects/seen%2Fby%20all%3F/r{run}",
            f"/o/harness/projects/mine/r{run}",
            f"/o/harness/projects/mine/r{run}/config",
            f"/o/harness/projects/mine?runs={mine},{run}",
            f"/pages/curves?series={run}:m",
            f"/pages/curves?series={mine}:m&series={run}:m",
            f"/pages/pulse?runs={run}",
            f"/pages/logs?run={run}",
        ):
            answer = client.get(path)
            assert answer.status_code == 404, path
            assert "a secret note" not in answer.text
    with browser(server) as client:
        key = launch_key(KEY, "n1", project="mine", run="mine")
        answer = client.post("/login", data={"key": key})
        assert answer.status_code == 401
        assert "gives no access to the pages" in answer.text
        assert "set-cookie" not in answer.headers


def test_answers_let_our_script_run_alone(server: Server, inside: httpx.Client, run: int) -> None:
    """Contract: responses have a strict content security policy, and forbid type sniffing, framing and
    caching of pages."""
    for path in ("/login", "/o/harness/projects", "/o/harness/projects/none", "/pages/static/pages.js"):
        headers = inside.get(path, follow_redirects=True).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
    assert inside.get("/o/harness/projects").headers["cache-control"] == "no-store"
    assert inside.get(f"/pages/pulse?runs={run}").headers["cache-control"] == "no-store"
    assert inside.get("/pages/static/..%2frender.py").status_code == 404
    assert inside.get("/pages/static/base.html.j2").status_code == 404


@pytest.mark.parametrize(
    "path",
    [
        "/pages/curves",
        "/pages/curves?series=x:m",
        "/pages/curves?series=1",
        "/pages/curves?" + "&".join(["series=1:m"] * 65),
        "/pages/curves?series=1:m&first=-1",
        "/pages/pulse?runs=99999999999999999999",
        "/pages/logs",
        "/o/harness/projects/none",
        "/o/harness/projects/e2e/r99999999999999999999",
        "/o/harness/projects/e2e/r1/none",
        "/o/harness/projects/e2e?runs=x",
        "/o/harness/projects/e2e?runs=1,2,3,4,5,6,7,8,9",
        "/o/harness/projects/e2e?offset=-1",
        "/o/harness/projects/e2e?sort=nothing",
        "/o/harness/projects/e2e?status=asleep",
    ],
)
def test_nonsense_is_told(inside: httpx.Client, path: str) -> None:
    assert inside.get(path).status_code in {400, 404}


def test_ranks_are_one_chart_and_secrets_are_hidden() -> None:
    names = [
        "loss/node1",
        "loss/node0",
        "rank_3/loss",
        "sys/gpu.0.power",
        "sys/cpu.percentage.4",
        "annode1",
        "lr",
    ]
    result = charts((1, "", name) for name in names)
    assert {chart.title: [one.label for one in chart.series] for chart in result} == {
        "loss/node*": ["node 0", "node 1"],
        "rank*/loss": ["rank 3"],
        "sys/gpu*.power": ["gpu 0"],
        "sys/cpu.percentage.*": ["4"],
        "annode1": ["annode1"],
        "lr": ["lr"],
    }
    over = charts([(1, "A-1", "loss/node0"), (2, "A-2", "loss/node0"), (1, "A-1", "lr")])
    assert [(one.label, one.colour) for one in over[0].series] == [("A-1 · node 0", 0), ("A-2 · node 0", 1)]
    secrets = {
        "x-api-key": "k",
        "dsn": "postgres://u:p@h/d",
        "cookie": "c",
        "Set-Cookie": "c",
        "sentryDsn": "https://k@h/1",
        "SENTRY_DSN": "https://k@h/1",
        "hfToken": "t",
        "authtoken": "t",
        "headers": {"Authorization": "Bearer abcdefgh", "X-Api-Key": "k"},
        "credentials": {"user": "u"},
        "session_id": "s",
        "AWS_SECRET_ACCESS_KEY": "a",
        "dbPassword": "p",
        "hosts": [{"cookie": "c"}, [{"password": "p"}]],
    }
    assert {text for _, text in flat(secrets)} == {"hidden"}
    plain = {"max_tokens": 5, "tokenizer": "bpe", "author": "a", "loadsnapshot": 1, "lr": 0.1, "monkey": 2}
    assert "hidden" not in {text for _, text in flat(plain)}
    named = flat({"env": [{"name": "HF_TOKEN", "value": "t"}, {"name": "LR", "value": "1"}]})
    assert [text for _, text in named] == ["HF_TOKEN", "hidden", "LR", "1"]
    masked = flat({"database": "postgres://user:hunter2@host/db", "command": "run --api_key=hunter2 x"})
    assert "hunter2" not in str(masked)
    assert flat({"a": {"b": 1, "api_key": "x"}, "c": [], "d": {}, "_auth": None}) == [
        ("a.b", "1"),
        ("a.api_key", "hidden"),
        ("c", "[]"),
        ("d", "{}"),
        ("_auth", "null"),
    ]
    deep: object = 1
    for _ in range(900):
        deep = {"a": deep}
    assert len(flat(deep)) == 1
    assert len(flat(json.loads("{" + ",".join(f'"k{i}": 1' for i in range(3000)) + "}"))) == 2001
