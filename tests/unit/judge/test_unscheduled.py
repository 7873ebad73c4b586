"""Pods without a node, with the messages of schedulers and autoscalers from public bug reports."""

from __future__ import annotations

import pytest
from bundles import at
from cluster_events import add_event, change_specs, never_started, unscheduled

from harness.judge.cluster.unscheduled import reasons

AFTER = " preemption: 0/4 nodes are available: 4 Preemption is not helpful for scheduling."
NO_GPU = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
GANG = "pod group is not ready, 4 Pending, 4 minAvailable; Pending: 1 Unschedulable, 3 Schedulable"
LIMIT = (
    'Failed to schedule pod, incompatible with nodepool "spot-pool", no instance type has enough resources; '
    "all available instance types exceed limits for nodepool (NodePool=gpu)"
)


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        # kubernetes/kubernetes#81020, radondb/radondb-mysql-kubernetes#395
        (
            "0/4 nodes are available: 1 node(s) had taint {node-role.kubernetes.io/master: }, that the pod "
            "didn't tolerate, 3 node(s) had volume node affinity conflict.",
            "nodeAffinity",
        ),
        (
            "0/5 nodes are available: 1 node(s) had volume node affinity conflict, 4 node(s) didn't match "
            "node selector.",
            "nodeAffinity",
        ),
        # Kubernetes 1.34 words this message differently.
        (
            "0/4 nodes are available: 4 node(s) didn't match PersistentVolume's node affinity. no new claims "
            f"to deallocate,{AFTER}",
            "nodeAffinity",
        ),
        (f'0/4 nodes are available: persistentvolumeclaim "data" not found.{AFTER}', "create the claim"),
        ('persistentvolumeclaim "data" not found', "create the claim"),
        ("0/4 nodes are available: 4 node(s) exceed max volume count.", "attach more volumes"),
        (
            "0/4 nodes are available: 4 node has pod using PersistentVolumeClaim with the same name and "
            "ReadWriteOncePod access mode.",
            "ReadWriteMany",
        ),
        (
            'persistentvolumeclaim "data" bound to non-existent persistentvolume "pvc-1"',
            "create it again",
        ),
    ],
)
def test_a_volume_that_keeps_a_pod_from_its_nodes(judged, message, advice) -> None:
    """Contract: a volume is the cause if it excludes all nodes that the pod does not exclude itself."""
    job = never_started()
    unscheduled(job, 1, message)
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("scheduling.volume_failed", [1]), verdict.explanation
    assert message in verdict.explanation
    assert advice in verdict.next[-1]


@pytest.mark.parametrize(
    "message",
    [
        "0/4 nodes are available: 1 node(s) had volume node affinity conflict, 3 Insufficient cpu.",
        # The node that has the volume may be the one that is cordoned or not ready.
        "0/4 nodes are available: 1 node(s) were unschedulable, 3 node(s) had volume node affinity conflict.",
        "0/4 nodes are available: 1 node(s) had untolerated taint {node.kubernetes.io/unreachable: }, 3 "
        "node(s) had volume node affinity conflict.",
        "0/4 nodes are available: 1 node(s) had untolerated taint {a: b}, 3 Insufficient cpu.",
        "0/4 nodes are available: 4 node(s) didn't match Pod's node affinity/selector.",
        "",
    ],
)
def test_volume_is_not_cause_if_other_reasons_exclude_nodes(judged, message) -> None:
    job = never_started()
    unscheduled(job, 1, message)
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("scheduling.unschedulable", [1]), verdict.explanation


def test_volume_in_zone_that_gets_node_is_not_cause(judged) -> None:
    """aws/karpenter-provider-aws#2971: a new node can be in the zone of the volume."""
    job = never_started()
    unscheduled(job, 1, "0/4 nodes are available: 4 node(s) had volume node affinity conflict.")
    add_event(job, 1, "Nominated", "Pod should schedule on: nodeclaim/gpu-x7", type_="Normal")
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("scheduling.unschedulable", [1]), verdict.explanation
    assert "raise --wait" in verdict.next[-1]


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("2 node(s) had untolerated taint {node.kubernetes.io/disk-pressure: }.", "free disk space"),
        ("2 node(s) had untolerated taint {node.kubernetes.io/not-ready: }.", "not ready"),
        ("2 node(s) had untolerated taint {node.cilium.io/agent-not-ready: true}.", "its DaemonSet"),
        ("1 node(s) had untolerated taint {a: b}, 1 node(s) were unschedulable.", "uncordoned"),
        ("2 Too many pods.", "maxPods"),
        ("2 node(s) didn't match pod topology spread constraints (missing required label).", "topologyKey"),
        ("2 node(s) didn't match pod anti-affinity rules.", "podAntiAffinity"),
        ("2 cannot allocate all claims. still not schedulable, preemption: not helpful.", "resourceslices"),
        ("2 node(s) had untolerated taint {a: b}.", "correct the node selector"),
        ("2 Insufficient cpu.", "request less"),
    ],
)
def test_the_advice_fits_the_reason_of_the_scheduler(judged, reason, advice) -> None:
    job = never_started()
    unscheduled(job, 1, f"0/2 nodes are available: {reason}")
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("scheduling.unschedulable", [1]), verdict.explanation
    assert advice in verdict.next[-1]


def test_a_volume_that_was_not_bound_is_the_cause(judged) -> None:
    job = never_started()
    message = 'running PreBind plugin "VolumeBinding": binding volumes: context deadline exceeded'
    unscheduled(job, 1, message, reason="SchedulerError")
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("scheduling.volume_failed", [1]), verdict.explanation
    assert "provisioner" in verdict.next[-1]


def test_the_reasons_in_a_message_are_separate() -> None:
    message = (
        "0/15 nodes are available: 1 node(s) had taint {a: b}, that the pod didn't tolerate, 12 Insufficient "
        f"cpu, 2 node(s) had volume node affinity conflict.{AFTER}"
    )
    assert reasons(message) == [
        "node(s) had taint {a: b}, that the pod didn't tolerate",
        "Insufficient cpu",
        "node(s) had volume node affinity conflict",
    ]
    assert reasons("a sentence of a later scheduler.") == ["a sentence of a later scheduler"]


def test_pod_waiting_for_its_group_is_not_accused(judged) -> None:
    """volcano-sh/volcano#3976: the scheduler calls the waiting pods Schedulable."""
    job = never_started(4)
    for index in range(3):
        unscheduled(job, index, GANG, reason="Schedulable")
    unscheduled(job, 3, NO_GPU)
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("scheduling.unschedulable", [3]), verdict.explanation
    assert NO_GPU in verdict.explanation
    assert f"Ranks 0, 1 and 2 only wait for the rest of the pod group: {GANG}" in verdict.explanation


def test_group_without_reason_is_explained_by_its_own_event(judged) -> None:
    """volcano-sh/volcano#2416"""
    job = never_started()
    for index in range(2):
        unscheduled(job, index, "2/2 tasks in gang unschedulable: pod group is not ready, 2 minAvailable")
    about = ("PodGroup", "podgroup-a", "podgroup-uid")
    add_event(job, about, "Unschedulable", "queue resource quota insufficient: insufficient nvidia.com/gpu")
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("scheduling.unschedulable", [0, 1]), verdict.explanation
    assert "PodGroup podgroup-a: queue resource quota insufficient" in verdict.explanation


@pytest.mark.parametrize(("group", "says"), [("podgroup-a", "PodGroup podgroup-a: 1"), ("", "")])
def test_the_events_of_another_jobs_group_are_not_quoted(judged, group, says) -> None:
    """Contract: the namespace of a job can contain other jobs, whose groups have Events, too."""
    job = never_started()
    for index in range(2):
        unscheduled(job, index, GANG)
        job.objects[-1][1].object["metadata"]["annotations"] |= {"scheduling.k8s.io/group-name": group}
    for number, name in enumerate(("podgroup-a", "podgroup-b"), 1):
        add_event(job, ("PodGroup", name, f"{name}-uid"), "Unschedulable", f"{number} of 8 are ready")
    explanation = judged(job).explanation
    assert says in explanation
    assert "podgroup-b" not in explanation
    assert bool(group) == ("podgroup-a" in explanation)


def test_pods_with_different_messages_are_all_quoted(judged) -> None:
    job = never_started()
    unscheduled(job, 0, NO_GPU)
    unscheduled(job, 1, "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector.")
    verdict = judged(job)
    assert verdict.ranks == [0, 1]
    assert (
        "For rank 1, the message is: 0/3 nodes are available: 3 node(s) didn't match" in verdict.explanation
    )


@pytest.mark.parametrize("volume", ["had volume node affinity conflict", "exceed max volume count"])
@pytest.mark.parametrize("first", [0, 1])
def test_volume_of_another_pod_is_not_blamed(judged, first: int, volume: str) -> None:
    """Contract: the cause does not depend on which rank has which message."""
    job = never_started()
    unscheduled(job, first, NO_GPU)
    unscheduled(job, 1 - first, f"0/4 nodes are available: 4 node(s) {volume}.")
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("scheduling.unschedulable", [0, 1]), verdict.explanation
    assert volume in verdict.explanation


@pytest.mark.parametrize(("name", "advice"), [("volcano", "PodGroup"), ("", "kubectl get pods -A")])
def test_a_pod_that_no_scheduler_reports_on(judged, name, advice) -> None:
    """volcano-sh/volcano#1863: the pods have no condition, and nothing else shows what they wait for."""
    job = never_started()
    for index in range(2):
        job.drop_pod(index)
        job.pod(index, 5, "Pending", node=False)
    if name:
        change_specs(job, 0, 1, schedulerName=name)
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "scheduling.unschedulable", [0, 1])
    assert f"whose schedulerName is {name or 'default-scheduler'}" in verdict.explanation
    assert advice in verdict.next[-1]


def test_new_pod_is_not_ignored_by_scheduler(judged) -> None:
    job = never_started()
    job.drop_pod(1)
    job.pod(1, 20, "Pending", node=False)
    assert "no scheduler" not in judged(job).explanation.lower()


def test_pod_deleted_before_scheduling_is_not_ignored(judged) -> None:
    """Contract: a Job that is suspended immediately deletes its pods."""
    job = never_started()
    job.drop_pod(1)
    job.pod(1, 5, "Pending", node=False, metadata={"deletionTimestamp": at(6)})
    assert "no scheduler" not in judged(job).explanation.lower()


@pytest.mark.parametrize(
    ("reason", "message", "component", "says", "advice"),
    [
        # aws/karpenter-provider-aws#8068
        ("FailedScheduling", LIMIT, "karpenter", "Karpenter did not add a node", "limits of the NodePool"),
        # kubernetes/autoscaler#5692
        (
            "NotTriggerScaleUp",
            "pod didn't trigger scale-up: 3 max node group size reached",
            "cluster-autoscaler",
            "The cluster autoscaler did not add a node",
            "maximum size of the node group",
        ),
        # kubernetes/autoscaler#2506: the autoscaler does not know that the node group has GPUs.
        (
            "NotTriggerScaleUp",
            "pod didn't trigger scale-up (it wouldn't fit if a new node is added): 6 Insufficient gpu",
            "cluster-autoscaler",
            "it wouldn't fit if a new node is added",
            "request less",
        ),
        (
            "FailedScaleUp",
            "Node scale up in zones us-central1-a associated with this pod failed: GCE out of resources.",
            "cluster-autoscaler",
            "The cluster autoscaler could not add a node",
            "another zone",
        ),
        (
            "TriggeredScaleUp",
            "pod triggered scale-up: [{gpu-pool 0->2 (max: 4)}]",
            "cluster-autoscaler",
            "The cluster autoscaler is adding a node",
            "raise --wait",
        ),
        (
            "Nominated",
            "Pod should schedule on: nodeclaim/gpu-x7",
            "karpenter",
            "Karpenter is adding",
            "raise --wait",
        ),
    ],
)
def test_the_report_of_an_autoscaler_is_quoted(judged, reason, message, component, says, advice) -> None:
    job = never_started()
    for index in range(2):
        unscheduled(job, index, NO_GPU)
    add_event(job, 1, reason, message)
    for _, seen in job.objects[-2:]:
        seen.object["source"] = {"component": component}
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("scheduling.unschedulable", [0, 1])
    assert says in verdict.explanation
    assert message.rstrip(".") in verdict.explanation
    assert advice in verdict.next[-1]


def test_scale_up_that_failed_later_is_not_called_running(judged) -> None:
    job = never_started()
    unscheduled(job, 1, NO_GPU)
    add_event(job, 1, "TriggeredScaleUp", "pod triggered scale-up", (6,), type_="Normal")
    add_event(job, 1, "FailedScaleUp", "GCE out of resources", (20,))
    add_event(job, 1, "NotTriggerScaleUp", "1 in backoff after failed scale-up", (30,), type_="Normal")
    verdict = judged(job)
    assert "is adding" not in verdict.explanation
    assert "GCE out of resources" in verdict.explanation
    assert "1 in backoff after failed scale-up" in verdict.explanation


def test_a_missing_template_of_a_resource_claim_is_named(judged) -> None:
    """kubernetes/kubernetes#126320: the scheduler only waits for the claim."""
    job = never_started()
    unscheduled(job, 1, "0/3 nodes are available: waiting for resource claim to be created")
    message = 'failed to create ResourceClaim: resourceclaimtemplate.resource.k8s.io "one-gpu" not found'
    add_event(job, 1, "FailedResourceClaimCreation", f"PodResourceClaim gpu: {message}")
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("scheduling.unschedulable", [1])
    assert message in verdict.explanation
    assert "ResourceClaimTemplate" in verdict.next[-1]
