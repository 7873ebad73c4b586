"""manifests/*.yaml on a real cluster: StatefulSet, Indexed Job and DaemonSet, judged as konduktor's jobs are.

Each kind runs healthy, and with a rank that dies, one that hangs and one that logs nothing. `make test` runs
one fault for each kind. The others are nightly, and so are the kinds that Kueue manages in its queue.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from harness.evidence.io.reader import Bundle
from harness.evidence.schema.bundle import Verdict
from harness.fixtures.plugin import Launch
from harness.launch.labels import QUEUE_LABEL
from harness.launch.workload_file import load
from harness.launch.workloads.loader import of_manifest
from harness.launch.workloads.pod_template_workload import PlainWorkload
from harness.provision.cluster import Ready
from harness.settings import Settings

QUEUED = ("statefulset", "indexed-job")
"""Kinds that Kueue manages. It admits no DaemonSet."""
KINDS = ("statefulset", "indexed-job", "daemonset")
FAULTS = {
    "exit3": ("FAIL", "rank.crashed", "exited with code 3"),
    "hang_at_step": ("FAIL", "rank.hung", "made no progress"),
    "silent": ("FAIL", "unification.rank_silent", "logged nothing"),
}
WAIT_SECONDS = 150.0
"""Seconds from launch to verdict. A rank that hangs gives up after a part of it."""
EVERY_TIME = {("statefulset", "exit3"), ("indexed-job", "exit3"), ("daemonset", "silent")}


def manifest(kind: str, worker: str | None = None, queue: str | None = None) -> PlainWorkload:
    """Return manifests/<kind>.yaml with another worker in place of multinode.py, and in a queue."""
    path = Path(f"manifests/{kind}.yaml")
    text = path.read_text()
    if worker is not None:
        assert "/workspace/multinode.py" in text.split("---")[1]
        text = text.replace("                /workspace/multinode.py", f"                /workspace/{worker}")
        assert worker in text
    documents = list(yaml.safe_load_all(text))
    if queue is not None:
        documents[1]["metadata"]["labels"] = {QUEUE_LABEL: queue}
    return of_manifest(documents, str(path))


def checks(verdict: Verdict) -> dict[str, str]:
    return {check.name: check.explanation for check in verdict.checks}


@pytest.mark.parametrize("kind", KINDS)
def test_a_healthy_workload_passes(launch: Launch, cluster: Ready, kind: str) -> None:
    """Every rank ran once, every point is in the one run, and nothing of the launch is left running."""
    outcome = launch(load(Path(f"manifests/{kind}.yaml")), wait_seconds=WAIT_SECONDS)
    assert outcome.verdict.verdict == "PASS", outcome.verdict.explanation
    assert all(check.result == "PASS" for check in outcome.verdict.checks)
    assert checks(outcome.verdict)["restarts"] == "Every rank ran once"
    bundle = Bundle.open(outcome.bundle)
    assert bundle.manifest is not None
    assert bundle.manifest.launch is not None
    assert bundle.manifest.launch.object_name == "trainer"
    assert sorted(bundle.pods()) == [0, 1]
    if bundle.manifest.launch.held:
        assert [one.exit_code for _, one in bundle.exits()] == [0, 0]
        left = cluster.kube.objects("apps/v1", bundle.manifest.launch.kind, bundle.manifest.launch.namespace)
        assert left == []


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        pytest.param(kind, fault, marks=[] if (kind, fault) in EVERY_TIME else [pytest.mark.nightly])
        for kind in KINDS
        for fault in FAULTS
    ],
)
def test_a_rank_that_fails_is_named(launch: Launch, kind: str, fault: str) -> None:
    """Contract: verdict, cause and rank are those that a konduktor job gets for the same worker."""
    outcome = launch(manifest(kind, f"faulty.py {fault} 1"), wait_seconds=WAIT_SECONDS)
    verdict, cause, message = FAULTS[fault]
    seen = outcome.verdict
    assert (seen.verdict, seen.cause, seen.ranks) == (verdict, cause, [1]), seen.explanation
    assert message in seen.explanation


@pytest.mark.nightly
@pytest.mark.parametrize("kind", QUEUED)
def test_kueue_admits_a_workload_that_names_a_queue(
    launch: Launch, harness_settings: Settings, kind: str
) -> None:
    """Contract: the Workload that Kueue made is in the evidence, and the verdict says so."""
    outcome = launch(manifest(kind, queue=harness_settings.queue), wait_seconds=WAIT_SECONDS)
    assert outcome.verdict.verdict == "PASS", outcome.verdict.explanation
    explanations = checks(outcome.verdict)
    assert explanations["queue"] == f"Queue {harness_settings.queue} accepted the job"
    assert "was admitted" in explanations["admission"]
    assert explanations["eviction"] == "The job was not evicted"
    assert explanations["restarts"] == "Every rank ran once"
    assert Bundle.open(outcome.bundle).history("workload")


@pytest.mark.nightly
@pytest.mark.parametrize("kind", QUEUED)
def test_a_queue_that_does_not_exist(launch: Launch, kind: str) -> None:
    """Contract: Kueue's own refusal is the cause, long before the deadline, and no pod ever ran."""
    outcome = launch(manifest(kind, queue="no-such-queue"), wait_seconds=WAIT_SECONDS)
    seen = outcome.verdict
    assert (seen.verdict, seen.cause) == ("FAIL", "queue.local_queue_missing"), seen.explanation
    assert "no-such-queue" in seen.explanation
    manifest_ = Bundle.open(outcome.bundle).manifest
    assert manifest_ is not None
    assert manifest_.interrupted is None, "the deadline did not end it"
