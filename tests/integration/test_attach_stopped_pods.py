"""`harness attach` to jobs whose pods were stopped from outside: by a deletion, an eviction or a lost node.

The containers of such pods often exit with 1, and their logs show no error or no longer exist.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attached_jobs as jobs
import pytest
from attached_jobs import Object, results, serve, short, stamped
from bundle_api import BundleApi

from harness.report.finalize import Outcome

Attach = Callable[..., Outcome]
BACKOFF = "BackoffLimitExceeded", "Job has reached the specified backoff limit"
FAILED = [jobs.condition("FailureTarget", *BACKOFF, 56), jobs.condition("Failed", *BACKOFF, 57)]
LOST = stamped(
    "step 3", "[rank0]: RuntimeError: [../gloo/pair.cc:534] Connection closed by peer [10.0.0.1]:5"
)
SAVED = stamped("step 3", "received SIGTERM, saving a checkpoint", "checkpoint saved")
SHUTDOWN = "Pod was terminated in response to imminent node shutdown."


def leaving(at: int, grace: int = 30) -> Object:
    """Return the metadata of a pod whose deletion was requested at `at`."""
    return {"deletionTimestamp": jobs.at(at + grace), "deletionGracePeriodSeconds": grace}


def disrupted(reason: str, message: str, at: int) -> Object:
    return {"conditions": [jobs.condition("DisruptionTarget", reason, message, at)]}


def without_log(api: BundleApi, pod: Object) -> Object:
    del api.logs[pod["metadata"]["name"], "main"]
    return pod


@pytest.mark.parametrize(
    "log",
    [
        SAVED,
        stamped(
            "[rank: 1] Received SIGTERM: 15",
            "Traceback (most recent call last):",
            '  File "/train.py", line 9, in fit',
            "lightning.pytorch.utilities.exceptions.SIGTERMException",
        ),
    ],
)
def test_exit_code_1_on_sigterm_is_no_crash(log: str, api: BundleApi, attached: Attach) -> None:
    """kubeflow/pytorch-operator#364: a worker pod is deleted, and its program handles SIGTERM."""
    deleted = jobs.pod(1, 1, when=53, metadata=leaving(50))
    serve(api, jobs.job("train", 2, *FAILED), jobs.pod(0, 1, when=53), deleted, r0=LOST, r1=log)
    verdict = attached().verdict
    assert short(verdict) == ("UNKNOWN", "rank.pod_deleted", [1])
    assert "was deleted while it ran, and ended with exit code 1" in verdict.explanation


@pytest.mark.parametrize("log", [SAVED, None])
@pytest.mark.parametrize(
    "stopped",
    [
        {"metadata": leaving(50), **disrupted("EvictionByEvictionAPI", "Eviction API: evicting", 50)},
        {"reason": "Terminated", "message": SHUTDOWN, **disrupted("TerminationByKubelet", SHUTDOWN, 50)},
        {"reason": "Shutdown", "message": "Node is shutting, evicting pods"},
    ],
)
def test_evicted_rank_that_exits_with_1_did_not_crash(
    stopped: Object, log: str | None, api: BundleApi, attached: Attach
) -> None:
    """kubernetes/kubernetes#102820, aws/karpenter-provider-aws#3594: a spot node shuts down or is drained."""
    evicted = jobs.pod(1, 1, when=53, **stopped)
    serve(api, jobs.job("train", 2, *FAILED), jobs.pod(0, 1, when=54), evicted, r0=LOST, r1=log or "")
    if log is None:
        without_log(api, evicted)
    assert short(attached().verdict) == ("FAIL", "rank.evicted", [1])


def test_exit_code_0_at_node_shutdown_is_not_completion(api: BundleApi, attached: Attach) -> None:
    """kubernetes/kubernetes#118310: since 1.27, such a pod is Succeeded and counts as completed."""
    stopped = {"reason": "Terminated", "message": SHUTDOWN, **disrupted("TerminationByKubelet", SHUTDOWN, 50)}
    done = jobs.job("train", 2, jobs.condition("Complete", when=61), succeeded=2)
    serve(api, done, jobs.pod(0, 0, when=60), jobs.pod(1, 0, when=50, **stopped))
    verdict = attached().verdict
    assert short(verdict) == ("FAIL", "rank.evicted", [1])
    assert results(verdict)["rank-exit"] == "FAIL"


def helper_ended(api: BundleApi) -> None:
    """istio/istio#11045: a helper container of the peer had ended long before."""
    peer = jobs.pod(0, 1, when=55)
    peer["status"]["containerStatuses"].append(
        {"name": "init-data", "image": "d:1", "state": jobs.state(0, 5)}
    )
    deleted = jobs.pod(1, 143, when=51, metadata=leaving(50))
    serve(api, jobs.job("train", 2, *FAILED), peer, deleted)
    without_log(api, peer)


def suspended_later(api: BundleApi) -> None:
    """kubernetes-sigs/kueue#14811: the owner suspends the broken job afterwards."""
    job = jobs.job("train", 2, jobs.condition("Suspended", "JobSuspended", "Job suspended", 70))
    job["spec"]["suspend"] = True
    peer = jobs.pod(0, 1, when=55)
    serve(api, job, peer, jobs.pod(1, 143, when=51, metadata=leaving(50)))
    without_log(api, peer)


def evicted_later(api: BundleApi) -> None:
    """kubernetes/kubernetes#122256: much later, the kubelet evicts the peer, and its container is lost."""
    lost = {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}}
    full = disrupted("TerminationByKubelet", "The node was low on resource: ephemeral-storage.", 900)
    peer = jobs.pod(0, phase="Failed", reason="Evicted", state=lost, **full)
    serve(api, jobs.job("train", 2), peer, jobs.pod(1, 143, when=51, metadata=leaving(50)))


def initializer_completed(api: BundleApi) -> str:
    """kubeflow/trainer#2300: a node of a TrainJob is deleted long after its initializer completed."""
    prefix = "jobset.sigs.k8s.io"
    own = {f"{prefix}/jobset-name": "train"}
    spec = jobs.job("train")["spec"]
    steps = {"dataset": ({**spec, "completions": 1, "parallelism": 1}, [jobs.condition("Complete", when=20)])}
    steps["node"] = (spec, [jobs.condition("FailureTarget", *BACKOFF, 56)])
    replicated = [
        {"name": name, "replicas": 1, "template": {"metadata": {"labels": step(name)}, "spec": each}}
        for name, (each, _) in steps.items()
    ]
    api.objects["jobset"] = [{"metadata": jobs.meta("train"), "spec": {"replicatedJobs": replicated}}]
    api.objects["job"] = [
        {
            "metadata": jobs.meta(
                f"train-{name}-0", labels=own, ownerReferences=jobs.owned("JobSet", "train")
            ),
            "spec": each,
            "status": {"conditions": conditions},
        }
        for name, (each, conditions) in steps.items()
    ]

    def pod(part: str, index: int, code: int, **more: Any) -> Object:
        labels = {**own, f"{prefix}/replicatedjob-name": part}
        labels |= {f"{prefix}/job-index": "0", f"{prefix}/restart-attempt": "0"}
        return jobs.pod(index, code, job_name=f"train-{part}-0", labels=labels, **more)

    deleted = pod("node", 1, 143, when=51, metadata=leaving(50), name="train-1-abcd1")
    api.objects["pod"] = [pod("dataset", 0, 0, when=20), pod("node", 0, 1, when=55), deleted]
    return "jobset/train"


def step(name: str) -> dict[str, str]:
    """Return the label of a TrainJob's step. The one with the ranks is the trainer."""
    return {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer" if name == "node" else name}


@pytest.mark.parametrize("serve_job", [helper_ended, suspended_later, evicted_later, initializer_completed])
def test_what_did_not_end_job_did_not_cause_deletion(
    serve_job: Callable[[BundleApi], str | None], api: BundleApi, attached: Attach
) -> None:
    verdict = attached(serve_job(api) or "job/train").verdict
    assert short(verdict) == ("UNKNOWN", "rank.pod_deleted", [1])
    assert (
        "rank 1 (pod train-1-abcd1 on node node-1) was deleted while it ran"
        in verdict.explanation.replace("Rank 1", "rank 1")
    )


@pytest.mark.parametrize("log", [LOST, None])
@pytest.mark.parametrize(
    ("reason", "message", "phase"),
    [
        ("DeletionByPodGC", "PodGC: node no longer exists", "Failed"),
        ("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint", "Running"),
    ],
)
def test_node_lost_long_before_pod_was_deleted(
    reason: str, message: str, phase: str, log: str | None, api: BundleApi, attached: Attach
) -> None:
    """kubernetes-sigs/karpenter#3185: a node disappears, and its pods are deleted six minutes later."""
    gone = disrupted(reason, message, 400)
    peer = jobs.pod(0, 1, when=55)
    lost = jobs.pod(1, None, phase=phase, metadata=leaving(400, 0), **gone)
    serve(api, jobs.job("train", 2), peer, lost, r0=log or "")
    if log is None:
        without_log(api, peer)
    verdict = attached().verdict
    assert short(verdict) == ("FAIL", "rank.evicted", [1])
    assert message in verdict.explanation


@pytest.mark.parametrize("code", [None, 143])
def test_the_failure_before_too_many_restarts_is_the_cause(
    code: int | None, api: BundleApi, attached: Attach
) -> None:
    """kubernetes/kubernetes#74848: at the backoffLimit, the Job deletes the restarted container's pod."""
    limit = jobs.condition("FailureTarget", *BACKOFF, 50)
    restarted = {"restartCount": 3, "lastState": jobs.state(1, 40)}
    failed = jobs.pod(1, code, when=52, metadata=leaving(50), container=restarted)
    serve(api, jobs.job("train", 2, limit), jobs.pod(0, code, when=52, metadata=leaving(50)), failed)
    for pod in api.objects["pod"]:
        pod["spec"]["restartPolicy"] = "OnFailure"
    api.previous[failed["metadata"]["name"], "main"] = stamped("step 3", "ValueError: rank 1 has a bad batch")
    api.logs[failed["metadata"]["name"], "main"] = stamped("step 1", start=45)
    verdict = attached().verdict
    assert short(verdict) == ("FAIL", "rank.crashed", [1])
    assert "rank 1 has a bad batch" in verdict.explanation


def deleted_job() -> Object:
    """Return a Job whose foreground deletion began at 50 s, so that it exists until its pods are gone."""
    job = jobs.job("train", 2)
    job["metadata"] |= {"finalizers": ["foregroundDeletion"], **leaving(50, 0)}
    return job


def test_a_job_that_is_being_deleted_is_the_cause(api: BundleApi, attached: Attach) -> None:
    """kubernetes/kubernetes#108645: the Job is deleted, but its pods and their finalizers are still there."""
    serve(api, deleted_job(), *(jobs.pod(n, 1, when=51, metadata=leaving(50)) for n in (0, 1)))
    verdict = attached().verdict
    assert short(verdict) == ("FAIL", "run.deleted", [0, 1])
    assert not any("rank." in each for each in verdict.consequences)


@pytest.mark.parametrize("code", [1, None])
@pytest.mark.parametrize(
    ("condition", "spec", "why"),
    [
        (("Suspended", "JobSuspended", "", 51), {"suspend": True}, "because Job train was suspended"),
        (
            ("SuccessCriteriaMet", "SuccessPolicy", "", 50),
            {},
            "because the success policy of Job train was met",
        ),
    ],
)
def test_a_pod_that_its_controller_stopped_names_the_reason(
    condition: tuple[str, str, str, int],
    spec: Object,
    why: str,
    code: int | None,
    api: BundleApi,
    attached: Attach,
) -> None:
    """kubernetes-sigs/kueue#14811, kubernetes/kubernetes#117015: the Job controller deletes running pods."""
    job = jobs.job("train", 2, jobs.condition(*condition))
    job["spec"] |= spec
    stopped = [jobs.pod(n, code, when=52, metadata=leaving(50)) for n in (0, 1)]
    serve(api, job, *stopped, r0=SAVED, r1=SAVED)
    verdict = attached().verdict
    assert verdict.verdict == "UNKNOWN"
    assert why in verdict.explanation
    assert "the consequence of another failure" not in verdict.explanation
    assert "its controller stopped the pod" in verdict.next[-1]


def error_after_its_deletion(api: BundleApi) -> None:
    log = stamped("step 3", "received SIGTERM", "ValueError: boom")
    deleted = jobs.pod(1, 1, when=53, metadata=leaving(50))
    serve(api, jobs.job("train", 2, *FAILED), jobs.pod(0, 1, when=53), deleted, r0=LOST, r1=log)


def drained_later(api: BundleApi) -> None:
    drained = disrupted("EvictionByEvictionAPI", "Eviction API: evicting", 70)
    crashed = jobs.pod(1, 1, when=50, metadata=leaving(70, 0), **drained)
    serve(api, jobs.job("train", 2, *FAILED), jobs.pod(0, 1, when=54), crashed, r0=LOST)
    without_log(api, crashed)


def peers_node_gone_later(api: BundleApi) -> None:
    gone = disrupted("DeletionByPodGC", "PodGC: node no longer exists", 400)
    lost = jobs.pod(0, None, phase="Failed", metadata=leaving(400, 0), **gone)
    serve(api, jobs.job("train", 2), lost, jobs.pod(1, 1, when=55), r1=stamped("ValueError: boom"))


def eviction_given_up(api: BundleApi) -> None:
    """kubernetes/kubernetes#69785: a preemption that was canceled leaves a condition with status False."""
    condition = jobs.condition("DisruptionTarget", "PreemptionByScheduler", "preempting", 30)
    failed = jobs.pod(1, 1, when=53, conditions=[{**condition, "status": "False"}])
    serve(api, jobs.job("train", 2, *FAILED), jobs.pod(0, 1, when=54), failed, r0=LOST)
    without_log(api, failed)


def job_deleted_later(api: BundleApi) -> None:
    crashed = jobs.pod(1, 1, when=40, metadata=leaving(50, 0))
    peer = jobs.pod(0, 143, when=51, metadata=leaving(50))
    serve(api, deleted_job(), peer, crashed, r1=stamped("ValueError: boom"))


@pytest.mark.parametrize(
    "serve_job",
    [error_after_its_deletion, drained_later, peers_node_gone_later, job_deleted_later, eviction_given_up],
)
def test_a_rank_that_failed_by_itself_crashed(
    serve_job: Callable[[BundleApi], None], api: BundleApi, attached: Attach
) -> None:
    serve_job(api)
    assert short(attached().verdict) == ("FAIL", "rank.crashed", [1])


def test_job_readmitted_by_kueue_was_not_restarted_by_users(api: BundleApi, attached: Attach) -> None:
    """kubernetes-sigs/kueue#692: the pods from before the eviction are still terminating while the new ones
    run."""
    old = [jobs.pod(n, None, name=f"train-{n}-old", metadata=leaving(50)) for n in (0, 1)]
    new = [jobs.pod(n, None, name=f"train-{n}-new") for n in (0, 1)]
    for pod in new:
        pod["metadata"]["creationTimestamp"] = jobs.at(66)
    serve(api, jobs.job("train", 2), *old, *new)
    evicted = jobs.condition(
        "Evicted", "QuotaReserved", "Previously: Preempted to accommodate a workload", 65
    )
    conditions = [{**evicted, "status": "False"}, jobs.condition("Admitted", "Admitted", when=65)]
    metadata = jobs.meta("job-train-1", ownerReferences=jobs.owned("Job", "train"))
    api.objects["workload"] = [{"metadata": metadata, "spec": {}, "status": {"conditions": conditions}}]
    verdict = attached().verdict
    assert short(verdict) == ("UNKNOWN", "run.not_ended", [0, 1])
    restarts = next(check for check in verdict.checks if check.name == "restarts")
    assert restarts.result == "PASS"
    assert "Previously: Preempted to accommodate a workload" in restarts.explanation


@pytest.mark.parametrize(
    ("address", "peer"),
    [
        ("10.0.0.3", "The lost peer, 10.0.0.3, is rank 2 (pod train-2-abcd2"),
        ("::ffff:10.0.0.3", "The lost peer, 10.0.0.3, is rank 2 (pod train-2-abcd2"),
        ("10.0.0.2", "The lost peer had the address 10.0.0.2, which no existing pod has in its status"),
    ],
)
def test_the_address_of_a_lost_peer_names_its_pod(
    address: str, peer: str, api: BundleApi, attached: Attach
) -> None:
    """kubernetes/kubernetes#107891: the Job controller deleted the pod of the rank that may be the cause."""
    left = [jobs.pod(index, 1, when=53, podIP=f"10.0.0.{index + 1}") for index in (0, 2)]
    lost = LOST.replace("10.0.0.1", address)
    serve(api, jobs.job("train", 3, *FAILED), *left, r0=lost, r2=lost)
    verdict = attached().verdict
    assert short(verdict) == ("UNKNOWN", "rank.crashed", [0])
    assert "no pod of rank 1 exists now" in verdict.explanation
    assert peer in verdict.explanation


def test_jobset_without_pods_names_job_that_failed_first(api: BundleApi, attached: Attach) -> None:
    """kubernetes-sigs/jobset#461 and #776: the pods were deleted, and only the JobSet's status is left."""
    message = "jobset failed due to one or more job failures (first failed job: train-w-1)"
    one = jobs.job("w", 1)["spec"]
    replicated = [{"name": "w", "replicas": 2, "template": {"spec": one}}]
    status = {"conditions": [jobs.condition("Failed", "FailedJobs", message)], "terminalState": "Failed"}
    metadata = jobs.meta("train")
    api.objects["jobset"] = [{"metadata": metadata, "spec": {"replicatedJobs": replicated}, "status": status}]
    api.objects["pod"] = []
    verdict = attached("jobset/train").verdict
    assert short(verdict) == ("UNKNOWN", "run.evidence_missing", [0, 1])
    assert "Job train-w-1 failed first" in verdict.explanation
