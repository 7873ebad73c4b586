"""The records of tracker/: what the tracker holds of a launch."""

from __future__ import annotations

from typing import Any, Literal

from harness.evidence.schema.columns import ColumnsRecord
from harness.evidence.schema.record import Record, Value


class TrackerRun(Record):
    """One run on the tracker that this launch touched, or that has its id."""

    run_id: int
    external_id: str | None = None
    project: str
    name: str = ""
    status: str
    created_at: str
    display_id: str | None = None
    status_history: list[dict[str, Any]] = []


class Attachment(Record):
    """One accepted create/resume call: a process attached itself to a run."""

    run_id: int
    at: str
    resumed: bool
    name: str | None = None
    hostname: str | None = None
    """Pod hostname, e.g. <jobset>-workers-0-1."""
    rank: int | None = None
    """RANK of the process, as the client tells it: under torchrun the global rank."""
    job_name: str | None = None
    peer: str | None = None
    launch: str | None = None
    """Nonce of the launch whose key it came with. None: another key, or a tracker that does not tell."""
    process: str | None = None
    """The process that attached, as the recorder around it named it. None: it had no recorder, or the tracker
    does not tell."""


class Point(Record):
    """One raw row as the tracker stored it, in arrival order. A re-sent row appears twice."""

    run_id: int
    metric: str
    step: int
    value: Value
    time_ms: int
    received_at: str
    sender: str | None = None
    """X-Run-Name of the process that sent it."""
    peer: str | None = None
    launch: str | None = None
    """As in Attachment."""


class PointColumns(ColumnsRecord):
    """Points of one sender, in columns. Where there are many, it stands for a Point each.

    It has the fields of ColumnsRecord as well.
    """

    run_id: int
    sender: str | None = None
    peer: str | None = None
    launch: str | None = None
    received: list[tuple[int, str]]
    """(number of points, when they were received), in order."""


class RunWriter(Record):
    """All requests of one kind that one sender wrote into a run with."""

    run_id: int
    kind: str
    """attach, metrics, logs, data, files, status, heartbeat, names, tags, config, alert or graph. "claim": a
    launch said, before it started, that it will write into this run (harness/tracker/storage/claims.py)."""
    launch: str | None = None
    """As in Attachment."""
    sender: str | None = None
    """X-Run-Name."""
    peer: str | None = None
    process: str | None = None
    """As in Attachment."""
    requests: int
    rows: int
    """Rows, names or files in these requests; 1 for each request that has none."""
    first: str
    last: str


class TrackerFailure(Record):
    """Requests that the tracker could not serve, as it reports itself."""

    reason: str
    count: int
    first: str
    last: str


class TrackerRefusal(TrackerFailure):
    """Writes that the tracker refused: their sender's mistake, and something of the run is lost by it."""

    sender: str | None = None
    """X-Run-Name."""
    run_id: int | None = None
    launch: str | None = None
    """As in Attachment."""


class TrackerSummary(Record):
    source: Literal["embedded", "hosted"]
    fetched_at: str
    runs: int
    attachments: int | None
    """None: this tracker keeps no attachments (hosted Pluto)."""
    points: int
    writers: int | None = None
    """None: this tracker does not tell who wrote into a run."""
    processes: bool = False
    """Whether this tracker keeps the process that a request names."""
    truncated: bool = False
    error: str | None = None
    failures: list[TrackerFailure] = []
    """Since the tracker started, so they may belong to other launches too."""
    refused: list[TrackerRefusal] = []
    """Of the runs that were looked for, and of no run."""
