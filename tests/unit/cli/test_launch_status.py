"""`harness status` shows launches of every kind: state, queue, pods, and the ranks in each pod."""

from __future__ import annotations

from typing import Any

import pytest

from harness.cli.launch_status import of_namespace
from harness.cli.launch_status_text import LaunchStatus
from harness.launch.labels import QUEUE_LABEL, RANKS_PER_POD

NAMESPACE = {
    "metadata": {
        "name": "e2e-1",
        "creationTimestamp": "2026-11-21T10:00:00Z",
        "annotations": {RANKS_PER_POD: "2"},
    }
}
OWNER = [{"uid": "u"}]


def launched(kind: str, status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    metadata = {"name": "trainer", "namespace": "e2e-1", "uid": "u"}
    return {"kind": kind, "metadata": metadata, "spec": spec, "status": status}


def pod(name: str, labels: dict[str, str], node: str = "w1", **status: Any) -> dict[str, Any]:
    metadata = {"name": name, "labels": labels, "ownerReferences": OWNER, "uid": f"uid-{name}"}
    return {"metadata": metadata, "spec": {"nodeName": node}, "status": {"phase": "Running", **status}}


def seen(item: dict[str, Any], pods: list[dict[str, Any]] | None = None) -> LaunchStatus:
    return of_namespace(NAMESPACE, [item], [], pods or [])


@pytest.mark.parametrize(
    ("kind", "label"),
    [
        ("StatefulSet", "apps.kubernetes.io/pod-index"),
        ("Job", "batch.kubernetes.io/job-completion-index"),
        ("JobSet", "batch.kubernetes.io/job-completion-index"),
    ],
)
def test_pods_have_their_ranks(kind: str, label: str) -> None:
    """Contract: a pod's number is the kind's own, and with two ranks a pod its ranks follow from it."""
    name = {"jobset.sigs.k8s.io/jobset-name": "trainer"}
    found = seen(launched(kind), [pod(f"p{index}", {label: str(index), **name}) for index in (1, 0)])
    assert (found.kind, found.name) == (kind, "trainer")
    assert [(row.name, row.ranks) for row in found.pods] == [("p0", [0, 1]), ("p1", [2, 3])]


def test_a_daemonsets_pods_are_numbered_by_address() -> None:
    """Contract: as manifests/daemonset.yaml gives them ranks."""
    pods = [pod("far", {}, "w1", podIP="10.0.0.9"), pod("near", {}, "w2", podIP="10.0.0.2")]
    found = seen(launched("DaemonSet"), pods)
    assert [(row.name, row.ranks) for row in found.pods] == [("near", [0, 1]), ("far", [2, 3])]


@pytest.mark.parametrize(
    ("item", "state"),
    [
        (launched("JobSet", {"terminalState": "Completed"}), "Completed"),
        (launched("JobSet", None, suspend=True), "suspended"),
        (launched("Job", {"conditions": [{"type": "Failed", "status": "True"}]}), "Failed"),
        (launched("Job", {"conditions": [{"type": "Complete", "status": "False"}]}), "running"),
        (launched("StatefulSet", {"readyReplicas": 1}, replicas=3), "1 of 3 pods ready"),
        (launched("StatefulSet", None), "0 of 1 pods ready"),
        (launched("DaemonSet", {"numberReady": 1, "desiredNumberScheduled": 2}), "1 of 2 pods ready"),
    ],
)
def test_the_state_of_each_kind(item: dict[str, Any], state: str) -> None:
    """Contract: what the object itself says, also before it has a status."""
    assert seen(item).state == state


def test_a_launch_without_an_object() -> None:
    """Contract: a namespace whose object is gone, or has not come, is shown as that and not left out."""
    found = of_namespace(NAMESPACE, [], [], [pod("p", {})])
    assert (found.kind, found.name, found.pods) == (None, None, [])
    assert found.lines() == ["launch       e2e-1  not launched yet, or already deleted"]


def test_a_stray_pod_is_shown_without_a_rank() -> None:
    """Contract: a pod that another one replaced, or of another owner, is shown without a rank, and last."""
    index = "apps.kubernetes.io/pod-index"
    stray = {**pod("a-stray", {index: "0"}), "spec": {}, "status": {"phase": "Pending"}}
    stray["metadata"] = {**stray["metadata"], "ownerReferences": []}
    found = seen(launched("StatefulSet"), [stray, pod("trainer-0", {index: "0"})])
    assert [(row.name, row.ranks) for row in found.pods] == [("trainer-0", [0, 1]), ("a-stray", [])]
    assert found.pods[1].state == "Pending on no node"


def test_what_a_pod_waits_for_and_its_restarts() -> None:
    """Contract: the kubelet's reason, the scheduler's, and how often containers were started again."""
    waiting = {"state": {"waiting": {"reason": "ErrImagePull", "message": "no such host"}}, "restartCount": 2}
    unscheduled = {"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available"}
    found = seen(
        launched("StatefulSet"), [pod("p", {}, containerStatuses=[waiting], conditions=[unscheduled])]
    )
    assert found.pods[0].state == (
        "Running on w1; ErrImagePull: no such host; 0/2 nodes are available; restarted 2×"
    )


def test_what_kueue_says() -> None:
    """Contract: shown only for what names a queue; refusal, admission and silence are told apart."""
    queued = launched("Job", None, suspend=True)
    assert seen(queued).queue is None
    queued["metadata"]["labels"] = {QUEUE_LABEL: "q"}
    assert seen(queued).queue == "Kueue reports no condition"
    workload = {
        "status": {"conditions": [{"type": "QuotaReserved", "status": "False", "message": "no quota"}]}
    }
    assert of_namespace(NAMESPACE, [queued], [workload], []).queue == "not admitted: no quota"
    workload["status"]["conditions"].append({"type": "Admitted", "status": "True", "message": "yes"})
    assert "  queue      Admitted: yes" in of_namespace(NAMESPACE, [queued], [workload], []).lines()
