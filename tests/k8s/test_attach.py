"""`harness attach` to jobs that other tools launched, with an account that has only the printed Role."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest
from foreign_jobs import SECRET, ForeignJobs

from harness.attach.secret import SecretKey
from harness.attach.tracker import TrackerOptions
from harness.evidence import Bundle
from harness.evidence.schema.bundle import Verdict
from harness.launch import recorder_admission as admission
from harness.launch import recorder_policy as policy
from harness.provision.cluster import Ready
from harness.settings import Settings

pytestmark = [pytest.mark.attach, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def foreign(
    cluster: Ready, harness_settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ForeignJobs]:
    folder = tmp_path_factory.mktemp("attach")
    name = f"foreign-{secrets.token_hex(3)}"
    found = ForeignJobs(cluster.kube, name, cluster.worker.tag, folder, harness_settings)
    yield found
    found.remove()


def passed(verdict: Verdict) -> set[str]:
    return {check.name for check in verdict.checks if check.result == "PASS"}


def unread(bundle: Bundle) -> dict[str, str]:
    return bundle.manifest.unread if bundle.manifest else {"manifest": "absent"}


def test_an_indexed_job_during_and_after(foreign: ForeignJobs) -> None:
    """Contract: followed to its failure and read afterwards, the rank that raised is the cause. The printed
    Role permits every request, and the API server forbids all others.
    """
    foreign.job("broken", FAILING_RANK="1", STEPS="20")
    foreign.job("healthy")
    followed = foreign.attach("job/broken", follow=True, wait=10)
    afterwards = foreign.attach("job/broken")
    for outcome in (followed, afterwards):
        assert (outcome.verdict.verdict, outcome.verdict.cause) == ("FAIL", "rank.crashed"), outcome.verdict
        assert outcome.verdict.ranks == [1]
        assert "rank 1 has a bad batch" in outcome.verdict.explanation
        assert unread(Bundle.open(outcome.bundle)) == {}
    foreign.ended("healthy")
    outcome = foreign.attach("job/healthy")
    assert (outcome.verdict.verdict, outcome.verdict.cause) == ("UNKNOWN", "unification.not_recorded")
    assert {"scheduling", "image", "rank-exit", "completed", "restarts", "logs"} <= passed(outcome.verdict)


@pytest.mark.nightly
def test_a_statefulset_whose_rank_dies_again_and_again(foreign: ForeignJobs) -> None:
    """Contract: the crash of the previous execution is the cause, with its log."""
    foreign.statefulset("crashing", FAILING_RANK="1")
    foreign.kube.wait(
        "a restarted container",
        "v1",
        "Pod",
        lambda pods: None if any(_restarts(pod) for pod in pods.values()) else "none",
        seconds=120,
        namespace=foreign.namespace,
        selector="app=crashing",
    )
    outcome = foreign.attach("sts/crashing")
    assert outcome.verdict.verdict != "PASS"
    text = "\n".join(check.explanation for check in outcome.verdict.checks)
    assert outcome.verdict.cause in ("rank.crashed", "rank.restarted"), text


def _restarts(pod: dict) -> int:
    return sum(status.get("restartCount", 0) for status in pod["status"].get("containerStatuses") or [])


@pytest.mark.nightly
def test_a_jobset_that_hangs_and_ends(foreign: ForeignJobs) -> None:
    """Contract: a JobSet that hangs is UNKNOWN, and one that is followed passes all but the points."""
    foreign.jobset("hanging", HANGING_RANK="1")
    foreign.kube.wait(
        "running pods",
        "v1",
        "Pod",
        lambda pods: (
            None
            if len(pods) == 2 and all(p["status"].get("phase") == "Running" for p in pods.values())
            else "no"
        ),
        seconds=120,
        namespace=foreign.namespace,
        selector="jobset.sigs.k8s.io/jobset-name=hanging",
    )
    outcome = foreign.attach("jobset/hanging")
    assert (outcome.verdict.verdict, outcome.verdict.cause) == ("UNKNOWN", "run.not_ended")
    foreign.jobset("whole")
    outcome = foreign.attach("jobset/whole", follow=True, wait=10)
    assert (outcome.verdict.verdict, outcome.verdict.cause) == ("UNKNOWN", "unification.not_recorded")
    assert {"scheduling", "image", "rank-exit", "completed", "restarts"} <= passed(outcome.verdict)


@pytest.fixture
def policy_installed(foreign: ForeignJobs) -> Iterator[None]:
    """The policy records every new pod of the namespace."""
    admission.install(foreign.kube, [foreign.namespace])
    labels = {policy.RECORD: "true"}
    metadata = {"name": foreign.namespace, "labels": labels}
    foreign.kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    foreign.until_recorded()
    yield
    admission.uninstall(foreign.kube)


@pytest.mark.nightly
def test_a_job_that_the_policy_recorded(foreign: ForeignJobs, policy_installed: None) -> None:
    """Contract: with the key of a Secret, a job of others passes if its run has every point. A point that an
    uploader lost is named with its rank, metric and block. The printed Roles permit every request.
    """
    foreign.logging_job("complete")
    foreign.logging_job("losing", LOSING_RANK="1")
    options = TrackerOptions(secret=SecretKey(SECRET))
    foreign.ended("complete")
    outcome = foreign.attach("job/complete", tracker=options)
    assert outcome.verdict.verdict == "PASS", [c for c in outcome.verdict.checks if c.result != "PASS"]
    assert unread(Bundle.open(outcome.bundle)) == {}
    foreign.ended("losing")
    outcome = foreign.attach("job/losing", tracker=options)
    assert (outcome.verdict.verdict, outcome.verdict.cause) == ("FAIL", "unification.lost_points")
    assert outcome.verdict.ranks == [1]
    assert "rank 1: loss/1: 1 of 1201 points, in steps 1000–1999" in outcome.verdict.explanation
    assert {"rendezvous", "rank-exit", "completed", "recorded"} <= passed(outcome.verdict)
