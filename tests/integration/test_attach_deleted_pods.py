"""`harness attach` to jobs whose pods were deleted, or are being deleted, by a controller."""

from __future__ import annotations

from collections.abc import Callable

import attached_jobs as jobs
import pytest
from attached_jobs import Object, results, serve, short, stamped
from bundle_api import BundleApi

from harness.evidence.schema.bundle import Verdict
from harness.report.finalize import Outcome

Attach = Callable[..., Outcome]
LEAVING = {"deletionTimestamp": jobs.at(90), "deletionGracePeriodSeconds": 30}
"""The metadata of a pod whose deletion was requested at 60 s."""
MESSAGE = "Job was active longer than specified deadline"
TARGET = jobs.condition("FailureTarget", "DeadlineExceeded", MESSAGE)
EXCEEDED = jobs.condition("Failed", "DeadlineExceeded", MESSAGE)
OUT_OF_TIME = "Kubernetes ended Job {}: it ran longer than its activeDeadlineSeconds (60 s)"
JOBSET_LABELS = "jobset.sigs.k8s.io"


def limited(*conditions: Object, **status: object) -> Object:
    """Return a Job of two pods that may run for 60 s."""
    job = jobs.job("train", 2, *conditions, startTime=jobs.at(0), **status)
    job["spec"]["activeDeadlineSeconds"] = 60
    return job


def jobset_of_limited_jobs(api: BundleApi, *conditions: Object, **status: object) -> None:
    """Serve a JobSet of two Jobs, of which the first one has `conditions`."""
    spec = {"completions": 1, "parallelism": 1, "completionMode": "Indexed", "activeDeadlineSeconds": 60}
    spec["template"] = {"spec": jobs.template()}
    replicated = [{"name": "w", "replicas": 2, "template": {"spec": spec}}]
    api.objects["jobset"] = [
        {"metadata": jobs.meta("train"), "spec": {"replicatedJobs": replicated}, "status": status}
    ]
    labels = {f"{JOBSET_LABELS}/jobset-name": "train"}
    owner = {"labels": labels, "ownerReferences": jobs.owned("JobSet", "train")}
    api.objects["job"] = [
        {
            "metadata": jobs.meta(f"train-w-{n}", **owner),
            "spec": spec,
            "status": {"startTime": jobs.at(0), "conditions": list(conditions) if n == 0 else []},
        }
        for n in (0, 1)
    ]


def of_jobset(index: int, code: int | None = None, **metadata: object) -> Object:
    labels = {f"{JOBSET_LABELS}/jobset-name": "train", f"{JOBSET_LABELS}/replicatedjob-name": "w"}
    labels |= {f"{JOBSET_LABELS}/job-index": str(index), f"{JOBSET_LABELS}/restart-attempt": "0"}
    name, job = f"train-w-{index}-0-x", f"train-w-{index}"
    return jobs.pod(0, code, name=name, job_name=job, labels=labels, metadata=metadata)


def of_pods(verdict: Verdict) -> str:
    return next(check.explanation for check in verdict.checks if check.name == "rank-pods")


def advice(verdict: Verdict) -> str:
    return verdict.next[-1]


def test_a_deadline_that_deleted_the_pods_is_the_cause(api: BundleApi, attached: Attach) -> None:
    """kubernetes/kubernetes#78644: at a Job's deadline, its controller deletes the pods with their logs."""
    serve(api, limited(EXCEEDED))
    verdict = attached().verdict
    assert short(verdict) == ("UNKNOWN", "run.timed_out", [0, 1])
    assert OUT_OF_TIME.format("train") in verdict.explanation
    assert results(verdict)["completed"] == "UNKNOWN"
    assert "deleted the pods of Job train at its deadline (60 s)" in of_pods(verdict)


@pytest.mark.parametrize("conditions", [[TARGET], []])
def test_deadline_that_is_deleting_pods_is_cause(
    conditions: list[Object], api: BundleApi, attached: Attach
) -> None:
    """The Job controller deletes the pods before it writes FailureTarget, and writes Failed after they have
    been deleted."""
    serve(api, limited(*conditions), *(jobs.pod(n, None, metadata=LEAVING) for n in (0, 1)))
    verdict = attached().verdict
    assert (verdict.verdict, verdict.cause) == ("UNKNOWN", "run.timed_out")
    assert "was deleted" not in verdict.explanation
    assert "the consequence of another failure" not in verdict.explanation
    disturbances = next(check for check in verdict.checks if check.name == "disturbances")
    assert "was deleted" not in disturbances.explanation


@pytest.mark.parametrize("there", [True, False])
def test_deadline_of_job_of_jobset_is_cause(there: bool, api: BundleApi, attached: Attach) -> None:
    """Only the Job reports the deadline. The JobSet reports that a Job failed."""
    failed = jobs.condition("Failed", "FailedJobs", "jobset failed due to one or more job failures")
    state = {"conditions": []} if there else {"conditions": [failed], "terminalState": "Failed"}
    jobset_of_limited_jobs(api, TARGET if there else EXCEEDED, **state)
    api.objects["pod"] = [of_jobset(0, **LEAVING), of_jobset(1)] if there else []
    verdict = attached("jobset/train").verdict
    assert (verdict.verdict, verdict.cause) == ("UNKNOWN", "run.timed_out")
    assert OUT_OF_TIME.format("train-w-0") in verdict.explanation


def test_pod_that_was_deleted_before_deadline_is_named(api: BundleApi, attached: Attach) -> None:
    early = {"deletionTimestamp": jobs.at(60), "deletionGracePeriodSeconds": 30}
    serve(api, limited(), jobs.pod(0, None), jobs.pod(1, None, metadata=early))
    assert short(attached().verdict) == ("UNKNOWN", "rank.pod_deleted", [1])


def test_job_that_failed_before_another_one_reached_its_deadline(api: BundleApi, attached: Attach) -> None:
    failed = jobs.condition("Failed", "BackoffLimitExceeded", "limit", 30)
    jobset_of_limited_jobs(api, EXCEEDED, terminalState="Failed", conditions=[])
    api.objects["job"][1]["status"]["conditions"] = [failed]
    verdict = attached("jobset/train").verdict
    assert verdict.cause == "run.evidence_missing"
    assert any("run.not_completed" in each for each in verdict.consequences)


def completed(api: BundleApi) -> str:
    serve(api, jobs.job("train", 2, jobs.condition("Complete"), succeeded=2))
    return "job/train"


def failed(api: BundleApi) -> str:
    serve(api, jobs.job("train", 2, jobs.condition("Failed", "BackoffLimitExceeded", "limit")), jobs.pod(1))
    return "job/train"


def completed_jobset(api: BundleApi) -> str:
    jobset_of_limited_jobs(api, terminalState="Completed", conditions=[jobs.condition("Completed")])
    spec = api.objects["jobset"][0]["spec"]["replicatedJobs"][0]["template"]["spec"]
    spec["ttlSecondsAfterFinished"] = 600
    api.objects["job"] = []
    return "jobset/train"


def restarting_jobset(api: BundleApi) -> str:
    jobset_of_limited_jobs(api, restarts=2, conditions=[])
    api.objects["pod"] = [of_jobset(0)]
    return "jobset/train"


def scaled(api: BundleApi) -> str:
    spec = {"replicas": 2, "podManagementPolicy": "Parallel", "template": {"spec": jobs.template()}}
    api.objects["statefulset"] = [{"metadata": jobs.meta("train"), "spec": spec, "status": {"replicas": 1}}]
    api.objects["pod"] = [jobs.pod(0, None, name="train-0", owners=jobs.owned("StatefulSet", "train"))]
    return "sts/train"


def finished_pytorch_job(api: BundleApi) -> str:
    each = {"replicas": 1, "template": {"spec": jobs.template("python train.py")}}
    spec = {"pytorchReplicaSpecs": {"Master": each, "Worker": each}, "runPolicy": {"cleanPodPolicy": "All"}}
    conditions = [jobs.condition("Succeeded", "PyTorchJobSucceeded")]
    job = {"metadata": jobs.meta("train"), "spec": spec, "status": {"conditions": conditions}}
    api.objects["pytorchjob"] = [job]
    return "pytorchjob/train"


LATER = "attach to the next run while its pods exist, with --wait or --follow"
AGAIN = "attach again, or use --follow"


@pytest.mark.parametrize(
    ("serve_job", "reason", "action"),
    [
        (completed, "The Job controller keeps the pods of a completed Job, so a person", LATER),
        (failed, "The Job controller deletes the pods that still run when the Job fails", LATER),
        (
            completed_jobset,
            "The Jobs of JobSet train and their pods are deleted 600 s after the Jobs have ended",
            LATER,
        ),
        (restarting_jobset, "The JobSet controller has restarted the job (2 so far)", AGAIN),
        (scaled, "The StatefulSet controller has not created the pod yet, or is about to", AGAIN),
        (finished_pytorch_job, "deletes pods when the PyTorchJob has ended (cleanPodPolicy: All)", LATER),
    ],
)
def test_pods_that_are_gone_name_who_deletes_them(
    serve_job: Callable[[BundleApi], str], reason: str, action: str, api: BundleApi, attached: Attach
) -> None:
    """kubeflow/pytorch-operator#120, #260: a controller deleted the pods, and would do so again."""
    verdict = attached(serve_job(api)).verdict
    assert (verdict.verdict, verdict.cause) == ("UNKNOWN", "run.evidence_missing")
    assert reason in of_pods(verdict)
    assert action in advice(verdict)


def test_an_event_that_names_a_deleted_pod_is_quoted(api: BundleApi, attached: Attach) -> None:
    """kubeflow/trainer#903: the operator reports which running pods it deleted after one had failed."""
    job = jobs.job("train", 2, jobs.condition("Failed", "BackoffLimitExceeded", "limit"))
    serve(api, job, jobs.pod(1))
    deleted = jobs.event("e1", "Job", "train", "SuccessfulDelete", "Deleted pod: train-0-abcd0")
    other = jobs.event("e2", "Job", "train", "SuccessfulDelete", "Deleted pod: train-1-abcd1")
    api.objects["event"] = [deleted, other]
    text = of_pods(attached().verdict)
    assert "Event SuccessfulDelete: Deleted pod: train-0-abcd0" in text
    assert "train-1" not in text


STOPPED = stamped("step 3", "SignalException: Process 1 got signal: 15")
BACKOFF = "BackoffLimitExceeded", "Job has reached the specified backoff limit"


def leaving(at: int) -> Object:
    """Return the metadata of a pod whose deletion was requested at `at`, with a grace period of two
    seconds."""
    return {"deletionTimestamp": jobs.at(at + 2), "deletionGracePeriodSeconds": 2}


def deleted_pods(api: BundleApi, asked: int, ended: int, *, log: bool) -> None:
    """Serve a failed Job. The deletion of rank 1's pod was requested at `asked`, and that of its peer later,
    at 51 s."""
    ends = [jobs.condition(kind, *BACKOFF, at_) for kind, at_ in (("FailureTarget", 51), ("Failed", 52))]
    pods = (
        jobs.pod(0, 1, when=51, metadata=leaving(51)),
        jobs.pod(1, 1, when=ended, metadata=leaving(asked)),
    )
    serve(api, jobs.job("train", 2, *ends, failed=2), *pods, r0=STOPPED, r1=STOPPED)
    if not log:
        del api.logs[pods[1]["metadata"]["name"], "main"]


@pytest.mark.parametrize("log", [True, False])
def test_the_pod_that_was_deleted_first_is_the_cause(log: bool, api: BundleApi, attached: Attach) -> None:
    """torchrun exits with 1 after SIGTERM, which looks like a crash if the log is missing."""
    deleted_pods(api, 50, 51, log=log)
    verdict = attached().verdict
    assert short(verdict) == ("UNKNOWN", "rank.pod_deleted", [1])
    assert "was deleted while it ran" in verdict.explanation


@pytest.mark.parametrize("log", [True, False])
def test_pods_deleted_within_one_second_did_not_crash(log: bool, api: BundleApi, attached: Attach) -> None:
    """Timestamps are in whole seconds, so it is not known which of the two pods was deleted first."""
    deleted_pods(api, 51, 51, log=log)
    verdict = attached().verdict
    assert short(verdict) == ("UNKNOWN", "rank.killed", [0, 1])
    assert "In the same second: rank 1" in verdict.explanation
    assert "rank.crashed" not in f"{verdict}"


def test_rank_that_failed_before_its_job_was_deleted_crashed(api: BundleApi, attached: Attach) -> None:
    deleted_pods(api, 60, 50, log=False)
    assert short(attached().verdict) == ("FAIL", "rank.crashed", [1])


@pytest.mark.parametrize("retried_at", [10, 11])
def test_a_refusal_before_the_pods_were_created_is_over(
    retried_at: int, api: BundleApi, attached: Attach
) -> None:
    """Kueue's webhook denies a pod until it has read the Job. A retry succeeds, possibly within a second."""
    serve(api, limited(EXCEEDED))
    denied = 'Error creating: admission webhook "mpod.kb.io" denied the request: Job.batch "train" not found'
    times = {"firstTimestamp": jobs.at(10), "lastTimestamp": jobs.at(10)}
    api.objects["event"] = [jobs.event("denied", "Job", "train", "FailedCreate", denied, **times)]
    for pod in ("train-0-abcd0", "train-1-abcd1"):
        when = {"type": "Normal", "firstTimestamp": jobs.at(retried_at), "lastTimestamp": jobs.at(retried_at)}
        event = jobs.event(pod, "Job", "train", "SuccessfulCreate", f"Created pod: {pod}", **when)
        api.objects["event"].append(event)
    verdict = attached().verdict
    assert (verdict.verdict, verdict.cause) == ("UNKNOWN", "run.timed_out")
    assert "never had a pod" not in f"{verdict}"


def test_a_refusal_after_a_pod_was_created_counts(api: BundleApi, attached: Attach) -> None:
    """A quota allows only one of two pods. The pod that was created no longer exists."""
    serve(api, jobs.job("train", 2, jobs.condition("Failed", *BACKOFF)))
    denied = 'Error creating: pods "train-1-x" is forbidden: exceeded quota: team, requested: pods=1'
    fields = {"type": "Normal", "firstTimestamp": jobs.at(10), "lastTimestamp": jobs.at(10)}
    refused = {"firstTimestamp": jobs.at(10), "lastTimestamp": jobs.at(10)}
    api.objects["event"] = [
        jobs.event("made", "Job", "train", "SuccessfulCreate", "Created pod: train-0-abcd0", **fields),
        jobs.event("denied", "Job", "train", "FailedCreate", denied, **refused),
    ]
    assert "exceeded quota: team" in f"{attached().verdict}"
