"""The audit routes' response types, used to generate the OpenAPI document (openapi.py)."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from harness.tracker.api.body_types import Object, Status


class StatusEvent(Struct):
    id: str
    runId: int
    fromStatus: str | None
    toStatus: Status
    source: str
    metadata: Any
    createdAt: str


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
    processes: bool
    sealedKeys: bool
    digests: bool


class Attachments(Struct):
    attachments: list[Object]


class AuditedPoints(Struct):
    columns: list[str]
    points: list[list[Any]]
    next: int | None


class AuditedBlock(Struct):
    """A block of a run's raw points.

    `packed` contains the block's columns, encoded in base64 (harness/tracker/shared/blocks.py).
    """

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


class DigestReports(Struct):
    reports: list[Object]
    next: int | None


class ReportsStored(Struct):
    reports: int
    """The number of digest reports that the tracker has stored from the process that sent this report."""


class CameToNothing(Struct):
    failures: list[Object]
    refused: list[Object]
    hungUp: list[Object]


class Claimed(Struct):
    granted: bool
    claims: list[Object]
    run: Object | None
