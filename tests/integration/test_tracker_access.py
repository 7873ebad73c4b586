"""Every route with every kind of credential, on a server on loopback, and the corresponding table in the
documentation."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.routing import Route
from tracker_server import KEY, ROOT, Server, create, log_metrics

from harness.tracker.client.audit import EmbeddedAudit
from harness.tracker.server.access import ACCESS, KEYS, Access, Scope, Who
from harness.tracker.server.app import Options, build
from harness.tracker.shared import signed_links
from harness.tracker.shared.keys import launch_key, project_key

POINT = '{"time": 1, "step": 0, "data": {"m": 1}}'
BODIES: dict[str, dict[str, Any]] = {
    "create": {"runName": "r", "projectName": "e2e", "externalId": "ours"},
    "logName/add": {"logType": "METRIC", "logName": ["a"]},
    "status/update": {"status": "RUNNING"},
    "tags/update": {"tags": ["t"]},
    "config/update": {"config": "{}"},
    "notes/update": {"notes": "n"},
    "alert": {"alert": {"title": "t"}},
    "modelGraph/create": {"graph": {"nodes": {}}},
}
ENTRY = {"fileName": "a.txt", "fileSize": 1, "time": 1, "logName": "a"}
DENIED = {401, 403, 404}


@dataclass(frozen=True)
class Known:
    """The runs on the server: our launch's run, another launch's run in our project, and a run in another
    project."""

    ours: int
    sibling: int
    theirs: int
    shown: dict[int, str]
    token: str
    links: dict[Who, str]


@pytest.fixture(scope="module")
def known(server: Server) -> Known:
    with server.client() as client:
        theirs = create(client, "secret", projectName="theirs", config='{"a": "secret"}')
        client.post("/api/runs/notes/update", json={"runId": theirs["runId"], "notes": "secret"})
    with server.client(Authorization=f"Bearer {of_launch('n2', 'other')}") as client:
        sibling = create(client, "other", config='{"a": "secret"}')
    with server.client(Authorization=f"Bearer {of_launch('n1', 'ours')}") as client:
        ours = create(client, "ours")
        log_metrics(client, ours["runId"], POINT)
        headers = {"X-Run-Id": f"{ours['runId']}", "X-Project-Name": "e2e"}
        address = client.post("/files", json={"files": [ENTRY]}, headers=headers).json()["a"][0]["a.txt"]
        assert client.put(address, content=b"x").status_code == 200
        read = client.get(f"/api/runs/files?runId={ours['runId']}").json()["files"][0]["url"]
    return Known(
        ours["runId"],
        sibling["runId"],
        theirs["runId"],
        {one["runId"]: one["displayId"] for one in (ours, sibling, theirs)},
        address.split("/")[-3],
        {Who.READ_LINK: read, Who.UPLOAD_LINK: address},
    )


def of_launch(launch: str, run: str, project: str = "e2e") -> str:
    return launch_key(KEY, launch, project=project, run=run)


CREDENTIALS: dict[str, tuple[Who, str]] = {
    "the tracker's own key": (Who.OWNER, KEY),
    "the project's key": (Who.PROJECT, project_key(KEY, "e2e")),
    "the launch's key": (Who.LAUNCH, of_launch("n1", "ours")),
    "a session": (Who.SESSION, KEY),
    "a session of the project": (Who.SESSION, project_key(KEY, "e2e")),
    "a download URL": (Who.READ_LINK, ""),
    "an upload URL": (Who.UPLOAD_LINK, ""),
    "nothing": (Who.ANYBODY, ""),
}
"""The names of credentials that give access to the run `Known.ours`, with their kinds."""


def request(client: httpx.Client, route: str, access: Access, run: int, known: Known) -> httpx.Response:
    """Send a route's request about a run."""
    method, _, path = route.partition(" ")
    path = re.sub(r":\w+}", "}", path).format(
        run_id=run, tab="logs", project="e2e", name="pages.js", display_id=known.shown[run],
        token=known.token, until="9999999999", seal="0" * 64,
    )  # fmt: skip
    queries: dict[Scope, dict[str, str | int]] = {
        Scope.RUN_ID: {"projectName": "e2e", "logName": "m", "runId": run},
        Scope.RUN_IDS: {"projectName": "e2e", "logName": "m", "runIds": run},
        Scope.PROJECT: {"projectName": "e2e", "logName": "m"},
    }
    query = queries.get(access.scope, {})
    if path.startswith(("/api/audit", "/pages/")):
        query = {"runIds": run, "runs": run, "run": run, "series": f"{run}:m"}
    headers, content = {}, None
    if access.scope is Scope.SENDER:
        headers = {"X-Run-Id": f"{run}", "X-Project-Name": "e2e"}
        content = json.dumps({"files": [ENTRY]}) if path == "/files" else ""
    elif method == "POST":
        body = {"runId": run, **BODIES.get(path.removeprefix("/api/runs/"), {})}
        if path.endswith("/create") and run != known.ours:
            body["externalId"] = "other" if run == known.sibling else "secret"
            body["projectName"] = "e2e" if run == known.sibling else "theirs"
        claim = {"projectName": "e2e", "externalId": "ours", "launch": "n1"}
        content = json.dumps({**body, **claim} if path.startswith("/api/audit") else body)
    return client.request(method, path, params=query, headers=headers, content=content)


@pytest.fixture(params=CREDENTIALS)
def credential(request: pytest.FixtureRequest, server: Server) -> Iterator[tuple[Who, httpx.Client]]:
    who, key = CREDENTIALS[request.param]
    headers = {"Authorization": f"Bearer {key}"} if who & KEYS else {}
    with httpx.Client(base_url=server.url, headers=headers, trust_env=False) as client:
        if who is Who.SESSION:
            assert client.post("/login", data={"key": key}).status_code == 303
        yield who, client


def permitted(answer: httpx.Response) -> bool:
    """Return whether a response does not reject the credential."""
    login = answer.headers.get("location", "").startswith("/login")
    return answer.status_code not in DENIED and not login


def test_every_route_accepts_the_credentials_of_the_table(
    credential: tuple[Who, httpx.Client], known: Known
) -> None:
    who, client = credential
    for route, access in ACCESS.items():
        if access.who is Who.ANYBODY and route in {"POST /login", "POST /logout"}:
            continue  # The next test covers these routes, because they end the session.
        link = known.links[who] if who in known.links and who in access.who else None
        if link is not None:
            answer = client.request(route.partition(" ")[0], link, content=b"x" if "PUT" in route else None)
        else:
            answer = request(client, route, access, known.ours, known)
        expected = who in access.who or access.who is Who.ANYBODY
        assert permitted(answer) == expected, (route, answer.status_code, answer.text[:200])
        if not expected:
            assert "ours" not in answer.text


def test_anybody_can_log_in_and_out(server: Server) -> None:
    with httpx.Client(base_url=server.url, trust_env=False) as client:
        assert client.post("/login", data={"key": KEY}).status_code == 303
        assert client.post("/logout").status_code == 303


@pytest.mark.parametrize(
    ("name", "other"),
    [("the project's key", "theirs"), ("the launch's key", "theirs"), ("the launch's key", "sibling")],
)
def test_no_route_gives_a_key_access_to_other_runs(
    server: Server, known: Known, name: str, other: str
) -> None:
    """Contract: a key gives no access to runs in another project. A launch's key gives no access to another
    launch's runs in its project."""
    _, key = CREDENTIALS[name]
    run = getattr(known, other)
    with server.client() as own:
        before = own.get(f"/api/runs/{run}").json(), own.get(f"/api/audit/writers?runIds={run}").json()
    with server.client(Authorization=f"Bearer {key}") as client:
        for route, access in ACCESS.items():
            if not access.who & KEYS or access.scope in {Scope.NOTHING, Scope.PROJECT}:
                continue
            answer = request(client, route, access, run, known)
            assert answer.status_code in DENIED, (route, answer.status_code, answer.text)
            assert "secret" not in answer.text.replace("run id secret", ""), route
        shown = client.get(f"/api/runs/details/by-display-id/{known.shown[run]}")
        assert shown.status_code in DENIED
        for body in ({"displayId": known.shown[run]}, {"externalId": "secret", "projectName": "theirs"}):
            assert client.post("/api/runs/resume", json=body).status_code in DENIED
    with server.client() as own:
        after = own.get(f"/api/runs/{run}").json(), own.get(f"/api/audit/writers?runIds={run}").json()
    assert after == before


@pytest.mark.parametrize(
    "address",
    [
        "/api/runs/list?projectName=e2e",
        "/api/runs/list?projectName=e2e&runId={ours}",
        "/api/runs/leaderboard?projectName=e2e&logName=m&runId={ours}",
        "/api/runs/metric-names?projectName=e2e",
        "/api/runs/metric-names?projectName=e2e&runId={ours}",
        "/api/runs/metric-names?projectName=e2e&runIds={ours}&runIds={sibling}",
        "/api/runs/metrics?projectName=e2e&runId={ours}&runId={sibling}",
        "/api/runs/compare?projectName=e2e&logName=m&runIds={ours},{sibling}",
        "/api/runs/metrics?projectName=theirs&runId={ours}",
        "/api/audit/runs?projectName=e2e&externalId=ours",
    ],
)
def test_a_launch_reads_nothing_beside_its_runs(server: Server, known: Known, address: str) -> None:
    path = address.format(ours=known.ours, sibling=known.sibling)
    with server.client(Authorization=f"Bearer {of_launch('n1', 'ours')}") as client:
        assert client.get(path).status_code in DENIED


def test_a_launch_can_create_runs_of_its_project(server: Server, known: Known) -> None:
    """Contract: ranks with a wrong run id are found, because their run belongs to the launch, and nobody else
    can write to it. A run id that another launch has claimed is rejected, and so is another project.
    """
    with server.client() as own:
        claim = {"projectName": "e2e", "externalId": "claimed", "launch": "n9"}
        assert own.post("/api/audit/claims", json=claim).json()["granted"]
    with server.client(Authorization=f"Bearer {of_launch('n1', 'ours')}") as client:
        run = create(client, "ours-typo")["runId"]
        assert create(client, "ours-typo") | {"resumed": True} == create(client, "ours-typo")
        assert create(client, None)["runId"] > run
        assert log_metrics(client, run, POINT).status_code == 200
        assert client.get(f"/api/runs/{run}").status_code == 200
        for body in (
            {"runName": "r", "projectName": "e2e", "externalId": "claimed"},
            {"runName": "r", "projectName": "e2e-other", "externalId": "ours"},
            {"runName": "r", "projectName": "e2e", "forkRunId": known.sibling, "forkStep": 0},
        ):
            assert client.post("/api/runs/create", json=body).status_code in DENIED, body
        assert [one["name"] for one in client.get("/api/runs/projects").json()["projects"]] == ["e2e"]
    with server.client(Authorization=f"Bearer {of_launch('n2', 'other')}") as client:
        assert log_metrics(client, run, POINT).status_code == 404
        assert client.post("/api/runs/resume", json={"runId": run}).status_code == 404
    with server.client() as own:
        writers = own.get(f"/api/audit/writers?runIds={run}").json()["writers"]
        assert {one["launch"] for one in writers} == {"n1"}
        projects = {one["name"] for one in own.get("/api/runs/projects").json()["projects"]}
        assert "e2e-other" not in projects


def test_rows_for_missing_run_join_no_later_run(server: Server, known: Known) -> None:
    """Contract: such rows are stored as orphans under the run id in the header, like rows for a lost
    database."""
    with server.client() as own:
        later = create(own, None, projectName="theirs")["runId"] + 1
    with server.client(Authorization=f"Bearer {of_launch('n1', 'ours')}") as client:
        assert log_metrics(client, later, POINT, "early").status_code == 200
    with server.client() as own:
        assert create(own, None, projectName="theirs")["runId"] == later
        assert list(EmbeddedAudit(own).points([later])) == []
        orphans = own.get("/api/audit/runs?projectName=e2e").json()["orphans"]
    assert f"{later}" in {one["run_header"] for one in orphans if one["sender"] == "early"}


def test_409_names_no_project_that_key_cannot_access(server: Server, known: Known) -> None:
    """Contract: this applies to a database in which projects share display ids, as in older versions."""
    with server.client() as own:
        mine = create(own, None)["runId"]
    with sqlite3.connect(server.db) as db:
        db.execute("UPDATE runs SET display_id = 'OLD-1' WHERE id IN (?, ?)", (mine, known.theirs))
    try:
        with server.client() as own:
            assert own.post("/api/runs/resume", json={"displayId": "OLD-1"}).status_code == 409
        with server.client(Authorization=f"Bearer {project_key(KEY, 'e2e')}") as client:
            answer = client.post("/api/runs/resume", json={"displayId": "OLD-1"})
            assert (answer.status_code, answer.json()["runId"]) == (200, mine)
        with server.client(Authorization=f"Bearer {project_key(KEY, 'none')}") as client:
            assert client.post("/api/runs/resume", json={"displayId": "OLD-1"}).status_code == 404
    finally:
        with sqlite3.connect(server.db) as db:
            shown = known.shown[known.theirs]
            db.execute("UPDATE runs SET display_id = ? WHERE id = ?", (shown, known.theirs))


def test_requests_without_a_credential_are_in_no_evidence(server: Server, known: Known) -> None:
    """Contract: only requests with a key or an upload URL are recorded in the audit, which does not contain
    the secret in the URL."""
    link = signed_links.link(KEY, "upload", "unknown")
    with httpx.Client(base_url=server.url, trust_env=False) as client:
        for path in ("/files/put/guessed/1/x", "/files/none", "/ingest/none"):
            assert client.put(path, content=b"x").status_code in {403, 404}
        assert client.put(f"/files/put/{link}", content=b"x").status_code == 404
    with server.client() as own:
        text = own.get("/api/audit/failures").text
    assert "none" not in text
    assert "guessed" not in text
    assert "/files/put/… 404" in text
    assert link.rpartition("/")[2] not in text


def table() -> str:
    """Return the table for the documentation."""
    columns = {
        "own key": Who.OWNER,
        "project's key": Who.PROJECT,
        "launch's key": Who.LAUNCH,
        "session": Who.SESSION,
        "download URL": Who.READ_LINK,
        "upload URL": Who.UPLOAD_LINK,
    }
    lines = [f"| requests | {' | '.join(columns)} | checked by |", "|---" * (len(columns) + 2) + "|"]
    for access, some in groupby(ACCESS.items(), lambda item: item[1]):
        routes = ", ".join(f"`{route}`" for route, _ in some)
        cells = ["✓" if who in access.who or access.who is Who.ANYBODY else "–" for who in columns.values()]
        scope = {Scope.NOTHING: "", Scope.BODY: "the run in the body", Scope.PATH: "the run in the path"}
        where = scope.get(access.scope, f"`{access.scope.value}`")
        where = "open to everybody" if access.who is Who.ANYBODY else where
        lines.append(f"| {routes} | {' | '.join(cells)} | {where} |")
    return "\n".join(lines)


def test_the_table_has_every_route_and_no_other() -> None:
    app = build(Options(Path("unused"), KEY))
    routes = {
        f"{method} {route.path}"
        for route in app.routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert routes == set(ACCESS)


def test_the_documentation_has_the_table() -> None:
    documented = (ROOT / "docs/reference/tracker.md").read_text()
    assert table() in documented, f"docs/reference/tracker.md must contain:\n{table()}"
