"""GET /openapi.json: an OpenAPI 3.1 document for the API, generated from the routes and from *_types.py."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from harness.tracker.api import answer_types as api_answers
from harness.tracker.api import audit_types as api_audit
from harness.tracker.api import body_types as api_bodies
from harness.tracker.api import series_types as api_series
from harness.tracker.api.http import Json

BINARY: Any = bytes
"""The type of a request or response body that contains arbitrary bytes."""
TEXT: Any = str
"""The type of a response body that is plain text."""
CONVERTER = re.compile(r":\w+(?=})")
"""Matches the converter in the path of a Starlette route, such as ":int" in {run_id:int}."""
ERRORS = {
    400: "a field is missing or invalid; the message names it",
    401: "the API key is missing or invalid",
    403: "the key belongs to another project, or a link is invalid or has expired",
    404: "no such run, file or upload",
    405: "the method is not allowed",
    408: "the body did not arrive completely in time",
    409: "several projects have this display id, or other content is already stored",
    413: "the body or a file is too large",
    422: "a line is invalid; the lines before it are stored",
    429: "too many requests: retry after Retry-After seconds",
    503: "the tracker is not ready, or the query took too long",
    507: "the limit on the total size of files or digests is reached, or the disk is full",
}
READ, WRITE = (400, 401, 403, 405, 503), (400, 401, 403, 404, 405, 408, 413, 429, 507)
INGEST = (400, 401, 403, 404, 405, 408, 413, 422, 429, 507)


@dataclass(frozen=True)
class Operation:
    """The request and response of one route.

    `query` lists the query parameters, separated by spaces. "!" after a name marks a required parameter, and
    "#" marks an integer.
    """

    answer: Any
    body: Any = None
    query: str = ""
    errors: tuple[int, ...] = READ
    headers: str = ""
    lines: bool = False
    """Whether the request body is newline-delimited JSON. If so, `body` is the type of each line."""


RUN_OF = "projectName! runId#!"
WHOSE = "X-Run-Id! X-Project-Name! X-Run-Name"
OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("GET", "/healthz"): Operation(api_answers.Health, errors=(405, 503)),
    ("GET", "/openapi.json"): Operation(api_bodies.Object, errors=(405,)),
    ("POST", "/ingest/metrics"): Operation(
        TEXT, api_bodies.PointLine, errors=INGEST, headers=WHOSE, lines=True
    ),
    ("POST", "/ingest/logs"): Operation(TEXT, api_bodies.LogLine, errors=INGEST, headers=WHOSE, lines=True),
    ("POST", "/ingest/data"): Operation(TEXT, api_bodies.DataLine, errors=INGEST, headers=WHOSE, lines=True),
    ("POST", "/files"): Operation(api_bodies.Object, api_bodies.NewFiles, errors=WRITE, headers=WHOSE),
    ("PUT", "/files/put/{token}/{until}/{seal}"): Operation(
        None, BINARY, errors=(400, 403, 404, 405, 408, 409, 413, 429, 507)
    ),
    ("GET", "/files/get/{token}/{until}/{seal}"): Operation(BINARY, errors=(400, 403, 404, 405, 503)),
    ("POST", "/api/slug"): Operation(api_answers.Slug),
    ("POST", "/api/pages/link"): Operation(api_answers.Link),
    ("POST", "/api/runs/create"): Operation(api_answers.Attached, api_bodies.Create, errors=WRITE),
    ("POST", "/api/runs/resume"): Operation(api_answers.Attached, api_bodies.Resume, errors=(*WRITE, 409)),
    ("POST", "/api/runs/logName/add"): Operation(api_answers.Success, api_bodies.LogNames, errors=WRITE),
    ("POST", "/api/runs/trigger"): Operation(api_answers.Triggers, api_bodies.OfRun, errors=WRITE),
    ("POST", "/api/runs/status/update"): Operation(
        api_answers.Success, api_bodies.StatusReport, errors=WRITE
    ),
    ("POST", "/api/runs/tags/update"): Operation(api_answers.Success, api_bodies.NewTags, errors=WRITE),
    ("POST", "/api/runs/config/update"): Operation(api_answers.Success, api_bodies.NewConfig, errors=WRITE),
    ("POST", "/api/runs/notes/update"): Operation(api_answers.Success, api_bodies.NewNotes, errors=WRITE),
    ("POST", "/api/runs/alert"): Operation(api_answers.AlertTaken, api_bodies.Alert, errors=WRITE),
    ("POST", "/api/runs/modelGraph/create"): Operation(api_answers.Success, api_bodies.Graph, errors=WRITE),
    ("GET", "/api/runs/projects"): Operation(api_answers.Projects),
    ("GET", "/api/runs/list"): Operation(
        api_answers.Runs, query="projectName! search tags sort filter limit# offset#"
    ),
    ("GET", "/api/runs/details/{run_id}"): Operation(api_answers.Details, errors=(*READ, 404)),
    ("GET", "/api/runs/{run_id:int}"): Operation(api_answers.Details, errors=(*READ, 404)),
    ("GET", "/api/runs/data"): Operation(
        api_answers.DataRows, query="runId#! logName dataType limit# offset#", errors=(*READ, 404)
    ),
    ("GET", "/api/runs/alerts"): Operation(api_answers.Alerts, query="runId#!", errors=(*READ, 404)),
    ("GET", "/api/runs/modelGraphs"): Operation(api_answers.Graphs, query="runId#!", errors=(*READ, 404)),
    ("GET", "/api/runs/details/by-display-id/{display_id}"): Operation(
        api_answers.Details, query="projectName", errors=(*READ, 404, 409)
    ),
    ("GET", "/api/runs/status/history"): Operation(
        api_answers.StatusHistory, query="runId#!", errors=(*READ, 404)
    ),
    ("GET", "/api/runs/metric-names"): Operation(
        api_series.MetricNames, query="projectName! runIds search limit#"
    ),
    ("GET", "/api/runs/metrics"): Operation(
        api_series.Metrics, query=f"{RUN_OF} logName limit# stepMin# stepMax#", errors=(*READ, 404)
    ),
    ("GET", "/api/runs/metrics/raw"): Operation(
        api_series.RawMetrics, query=f"{RUN_OF} logName! limit# stepMin# stepMax#", errors=(*READ, 404)
    ),
    ("GET", "/api/runs/statistics"): Operation(
        api_series.RunStatistics, query=f"{RUN_OF} logName", errors=(*READ, 404)
    ),
    ("GET", "/api/runs/compare"): Operation(
        api_series.Comparison, query="projectName! logName! runIds", errors=(*READ, 404)
    ),
    ("GET", "/api/runs/leaderboard"): Operation(
        api_series.Leaderboard, query="projectName! logName! aggregation direction limit# offset#"
    ),
    ("GET", "/api/runs/files"): Operation(api_answers.Files, query="runId#! logName", errors=(*READ, 404)),
    ("GET", "/api/runs/logs"): Operation(
        api_answers.Logs, query="runId#! logType limit# offset#", errors=(*READ, 404)
    ),
    ("GET", "/api/runs/auth/validate"): Operation(api_answers.KeyIsValid),
    ("GET", "/api/audit/runs"): Operation(api_audit.AuditedRuns, query="externalId projectName jobName"),
    ("GET", "/api/audit/attachments"): Operation(api_audit.Attachments, query="runIds"),
    ("GET", "/api/audit/points"): Operation(api_audit.AuditedPoints, query="runIds! after# limit#"),
    ("GET", "/api/audit/columns"): Operation(api_audit.AuditedColumns, query="runIds! after# limit#"),
    ("GET", "/api/audit/writers"): Operation(api_audit.Writers, query="runIds"),
    ("GET", "/api/audit/failures"): Operation(api_audit.CameToNothing),
    ("GET", "/api/audit/digests"): Operation(api_audit.DigestReports, query="runIds after# limit#"),
    ("POST", "/api/audit/digests"): Operation(
        api_audit.ReportsStored, api_bodies.DigestReport, errors=(*WRITE, 409), headers=WHOSE
    ),
    ("POST", "/api/audit/claims"): Operation(api_audit.Claimed, api_bodies.Claim, errors=WRITE),
    ("POST", "/api/audit/claims/release"): Operation(api_answers.Success, api_bodies.Release, errors=WRITE),
}


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """Return the OpenAPI document for the routes in OPERATIONS.

    The pages of the web interface are not included.
    """
    types = {one for o in OPERATIONS.values() for one in (o.answer, o.body) if isinstance(one, type)}
    models = [
        one for one in (*sorted(types, key=str), api_answers.Error, api_answers.IngestError) if _is_model(one)
    ]
    shapes, schemas = msgspec.json.schema_components(models, ref_template="#/components/schemas/{name}")
    references = dict(zip(models, shapes, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        for method in sorted(route.methods or ()):
            operation = OPERATIONS.get((method, route.path))
            if operation is not None:
                path = CONVERTER.sub("", route.path)
                paths.setdefault(path, {})[method.lower()] = _described(route, operation, references)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Pluto-compatible tracker", "version": "1"},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
            },
        },
    }


def _described(route: Route, operation: Operation, references: Mapping[Any, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": route.name,
        "summary": ((route.endpoint.__doc__ or route.name.replace("_", " ")).strip().splitlines())[0],
        "parameters": [
            *(
                {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
                for name in re.findall(r"{(\w+)", route.path)
            ),
            *_parameters(operation.query, "query"),
            *_parameters(operation.headers, "header"),
        ],
        "responses": {"200": {"description": "success", **_content(operation.answer, references)}},
    }
    if operation.body is not None:
        content = _content(operation.body, references)
        if operation.lines:
            schema = {"type": "array", "items": content["content"]["application/json"]["schema"]}
            content = {"content": {"application/x-ndjson": {"schema": schema}}}
        described["requestBody"] = {"required": True, **content}
    for status in sorted(operation.errors):
        error = api_answers.IngestError if route.path.startswith(("/ingest", "/files")) else api_answers.Error
        described["responses"][f"{status}"] = {"description": ERRORS[status], **_content(error, references)}
        if status == 429:
            header = {"description": "seconds", "schema": {"type": "string"}}
            described["responses"]["429"]["headers"] = {"Retry-After": header}
    if 401 in operation.errors:
        described["security"] = [{"bearer": []}, {"key": []}]
    return described


def _parameters(words: str, location: str) -> list[dict[str, Any]]:
    parameters = []
    for word in words.split():
        is_integer, required = "#" in word, word.endswith("!")
        schema = (
            {"type": "integer", "minimum": 0, "maximum": (1 << 63) - 1} if is_integer else {"type": "string"}
        )
        parameters.append({"name": word.rstrip("#!"), "in": location, "required": required, "schema": schema})
    return parameters


def _content(body_type: Any, references: Mapping[Any, Any]) -> dict[str, Any]:
    if body_type is None:
        return {}
    if body_type is TEXT:
        return {"content": {"text/plain": {"schema": {"type": "string"}}}}
    if body_type is BINARY:
        return {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
    schema = references.get(body_type, {"type": "object"})
    return {"content": {"application/json": {"schema": schema}}}


def _is_model(candidate: Any) -> bool:
    return isinstance(candidate, type) and issubclass(candidate, msgspec.Struct)


async def answer(request: Request) -> Response:
    """Handle GET /openapi.json: return the OpenAPI document of this application's routes."""
    return Json(document(route for route in request.app.routes if isinstance(route, Route)))


routes = [Route("/openapi.json", answer, name="openapi")]
