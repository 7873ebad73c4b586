"""The records in tracker/: the data that the tracker stores for a launch."""

from __future__ import annotations

from typing import Any, Literal

from harness.evidence.schema.columns import ColumnsRecord
from harness.evidence.schema.record import Record, Value


class TrackerRun(Record):
    """A run on the tracker that has the launch's run id, or to which one of the launch's processes
    attached."""

    run_id: int
    external_id: str | None = None
    project: str
    name: str = ""
    status: str
    created_at: str
    display_id: str | None = None
    status_history: list[dict[str, Any]] = []


class Attachment(Record):
    """An accepted request by which a process created or resumed a run."""

    run_id: int
    at: str
    resumed: bool
    name: str | None = None
    hostname: str | None = None
    """The pod's hostname, for example <jobset>-workers-0-1."""
    rank: int | None = None
    """The process's RANK, as sent by the client. Under torchrun, this is the global rank."""
    job_name: str | None = None
    peer: str | None = None
    launch: str | None = None
    """The nonce of the launch for which the request's API key was created. None for other keys, or if the
    tracker does not report the launch.
    """
    process: str | None = None
    """The id of the process that sent the request, set by the recorder. None without a recorder, or if the
    tracker does not report the process."""


class Point(Record):
    """One raw row from the tracker, in arrival order. A row that was sent twice appears twice."""

    run_id: int
    metric: str
    step: int
    value: Value
    time_ms: int
    received_at: str
    sender: str | None = None
    """The X-Run-Name header of the request that contained the row."""
    peer: str | None = None
    launch: str | None = None
    """The nonce of the launch, as in `Attachment.launch`."""


class PointColumns(ColumnsRecord):
    """Many points from one sender, stored in a column file.

    This record is written instead of one Point per row. It also has the fields of ColumnsRecord.
    """

    run_id: int
    sender: str | None = None
    peer: str | None = None
    launch: str | None = None
    received: list[tuple[int, str]]
    """Pairs of (number of points, time at which the tracker received them), in order."""


class RunWriter(Record):
    """A summary of all write requests of one kind that one sender sent for a run."""

    run_id: int
    kind: str
    """The kind of request: attach, metrics, logs, data, files, status, heartbeat, names, tags, config, alert,
    graph or claim. A claim is a launch's announcement, made before it started, that it would write to this
    run (harness/tracker/storage/claims.py).
    """
    launch: str | None = None
    """The nonce of the launch, as in `Attachment.launch`."""
    sender: str | None = None
    """The X-Run-Name header of the requests."""
    peer: str | None = None
    process: str | None = None
    """The id of the process, as in `Attachment.process`."""
    requests: int
    rows: int
    """The number of rows, names or files in these requests. A request without any of these counts as 1."""
    first: str
    last: str


class DigestReport(Record):
    """Digests of points that a process logged, as its recorder sent them to the tracker."""

    run_id: int
    process: str
    """The id of the attempt, as in the process's log lines (harness/workers/recorder/digest_lines.py)."""
    number: int
    packed: str
    """The JSON that the recorder sent, compressed with zlib and encoded in base64 without padding. The
    process's log contains a digest of this JSON."""
    received_at: str = ""
    sender: str | None = None
    """The X-Run-Name header of the request."""
    peer: str | None = None
    launch: str | None = None
    """The nonce of the launch, as in `Attachment.launch`."""


class TrackerFailure(Record):
    """A group of requests that the tracker could not serve, according to its own report."""

    reason: str
    count: int
    first: str
    last: str


class TrackerRefusal(TrackerFailure):
    """A group of write requests that the tracker rejected because of a client error. Their data is lost."""

    sender: str | None = None
    """The X-Run-Name header of the requests."""
    run_id: int | None = None
    launch: str | None = None
    """The nonce of the launch, as in `Attachment.launch`."""


class TrackerSummary(Record):
    """The content of tracker/summary.json.

    It consists of the number of records of each kind in the tracker, and the failures that the tracker
    reported.
    """

    source: Literal["embedded", "hosted"]
    fetched_at: str
    runs: int
    attachments: int | None
    """The number of attachments. None if the tracker does not record them (hosted Pluto)."""
    points: int
    writers: int | None = None
    """The number of writers. None if the tracker does not report the writers of a run."""
    processes: bool = False
    """Whether the tracker stores the process that a request names in its X-Harness-Process header."""
    digests: int | None = None
    """The number of digest reports. None if the tracker does not store digest reports."""
    truncated: bool = False
    error: str | None = None
    failures: list[TrackerFailure] = []
    """All failures since the tracker started, including those of other launches."""
    refused: list[TrackerRefusal] = []
    """Rejected requests to this bundle's runs, and rejected requests that did not name a run."""
