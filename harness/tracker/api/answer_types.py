"""The API's response types, used to generate the OpenAPI document (openapi.py).

A test validates every response against its type (tests/integration/test_tracker_fuzz.py).
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from harness.tracker.api.audit_types import StatusEvent
from harness.tracker.api.body_types import Object, Status


class Error(Struct):
    error: str
    message: str | None = None


class IngestError(Struct):
    code: int
    message: str


class Health(Struct):
    status: str


class Link(Struct):
    """A link to the web interface. `once` is a one-time secret that opens a session.

    It is valid for `seconds` seconds.
    """

    once: str
    seconds: int


class Attached(Struct):
    runId: int
    number: int
    displayId: str
    projectName: str
    organizationSlug: str
    url: str
    resumed: bool
    forkedFromRunId: int | None
    forkStep: int | None


class Success(Struct):
    success: bool


class AlertTaken(Struct):
    status: str


class Triggers(Struct):
    status: Status
    triggers: None


class Slug(Struct):
    organization: dict[str, str]


class Project(Struct):
    id: int
    name: str
    createdAt: str
    updatedAt: str
    runCount: int


class Projects(Struct):
    projects: list[Project]


class Listed(Struct):
    id: int
    name: str
    number: int
    displayId: str
    projectName: str
    status: Status
    tags: list[str]
    createdAt: str
    updatedAt: str
    heartbeatAt: str | None
    externalId: str | None


class ListedRun(Listed):
    url: str


class Runs(Struct):
    runs: list[ListedRun]
    total: int


class LogName(Struct):
    logName: str
    logType: str
    logGroup: str


class Details(Listed):
    config: Any
    systemMetadata: Any
    loggerSettings: Any
    statusMetadata: Any
    statusUpdated: str | None
    notes: str | None
    forkedFromRunId: int | None
    forkStep: int | None
    logNames: list[LogName]


class StatusHistory(Struct):
    runId: int
    events: list[StatusEvent]


class StoredFile(Struct):
    fileName: str
    fileType: str
    fileSize: int
    logName: str
    logGroup: str
    time: str
    step: int | None
    caption: str | None
    url: str


class Files(Struct):
    files: list[StoredFile]


class DataRow(Struct):
    logName: str
    dataType: str
    step: int
    time: str
    data: str


class DataRows(Struct):
    data: list[DataRow]
    total: int


class Alerts(Struct):
    runId: int
    alerts: list[Object]


class Graphs(Struct):
    runId: int
    graphs: list[Object]


class Log(Struct):
    time: str
    logType: str
    lineNumber: int
    message: str
    step: int | None


class Logs(Struct):
    logs: list[Log]
    total: int


class KeyIsValid(Struct):
    valid: bool
    organization: dict[str, str]
    user: dict[str, str]
