"""Random requests, generated from the OpenAPI document and from bytes, never cause a 500, a hang or damage.
The tests also check that every response matches the document. Each nightly run uses new seeds, and hypothesis
prints how to reproduce a failure.
"""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.routing import Route
from tracker_server import KEY, Server, create, log_metrics

from harness.tracker.api import openapi
from harness.tracker.client.audit import EmbeddedAudit
from harness.tracker.server.app import Options, build

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
]
SECONDS = 10.0
"""The maximum time of a response in seconds, on a machine that is busy with other tests. On an idle machine,
each takes less than a tenth of it."""
GROWTH = 48 << 20
"""The maximum growth of the server's memory over all requests, after an initial part of them."""
PROJECT = "fuzz"
HEADERS = {"X-Project-Name": PROJECT, "X-Run-Name": "rank0", "X-Api-Key": KEY}
SHORT = settings(
    max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True, database=None
)
LONG = settings(SHORT, max_examples=10_000)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("fuzz"), "--max-file-mib", "1").start()
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module")
def run_id(server: Server) -> int:
    """Return a run with a point and a file, to which half of the requests refer."""
    entry = {"fileName": "a", "fileSize": 1, "time": 1, "logName": "a"}
    with server.client() as client:
        run = create(client, "fuzzed", projectName=PROJECT)
        found: int = run["runId"]
        log_metrics(client, found, '{"time": 1, "step": 1, "data": {"loss": 1}}')
        client.post(
            "/files", json={"files": [entry]}, headers={"X-Run-Id": f"{found}", "X-Project-Name": "e2e"}
        )
    return found


def documented() -> dict[str, Any]:
    """Return the OpenAPI document of the application."""
    app = build(Options(Path("unused"), "key"))
    return openapi.document(route for route in app.routes if isinstance(route, Route))


def test_the_document_has_every_route(tmp_path: Path) -> None:
    """Contract: the document describes exactly the existing routes. A route that is not described would not
    be tested."""
    app = build(Options(tmp_path / "unused", "key"))
    there = {
        (method, route.path)
        for route in app.routes
        if isinstance(route, Route) and not route.path.startswith(("/o/", "/pages/", "/login", "/logout"))
        for method in (route.methods or set()) - {"HEAD"}
        if route.path != "/"
    }
    assert there == set(openapi.OPERATIONS)
    for path, methods in documented()["paths"].items():
        for operation in methods.values():
            assert {"200", "400"} & set(operation["responses"]) or path in ("/healthz", "/openapi.json")


@schemathesis.serializer("application/x-ndjson")
def lines(ctx: Any, value: Any) -> bytes:
    """Serialize the lines of a body, or any value that a negative example has in place of lines."""
    if not isinstance(value, list):
        value = [value]
    return b"\n".join(one if isinstance(one, bytes) else json.dumps(one).encode() for one in value)


def there_is(server: Server, run_id: int) -> dict[str, Any]:
    """Return values that refer to existing objects, keyed by the names of parameters and fields."""
    with sqlite3.connect(server.db) as db:
        query = "SELECT display_id, token FROM runs JOIN files ON run_id = runs.id WHERE runs.id = ?"
        display_id, token = db.execute(query, (run_id,)).fetchone()
    ids = dict.fromkeys(("runId", "runIds", "run_id", "forkRunId"), run_id)
    names = {"projectName": PROJECT, "logName": "loss", "displayId": display_id, "display_id": display_id}
    return {**ids, **names, "token": token}


def aimed(case: Any, known: dict[str, Any]) -> Any:
    """Make a case refer to existing objects."""
    for place in (case.query, case.path_parameters, case.body):
        if isinstance(place, dict):
            place.update({name: known[name] for name in known.keys() & place.keys()})
    case.headers.update({"X-Run-Id": f"{known['runId']}", **HEADERS})
    return case


def resident(server: Server) -> int:
    """Return the resident memory of the server's process in bytes."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{server.pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def of_document(server: Server, run_id: int, how: settings) -> None:
    """Send requests that the document allows, and requests that it forbids."""
    schema, known = schemathesis.openapi.from_dict(documented()), there_is(server, run_id)
    cases = [
        one.ok().as_strategy(generation_mode=mode)
        for one in schema.get_all_operations()
        for mode in schemathesis.GenerationMode
    ]
    began = resident(server)

    @settings(how)
    @given(st.sampled_from(range(len(cases))).flatmap(lambda at: cases[at]), st.booleans())
    def sends(case: Any, about_the_run: bool) -> None:
        if about_the_run:
            case = aimed(case, known)
        start = time.monotonic()
        response = case.call(base_url=server.url, headers={"X-Api-Key": KEY}, timeout=SECONDS)
        assert time.monotonic() - start < SECONDS
        case.validate_response(response, checks=CHECKS)

    sends()
    assert resident(server) - began < GROWTH


NUMBERS = st.integers() | st.integers(-(10**400), 10**400) | st.floats()
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(st.characters(), max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = (
    *(
        "runId",
        "runName",
        "projectName",
        "externalId",
        "displayId",
        "config",
        "systemMetadata",
        "loggerSettings",
    ),
    *(
        "tags",
        "forkRunId",
        "forkStep",
        "createdAt",
        "logType",
        "logName",
        "status",
        "statusMetadata",
        "alert",
    ),
    *("statusUpdated", "graph", "files", "launch", "shared", "time", "step", "data", "message", "lineNumber"),
    *(
        "dataType",
        "fileName",
        "fileSize",
        "inheritConfig",
        "inheritTags",
        "updatedAt",
        "fileType",
        "sampleIndex",
    ),
)
DOCUMENTS = st.dictionaries(st.sampled_from(FIELDS), VALUES | VALUES.map(json.dumps), max_size=8)
TEXTS = DOCUMENTS.map(json.dumps).map(str.encode) | st.lists(DOCUMENTS.map(json.dumps), max_size=4).map(
    "\n".join
).map(str.encode)
PIECES = st.sampled_from(
    [
        b"\xed\xa0\x80",
        b"\\ud800",
        b"\x00",
        b"\xff",
        b"NaN",
        b"1e999",
        b"-",
        b"{",
        b"[" * 3000,
        b"}",
        b'"',
        b"\n",
        b"9" * 5000,
    ]
)
BODIES = (
    TEXTS
    | st.tuples(TEXTS, PIECES, st.integers(0, 200)).map(lambda t: t[0][: t[2]] + t[1] + t[0][t[2] :])
    | st.binary()
)
POSTS = sorted(path for method, path in openapi.OPERATIONS if method == "POST")
ODD = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=30) | st.sampled_from(
    [
        "-1",
        "--5",
        "9" * 5000,
        "9223372036854775808",
        "1e3",
        "0x1",
        "%00",
        "%ED%A0%80",
        "a" * 5000,
        "1,",
        ",,1",
        "NaN",
    ]
)


def of_bytes(server: Server, run_id: int, how: settings) -> None:
    """Send bodies that no client would write, and queries."""
    began = resident(server)
    with server.client(**{"X-Project-Name": PROJECT}) as client:
        client.timeout = httpx.Timeout(SECONDS)

        @settings(how)
        @given(st.sampled_from(POSTS), BODIES, st.sampled_from([f"{run_id}", "0", "x", "9" * 30]))
        def posts(path: str, body: bytes, run: str) -> None:
            body = body.replace(b'"runId": 0', f'"runId": {run_id}'.encode())
            fine(client.post(path, content=body, headers={"X-Run-Id": run}))

        gets = sorted(path for method, path in openapi.OPERATIONS if method == "GET")
        names = st.sampled_from(
            [
                "runId",
                "runIds",
                "projectName",
                "logName",
                "limit",
                "offset",
                "after",
                "sort",
                "tags",
                "stepMin",
                "externalId",
                "search",
                "aggregation",
                "direction",
            ]
        )
        known = st.sampled_from([f"{run_id}", PROJECT, "loss", "1", "0"])

        @settings(how, max_examples=how.max_examples // 2)
        @given(st.sampled_from(gets), st.dictionaries(names, ODD | known, max_size=6), ODD)
        def reads(path: str, query: dict[str, str], part: str) -> None:
            safe = part.replace("/", "%2F").replace("?", "%3F").replace("#", "%23")
            whole = re.sub(r"{[^}]+}", lambda _: safe, path)
            text = "&".join(
                f"{name}={value.replace('&', '%26').replace('#', '%23')}" for name, value in query.items()
            )
            fine(client.get(f"{whole}?{text}"))

        posts()
        reads()
    assert resident(server) - began < GROWTH


def fine(answer: httpx.Response) -> None:
    assert answer.status_code < 500, answer.text


def readable(server: Server, run_id: int) -> None:
    """Read all stored data, with every route that reads."""
    with server.client() as client:
        client.timeout = httpx.Timeout(SECONDS)
        audit = EmbeddedAudit(client)
        projects = client.get("/api/runs/projects").raise_for_status().json()["projects"]
        ids = set()
        for project in [one["name"] for one in projects]:
            total, offset = 1, 0
            while offset < total:
                page = {"projectName": project, "limit": 200, "offset": offset}
                listed = client.get("/api/runs/list", params=page).raise_for_status().json()
                ids |= {run["id"] for run in listed["runs"]}
                total, offset = listed["total"], offset + 200
            assert audit.runs(external_id="fuzzed", project=project, job_name=None) is not None
        assert run_id in ids
        for run in ids:
            for path in (
                f"/api/runs/details/{run}",
                f"/api/runs/status/history?runId={run}",
                f"/api/runs/files?runId={run}",
                f"/api/runs/logs?runId={run}",
                f"/api/runs/metrics?projectName=p&runId={run}",
                f"/api/runs/statistics?projectName=p&runId={run}",
            ):
                assert client.get(path).raise_for_status().json() is not None
        every = sorted(ids)
        for some in (every[at : at + 500] for at in range(0, len(every), 500)):
            assert audit.attachments(some) is not None
            assert audit.writers(some) is not None
            assert isinstance(sum(map(len, audit.columns(some))), int)
        assert list(audit.points([run_id]))
        assert audit.failures() == []


def test_no_request_of_the_document_hurts(server: Server, run_id: int) -> None:
    """Contract: there is no 5xx and no hang, responses match the document, memory does not grow, and all data
    can be read."""
    of_document(server, run_id, SHORT)
    readable(server, run_id)


def test_no_bytes_hurt(server: Server, run_id: int) -> None:
    """Contract: the same applies to bodies and queries that no client would send."""
    of_bytes(server, run_id, SHORT)
    readable(server, run_id)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_20000_requests_hurt_nothing(server: Server, run_id: int) -> None:
    """Contract: the same applies to 10 000 requests from the document, 10 000 bodies and 5000 queries."""
    of_bytes(server, run_id, SHORT)  # The first requests load code, which must not count as growth.
    of_document(server, run_id, LONG)
    of_bytes(server, run_id, LONG)
    readable(server, run_id)
