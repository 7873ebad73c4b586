"""Reports by the tracker and the ranks' clients about missing points. The judges claim only what these
reports show."""

from typing import Any

import bundles
import pytest
from bundles import at

from harness.evidence.schema.ground_truth import TruthClient

POD = {"spec": {"volumes": [{"name": "data", "emptyDir": {}}]}}


def losing(**client: Any) -> bundles.Job:
    """Return a job in which the tracker lacks rank 1's loss at steps 3 and 4. `client` is the report of the
    rank's client."""
    job = bundles.healthy()
    job.points = [p for p in job.points if (p.metric, p.step) not in {("loss/node1", 3), ("loss/node1", 4)}]
    job.truth[1].insert(-1, TruthClient(**{"whole": True, **client}))
    return job


def tracker_pod(job: bundles.Job, uid: str, when: float, ready: bool = True, **more: Any) -> None:
    """Add a state of a tracker pod. By default, the pod was created at the time of its first state."""
    metadata = {"name": f"tracker-{uid}", "uid": uid, "creationTimestamp": at(more.pop("made", when))}
    conditions = [{"type": "Ready", "status": str(ready)}]
    job.see("tracker", when, {"metadata": metadata, **POD, "status": {"conditions": conditions}}, **more)


@pytest.mark.parametrize(
    ("client", "says"),
    [
        (
            {"unsent": {"loss/node1": [(3, 9)]}, "error": "503 Service Unavailable"},
            "The client of rank 1 still has 2 of them in its queue, not sent: 503 Service Unavailable",
        ),
        ({"sent": {"loss/node1": [(0, 9)]}}, "The tracker acknowledged 2 of them to the client of rank 1"),
        ({"sent": {"loss/node1": [(0, 3)]}}, "Rank 1 never gave 1 of them to the client"),
        ({"whole": False}, ""),
    ],
)
def test_what_became_of_lost_points(judged, client, says):
    """Contract: the verdict contains the client's own report, if there is one."""
    verdict = judged(losing(**client))
    assert (verdict.cause, verdict.ranks) == ("unification.lost_points", [1])
    assert says in verdict.explanation
    assert says or "client" not in verdict.explanation


def test_a_clients_account_does_not_make_a_loss(judged):
    """Contract: a point in the tracker is not lost, even if the client reports it as unsent because the
    response was lost."""
    job = bundles.healthy()
    job.truth[1].insert(-1, TruthClient(whole=True, unsent={"loss/node1": [(0, 3)]}))
    assert judged(job).verdict == "PASS"


def test_points_in_another_run_are_not_lost_by_tracker(judged):
    """Contract: the verdict names the run that contains the points, and does not accuse the tracker of losing
    acknowledged points."""
    job = losing(sent={"loss/node1": [(0, 9)]})
    job.runs.append(job.runs[0].model_copy(update={"run_id": 2, "external_id": "mine"}))
    for row in job.rows(1):
        if row.metric == "loss/node1" and row.step in (3, 4):
            job.points.append(bundles.point(job, 1, row, run_id=2))
    lost = next(check for check in judged(job).checks if check.name == "no-lost-points")
    assert "Rank 1 logged 2 of them to another run" in lost.explanation
    assert "acknowledged" not in lost.explanation


def test_who_sent_foreign_points(judged):
    """Contract: the verdict names the sender that the tracker recorded."""
    job = bundles.healthy()
    stranger = job.points[0].model_copy(
        update={"metric": "visitor/loss", "sender": "visitor", "peer": "10.0.0.9"}
    )
    job.points.append(stranger)
    verdict = judged(job)
    assert verdict.cause == "unification.foreign_points"
    assert "sent by 'visitor' at 10.0.0.9" in verdict.explanation


def test_upload_process_that_did_not_come_to_its_end(judged):
    """Contract: if the log contains only the start of the upload process and not its exit, the process was
    interrupted."""
    job = losing(unsent={"loss/node1": [(3, 4)]})
    line = f"{at(6, True)} 2026-11-21 05:00:06,1 [pluto-sync] INFO: Sync process started (parent PID: 9)"
    job.logs[job.pod_name(1)].insert(1, line)
    assert "upload process of rank 1 started but did not finish" in judged(job).explanation


def test_a_full_disk(judged):
    """Contract: a failure that the tracker reports for the time of this launch is the cause, and the loss is
    a consequence."""
    job = losing()
    full = "OperationalError: database or disk is full"
    job.summary["failures"] = [{"reason": full, "count": 7, "first": at(9), "last": at(20)}]
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "tracker.disk_full", [1])
    assert "7 requests failed" in verdict.explanation
    assert any(line.startswith("unification.lost_points") for line in verdict.consequences)


def test_a_disk_that_was_full_before(judged):
    """Contract: a failure before this launch is not the cause."""
    full = {"reason": "OperationalError: database or disk is full", "count": 7}
    job = losing()
    job.summary["failures"] = [{**full, "first": at(-90), "last": at(-80)}]
    assert judged(job).cause == "unification.lost_points"


def test_a_failure_without_a_loss(judged):
    """Contract: retries made up for the failure, so the verdict is a PASS that mentions it."""
    job = bundles.healthy()
    job.summary["failures"] = [{"reason": "boom", "count": 2, "first": at(9), "last": at(9)}]
    verdict = judged(job)
    assert verdict.verdict == "PASS"
    assert (
        "2 requests failed (boom)" in next(c for c in verdict.checks if c.name == "tracker-kept").explanation
    )


def test_a_database_that_went_with_its_pod(judged):
    """Contract: if the tracker's pod was replaced after the launch and the run is missing, the tracker lost
    it, and not the ranks."""
    job = bundles.healthy()
    tracker_pod(job, "old", -1, made=-500, type_="ADDED")
    tracker_pod(job, "old", 12, made=-500, type_="DELETED")
    tracker_pod(job, "new", 13, ready=False, type_="ADDED")
    tracker_pod(job, "new", 15, made=13)
    job.runs, job.attachments, job.points = [], [], []
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("tracker.data_lost", [0, 1])
    assert f"no ready pod from {at(12)} to {at(15)}" in verdict.explanation


def test_a_tracker_that_restarted_with_its_database(judged):
    """Contract: if the tracker was not ready for a while but lost nothing, the verdict is a PASS that
    mentions this."""
    job = bundles.healthy()
    tracker_pod(job, "same", -1, made=-500, type_="ADDED")
    tracker_pod(job, "same", 12, made=-500, ready=False)
    tracker_pod(job, "same", 15, made=-500)
    verdict = judged(job)
    assert verdict.verdict == "PASS"
    assert "no ready pod" in next(c for c in verdict.checks if c.name == "tracker-kept").explanation


def test_a_key_that_is_refused_in_the_middle(judged):
    """Contract: the ranks whose clients report the refused key are named."""
    error = "authentication failed (HTTP 401): the Pluto server rejected the API key"
    verdict = judged(losing(unsent={"loss/node1": [(3, 9)]}, error=error))
    assert (verdict.cause, verdict.ranks) == ("tracker.key_rejected", [1])


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (
            "[rank1]: RuntimeError: authentication failed (HTTP 401): the server rejected",
            "tracker.key_rejected",
        ),
        (
            "[rank1]: RuntimeError: Failed to create run: this key only gives access to project e2e",
            "tracker.key_rejected",
        ),
        ("[rank1]: RuntimeError: Failed to create run: Run not found", "launch.run_id_resumes"),
        ("[rank1]: ConnectionError: Failed to create or resume run. Check", "rank.tracker_unreachable"),
    ],
)
def test_a_client_that_cannot_begin(judged, line, cause):
    """Contract: if a tracker failure made a rank crash, the tracker failure is the cause."""
    job = bundles.healthy()
    bundles.crash(job, 1, code=1)
    job.truth[1] = []
    job.logs[job.pod_name(1)][3] = f"{at(11, True)} {line}"
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == (cause, [1])
