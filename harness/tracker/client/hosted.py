"""Read hosted Pluto through its public read API.

The API provides less data than the embedded tracker. The API has no attachments, returns only the runs of one
project, and stores neither the sender nor the receive time of a row. A separate run that a rank created can
be found only by the job name in the metadata of the process that created the run.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import httpx
from tenacity import RetryError, Retrying, retry_if_result, stop_after_delay, wait_fixed

from harness.core.errors import HarnessError, WaitError
from harness.core.http_client import client
from harness.evidence.schema.point_rows import PointRows, of_points
from harness.evidence.schema.tracker import (
    Attachment,
    DigestReport,
    Point,
    RunWriter,
    TrackerFailure,
    TrackerRefusal,
    TrackerRun,
)
from harness.tracker.client.details import by_id, with_history
from harness.tracker.client.retry import ask

DEFAULT_URL = "https://pluto-api.trainy.ai"
SETTLE_SECONDS = 6.0
"""The time until a sent row becomes readable, in seconds. Pluto's ingest service responds before it flushes
the row, and flushes rows every 5 s."""
RUNS_PAGE = 200
MAX_RAW_ROWS = 50_000
"""The maximum number of raw rows that Pluto returns for one metric."""


class HostedAudit:
    """Reads hosted Pluto. Rows are read only after the row count has not changed for `settle_seconds`.

    If `base_url` is empty, Pluto's own API is used.
    """

    source: Literal["embedded", "hosted"] = "hosted"

    def __init__(
        self,
        base_url: str,
        api_key: str,
        *,
        settle_seconds: float = SETTLE_SECONDS,
        deadline_seconds: float = 120,
        seconds: float = 30,
        max_runs: int = 1000,
        http: httpx.Client | None = None,
    ) -> None:
        """Create a reader. If `http` is given, it must be configured with the base URL and the key."""
        self._client = http or client(
            base_url=base_url or DEFAULT_URL, headers={"Authorization": f"Bearer {api_key}"}, timeout=30
        )
        self._settle_seconds = settle_seconds
        self._deadline_seconds = deadline_seconds
        self._seconds = seconds
        self._max_runs = max_runs
        self._projects: dict[int, str] = {}
        self.truncated = self.names_processes = False

    def runs(
        self, *, external_id: str, project: str, job_name: str | None, ids: Collection[int] = ()
    ) -> list[TrackerRun]:
        """Return the runs with this external id or job name, and the runs in `ids`.

        Pluto cannot search for such runs, so the project's newest runs are read one by one. This search is
        skipped if one of the runs in `ids` has this external id. If `external_id` is empty, any existing run
        in `ids` is enough.
        """
        known_runs = by_id(self._client, ids, project, self._seconds)
        self._projects.update({run.run_id: run.project for run in known_runs})
        if known_runs and (not external_id or any(run.external_id == external_id for run in known_runs)):
            return known_runs
        matching, shared = list[TrackerRun](), False
        for summary in self._listed(project):
            run = self._ask(f"api/runs/details/{summary['id']}", {"projectName": project})
            is_shared = run.get("externalId") == external_id
            if not is_shared and (job_name is None or _job_name(run) != job_name):
                continue
            shared = shared or is_shared
            self._projects[int(run["id"])] = project
            matching.append(with_history(self._client, run, project, self._seconds))
        if shared:
            self.truncated = False
        return [
            *matching,
            *(run for run in known_runs if run.run_id not in {each.run_id for each in matching}),
        ]

    def attachments(self, run_ids: Sequence[int]) -> list[Attachment] | None:
        """Return None, because hosted Pluto does not store create and resume requests."""
        del run_ids
        return None

    def points(self, run_ids: Sequence[int]) -> Iterator[Point]:
        """Wait until the number of rows no longer changes, then yield every raw row.

        Raises WaitError if the number is still changing at the deadline.
        """
        self._wait_stable(run_ids)
        for run_id in run_ids:
            for name in self._metric_names(run_id):
                for row in self._raw(run_id, name):
                    yield Point(
                        run_id=run_id,
                        metric=name,
                        step=int(row["step"]),
                        value=_value(row),
                        time_ms=_milliseconds(row["time"]),
                        received_at=str(row["time"]),
                    )

    def columns(self, run_ids: Sequence[int]) -> Iterator[PointRows]:
        """Wait until the number of rows no longer changes, then yield every raw row, as column-oriented
        batches."""
        return of_points(self.points(run_ids))

    def digests(self, run_ids: Sequence[int]) -> list[DigestReport] | None:
        """Return None, because hosted Pluto does not store digest reports."""
        del run_ids
        return None

    def writers(self, run_ids: Sequence[int]) -> list[RunWriter] | None:
        """Return None, because Pluto's read API does not report the senders of rows, statuses or files."""
        del run_ids
        return None

    def failures(self) -> list[TrackerFailure]:
        """Return [], because hosted Pluto does not report requests that failed in the tracker."""
        return []

    def refused(self, run_ids: Sequence[int]) -> list[TrackerRefusal]:
        """Return [], because hosted Pluto does not report rejected requests."""
        del run_ids
        return []

    def _listed(self, project: str) -> Iterator[dict[str, Any]]:
        offset = 0
        while offset < self._max_runs:
            page = self._ask(
                "api/runs/list", {"projectName": project, "limit": RUNS_PAGE, "offset": offset or None}
            )["runs"]
            yield from page
            offset += len(page)
            if len(page) < RUNS_PAGE:
                return
        self.truncated = True

    def _metric_names(self, run_id: int) -> list[str]:
        details = self._ask(f"api/runs/details/{run_id}", {"projectName": self._projects.get(run_id)})
        return sorted({log["logName"] for log in details["logNames"] if log["logType"] == "METRIC"})

    def _raw(self, run_id: int, name: str) -> list[dict[str, Any]]:
        params = {"runId": run_id, "projectName": self._projects.get(run_id), "logName": name}
        response = self._ask("api/runs/metrics/raw", {**params, "limit": MAX_RAW_ROWS})
        rows = next((response[key] for key in ("metrics", "points", "data") if key in response), None)
        if not isinstance(rows, list):
            raise HarnessError(
                f"Pluto's response with the raw rows of {name!r} has an unknown format: {sorted(response)}",
                cause="tracker.unreachable",
            )
        if response.get("truncated"):
            self.truncated = True
        return rows

    def _counts(self, run_ids: Sequence[int]) -> dict[tuple[int, str], int]:
        return {(run, name): len(self._raw(run, name)) for run in run_ids for name in self._metric_names(run)}

    def _wait_stable(self, run_ids: Sequence[int]) -> None:
        counts: list[dict[tuple[int, str], int]] = []

        def stable() -> bool:
            counts.append(self._counts(run_ids))
            return len(counts) > 1 and counts[-1] == counts[-2]

        try:
            Retrying(
                retry=retry_if_result(lambda is_stable: not is_stable),
                wait=wait_fixed(self._settle_seconds),
                stop=stop_after_delay(self._deadline_seconds),
            )(stable)
        except RetryError:
            totals = " → ".join(str(sum(count.values())) for count in counts[-3:])
            awaited = f"a stable count of raw rows at {self._client.base_url}"
            raise WaitError(
                awaited, f"{totals} rows", self._deadline_seconds, cause="tracker.incomplete"
            ) from None

    def _ask(self, path: str, params: dict[str, Any]) -> dict[str, Any]:
        return ask(self._client, path, params, self._seconds)


def _job_name(run: dict[str, Any]) -> object:
    metadata = run.get("systemMetadata")
    konduktor = metadata.get("konduktor") if isinstance(metadata, dict) else None
    return konduktor.get("job_name") if isinstance(konduktor, dict) else None


def _value(row: dict[str, Any]) -> float:
    """Return the value in a row of hosted Pluto. For a non-finite value, the row contains 0 and a flag."""
    flags = {"NaN": math.nan, "Inf": math.inf, "-Inf": -math.inf}
    flag = row.get("valueFlag") or ""
    if flag in flags:
        return flags[flag]
    value = row.get("value")
    return math.nan if value is None else float(value)


def _milliseconds(time: object) -> int:
    """Return a client time in milliseconds since the epoch.

    Pluto returns milliseconds, RFC 3339, or ClickHouse's format "YYYY-MM-DD hh:mm:ss.mmm" in UTC.
    """
    if isinstance(time, (int, float)):
        return int(time)
    text = str(time)
    if text.isdigit():
        return int(text)
    moment = datetime.fromisoformat(text)
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return round(moment.timestamp() * 1000)
