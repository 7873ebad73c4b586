"""Workloads that Kueue does not admit, and pods that stay gated, as public bug reports describe them."""

from __future__ import annotations

from typing import Any

import bundles
import pytest
from bundles import at, cond, timed_out
from cluster_events import change_specs, never_started

RESERVED = cond("QuotaReserved", "True", "QuotaReserved", "Quota reserved in ClusterQueue cq")
FAILED_CHECKS = cond("QuotaReserved", "False", "Pending", "The workload has failed admission checks")
NO_NODES = "Retrying after failure: nodepools out of resources: default-pool"
TOPOLOGY = 'topology "default" doesn\'t allow to fit any of 2 pod(s). Total nodes: 3; excluded: '


def pending(*conditions: dict[str, Any], checks: list[dict[str, Any]] | None = None) -> bundles.Job:
    """Return a job whose Workload has these conditions and admission checks at the deadline."""
    job = never_started()
    job.objects = [pair for pair in job.objects if pair[0] not in ("pod", "jobset", "workload")]
    job.jobset(1, suspend=True, type_="ADDED")
    job.workload(2, list(conditions))
    job.objects[-1][1].object["status"]["admissionChecks"] = checks or []
    return job


@pytest.mark.parametrize(
    ("conditions", "state", "message"),
    [
        # kueue #5129
        ([RESERVED], "Pending", "Waiting for resources"),
        ([RESERVED], "Retry", NO_NODES),
        # kueue #3543: the check was retried, and the Workload remained evicted.
        ([FAILED_CHECKS, cond("Evicted", "True", "AdmissionCheck")], "Pending", "waits for the prefetch"),
        ([FAILED_CHECKS, cond("Evicted", "True", "DeactivatedDueToAdmissionCheck")], "Rejected", NO_NODES),
    ],
)
def test_an_admission_check_is_quoted_with_its_message(judged, conditions, state, message) -> None:
    """Contract: the admission check that does not admit the job is named, whether or not quota is
    reserved."""
    ready = {"name": "licences", "state": "Ready", "message": "3 licences"}
    checks = [ready, {"name": "nodes", "state": state, "message": message}]
    verdict = judged(pending(*conditions, checks=checks))
    assert (verdict.verdict, verdict.cause) == ("FAIL", "admission.check_pending"), verdict.explanation
    assert f"admission check nodes is {state}: {message}" in verdict.explanation
    assert "licences" not in verdict.explanation
    assert "provisioningrequests" in verdict.next[-1]


@pytest.mark.parametrize(
    ("assignment", "cause"),
    [
        ({}, "controllers.kueue_not_reconciling"),
        ({"delayedTopologyRequest": "Pending"}, "admission.topology"),
    ],
)
def test_workload_with_quota_and_without_checks_is_not_admitted(judged, assignment, cause) -> None:
    """kueue #9048: all admission checks are Ready, and the Workload still has no Admitted condition."""
    job = pending(RESERVED, checks=[{"name": "nodes", "state": "Ready"}])
    job.objects[-1][1].object["status"]["admission"] = {"podSetAssignments": [assignment]}
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause) == ("FAIL", cause), verdict.explanation
    assert "uota is reserved" in verdict.explanation


def test_kueue_is_not_blamed_after_harness_stopped(judged) -> None:
    """Contract: Kueue could still have admitted the Workload after the harness stopped."""
    job = pending(RESERVED)
    job.manifest = job.manifest.model_copy(update={"interrupted": "SIGINT"})
    verdict = judged(job)
    assert "controllers.kueue_not_reconciling" not in {check.cause for check in verdict.checks}


def test_an_eviction_by_an_admission_check_quotes_the_check(judged) -> None:
    """kueue #10660: the condition shows only that some check is false."""
    job = bundles.stuck(bundles.healthy(), keep=3)
    job.workload(20, [cond("Evicted", "True", "AdmissionCheck", "At least one admission check is false", 20)])
    checks = [{"name": "nodes", "state": "Retry", "message": NO_NODES}]
    job.objects[-1][1].object["status"]["admissionChecks"] = checks
    job.jobset(21, suspend=True)
    timed_out(job)
    verdict = judged(job)
    assert verdict.cause == "admission.evicted", verdict.explanation
    assert f"Admission check nodes is Retry: {NO_NODES}" in verdict.explanation


@pytest.mark.parametrize(
    ("excluded", "advice"),
    [
        # kueue #6868
        ('taint "nvidia.com/gpu=present:NoSchedule": 3', "add a toleration"),
        ('taint "a=b:NoSchedule": 1, nodeSelector: 2', "nodeSelector"),
        ('resource "nvidia.com/gpu": 2, taint "a=b:NoSchedule": 1', "request fewer devices"),
        ("topologyDomain: 3", "podset-required-topology"),
    ],
)
def test_the_advice_follows_what_excludes_most_nodes(judged, excluded, advice) -> None:
    verdict = judged(pending(cond("QuotaReserved", "False", "TopologyPlacementFailed", TOPOLOGY + excluded)))
    assert verdict.cause == "admission.topology"
    assert advice in verdict.next[-1]


@pytest.mark.parametrize(
    ("message", "cause", "advice"),
    [
        (
            "waiting for all admitted workloads to be in PodsReady condition",
            "admission.pending",
            "PodsReady condition is False",
        ),
        (
            "DeviceClass gpu.nvidia.com is not mapped in DRA configuration for podset main",
            "admission.refused",
            "deviceClassMappings",
        ),
        # kueue #3158
        (
            "couldn't assign flavors to pod set main: untolerated taint {a b NoSchedule} in flavor f",
            "admission.no_flavor",
            "add a toleration",
        ),
    ],
)
def test_the_advice_fits_the_message_of_kueue(judged, message, cause, advice) -> None:
    verdict = judged(pending(cond("QuotaReserved", "False", "Pending", message)))
    assert verdict.cause == cause
    assert message in verdict.explanation
    assert advice in verdict.next[-1]


def test_a_job_that_multikueue_runs_elsewhere_says_where(judged) -> None:
    checks = [{"name": "mk", "state": "Ready", "message": 'The workload got reservation on "worker1"'}]
    job = pending(RESERVED, cond("Admitted", "True", "Admitted"), checks=checks)
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause) == ("FAIL", "admission.other_cluster")
    assert "MultiKueue runs the job in cluster worker1" in verdict.explanation
    job.manifest = job.manifest.model_copy(update={"stages": []})
    job.jobset(9, terminal="Completed")
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause) == ("UNKNOWN", "run.evidence_missing")
    assert any("MultiKueue runs the job in cluster worker1" in each.explanation for each in verdict.checks)


@pytest.mark.parametrize(
    ("manager", "outcome"),
    [
        ("kueue.x-k8s.io/multikueue", ("FAIL", "admission.other_cluster")),
        ("example.com/fleet", ("FAIL", "run.timed_out")),
        ("jobset.sigs.k8s.io/jobset-controller", ("FAIL", "controllers.jobset_not_reconciling")),
        (None, ("FAIL", "controllers.jobset_not_reconciling")),
    ],
)
def test_jobset_of_other_manager_is_not_neglected_by_jobset(judged, manager, outcome) -> None:
    """Contract: no controller of this cluster is accused of a job that it must not reconcile."""
    job = pending(RESERVED, cond("Admitted", "True", "Admitted"))
    job.objects = [pair for pair in job.objects if pair[0] not in ("jobset", "job")]
    job.jobset(1, type_="ADDED")
    if manager is not None:
        job.objects[-1][1].object["spec"]["managedBy"] = manager
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause) == outcome, verdict.explanation
    explained = " ".join(check.explanation for check in verdict.checks)
    assert ("spec.managedBy is example.com/fleet" in explained) == (manager == "example.com/fleet")


@pytest.mark.parametrize(
    ("owner", "outcome", "says"),
    [
        (None, "controllers.kueue_not_reconciling", "is still suspended"),
        ("TrainJob", "run.timed_out", "or the owner's controller did not resume it"),
    ],
)
def test_admitted_job_that_stays_suspended_is_named(judged, owner, outcome, says) -> None:
    """kueue #11931, kubeflow/trainer #3008: quota is used, no pod exists, and nothing else says why."""
    job = pending(RESERVED, cond("Admitted", "True", "Admitted", when=2))
    if owner is not None:
        for kind, seen in job.objects:
            if kind == "jobset":
                seen.object["metadata"]["ownerReferences"] = [{"kind": owner, "name": "yolo"}]
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause) == ("FAIL", outcome), verdict.explanation
    assert says in verdict.explanation
    # An admission just before the deadline does not mean that the controller is inactive.
    late = pending(RESERVED, cond("Admitted", "True", "Admitted", when=39))
    assert "still suspended" not in judged(late).explanation


def test_job_waiting_again_does_not_run_on_other_cluster(judged) -> None:
    """Contract: only the last state of a Workload shows where its job runs."""
    checks = [{"name": "mk", "state": "Ready", "message": 'The workload got reservation on "worker1"'}]
    job = pending(RESERVED, cond("Admitted", "True", "Admitted"), checks=checks)
    evicted = cond("Evicted", "True", "Preempted", "Preempted to accommodate a higher priority Workload")
    job.workload(5, [cond("QuotaReserved", "False", "Pending", "insufficient unused quota"), evicted])
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause) == ("FAIL", "admission.preempted")


def gated(*gates: str, indexes: tuple[int, ...] = (0, 1)) -> bundles.Job:
    """Return a job whose Workload is admitted, and these nodes' pods have scheduling gates."""
    job = never_started()
    for index in indexes:
        job.drop_pod(index)
        job.pod(index, 5, "Pending", node=False, type_="ADDED")
    change_specs(job, *indexes, schedulingGates=[{"name": gate} for gate in gates])
    return job


@pytest.mark.parametrize(
    ("gates", "cause", "named"),
    [
        # kueue #9482: Kueue has admitted the job, and does not remove the gates of others.
        (
            ["example.com/wait"],
            "scheduling.unschedulable",
            "its controller has not removed: example.com/wait",
        ),
        # kueue #8884
        (["kueue.x-k8s.io/topology"], "controllers.kueue_not_reconciling", "kueue.x-k8s.io/topology"),
        # openshift/instaslice-operator#82
        (
            ["org.instaslice/accelerator", "kueue.x-k8s.io/admission"],
            "controllers.kueue_not_reconciling",
            "Kueue has not removed: kueue.x-k8s.io/admission",
        ),
    ],
)
def test_a_gate_that_stays_is_named_with_its_owner(judged, gates, cause, named) -> None:
    """Contract: neither Kueue nor JobSet is accused of a gate that another controller removes."""
    verdict = judged(gated(*gates))
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", cause, [0, 1]), verdict.explanation
    assert named in verdict.explanation


@pytest.mark.parametrize("gate", ["example.com/wait", "kueue.x-k8s.io/topology"])
def test_only_the_ranks_behind_the_gate_are_named(judged, gate) -> None:
    job = gated(gate, indexes=(1,))
    job.pod(0, 6, "Running", {"running": {"startedAt": at(6)}})
    verdict = judged(job)
    assert verdict.ranks == [1]
    assert "Rank 1 is held behind" in verdict.explanation
