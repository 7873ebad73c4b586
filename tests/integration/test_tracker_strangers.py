"""Two launches that write to one run, in every order, with real clients that differ only in their launch's
key.

Both clients are rank 0 of a job with the same name, with the same host and address, and log the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import bundles
import httpx
import pytest
from tracker_server import KEY, Server, create, finished, log_metrics

from harness.core.errors import HarnessError
from harness.evidence.schema.bundle import Check
from harness.judge import judge
from harness.tracker.client.audit import EmbeddedAudit, collect
from harness.tracker.client.claim import claim, release
from harness.tracker.shared.keys import launch_key

OURS, THEIRS = bundles.NONCE, "0ther"
IDS = count()


@pytest.fixture
def run_id() -> str:
    return f"shared-{next(IDS)}"


@pytest.fixture
def start(server: Server, tmp_path: Path, run_id: str) -> Callable[[str], Any]:
    """Start a launch's rank."""

    def start_(launch: str) -> Any:
        key = launch_key(KEY, launch, project="e2e", run=run_id)
        job = {"KONDUKTOR_JOB_NAME": bundles.JOBSET, "RANK": "0"}
        return server.pluto(tmp_path / launch, "log", "0", "2", PLUTO_RUN_ID=run_id, PLUTO_API_KEY=key, **job)

    return start_


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def alone(client: httpx.Client, folder: Path, run_id: str) -> Check:
    """Return our launch's check `only-our-job`, based on the tracker's current data."""
    job = bundles.healthy()
    found: dict[str, list[Any]] = {"runs": [], "attachments": [], "points": [], "writers": []}
    summary = collect(
        EmbeddedAudit(client),
        external_id=run_id,
        project="e2e",
        job_name=bundles.JOBSET,
        write=lambda kind, record: found[kind].append(record),
        write_points=lambda rows: found["points"].extend(rows.records()),
    )
    assert summary.error is None
    assert summary.writers == len(found["writers"])
    assert job.manifest.expected is not None
    expected = job.manifest.expected.model_copy(update={"run_id": run_id})
    job.manifest = job.manifest.model_copy(update={"expected": expected})
    job.runs, job.attachments = found["runs"], found["attachments"]
    job.points, job.writers = found["points"], found["writers"]
    checks = judge(job.write(folder / "bundle")).checks
    return next(check for check in checks if check.name == "only-our-job")


def claimed(client: httpx.Client, run_id: str, launch: str, shared: bool = False) -> None:
    claim(client, project="e2e", external_id=run_id, launch=launch, shared=shared)


def test_one_launch_is_alone(
    client: httpx.Client, start: Callable[[str], Any], tmp_path: Path, run_id: str
) -> None:
    """Contract: all kinds of requests by the client, including files and strings, contain its launch's
    key."""
    claimed(client, run_id, OURS)
    finished(start(OURS), seconds=300)
    check = alone(client, tmp_path, run_id)
    assert check.result == "PASS", check.explanation
    assert "ccording to the key of each request" in check.explanation


@pytest.mark.parametrize("order", ["before", "during", "after"])
def test_processes_of_another_launch_are_a_foreign_job(
    client: httpx.Client, start: Callable[[str], Any], tmp_path: Path, run_id: str, order: str
) -> None:
    """Contract: identical clients of two launches are distinguished, whichever writes first."""
    if order == "during":
        finished(start(OURS), start(THEIRS), seconds=300)
    else:
        for launch in (THEIRS, OURS) if order == "before" else (OURS, THEIRS):
            finished(start(launch), seconds=300)
    check = alone(client, tmp_path, run_id)
    assert check.cause == "unification.foreign_job"
    assert f"job {bundles.JOBSET} of launch {THEIRS}" in check.explanation
    for what in ("1 attached process", "rows", "1 file", "1 status report", "by 'node0' at 127.0.0.1"):
        assert what in check.explanation, check.explanation


def test_a_claim_before_the_first_write(
    client: httpx.Client, start: Callable[[str], Any], tmp_path: Path, run_id: str
) -> None:
    """Contract: a launch whose first write comes after our last one is rejected, or detected by its claim."""
    claimed(client, run_id, OURS)
    finished(start(OURS), seconds=300)
    with pytest.raises(HarnessError, match=f"launch {OURS} claimed it at .*its run .* was created") as raised:
        claimed(client, run_id, THEIRS)
    assert raised.value.cause == "launch.run_id_taken"
    assert alone(client, tmp_path, run_id).result == "PASS"
    claimed(client, run_id, THEIRS, shared=True)
    check = alone(client, tmp_path / "shared", run_id)
    assert (check.cause, "of its id" in check.explanation) == ("unification.foreign_job", True)


def test_claims_of_two_launches_within_seconds(client: httpx.Client, run_id: str) -> None:
    """Contract: if two launches have not written yet, the second one is rejected, but a retry of the first
    one is not."""
    claimed(client, run_id, OURS)
    claimed(client, run_id, OURS)
    with pytest.raises(HarnessError, match=f"launch {OURS} claimed it"):
        claimed(client, run_id, THEIRS)


def test_a_run_that_somebody_made_without_a_claim(client: httpx.Client, run_id: str) -> None:
    """Contract: the run id of a job that the harness did not launch cannot be claimed, either."""
    create(client, run_id)
    with pytest.raises(HarnessError, match=r"its run .* was created at"):
        claimed(client, run_id, OURS)


def test_a_claim_that_was_not_used_is_given_up(server: Server, client: httpx.Client, run_id: str) -> None:
    """Contract: after a release, the run id is free if the launch never wrote to the run, and is otherwise
    still claimed."""
    claimed(client, run_id, OURS)
    release(client, OURS)
    claimed(client, run_id, THEIRS)
    with server.client(
        Authorization=f"Bearer {launch_key(KEY, THEIRS, project='e2e', run=run_id)}"
    ) as theirs:
        create(theirs, run_id)
    release(client, THEIRS)
    with pytest.raises(HarnessError, match=f"launch {THEIRS} claimed it"):
        claimed(client, run_id, OURS)


@pytest.mark.parametrize(
    "key", [KEY, f"{KEY}.0ther", f"{KEY}.a/b", f"{KEY}.", f"{KEY}.{'x' * 65}", "other.0ther"]
)
def test_key_derived_from_trackers_own_is_not_valid(server: Server, key: str) -> None:
    """Contract: the key of a launch does not contain the tracker's own key."""
    with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {key}"}) as client:
        assert client.post("/api/slug").status_code == (200 if key == KEY else 401)


def test_rows_of_another_key(client: httpx.Client, server: Server, tmp_path: Path, run_id: str) -> None:
    """Contract: rows that are sent with the tracker's own key are not ours, even if they have our name and
    address."""
    header = {"Authorization": f"Bearer {launch_key(KEY, OURS, project='e2e', run=run_id)}"}
    with httpx.Client(base_url=server.url, headers=header, trust_env=False) as ours:
        number = create(ours, run_id)["runId"]
        log_metrics(ours, number, '{"time": 1, "step": 0, "data": {"loss": 1}}', "run")
    assert alone(client, tmp_path, run_id).result == "PASS"
    log_metrics(client, number, '{"time": 1, "step": 0, "data": {"loss": 1}}', "run")
    check = alone(client, tmp_path / "again", run_id)
    assert check.cause == "unification.foreign_job"
    assert "1 row (loss step 0), by 'run' at 127.0.0.1" in check.explanation
