"""The bodies and answers of the API as types, for the OpenAPI document (openapi.py).

Bodies are read by run_fields.py and ingest.py, which say in words what is wrong. A test sends what these
types allow and forbid, and compares every answer with its type (tests/integration/test_tracker_fuzz.py).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

Document = Annotated[str, Meta(description="JSON as a string")]
Id = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Whole = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Name = Annotated[str, Meta(min_length=1, max_length=1024)]
Word = Annotated[str, Meta(min_length=1, max_length=4096)]
Milliseconds = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1, description="milliseconds since 1970")]
Tags = Annotated[list[str], Meta(max_length=50)]
Status = Literal["RUNNING", "COMPLETED", "FAILED", "TERMINATED", "CANCELLED"]
Object = dict[str, Any]


class Error(Struct):
    error: str
    message: str | None = None


class IngestError(Struct):
    code: int
    message: str


class Health(Struct):
    status: str


class Link(Struct):
    """`once` opens a session of the pages, once and for so many seconds."""

    once: str
    seconds: int


class Create(Struct):
    runName: Word
    projectName: Word
    externalId: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    config: Document | None = None
    loggerSettings: Document | None = None
    systemMetadata: Document | None = None
    tags: Tags | None = None
    forkRunId: Id | None = None
    forkStep: Id | None = None
    inheritConfig: bool | None = None
    inheritTags: bool | None = None
    createdAt: Milliseconds | None = None
    updatedAt: Milliseconds | None = None


class Resume(Struct):
    """One of the three ids."""

    runId: Id | None = None
    displayId: str | None = None
    externalId: str | None = None
    projectName: str | None = None


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


class OfRun(Struct):
    runId: Id


class LogNames(Struct):
    runId: Id
    logType: Annotated[str, Meta(min_length=1, max_length=64)]
    logName: list[str] | str


class StatusReport(Struct):
    runId: Id
    status: Status
    statusMetadata: Document | None = None
    statusUpdated: Milliseconds | None = None


class NewTags(Struct):
    runId: Id
    tags: Tags


class NewConfig(Struct):
    runId: Id
    config: Document | Object | None


class NewNotes(Struct):
    runId: Id
    notes: Annotated[str, Meta(max_length=10_000)]


class Alert(Struct):
    runId: Id
    alert: Object


class Graph(Struct):
    runId: Id
    graph: Object


class Success(Struct):
    success: bool


class AlertTaken(Struct):
    status: str


class Triggers(Struct):
    status: Status
    triggers: None


class Slug(Struct):
    organization: dict[str, str]


class PointLine(Struct, forbid_unknown_fields=True):
    """One step. A value that JSON has no number for may be null, "NaN", "Infinity" or "-Infinity"."""

    time: Whole
    step: Whole
    data: dict[Name, float | Literal["NaN", "Infinity", "-Infinity"] | None]


class LogLine(Struct, forbid_unknown_fields=True):
    time: Whole
    message: str
    lineNumber: Whole
    logType: str | None = None
    step: int | None = None


class DataLine(Struct, forbid_unknown_fields=True):
    time: Whole
    data: Document
    dataType: str
    logName: Name
    step: Whole | None = None


class NewFile(Struct):
    fileName: Name
    fileSize: Id
    logName: Word
    time: Milliseconds
    fileType: str | None = None
    step: Id | None = None
    sampleIndex: Id | None = None
    caption: str | None = None
    annotations: Any = None


class NewFiles(Struct):
    files: Annotated[list[NewFile], Meta(min_length=1, max_length=1000)]


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


class StatusEvent(Struct):
    id: str
    runId: int
    fromStatus: str | None
    toStatus: Status
    source: str
    metadata: Any
    createdAt: str


class StatusHistory(Struct):
    runId: int
    events: list[StatusEvent]


class MetricNames(Struct):
    projectName: str
    metricNames: list[str]


class Shown(Struct):
    logName: str
    logGroup: str
    value: float
    valueFlag: Literal["", "NaN", "Inf", "-Inf"]
    time: str
    step: int


class Metrics(Struct):
    metrics: list[Shown]


class RawMetrics(Metrics):
    truncated: bool


class At(Struct):
    step: int
    value: float


class Statistics(Struct):
    logName: str
    logGroup: str
    count: int
    min: float
    max: float
    mean: float
    stddev: float
    last: At
    first: At


class RunStatistics(Struct):
    runId: int
    runName: str
    projectName: str
    url: str
    metrics: list[Statistics]


class Compared(Struct):
    runId: int
    runName: str
    url: str
    status: Status
    config: Any
    stats: Statistics | None


class Comparison(Struct):
    projectName: str
    logName: str
    comparisonUrl: str
    runs: list[Compared]


class Place(Struct):
    rank: int
    runId: int
    runName: str
    status: Status
    url: str
    value: float
    createdAt: str


class Leaderboard(Struct):
    projectName: str
    logName: str
    aggregation: str
    direction: str
    runs: list[Place]
    total: int


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


class AuditedRun(Struct):
    runId: int
    externalId: str | None
    project: str
    name: str
    status: Status
    createdAt: str
    heartbeatAt: str | None
    displayId: str
    statusHistory: list[StatusEvent]


class AuditedRuns(Struct):
    runs: list[AuditedRun]
    orphans: list[Object]
    writers: bool
    columns: bool


class Attachments(Struct):
    attachments: list[Object]


class AuditedPoints(Struct):
    columns: list[str]
    points: list[list[Any]]
    next: int | None


class AuditedBlock(Struct):
    """`packed` is the base64 of harness/tracker/blocks.py."""

    run_id: int
    last_id: int
    count: int
    received_at: str
    sender: str | None
    peer: str | None
    launch: str | None
    names: list[str]
    packed: str


class AuditedColumns(Struct):
    blocks: list[AuditedBlock]
    next: int | None


class Writers(Struct):
    writers: list[Object]


class CameToNothing(Struct):
    failures: list[Object]
    refused: list[Object]
    hungUp: list[Object]


class Claim(Struct):
    projectName: Word
    externalId: Word
    launch: Word
    shared: bool | None = None


class Claimed(Struct):
    granted: bool
    claims: list[Object]
    run: Object | None


class Release(Struct):
    launch: Word
