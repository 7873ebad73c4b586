"""Pods from public bug reports: deadlines, evictions, lost nodes, sidecars and failure policies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attached_jobs as jobs
import pytest
from attached_jobs import Object, results, serve, short
from bundle_api import BundleApi

from harness.evidence.schema.bundle import Verdict
from harness.report.finalize import Outcome

Attach = Callable[..., Outcome]
FAILED = jobs.condition("Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit")
LEAVING = {"deletionTimestamp": jobs.at(90), "deletionGracePeriodSeconds": 30}
PREEMPTED = {
    **jobs.condition("DisruptionTarget", "PreemptionByScheduler", "preempting for another pod", 60),
}


def explanation(verdict: Verdict, name: str) -> str:
    return next(check.explanation for check in verdict.checks if check.name == name)


def with_other(pod: Object, name: str, state: Object, *, native: bool = False) -> Object:
    """Return the pod with another container, which is a native sidecar if `native` is set."""
    specs, statuses = ("containers", "containerStatuses")
    if native:
        specs, statuses = ("initContainers", "initContainerStatuses")
    more = {"restartPolicy": "Always"} if native else {}
    pod["spec"].setdefault(specs, []).append({"name": name, "image": "helper:1", **more})
    pod["status"].setdefault(statuses, []).append({"name": name, "image": "helper:1", "state": state})
    return pod


@pytest.mark.parametrize("reported", [True, False])
def test_a_pod_that_reached_its_own_deadline(reported: bool, api: BundleApi, attached: Attach) -> None:
    """argoproj/argo-workflows#1093, kubernetes/kubernetes#88613: its container may remain Running forever."""
    message = "Pod was active on the node longer than the specified deadline"
    status = {"phase": "Failed", "reason": "DeadlineExceeded", "message": message, "startTime": jobs.at(0)}
    pod = jobs.pod(1, 137 if reported else None, when=61, **status)
    pod["spec"]["activeDeadlineSeconds"] = 60
    serve(api, jobs.job("train", 2, FAILED), jobs.pod(0, None), pod)
    verdict = attached().verdict
    assert short(verdict) == ("UNKNOWN", "run.timed_out", [1])
    assert "ran longer than the activeDeadlineSeconds of its pod (60 s)" in verdict.explanation


@pytest.mark.parametrize("known", [True, False])
def test_an_eviction_for_ephemeral_storage(known: bool, api: BundleApi, attached: Attach) -> None:
    """substratusai/runbooks#92, concourse/hush-house#8: some evicted pods have no container statuses."""
    message = "Pod ephemeral local storage usage exceeds the total limit of containers 5Gi. "
    pod = with_other(jobs.pod(1, 137, reason="Evicted", message=message), "gcsfuse", jobs.state(137))
    if not known:
        del pod["status"]["containerStatuses"]
    serve(api, jobs.job("train", 2, FAILED), jobs.pod(0, None), pod)
    verdict = attached().verdict
    assert short(verdict) == ("FAIL", "rank.evicted", [1])
    assert "exceeds the total limit of containers 5Gi" in verdict.explanation


@pytest.mark.parametrize("reason", ["NodeLost", ""])
def test_a_pod_that_stays_terminating_on_a_lost_node(reason: str, api: BundleApi, attached: Attach) -> None:
    """kubernetes-sigs/jobset#576, kubeflow/trainer#720, #956: the node is the cause, and not the deletion."""
    lost = {**jobs.condition("Ready", "NodeStatusUnknown", "Kubelet stopped posting node status.", 40)}
    api.objects["node"][1]["status"]["conditions"] = [{**lost, "status": "Unknown"}]
    pod = jobs.pod(1, None, metadata=LEAVING, **({"reason": reason} if reason else {}))
    serve(api, jobs.job("train", 2, active=2), jobs.pod(0, None), pod)
    assert short(attached().verdict) == ("FAIL", "cluster.node_lost", [1])


def test_a_container_that_the_kubelet_lost(api: BundleApi, attached: Attach) -> None:
    """NVIDIA/OSMO#200: the kubelet sets the exit code 137 although no signal was sent."""
    message = "The container could not be located when the pod was terminated"
    unknown = {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown", "message": message}}
    serve(
        api, jobs.job("train", 2, FAILED), jobs.pod(0, None), jobs.pod(1, None, state=unknown, phase="Failed")
    )
    verdict = attached().verdict
    assert short(verdict) == ("UNKNOWN", "rank.killed", [1])
    assert f"The kubelet lost the container of rank 1 (pod train-1-abcd1 on node node-1): {message}" in (
        verdict.explanation
    )


@pytest.mark.parametrize(
    ("more", "cause"),
    [
        ({"conditions": [PREEMPTED], "metadata": LEAVING}, "rank.evicted"),
        ({"metadata": LEAVING}, "rank.pod_deleted"),
    ],
)
def test_exit_code_0_of_rank_in_deleted_pod(
    more: dict[str, Any], cause: str, api: BundleApi, attached: Attach
) -> None:
    """kubernetes/kubernetes#90636, #69785: the Job is Complete although the rank was terminated at step 5."""
    job = jobs.job("train", 2, jobs.condition("Complete"), succeeded=2)
    serve(api, job, jobs.pod(0), jobs.pod(1, 0, when=65, **more))
    verdict = attached().verdict
    assert (verdict.cause, verdict.ranks) == (cause, [1])
    assert verdict.verdict != "PASS"
    assert "while it ran, and exited with code 0" in verdict.explanation


def test_a_pod_of_an_ended_rank_may_be_deleted(api: BundleApi, attached: Attach) -> None:
    """Contract: a pod that is deleted after its rank has ended does not make the rank the cause."""
    job = jobs.job("train", 2, jobs.condition("Complete"), succeeded=2)
    serve(api, job, jobs.pod(0), jobs.pod(1, 0, when=60, metadata=LEAVING))
    verdict = attached().verdict
    assert results(verdict)["rank-exit"] == "PASS"


@pytest.mark.parametrize(
    "rule",
    [
        {"onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"onPodConditions": [{"type": "DisruptionTarget"}]},
        {"onExitCodes": {"containerName": "main", "operator": "In", "values": [143]}},
        {"onExitCodes": {"operator": "NotIn", "values": [1, 42]}},
    ],
)
def test_failure_that_policy_ignores_is_allowed_restart(
    rule: Object, api: BundleApi, attached: Attach
) -> None:
    """kubernetes/kubernetes#130881: with Ignore, the Job replaces the pod without counting it."""
    job = jobs.job("train", 2, jobs.condition("Complete"), succeeded=2)
    job["spec"]["podFailurePolicy"] = {"rules": [{"action": "Ignore", **rule}]}
    old = jobs.pod(1, 143, name="train-1-old", conditions=[PREEMPTED], when=30)
    new = jobs.pod(1, 0, name="train-1-new", metadata={"creationTimestamp": jobs.at(41)})
    serve(api, job, jobs.pod(0), old, new)
    verdict = attached().verdict
    assert results(verdict)["restarts"] == "PASS", explanation(verdict, "restarts")
    assert "pod train-1-old was evicted (preempting for another pod), and the podFailurePolicy" in (
        explanation(verdict, "restarts")
    )


@pytest.mark.parametrize(
    "rules",
    [
        [],
        [{"action": "Count", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}],
        [{"action": "Ignore", "onExitCodes": {"operator": "In", "values": [42]}}],
        [{"action": "Ignore", "onExitCodes": {"containerName": "side", "operator": "In", "values": [143]}}],
    ],
)
def test_a_failure_that_the_policy_counts_is_not_allowed(
    rules: list[Object], api: BundleApi, attached: Attach
) -> None:
    job = jobs.job("train", 2, jobs.condition("Complete"), succeeded=2)
    job["spec"]["podFailurePolicy"] = {"rules": rules}
    old = jobs.pod(1, 143, name="train-1-old", conditions=[PREEMPTED], when=30)
    new = jobs.pod(1, 0, name="train-1-new", metadata={"creationTimestamp": jobs.at(41)})
    serve(api, job, jobs.pod(0), old, new)
    assert results(attached().verdict)["restarts"] == "UNKNOWN"


def test_a_sidecar_that_ran_out_of_memory(api: BundleApi, attached: Attach) -> None:
    """argoproj/argo-workflows#15153: the rank succeeded, but its pod failed because of the sidecar."""
    state = jobs.state(137, 30, reason="OOMKilled")
    pod = with_other(jobs.pod(1, 0, phase="Failed"), "side", state)
    serve(api, jobs.job("train", 2, FAILED), jobs.pod(0), pod)
    verdict = attached().verdict
    assert short(verdict) == ("FAIL", "rank.helper_failed", [1])
    assert "ended with exit code 137 (out of memory), so its pod failed" in verdict.explanation


@pytest.mark.parametrize("code", [137, 143])
def test_a_native_sidecar_is_ended_after_its_rank(code: int, api: BundleApi, attached: Attach) -> None:
    """buildkite/agent-stack-k8s#862, kubernetes/kubectl#1739: its exit code does not count. Nor does a gap in
    its log.
    """
    pods = [with_other(jobs.pod(n), "proxy", jobs.state(code, 52), native=True) for n in (0, 1)]
    serve(api, jobs.job("train", 2, jobs.condition("Complete"), succeeded=2), *pods)
    verdict = attached().verdict
    assert verdict.cause == "unification.not_recorded"
    assert {results(verdict)[name] for name in ("containers", "rank-exit", "logs", "completed")} == {"PASS"}


def test_gap_in_log_of_pod_with_longer_name(api: BundleApi, attached: Attach) -> None:
    """Contract: train-1 and train-10 are different pods."""
    spec = {"replicas": 11, "podManagementPolicy": "Parallel", "template": {"spec": jobs.template()}}
    api.objects["statefulset"] = [{"metadata": jobs.meta("train"), "spec": spec, "status": {"replicas": 11}}]
    owners = jobs.owned("StatefulSet", "train")
    api.objects["pod"] = [jobs.pod(n, None, name=f"train-{n}", owners=owners) for n in range(11)]
    for n in range(10):
        api.logs[f"train-{n}", "main"] = jobs.stamped("step 1")
    assert "The log of rank 10 (pod train-10 on node node-10)" in explanation(
        attached("sts/train").verdict, "logs"
    )


DENIED = 'failed to pull and unpack image "reg/x:1": failed to authorize: unexpected status: 401 Unauthorized'


def test_a_missing_image_pull_secret_is_named(api: BundleApi, attached: Attach) -> None:
    """Contract: the message of the container names the registry, and only an Event names the Secret."""
    waits = {"waiting": {"reason": "ErrImagePull", "message": DENIED}}
    serve(
        api,
        jobs.job("train", 2, active=2),
        jobs.pod(0, None),
        jobs.pod(1, None, phase="Pending", state=waits),
    )
    message = "Unable to retrieve some image pull secrets (regcred); attempting to pull may not succeed."
    api.objects["event"] = [
        jobs.event("e1", "Pod", "train-1-abcd1", "FailedToRetrieveImagePullSecret", message)
    ]
    verdict = attached().verdict
    assert short(verdict) == ("FAIL", "image.pull_denied", [1])
    assert "Unable to retrieve some image pull secrets (regcred)" in verdict.explanation
    assert "imagePullSecrets of the pod template" in verdict.next[-1]


@pytest.mark.parametrize("policy", ["OrderedReady", "Parallel"])
def test_a_pod_that_blocks_the_update_of_its_statefulset(
    policy: str, api: BundleApi, attached: Attach
) -> None:
    """kubernetes/kubernetes#67250, pravega/zookeeper-operator#547: the corrected image is never used."""
    spec = {"replicas": 2, "podManagementPolicy": policy, "template": {"spec": jobs.template()}}
    api.objects["statefulset"] = [{"metadata": jobs.meta("train"), "spec": spec, "status": {"replicas": 2}}]
    waits = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image train:foo"}}
    owners = jobs.owned("StatefulSet", "train")
    bad = jobs.pod(1, None, name="train-1", owners=owners, phase="Pending", state=waits)
    bad["spec"]["containers"][0]["image"] = "train:foo"
    api.objects["pod"] = [jobs.pod(0, None, name="train-0", owners=owners), bad]
    verdict = attached("sts/train").verdict
    assert short(verdict) == ("FAIL", "image.pull_failed", [1])
    named = "The StatefulSet's template now has image train:1" in verdict.explanation
    assert named == ("delete pod train-1" in verdict.next[-1]) == (policy == "OrderedReady")
