"""Pods and Workloads from public bug reports, whose state hides the reason why the job failed."""

from __future__ import annotations

import json

import bundles
import pytest
from bundles import at, cond
from cluster_events import add_event
from ended_pods import failing, says

from harness.evidence.kubernetes import gpu_nodes

NO_ROOM = "Pod was rejected: Node didn't have enough resource: "


def never_started(reason: str, message: str) -> bundles.Job:
    """Return a failed job, in which node 1's pod was rejected by its kubelet and node 0's pod was then
    terminated."""
    job = bundles.healthy()
    for kind, keep in (("workload", 2), ("jobset", 2)):
        job.drop(kind, keep)
    job.truth, job.points, job.runs, job.attachments = {}, [], [], []
    job.drop_pod(0, after=10)
    job.drop_pod(1)
    job.pod(1, 4, "Pending", node=False, type_="ADDED")
    job.pod(1, 6, "Failed")
    job.objects[-1][1].object["status"] |= {"reason": reason, "message": message}
    job.logs = {job.pod_name(0): job.logs[job.pod_name(0)][:1]}
    gone = {"deletionTimestamp": at(43), "deletionGracePeriodSeconds": 30}
    job.ended(0, 14, 143, message="", metadata=gone)
    job.jobset(15, "Failed")
    return job


@pytest.mark.parametrize(
    ("reason", "message", "cause"),
    [
        # kubernetes #115325, #98928, volcano #2282
        ("OutOfcpu", f"{NO_ROOM}cpu, requested: 100, used: 3838, capacity: 3920", "scheduling.not_started"),
        # OSMO #1036: the GPUs are in use by other pods, so the node is healthy.
        (
            "OutOfnvidia.com/gpu",
            f"{NO_ROOM}nvidia.com/gpu, requested: 8, used: 8, capacity: 8",
            "scheduling.not_started",
        ),
        (
            "OutOfnvidia.com/gpu",
            f"{NO_ROOM}nvidia.com/gpu, requested: 8, used: 0, capacity: 0",
            "gpu.not_allocatable",
        ),
        # kubernetes #60726
        ("PodFitsHostPorts", "Pod Predicate PodFitsHostPorts failed", "scheduling.not_started"),
        ("NodeAffinity", "Pod was rejected: Predicate NodeAffinity failed", "scheduling.not_started"),
        ("TopologyAffinityError", "Resources cannot be allocated", "scheduling.not_started"),
        ("NodeShutdown", "Pod was rejected as the node is shutting down.", "scheduling.not_started"),
        ("Evicted", "Pod was rejected: The node had condition: [DiskPressure].", "scheduling.not_started"),
        # kubernetes #97131, NVIDIA/k8s-device-plugin #231, #2038
        (
            "UnexpectedAdmissionError",
            "Allocate failed due to device plugin GetPreferredAllocation rpc failed: nvml: GPU is lost",
            "gpu.not_allocatable",
        ),
        (
            "UnexpectedAdmissionError",
            "Allocate failed due to no healthy devices; cannot allocate unhealthy devices amd.com/gpu",
            "gpu.not_allocatable",
        ),
        ("UnexpectedAdmissionError", "unknown device: GPU-8dcd, which is unexpected", "gpu.not_allocatable"),
        # A network device is not a GPU.
        (
            "UnexpectedAdmissionError",
            "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices rdma/hca_a",
            "scheduling.not_started",
        ),
        # kubernetes #125579, #130145
        (
            "UnexpectedAdmissionError",
            "Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. Requested: 1",
            "gpu.not_allocatable",
        ),
    ],
)
def test_pod_that_its_kubelet_rejects_is_why_job_failed(judged, reason, message, cause) -> None:
    """Contract: the rank whose pod was terminated after the rejection is not accused."""
    verdict = judged(never_started(reason, message))
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", cause, [1]), verdict.explanation
    assert message.removeprefix("Pod was rejected: ") in verdict.explanation
    assert (reason in verdict.explanation) == (reason != "UnexpectedAdmissionError")


@pytest.mark.parametrize(
    ("reason", "message", "started"),
    [
        ("Evicted", "The node was low on resource: ephemeral-storage.", False),
        ("Terminated", "Pod was terminated in response to imminent node shutdown.", False),
        ("DeadlineExceeded", "Pod was active on the node longer than the specified deadline", False),
        ("OutOfcpu", f"{NO_ROOM}cpu", True),
        ("", "", False),
    ],
)
def test_a_pod_that_the_kubelet_accepted_was_not_rejected(reason: str, message: str, started: bool) -> None:
    states = [{"name": "a", "state": {"terminated": {"exitCode": 0}}}] if started else []
    status = {"phase": "Failed", "reason": reason, "message": message, "containerStatuses": states}
    assert gpu_nodes.rejection({"status": status}) is None


@pytest.mark.parametrize(
    ("status", "terminated", "cause", "says"),
    [
        # prow #117, kubernetes #102820: not every kubelet adds the condition DisruptionTarget.
        (
            {"reason": "Terminated", "message": "Pod was terminated in response to imminent node shutdown."},
            {},
            "rank.evicted",
            "imminent node shutdown",
        ),
        (
            {"reason": "Shutdown", "message": "Node is shutting, evicting pods"},
            {},
            "rank.evicted",
            "shutting",
        ),
        ({"reason": "Preempting", "message": "to admit a critical pod"}, {}, "rank.evicted", "critical pod"),
        (
            {"reason": "DeadlineExceeded", "message": "Pod was active longer than the specified deadline"},
            {},
            "run.timed_out",
            "activeDeadlineSeconds of its pod",
        ),
        # kubernetes #122160
        (
            {},
            {"reason": "ContainerStatusUnknown"},
            "rank.killed",
            "kubelet lost the container",
        ),
        ({}, {}, "rank.killed", "SIGKILL"),
    ],
)
def test_pod_that_its_node_ended_was_not_just_killed(judged, status, terminated, cause, says) -> None:
    job = bundles.healthy()
    for kind in ("workload", "jobset"):
        job.drop(kind, 2)
    for index in range(2):
        job.drop_pod(index, after=10)
        job.truth[index] = job.rows(index)[:4]
    peer = "[rank0]: RuntimeError: Connection closed by peer [10.0.0.1]:5"
    job.logs = {job.pod_name(0): [f"{at(12, True)} {peer}"], job.pod_name(1): [f"{at(12, True)} step 5"]}
    job.ended(1, 12, 137, message="")
    ended = job.objects[-1][1].object["status"]
    ended |= status
    ended["containerStatuses"][0]["state"]["terminated"] |= terminated
    job.ended(0, 13, 1, message=json.dumps({"exit": 1}))
    job.jobset(15, "Failed")
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", cause, [1]), verdict.explanation
    assert says in verdict.explanation


EVICTING = cond("DisruptionTarget", "True", "EvictionByEvictionAPI", "Eviction API: evicting", 11)
PREEMPTED = cond("DisruptionTarget", "True", "PreemptionByScheduler", "preempting to accommodate a pod", 11)


@pytest.mark.parametrize(
    ("condition", "reason", "message", "cause", "advice"),
    [
        (EVICTING, "Evicted", "Evicted pod: SpotInterruption", "rank.evicted", "not preemptible"),
        (EVICTING, "Evicted", "Evicted pod: Underutilized", "rank.evicted", "do-not-disrupt"),
        (EVICTING, "Evicted", "pod evicted from a node by sigs.k8s.io/descheduler", "rank.evicted", "policy"),
        (
            PREEMPTED,
            "Preempted",
            "Preempted by pod 1f0c on node e2e-worker2",
            "rank.evicted",
            "PriorityClass",
        ),
        (None, "ScaleDown", "deleting pod for node scale down", "rank.pod_deleted", "safe-to-evict"),
        (EVICTING, "Pulled", "Container image is already present", "rank.evicted", ""),
        (EVICTING, "Scheduled", "Successfully assigned preemptible/train-1 to n", "rank.evicted", ""),
        (EVICTING, "FailedMount", "MountVolume.SetUp failed for volume evict-data", "rank.evicted", ""),
        (None, "ScaleDownFailed", "failed to delete pod for ScaleDown", "rank.pod_deleted", ""),
        (EVICTING, "TaintManagerEviction", "Cancelling deletion of Pod a/b", "rank.evicted", ""),
    ],
)
def test_who_removed_a_pod_is_in_its_event(judged, condition, reason, message, cause, advice) -> None:
    """Contract: the condition shows only that a client called the eviction API."""
    job = failing()
    conditions = [condition] if condition else []
    gone = {"metadata": {"deletionTimestamp": at(41), "deletionGracePeriodSeconds": 30}}
    add_event(job, 1, reason, message, (11,), type_="Normal")
    job.pod(1, 11, "Running", {"running": {"startedAt": at(5)}}, conditions=conditions, **gone)
    job.ended(1, 14, 143, message="", conditions=conditions, **gone)
    job.ended(0, 15, 1, message=json.dumps({"exit": 1}))
    job.jobset(16, "Failed")
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", cause, [1]), verdict.explanation
    assert (f"Event {reason}: {message}" in verdict.explanation) == bool(advice)
    assert advice in verdict.next[-1]


def test_name_of_image_does_not_show_who_removed_pod(judged) -> None:
    job = failing()
    gone = {"metadata": {"deletionTimestamp": at(41), "deletionGracePeriodSeconds": 30}}
    image = "Started container of preemptible-train:1"
    add_event(job, 1, "ContainerNote", image, (6,), type_="Normal", container=bundles.CONTAINER)
    job.pod(1, 11, "Running", {"running": {"startedAt": at(5)}}, **gone)
    job.ended(1, 14, 143, message="", **gone)
    job.ended(0, 15, 1, message=json.dumps({"exit": 1}))
    job.jobset(16, "Failed")
    assert "preemptible" not in judged(job).explanation


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        (
            "Pod ephemeral local storage usage exceeds the total limit of containers.",
            "ephemeral-storage",
        ),
        ("The node was low on resource: memory. Threshold quantity: 100Mi", "request the memory"),
        ("Pod was terminated in response to imminent node shutdown.", "not preemptible"),
    ],
)
def test_the_advice_fits_the_reason_of_an_eviction(judged, message, advice) -> None:
    job = failing()
    job.ended(1, 12, 137, message="")
    job.objects[-1][1].object["status"] |= {"reason": "Evicted", "message": message}
    add_event(job, 1, "Evicted", message, (11,))
    job.ended(0, 13, 1, message=json.dumps({"exit": 1}))
    job.jobset(15, "Failed")
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("rank.evicted", [1])
    assert "Event Evicted" not in verdict.explanation, "the status has the same message"
    assert advice in verdict.next[-1]


PROBE = f"Container {bundles.CONTAINER} failed liveness probe, will be restarted"
HANGS = 'Liveness probe failed: Get "http://10.0.0.1:8080/healthz": context deadline exceeded'


@pytest.mark.parametrize(
    ("reason", "message", "times", "says"),
    [
        ("Killing", PROBE, (11,), "its liveness probe failed (Get"),
        ("FailedPostStartHook", "PostStartHook failed", (6,), "its postStart hook failed"),
        ("Killing", f"Stopping container {bundles.CONTAINER}", (11,), ""),
        ("Killing", "Container proxy failed liveness probe, will be restarted", (11,), ""),
        ("Killing", PROBE, (2,), ""),
    ],
    ids=["probe", "hook", "stopped", "another container", "before it started"],
)
def test_a_container_that_its_kubelet_killed(judged, reason, message, times, says) -> None:
    """Contract: a rank that a probe or hook ended is not called out of memory."""
    job = failing()
    job.logs = {job.pod_name(0): [f"{at(12, True)} step 5"], job.pod_name(1): [f"{at(12, True)} step 5"]}
    add_event(job, 1, "Unhealthy", HANGS, (8, 10))
    add_event(job, 1, reason, message, times, type_="Normal")
    job.ended(1, 12, 137, message="")
    job.ended(0, 13, 1, message=json.dumps({"exit": 1}))
    job.jobset(15, "Failed")
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "rank.killed", [1])
    assert (", because " in verdict.explanation) == bool(says)
    assert says in verdict.explanation
    assert ("memory ran out" in verdict.next[-1]) == (not says)


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("FailedPostStartHook", "PostStartHook failed"),
        ("Killing", f"Container my-{bundles.CONTAINER} failed liveness probe, will be restarted"),
        ("Unhealthy", HANGS),
    ],
)
def test_probe_of_another_container_does_not_explain_end(judged, reason, message) -> None:
    job = failing()
    job.logs = {job.pod_name(0): [f"{at(12, True)} step 5"], job.pod_name(1): [f"{at(12, True)} step 5"]}
    add_event(job, 1, reason, message, (11,), container="proxy")
    if reason == "Unhealthy":
        add_event(job, 1, "Killing", PROBE, (11,), container=bundles.CONTAINER)
    job.ended(1, 12, 137, message="")
    job.ended(0, 13, 1, message=json.dumps({"exit": 1}))
    job.jobset(15, "Failed")
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("rank.killed", [1])
    assert ("its liveness probe failed" in verdict.explanation) == (reason == "Unhealthy")
    for part in ("postStart", "healthz"):
        assert part not in verdict.explanation


@pytest.mark.parametrize(
    ("message", "reason", "cause"),
    [
        # kueue #5039
        ("no topology domains at level: b", "Pending", "admission.topology"),
        # kueue #301
        ("workload namespace doesn't match ClusterQueue selector", "Misconfigured", "admission.refused"),
    ],
)
def test_a_decision_of_kueue_is_not_called_absent(judged, message: str, reason: str, cause: str) -> None:
    """Contract: `admission.not_seen` states that the Workload has no decision of Kueue."""
    job = never_started("", "")
    job.objects = [pair for pair in job.objects if pair[0] not in ("pod", "jobset", "workload")]
    job.jobset(1, suspend=True, type_="ADDED")
    job.workload(2, [cond("QuotaReserved", "False", reason, message)])
    job.logs = {}
    verdict = judged(job)
    assert (verdict.verdict, verdict.cause) == ("FAIL", cause), verdict.explanation
    assert message in verdict.explanation


@pytest.mark.parametrize(("until", "named"), [(90, True), (40, False)])
def test_a_pod_that_stays_terminating_is_named(judged, until, named) -> None:
    """kubernetes-sigs/jobset#576: the restart is waiting for a pod that its kubelet cannot stop."""
    job = failing()
    says(job, 1, ["RuntimeError: CUDA error: device-side assert triggered"])
    job.ended(1, 11, 1, message=json.dumps({"exit": 1}))
    gone = {"metadata": {"deletionTimestamp": at(18), "deletionGracePeriodSeconds": 5}}
    job.pod(0, 13, "Running", {"running": {"startedAt": at(5)}}, **gone)
    add_event(job, 0, "FailedKillPod", "error killing pod: context deadline exceeded", (20, 36))
    job.jobset(14)
    bundles.timed_out(job, until)
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == ("rank.crashed", [1]), verdict.explanation
    consequences = " ".join(verdict.consequences)
    assert ("still exists 72 s after its grace period (FailedKillPod: error killing" in consequences) == named


def test_pod_with_finalizer_is_not_blamed_on_kubelet(judged) -> None:
    job = failing()
    says(job, 0, ["RuntimeError: CUDA error: device-side assert triggered"])
    job.pod(1, 12, "Running", {"running": {"startedAt": at(5)}})
    gone = {"deletionTimestamp": at(18), "finalizers": ["batch.kubernetes.io/job-tracking"]}
    job.ended(0, 13, 143, message="", metadata=gone)
    job.jobset(14)
    bundles.timed_out(job, 90)
    consequences = " ".join(judged(job).consequences)
    assert "removed its finalizers (batch.kubernetes.io/job-tracking)" in consequences
    assert "kubelet" not in consequences


@pytest.mark.parametrize(("ended", "cause"), [(9, "rank.crashed"), (13, "rank.pod_deleted")])
def test_rank_without_log_ended_before_pod_deletion(judged, ended, cause) -> None:
    """kubernetes/kubernetes#98012: the kubelet reports the container's end late, and the log was deleted with
    its node."""
    job = failing()
    del job.logs[job.pod_name(1)]
    gone = {"metadata": {"deletionTimestamp": at(42), "deletionGracePeriodSeconds": 30}}
    job.pod(1, 12.1, "Running", {"running": {"startedAt": at(5)}}, **gone)
    job.ended(1, ended, 1, message="", **gone)
    says(job, 0, ["[rank0]: RuntimeError: [./gloo/pair.cc:534] Connection closed by peer [10.0.0.1]:5"])
    job.ended(0, 12, 1, message=json.dumps({"exit": 1}))
    job.jobset(15, "Failed")
    verdict = judged(job)
    assert (verdict.cause, verdict.ranks) == (cause, [1])
