"""The API's request body types, used to generate the OpenAPI document (openapi.py).

run_fields.py and ingest_lines.py parse the bodies and produce readable errors. A test sends bodies that match
these types and bodies that violate them (tests/integration/test_tracker_fuzz.py).
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
Digest = Annotated[str, Meta(max_length=43)]
Tags = Annotated[list[str], Meta(max_length=50)]
Status = Literal["RUNNING", "COMPLETED", "FAILED", "TERMINATED", "CANCELLED"]
Object = dict[str, Any]


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
    """A request to resume a run, which is identified by runId, displayId or externalId."""

    runId: Id | None = None
    displayId: str | None = None
    externalId: str | None = None
    projectName: str | None = None


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


class PointLine(Struct, forbid_unknown_fields=True):
    """One line of POST /ingest/metrics: the values of one step, by metric name.

    A non-finite value can be null, "NaN", "Infinity" or "-Infinity".
    """

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
    fileSize: Whole
    logName: Word
    time: Milliseconds
    fileType: str | None = None
    step: Id | None = None
    sampleIndex: Id | None = None
    caption: str | None = None
    annotations: Any = None


class NewFiles(Struct):
    files: Annotated[list[NewFile], Meta(min_length=1, max_length=1000)]


class Claim(Struct):
    projectName: Word
    externalId: Word
    launch: Word
    shared: bool | None = None


class DigestReport(Struct):
    """A process's report with a digest of each metric's points in each block of steps
    (harness/tracker/storage/digest_reports.py)."""

    process: Annotated[str, Meta(min_length=1, max_length=64)]
    number: Whole
    line: Whole
    chain: Digest
    entries: Annotated[list[tuple[Name, Whole, Whole, Digest, Whole, Whole]], Meta(max_length=4000)]
    """A list of entries, each of which is [metric, block, number of points, digest, time of the first point,
    time of the last point]."""
    rank: Whole | None = None


class Release(Struct):
    launch: Word
