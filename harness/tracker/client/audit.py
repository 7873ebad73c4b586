"""Read a launch's data as evidence for its verdict, from the embedded tracker or from hosted Pluto."""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Literal, Protocol

import httpx

from harness.core.clock import now
from harness.core.errors import HarnessError
from harness.evidence.io.writer import TrackerKind
from harness.evidence.schema.point_rows import PointRows, of_points
from harness.evidence.schema.tracker import (
    Attachment,
    DigestReport,
    Point,
    RunWriter,
    TrackerFailure,
    TrackerRefusal,
    TrackerRun,
    TrackerSummary,
)
from harness.tracker.client.details import by_id
from harness.tracker.client.hosted import HostedAudit
from harness.tracker.client.retry import ask
from harness.tracker.shared import blocks

__all__ = ["AuditReader", "EmbeddedAudit", "HostedAudit", "collect"]

Write = Callable[[TrackerKind, TrackerRun | Attachment | RunWriter | DigestReport], None]
WritePoints = Callable[[PointRows], None]
PAGE = 10_000
"""The number of rows per page for a tracker that does not support the column format."""
COLUMNS_PAGE = 200_000
"""The maximum number of rows per page in the column format. A page of this length is about 6 MB in size."""


DIGESTS_PAGE = 10_000


class AuditReader(Protocol):
    """The interface for reading a tracker's rows as evidence.

    All methods raise HarnessError (cause tracker.*) if the tracker does not respond.
    """

    source: Literal["embedded", "hosted"]
    names_processes: bool
    """Whether the tracker stores the X-Harness-Process header, which identifies the process that sent a
    request. The value is valid only after the runs have been read."""
    truncated: bool
    """Whether the tracker returned only some of its rows. The value is valid only after all rows have been
    read."""

    def runs(
        self, *, external_id: str, project: str, job_name: str | None, ids: Collection[int] = ()
    ) -> list[TrackerRun]:
        """Return the runs with this external id, the runs to which this job's processes attached, and the
        runs whose tracker ids are in `ids`."""

    def attachments(self, run_ids: Sequence[int]) -> list[Attachment] | None:
        """Return all create and resume requests for these runs, or None if the tracker does not store such
        requests."""

    def columns(self, run_ids: Sequence[int]) -> Iterator[PointRows]:
        """Yield every raw row of these runs, as column-oriented batches."""

    def writers(self, run_ids: Sequence[int]) -> list[RunWriter] | None:
        """Return the senders that wrote to these runs, or None if the tracker does not report senders."""

    def digests(self, run_ids: Sequence[int]) -> list[DigestReport] | None:
        """Return the digest reports that recorders sent for these runs, or None if the tracker stores no
        digests."""

    def failures(self) -> list[TrackerFailure]:
        """Return the requests that the tracker could not serve, or [] if the tracker does not record such
        requests."""

    def refused(self, run_ids: Sequence[int]) -> list[TrackerRefusal]:
        """Return the rejected write requests that named one of these runs, or that named no run.

        Returns [] if the tracker does not record rejected requests.
        """


class EmbeddedAudit:
    """Reads the embedded tracker through its audit view.

    `client` must be configured with the base URL, the key and TLS. The client's requests can go through the
    Kubernetes API server's proxy. `gone_reason` returns the reason why the tracker can no longer respond, or
    None. Failed requests are retried only as long as `gone_reason` returns None.
    """

    source: Literal["embedded", "hosted"] = "embedded"
    truncated = False

    def __init__(
        self,
        client: httpx.Client,
        seconds: float = 30,
        page: int = PAGE,
        gone_reason: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._client = client
        self._seconds = seconds
        self._page = page
        self._gone_reason = gone_reason
        self._reports_writers = False
        """Whether the tracker reports which processes wrote to a run. Earlier versions of the tracker do
        not."""
        self.names_processes = False
        """Whether the tracker stores the X-Harness-Process header, which identifies the process that sent a
        request."""
        self._packs = False
        """Whether the tracker supports the column format."""
        self._stores_digests = False

    def runs(
        self, *, external_id: str, project: str, job_name: str | None, ids: Collection[int] = ()
    ) -> list[TrackerRun]:
        params = {"externalId": external_id, "projectName": project, "jobName": job_name}
        response = self._ask("api/audit/runs", params)
        self._reports_writers, self._packs = bool(response.get("writers")), bool(response.get("columns"))
        self.names_processes = bool(response.get("processes"))
        self._stores_digests = bool(response.get("digests"))
        runs = [
            TrackerRun(
                run_id=run["runId"],
                external_id=run["externalId"],
                project=run["project"],
                name=run["name"],
                status=run["status"],
                created_at=run["createdAt"],
                display_id=run["displayId"],
                status_history=run["statusHistory"],
            )
            for run in response["runs"]
        ]
        other_ids = [run_id for run_id in ids if run_id not in {run.run_id for run in runs}]
        return [*runs, *by_id(self._client, other_ids, project, self._seconds)]

    def attachments(self, run_ids: Sequence[int]) -> list[Attachment] | None:
        response = self._ask("api/audit/attachments", {"runIds": _joined(run_ids)})
        return [
            Attachment(
                run_id=one["runId"],
                at=one["at"],
                resumed=one["resumed"],
                name=one["name"],
                hostname=one["hostname"],
                rank=one["rank"],
                job_name=one["jobName"],
                peer=one["peer"],
                launch=one.get("launch"),
                process=one.get("process"),
            )
            for one in response["attachments"]
        ]

    def points(self, run_ids: Sequence[int]) -> Iterator[Point]:
        """Yield every raw row in arrival order, as a Point.

        `columns` is faster, because creating a million Points takes seconds.
        """
        for block in self.columns(run_ids):
            yield from block.records()

    def columns(self, run_ids: Sequence[int]) -> Iterator[PointRows]:
        """Yield every raw row in arrival order, in columns."""
        if not self._packs:
            yield from of_points(self._plain(run_ids))
            return
        for page in self._pages("api/audit/columns", run_ids, COLUMNS_PAGE):
            for one in page["blocks"]:
                block = blocks.unpacked(one["names"], one["count"], base64.b64decode(one["packed"]))
                yield PointRows(
                    one["run_id"],
                    list(block.metrics()),
                    block.steps,
                    block.values,
                    block.times,
                    [one["received_at"]] * one["count"],
                    one["sender"],
                    one["peer"],
                    one["launch"],
                )

    def _plain(self, run_ids: Sequence[int]) -> Iterator[Point]:
        """Yield the rows from a tracker that does not support the column format."""
        for page in self._pages("api/audit/points", run_ids, self._page):
            for row in page["points"]:
                yield Point(**dict(zip(page["columns"], row, strict=True)))

    def _pages(self, path: str, run_ids: Sequence[int], limit: int) -> Iterator[dict[str, Any]]:
        after: int | None = 0
        while after is not None and run_ids:
            page = self._ask(path, {"runIds": _joined(run_ids), "after": after, "limit": limit})
            yield page
            after = page["next"]

    def writers(self, run_ids: Sequence[int]) -> list[RunWriter] | None:
        if not self._reports_writers:
            return None
        response = self._ask("api/audit/writers", {"runIds": _joined(run_ids)})
        return [RunWriter(**one) for one in response["writers"]]

    def digests(self, run_ids: Sequence[int]) -> list[DigestReport] | None:
        if not self._stores_digests:
            return None
        reports = []
        for page in self._pages("api/audit/digests", run_ids, DIGESTS_PAGE):
            for one in page["reports"]:
                reports.append(DigestReport(**one))
        return reports

    def failures(self) -> list[TrackerFailure]:
        return [TrackerFailure(**failure) for failure in self._ask("api/audit/failures", {})["failures"]]

    def refused(self, run_ids: Sequence[int]) -> list[TrackerRefusal]:
        refusals = self._ask("api/audit/failures", {}).get("refused", [])
        return [TrackerRefusal(**one) for one in refusals if one["run_id"] in (None, *run_ids)]

    def _ask(self, path: str, params: dict[str, Any]) -> dict[str, Any]:
        return ask(self._client, path, params, self._seconds, self._gone_reason)


def collect(
    reader: AuditReader,
    *,
    external_id: str,
    project: str,
    job_name: str | None,
    write: Write,
    write_points: WritePoints,
    ids: Collection[int] = (),
) -> TrackerSummary:
    """Read all runs, attachments, points and writers, and pass them to `write` and `write_points`.

    `ids` contains the tracker ids of additional runs to read. Return a summary with the numbers of runs,
    attachments, points and writers. If an error occurs, reading stops, and the summary's `error` field
    contains the message.
    """
    runs = points = 0
    attachments: int | None = None
    writers: int | None = None
    digests: int | None = None
    error, failures, refused = None, list[TrackerFailure](), list[TrackerRefusal]()
    try:
        records = reader.runs(external_id=external_id, project=project, job_name=job_name, ids=ids)
        for run in records:
            write("runs", run)
            runs += 1
        ids = [run.run_id for run in records]
        attachment_rows = reader.attachments(ids)
        if attachment_rows is not None:
            for attachment in attachment_rows:
                write("attachments", attachment)
            attachments = len(attachment_rows)
        for block in reader.columns(ids):
            write_points(block)
            points += len(block)
        writer_rows = reader.writers(ids)
        if writer_rows is not None:
            for writer in writer_rows:
                write("writers", writer)
            writers = len(writer_rows)
        reported = reader.digests(ids)
        if reported is not None:
            for report in reported:
                write("digests", report)
            digests = len(reported)
        failures, refused = reader.failures(), reader.refused(ids)
    except HarnessError as failed:
        error = str(failed)
    return TrackerSummary(
        source=reader.source,
        fetched_at=now(),
        runs=runs,
        attachments=attachments,
        points=points,
        writers=writers,
        digests=digests,
        processes=reader.names_processes,
        truncated=reader.truncated,
        error=error,
        failures=failures,
        refused=refused,
    )


def _joined(run_ids: Sequence[int]) -> str:
    return ",".join(map(str, run_ids))
