"""Components of the cluster that are missing, restarted or edited: the cause and the affected ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import bundles
import pytest
from bundles import at, cond
from changed_objects import NODE, by, disturbances, never_ends, thing

from harness.evidence.schema.bundle import Verdict
from harness.judge import judge

Judged = Callable[[bundles.Job], Verdict]
WATCHED = ["control-plane", "dns", "dns-pod", "jobset", "node", "pod", "service", "tracker-service"]


def watched(job: bundles.Job) -> bundles.Job:
    job.manifest = job.manifest.model_copy(update={"watched": WATCHED})
    for lines in job.logs.values():
        lines.append(f"{bundles.at(29, True)} ===== KONDUKTOR: task finished with exit code: 0 =====")
    return job


def system(job: bundles.Job, component: str, when: float, ready: str = "True", **more: Any) -> None:
    labels = {"tier": "control-plane", "component": component}
    item = thing("Pod", f"{component}-e2e", {}, namespace="kube-system", labels=labels)
    item["status"] = {"conditions": [cond("Ready", ready, "Kubelet", when=1)]}
    job.see("control-plane", when, item, **more)


def test_what_was_watched_is_said(judged: Judged) -> None:
    """Contract: the check lists the kinds of objects that were watched and those that were not."""
    text = disturbances(judged(watched(bundles.healthy()))).explanation
    assert text.startswith(
        "No changes by other clients were recorded for the job, its pods, Services and NetworkPolicies,"
    )
    assert "not watched: its namespace, Secrets and ConfigMaps, quotas and limits, queues" in text


def without_node(job: bundles.Job) -> None:
    never_ends(job)
    job.drop("pod")
    for index in range(job.nodes):
        job.pod(index, 4, "Pending", node=False, type_="ADDED")


def test_there_is_no_scheduler_from_the_start(judged: Judged) -> None:
    """Contract: the pods are waiting because no scheduler is running, not because the job needs more time."""
    job = watched(bundles.healthy())
    without_node(job)
    system(job, "kube-apiserver", -1, type_="ADDED")
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "cluster.component_down", [0, 1])
    assert "The scheduler (kube-scheduler) had no ready pod from the start until the end of the run" in (
        verdict.explanation.replace("2026-11-21T05:00:00Z the", "The")
    )
    system(job, "kube-scheduler", -1, type_="ADDED")
    assert judged(job).cause != "cluster.component_down"


def test_a_control_plane_outside_pods_is_not_down(judged: Judged) -> None:
    job = watched(bundles.healthy())
    without_node(job)
    assert judged(job).cause != "cluster.component_down"


def test_there_is_no_controller_manager(judged: Judged) -> None:
    """Contract: without a controller manager, a Job without pods is not JobSet's fault."""
    job = watched(bundles.healthy())
    never_ends(job)
    job.drop("pod")
    system(job, "kube-apiserver", -1, type_="ADDED")
    system(job, "kube-controller-manager", -1, type_="ADDED")
    system(job, "kube-controller-manager", 2, type_="DELETED")
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause) == ("FAIL", "cluster.component_down")
    assert "kube-controller-manager" in verdict.explanation


def test_a_scheduler_outage_during_training_is_no_cause(judged: Judged) -> None:
    job = watched(bundles.healthy())
    bundles.crash(job, 1)
    system(job, "kube-apiserver", -1, type_="ADDED")
    system(job, "kube-scheduler", -1, type_="ADDED")
    system(job, "kube-scheduler", 8, type_="DELETED")
    assert judged(job).cause == "rank.crashed"


def test_dns_is_away_from_the_start(judged: Judged) -> None:
    """Contract: a CoreDNS without pods before the launch is the cause of names that do not resolve."""
    job = watched(bundles.healthy())
    bundles.crash(job, 1)
    job.logs[job.pod_name(1)].insert(
        3, f"{at(10, True)} socket.gaierror: [Errno -3] Temporary failure in name resolution"
    )
    job.see("dns", -5, thing("Deployment", "coredns", {"replicas": 0}, namespace="kube-system"), "ADDED")
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause) == ("FAIL", "cluster.dns_down")
    assert "the cluster's DNS had no ready pod from the start until the end of the run" in verdict.explanation


def test_labels_that_were_taken_from_a_pod(tmp_path: Path) -> None:
    """Contract: the pod is still attributed to its rank, and the removal of its labels is the cause."""
    job = watched(bundles.healthy())
    bundles.crash(job, 1)
    states = [
        seen
        for kind, seen in job.objects
        if kind == "pod" and seen.object["metadata"]["name"] == job.pod_name(1)
    ]
    for seen in states:
        if seen.received_at > at(10):
            seen.object["metadata"]["labels"] = {}
            seen.object["metadata"]["annotations"] = {}
    verdict = judge(job.write(tmp_path))
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "run.edited", [1])
    assert "without label jobset.sigs.k8s.io/jobset-name" in verdict.explanation


def test_the_trackers_service_is_edited(judged: Judged) -> None:
    """Contract: a change outside the job's namespace that cut ranks from the tracker is named."""
    job = watched(bundles.healthy())
    bundles.crash(job, 1)
    job.truth = {0: [], 1: []}
    job.logs[job.pod_name(1)].insert(3, f"{at(10, True)} pluto.ClientError: Failed to create run: timed out")
    before = thing("Service", "tracker", {"selector": {"app": "tracker"}}, namespace="harness-system")
    job.see("tracker-service", -5, before, "ADDED")
    after = {**before, "metadata": {**before["metadata"], "managedFields": by("kubectl-patch", 7)}}
    job.see("tracker-service", 7, {**after, "spec": {"selector": {"app": "other"}}})
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause) == ("FAIL", "cluster.network_changed")
    assert "Service tracker was edited by kubectl-patch (spec.selector)" in verdict.explanation


def test_tracker_that_cannot_be_read_names_who_changed_it(judged: Judged) -> None:
    """Contract: the cause is still the tracker's, and the verdict also mentions the change."""
    job = watched(bundles.healthy())
    job.summary = {"error": "expected the tracker to answer, but saw: no endpoints", "runs": 0}
    before = thing("Service", "tracker", {"selector": {"app": "tracker"}}, namespace="harness-system")
    job.see("tracker-service", -5, before, "ADDED")
    after = {**before, "metadata": {**before["metadata"], "managedFields": by("kubectl-patch", 7)}}
    job.see("tracker-service", 7, {**after, "spec": {"selector": {"app": "other"}}})
    verdict = judged(job)
    assert verdict.cause is not None
    assert verdict.cause.startswith("tracker.")
    assert "Service tracker was edited by kubectl-patch" in verdict.explanation


def test_a_status_that_somebody_forged(judged: Judged) -> None:
    """Contract: a job is not complete if a user set the condition Completed."""
    job = watched(bundles.healthy())
    for kind in ("jobset", "workload"):
        job.drop(kind, 2)
    for index in range(job.nodes):
        job.drop_pod(index, after=10)
    job.jobset(12, "Completed")
    kind, seen = job.objects[-1]
    writer = {"manager": "kubectl-patch", "subresource": "status", "time": at(12)}
    seen.object["metadata"]["managedFields"] = [writer]
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause) == ("FAIL", "run.edited")
    assert "the status of JobSet multinode-1a2b was edited by kubectl-patch: it says Completed" in (
        verdict.explanation
    )


@pytest.mark.parametrize("unresolved", [True, False])
def test_the_service_proxy_of_a_node_is_away(judged: Judged, unresolved: bool) -> None:
    """Contract: a missing kube-proxy is the cause only if a name or a Service could not be reached."""
    job = watched(bundles.healthy())
    bundles.crash(job, 1)
    if unresolved:
        line = "socket.gaierror: [Errno -3] Temporary failure in name resolution"
        job.logs[job.pod_name(1)].insert(3, f"{at(10, True)} {line}")
    pod = thing("Pod", "kube-proxy-1", {"nodeName": NODE}, namespace="kube-system")
    ready = {**pod, "status": {"conditions": [cond("Ready", "True", "Ready")]}}
    job.see("service-proxy", -5, ready, "ADDED")
    job.see("service-proxy", 2, ready, "DELETED")
    verdict = judged(job)
    if unresolved:
        assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "cluster.service_proxy_down", [1])
        assert f"kube-proxy) of node {NODE} had no ready pod" in verdict.explanation
    else:
        assert verdict.cause == "rank.crashed"
