"""Pods that are waiting for a claim without a volume: the verdict contains the claim and its Event."""

import bundles
import pytest
from bundles import at, cond

from harness.evidence.schema.bundle import Observation

SCHEDULER = "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims."
MISSING = 'storageclass.storage.k8s.io "fast-ssd" not found'
NO_CLASS = "no persistent volumes available for this claim and no storage class is set"


def event(job, name, reason, message):
    about = {"kind": "PersistentVolumeClaim", "name": name, "uid": f"uid-{name}"}
    metadata = {"name": f"{name}.{reason}", "uid": f"{name}-{reason}"}
    state = {"kind": "Event", "metadata": metadata, "reason": reason, "message": message}
    seen = Observation(received_at=at(8, True), type="ADDED", object={**state, "involvedObject": about})
    job.objects.append(("event", seen))


def waiting(volume, message=SCHEDULER):
    job = bundles.healthy()
    for kind in ("jobset", "workload"):
        job.drop(kind, 2)
    why = cond("PodScheduled", "False", "Unschedulable", message)
    for index in range(2):
        job.drop_pod(index)
        job.pod(index, 9, "Pending", node=False, conditions=[why])
    for kind, seen in job.objects:
        if kind == "pod":
            seen.object["spec"]["volumes"] = [volume]
    job.truth, job.logs = {}, {}
    return job


@pytest.mark.parametrize(
    ("reason", "message"), [("ProvisioningFailed", MISSING), ("FailedBinding", NO_CLASS)]
)
def test_claim_without_volume_is_named_with_its_reason(judged, reason, message):
    job = waiting({"name": "data", "persistentVolumeClaim": {"claimName": "corpus"}})
    event(job, "corpus", reason, message)
    event(job, "other", reason, "of another pod")
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("scheduling.volume_failed", [0, 1]), verdict.explanation
    assert f"PersistentVolumeClaim corpus has no volume: {reason}: {message}" in verdict.explanation
    assert "of another pod" not in verdict.explanation
    assert any("kubectl get storageclass" in line for line in verdict.next)


def test_claim_does_not_explain_other_waits(judged):
    job = waiting({"name": "data", "ephemeral": {}}, "0/3 nodes are available: 3 Insufficient cpu.")
    event(job, f"{job.pod_name(0)}-data", "ProvisioningFailed", MISSING)
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("scheduling.unschedulable", [0, 1]), verdict.explanation
