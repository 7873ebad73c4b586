"""Changes by other clients during a launch are the cause if they explain a failure, and are otherwise only
mentioned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import bundles
import pytest
from bundles import at, cond
from changed_objects import NODE, by, disturbances, never_ends, thing
from hypothesis import given
from hypothesis import strategies as st

from harness.evidence.schema.bundle import Verdict
from harness.judge import judge

Judged = Callable[[bundles.Job], Verdict]
"""The node of rank 1."""


def inside(kind: str, name: str, spec: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    return thing(kind, name, spec, namespace=bundles.NAMESPACE, **metadata)


def cut_off(job: bundles.Job, index: int = 1, code: int = 255, reason: str = "Unknown") -> None:
    """End a node's container as a reboot does, so that nothing on the node records its end."""
    bundles.crash(job, index, code)
    job.objects = [
        (kind, seen) for kind, seen in job.objects if kind != "pod" or seen.received_at < at(12, True)
    ]
    job.logs[job.pod_name(index)] = job.logs[job.pod_name(index)][:3]
    job.ended(index, 20, code, reason=reason, message="")


def node(job: bundles.Job, when: float, boot: str = "a" * 8, ready: str = "True", **metadata: Any) -> None:
    status = {"nodeInfo": {"bootID": boot}, "conditions": [cond("Ready", ready, "Kubelet", when=1)]}
    job.see("node", when, {**thing("Node", NODE, {}, **metadata), "status": status})


def test_nobody_changes_anything(judged: Judged) -> None:
    """Contract: a healthy job is a PASS, and the check states that no changes by other clients were
    recorded."""
    verdict = judged(bundles.healthy())
    assert verdict.verdict == "PASS"
    assert disturbances(verdict).explanation == "No changes to the cluster by other clients were recorded"


def test_the_namespace_is_deleted(judged: Judged) -> None:
    """Contract: the deletion of the namespace is the cause, and the end of the JobSet and its pods is a
    consequence."""
    job = bundles.healthy()
    bundles.crash(job, 1)
    job.see("namespace", 1, thing("Namespace", bundles.NAMESPACE), "ADDED")
    job.see("namespace", 11, thing("Namespace", bundles.NAMESPACE, deletionTimestamp=at(11)))
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "run.namespace_deleted", [0, 1])
    assert f"2026-11-21T05:00:11Z Namespace {bundles.NAMESPACE} was deleted" in verdict.explanation
    assert any(text.startswith("rank.crashed") for text in verdict.consequences)


def test_a_namespace_deletion_after_the_wait_is_ignored(judged: Judged) -> None:
    """Contract: a deletion after the harness has stopped waiting is not a disturbance."""
    job = bundles.healthy()
    bundles.crash(job, 1)
    job.see("namespace", 40, thing("Namespace", bundles.NAMESPACE, deletionTimestamp=at(40)))
    assert judged(job).cause == "rank.crashed"


def test_a_node_reboots(judged: Judged) -> None:
    """Contract: if a node has a new boot id and the end of its container was not recorded, the node is the
    cause."""
    job = bundles.healthy()
    cut_off(job)
    node(job, 1)
    lease = thing("Lease", NODE, {"renewTime": at(10, True)}, managedFields=by("kubelet", 10))
    job.see("node-lease", 10, lease)
    node(job, 26, boot="b" * 8)
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "cluster.node_rebooted", [1])
    assert (
        f"05:00:10Z node {NODE} rebooted (boot id changed from aaaaaaaa to bbbbbbbb)" in verdict.explanation
    )


def test_rank_that_crashed_on_node_that_reboots_later(judged: Judged) -> None:
    """Contract: a rank that ended on its own before the reboot keeps its own cause."""
    job = bundles.healthy()
    bundles.crash(job, 1)
    node(job, 1)
    node(job, 26, boot="b" * 8)
    assert judged(job).cause == "rank.crashed"


def test_a_node_starts_again_with_its_boot_id(judged: Judged) -> None:
    """Contract: a restarted kubelet and a lost container are named even if the boot id has not changed."""
    job = bundles.healthy()
    cut_off(job)
    event = thing("Event", f"{NODE}.1") | {"source": {"component": "kubelet"}, "reason": "Starting"}
    event["involvedObject"] = {"kind": "Node", "name": NODE}
    job.see("node-event", 24, event, "ADDED")
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "cluster.runtime_restarted", [1])
    assert f"the kubelet of node {NODE} was started again" in verdict.explanation


def dns(job: bundles.Job, when: float, ready: str) -> None:
    pod = thing("Pod", "coredns-1", {}, namespace="kube-system")
    job.see("dns-pod", when, {**pod, "status": {"conditions": [cond("Ready", ready, "Ready")]}})


@pytest.mark.parametrize("unresolved", [True, False])
def test_the_clusters_dns_goes_away(judged: Judged, unresolved: bool) -> None:
    """Contract: DNS is the cause of a wrong status only if a rank could not resolve a name. Otherwise, it is
    only listed."""
    job = bundles.healthy()
    job.runs = [job.runs[0].model_copy(update={"status": "RUNNING"})]
    dns(job, 1, "True")
    dns(job, 10, "False")
    if unresolved:
        line = "pluto: [Errno -3] Temporary failure in name resolution"
        job.logs[job.pod_name(0)].append(f"{at(25, True)} {line}")
    verdict = judged(job)
    if unresolved:
        assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "cluster.dns_down", [0])
        assert "05:00:10Z the cluster's DNS had no ready pod until the end of the run" in verdict.explanation
    else:
        assert verdict.cause == "run.disturbed"
    assert any(text.startswith("unification.wrong_status") for text in verdict.consequences)


def test_who_scales_a_deployment_is_not_recorded(judged: Judged) -> None:
    """Contract: an edit by `kubectl scale`, which leaves no field manager, is attributed to an unknown
    client."""
    job = bundles.healthy()
    for when, replicas in ((1, 2), (9, 0)):
        written = by("kubeadm", -99)
        job.see("dns", when, thing("Deployment", "coredns", {"replicas": replicas}, managedFields=written))
    assert (
        "Deployment coredns was scaled from 2 to 0 replicas by an unknown client"
        in disturbances(judged(job)).explanation
    )


def waiting(job: bundles.Job, spec: dict[str, Any]) -> None:
    """Make the containers of all pods wait for an object that was deleted."""
    never_ends(job)
    message = 'secret "pluto" not found'
    for kind, seen in job.objects:
        if kind == "pod":
            seen.object["spec"] |= spec
            state = {"waiting": {"reason": "CreateContainerConfigError", "message": message}}
            seen.object["status"] = {
                "phase": "Pending",
                "containerStatuses": [{"name": bundles.CONTAINER, "state": state}],
            }


@pytest.mark.parametrize("kind", ["secret", "configmap"])
def test_what_a_container_needs_is_deleted_before_it_starts(judged: Judged, kind: str) -> None:
    """Contract: the deletion is the cause of containers that cannot start."""
    job = bundles.healthy()
    key = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "pluto", "key": "KEY"}}}
    spec = {
        "containers": [{"name": bundles.CONTAINER, "env": [key]}],
        "volumes": [{"configMap": {"name": "pluto"}}],
    }
    waiting(job, spec)
    title = {"secret": "Secret", "configmap": "ConfigMap"}[kind]
    job.see(kind, 0.5, inside(title, "pluto"), "ADDED")
    job.see(kind, 2, inside(title, "pluto"), "DELETED")
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "launch.config_deleted", [0, 1])
    assert f"{title} pluto was deleted" in verdict.explanation


def test_a_secret_deletion_during_training_still_passes(judged: Judged) -> None:
    """Contract: a harmless disturbance does not change a PASS, but is mentioned."""
    job = bundles.healthy()
    job.see("secret", 0.5, inside("Secret", "pluto"), "ADDED")
    job.see("secret", 12, inside("Secret", "pluto"), "DELETED")
    verdict = judged(job)
    assert verdict.verdict == "PASS"
    assert "Secret pluto was deleted" in disturbances(verdict).explanation


def test_keys_of_transfer_are_deleted_by_harness(judged: Judged) -> None:
    """Contract: deletions by the harness itself are not disturbances."""
    job = bundles.healthy()
    job.see("secret", 0.5, inside("Secret", "training-transfer"), "ADDED")
    job.see("secret", 2, inside("Secret", "training-transfer"), "DELETED")
    verdict = judged(job)
    assert verdict.verdict == "PASS"
    assert "training-transfer" not in disturbances(verdict).explanation


def queue(job: bundles.Job, when: float, quota: int, manager: str) -> None:
    local = inside("LocalQueue", bundles.QUEUE, {"clusterQueue": "cluster-queue"})
    job.see("localqueue", 0.1, local, "ADDED")
    cluster = thing(
        "ClusterQueue", "cluster-queue", {"resourceGroups": [8]}, managedFields=by("kubectl-create", -9)
    )
    job.see("clusterqueue", 0.1, cluster, "ADDED")
    changed = {**cluster, "spec": {"resourceGroups": [quota]}}
    changed["metadata"] = {**cluster["metadata"], "managedFields": by(manager, when)}
    job.see("clusterqueue", when, changed)


@pytest.mark.parametrize(
    ("manager", "cause"), [("kubectl-patch", "queue.changed"), ("kueue", "admission.quota_exceeded")]
)
def test_the_queue_is_edited_before_the_job_is_admitted(judged: Judged, manager: str, cause: str) -> None:
    """Contract: if a client other than Kueue edits the job's queue, the edit is the reason why the job is not
    admitted."""
    job = bundles.healthy()
    never_ends(job)
    job.drop("workload")
    job.drop("pod")
    job.drop("jobset", 1)
    message = "couldn't assign flavors to pod set workers: insufficient quota for cpu in flavor x, "
    message += "request > maximum capacity (2 > 0)"
    job.workload(3, [cond("QuotaReserved", "False", "Pending", message, 3)])
    queue(job, 1.5, 0, manager)
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause) == ("FAIL", cause)
    if cause == "queue.changed":
        assert (
            "ClusterQueue cluster-queue was edited by kubectl-patch (spec.resourceGroups)"
            in verdict.explanation
        )


def test_a_queue_created_at_launch_is_no_change(judged: Judged) -> None:
    """Contract: the cause is the resource that the queue lacks, and not the creation of the queue for the
    job."""
    job = bundles.healthy()
    never_ends(job)
    job.drop("workload")
    job.drop("pod")
    job.drop("jobset", 1)
    job.workload(3, [cond("QuotaReserved", "False", "Pending", "LocalQueue x is inactive", 3)])
    fields = by("kubectl-client-side-apply", 0.1)
    local = inside("LocalQueue", bundles.QUEUE, {"clusterQueue": "cluster-queue"}, managedFields=fields)
    local["metadata"]["creationTimestamp"] = bundles.at(0.1)
    job.see("localqueue", 0.1, local, "ADDED")
    assert judged(job).cause != "queue.changed"


def test_a_job_is_edited_and_fails(judged: Judged) -> None:
    """Contract: an edit of the spec is the cause if there is no other reason why the ranks were
    terminated."""
    job = bundles.healthy()
    never_ends(job)
    job.see("job", 4, inside("Job", "j", {"parallelism": 2}, managedFields=by("manager", 4)), "ADDED")
    edited = inside(
        "Job", "j", {"parallelism": 2, "activeDeadlineSeconds": 1}, managedFields=by("kubectl-edit", 12)
    )
    job.see("job", 12, edited)
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "run.edited", [0, 1])
    assert "Job j was edited by kubectl-edit (spec.activeDeadlineSeconds)" in verdict.explanation


def test_a_network_policy_is_created(judged: Judged) -> None:
    """Contract: a NetworkPolicy that another client creates is the cause of points that did not arrive."""
    job = bundles.healthy()
    job.points = [point for point in job.points if point.step < 3]
    policy = inside(
        "NetworkPolicy", "deny", {}, managedFields=by("kubectl-create", 8), creationTimestamp=at(8)
    )
    job.see("networkpolicy", 8, policy, "ADDED")
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause) == ("FAIL", "cluster.network_changed")
    assert "NetworkPolicy deny was created by kubectl-create" in verdict.explanation


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([], by("kubectl-label", 3)),
        # A client that removes the only field that it has written is no longer a field manager.
        (by("kubelet", -9) + by("kubectl-label", -5), by("kubelet", -9)),
    ],
)
def test_node_is_edited_before_pod_finds_place(
    judged: Judged, before: list[dict[str, Any]], after: list[dict[str, Any]]
) -> None:
    """Contract: if another client edits a node, the edit is the cause of an unschedulable pod."""
    job = bundles.healthy()
    never_ends(job)
    refused = cond(
        "PodScheduled", "False", "Unschedulable", "0/3 nodes are available: 3 node(s) didn't match"
    )
    job.drop("pod")
    for index in range(2):
        job.pod(index, 4, "Pending", node=False, conditions=[refused], type_="ADDED")
    node(job, 1, labels={"rack": "a"}, managedFields=before)
    node(job, 3, labels={}, managedFields=after)
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "scheduling.node_changed", [0, 1])
    assert f"Node {NODE} was edited by kubectl-label (metadata.labels)" in verdict.explanation


def renew(job: bundles.Job, when: float, ahead: float) -> None:
    spec = {"renewTime": at(when + ahead, True)}
    job.see("node-lease", when, thing("Lease", NODE, spec, managedFields=by("kubelet", int(when))))


@given(jump=st.one_of(st.integers(32, 9**9), st.integers(-(9**8), -32)))
def test_the_clock_of_a_node_jumps(tmp_path_factory: pytest.TempPathFactory, jump: int) -> None:
    """Property: a clock jump of more than CLOCK_SECONDS is detected from the node's Leases, with its
    direction."""
    job = bundles.healthy()
    never_ends(job)
    for when in (1.1, 6.1):
        renew(job, when, 0)
    for when in (11.1, 16.1, 21.1):
        renew(job, when, jump)
    verdict = judge(job.write(tmp_path_factory.mktemp("clock")))
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "cluster.clock_jumped", [1])
    assert verdict.explanation.count("jumped by") == 1
    assert f"jumped by {jump:+d} s" in verdict.explanation


@given(late=st.floats(0, 12))
def test_a_lease_that_is_renewed_late_is_no_jump(
    tmp_path_factory: pytest.TempPathFactory, late: float
) -> None:
    """Property: a request that the API server handles late is not mistaken for a clock jump."""
    job = bundles.healthy()
    renew(job, 1.1, 0)
    renew(job, 11.1, -late)
    verdict = judge(job.write(tmp_path_factory.mktemp("late")))
    assert disturbances(verdict).explanation == "No changes to the cluster by other clients were recorded"


def restarted_api_server(job: bundles.Job) -> None:
    pod = thing("Pod", "kube-apiserver-e2e", {}, namespace="kube-system")
    for when, restarts in ((0.5, 0), (12, 1)):
        ended = {"terminated": {"exitCode": 137}} if restarts else {}
        status = {"name": "kube-apiserver", "restartCount": restarts, "lastState": ended}
        job.see("control-plane", when, {**pod, "status": {"containerStatuses": [status]}})


def test_what_nobody_has_thought_of(judged: Judged) -> None:
    """Contract: the cause of an end that no check explains is run.disturbed. The verdict lists each change
    with its time and author."""
    job = bundles.healthy()
    never_ends(job)
    restarted_api_server(job)
    label = inside(
        "JobSet", bundles.JOBSET, {"suspend": False, "replicatedJobs": [{"name": "workers", "replicas": 1}]}
    )
    label["metadata"] |= {
        "uid": bundles.UID,
        "labels": {"somebody": "here", "kueue.x-k8s.io/queue-name": bundles.QUEUE},
    }
    label["metadata"]["managedFields"] = by("kubectl-label", 9)
    job.see("jobset", 9, label)
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause) == ("FAIL", "run.disturbed")
    assert (
        f"05:00:09Z JobSet {bundles.JOBSET} was edited by kubectl-label (metadata.labels)"
        in verdict.explanation
    )
    text = "05:00:12Z container kube-apiserver of Pod kube-apiserver-e2e was restarted after exit code 137"
    assert text in verdict.explanation
    assert any(text.startswith("run.timed_out") for text in verdict.consequences)


def test_end_of_time_that_kueue_gave_explains_nothing(judged: Judged) -> None:
    """Contract: a change is reported even if Kueue ends the job before the harness's own deadline."""
    job = bundles.healthy()
    never_ends(job)
    over = cond("Evicted", "True", "DeactivatedDueToMaximumExecutionTimeExceeded", "over", 20)
    job.workload(20, [cond("Admitted", "True", "Admitted"), over], maximumExecutionTimeSeconds=20)
    job.jobset(21, suspend=True)
    restarted_api_server(job)
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause) == ("FAIL", "run.disturbed")
    assert any(text.startswith("admission.max_execution_time") for text in verdict.consequences)


def test_a_rank_that_failed_by_itself_keeps_its_cause(judged: Judged) -> None:
    """Contract: if a rank fails on its own, other changes do not hide its cause, but the check reports
    them."""
    job = bundles.healthy()
    bundles.crash(job, 1)
    restarted_api_server(job)
    verdict = judged(job)
    assert verdict.cause == "rank.crashed"
    assert "kube-apiserver" in disturbances(verdict).explanation


def test_an_unknown_end_stays_unknown(judged: Judged) -> None:
    """Contract: run.disturbed has the result of the check that it explains, so an UNKNOWN does not become a
    FAIL."""
    job = bundles.healthy()
    job.summary["error"] = "no answer"
    assert judged(job).verdict == "UNKNOWN"
    restarted_api_server(job)
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause) == ("UNKNOWN", "run.disturbed")


@given(
    kind=st.sampled_from(["node", "jobset-controller", "dns", "service", "workload", "clusterqueue"]),
    manager=st.sampled_from(
        ["kubelet", "kube-controller-manager", "manager", "kueue", "kueue-admission", "pluto-e2e-harness"]
    ),
)
def test_controllers_are_no_disturbance(
    tmp_path_factory: pytest.TempPathFactory, kind: str, manager: str
) -> None:
    """Property: changes by Kubernetes, JobSet, Kueue and the harness are not reported as changes by other
    clients."""
    job = bundles.healthy()
    for when, spec in ((1, {}), (9, {"x": 1})):
        job.see(
            kind,
            when,
            thing("Thing", "it", spec, managedFields=by(manager, when)),
            "ADDED" if when == 1 else "MODIFIED",
        )
    verdict = judge(job.write(tmp_path_factory.mktemp("quiet")))
    assert verdict.verdict == "PASS"
    assert disturbances(verdict).explanation == "No changes to the cluster by other clients were recorded"
