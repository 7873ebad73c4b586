"""`harness attach` to PyTorchJobs and MPIJobs, with the objects and pods that Kubeflow's operators create.

Most situations are from public bug reports. tests/k8s/test_attach.py uses the training operator itself.
"""

from __future__ import annotations

import json
from typing import Any

import attached_jobs as jobs
import bundle_api
import pytest
from attached_jobs import results, short

from harness.attach.resources import MPI_JOB_V1
from harness.evidence import Bundle
from harness.judge import judge


def pytorch_job(*conditions: dict) -> dict:
    replicas = {"replicas": 1, "template": {"spec": jobs.template("python train.py")}}
    spec = {"pytorchReplicaSpecs": {"Master": replicas, "Worker": replicas}}
    return {"metadata": jobs.meta("train"), "spec": spec, "status": {"conditions": list(conditions)}}


def mpi_job(condition: dict) -> dict:
    """Return an MPIJob with two workers."""
    workers = {"replicas": 2, "template": {"spec": jobs.template("sshd")}}
    spec = {"slotsPerWorker": 1, "mpiReplicaSpecs": {"Worker": workers}}
    return {"metadata": jobs.meta("train"), "spec": spec, "status": {"conditions": [condition]}}


def test_a_failed_pytorchjob_whose_master_still_runs(api, attached):
    """kubeflow/trainer#1579: the worker is the cause, even if the master never ends."""
    api.objects["pytorchjob"] = [pytorch_job(jobs.condition("Failed", "PyTorchJobFailed", "1 Worker failed"))]
    api.objects["pod"] = [
        jobs.kubeflow("PyTorchJob", "master", 0, None),
        jobs.kubeflow("PyTorchJob", "worker", 0, 1),
    ]
    api.logs["train-worker-0", "main"] = jobs.stamped("ValueError: shard")
    verdict = attached("pytorchjob/train").verdict
    assert short(verdict) == ("FAIL", "rank.crashed", [1])


def without_rank(**status: Any) -> dict:
    """Return the launcher of an MPIJob, which has no rank, in this state."""
    launcher = jobs.kubeflow("MPIJob", "launcher", 0, None, role="launcher")
    launcher["status"] = {"phase": "Pending", **status}
    return launcher


NO_IMAGE = "Container image mpi/kubectl is not present with pull policy of Never"
STUCK = {"image": "mpi/kubectl", "state": {"waiting": {"reason": "ErrImageNeverPull", "message": NO_IMAGE}}}
UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/4 nodes are available: 4 Insufficient memory.",
}


@pytest.mark.parametrize(
    ("launcher", "cause", "text"),
    [
        (
            without_rank(initContainerStatuses=[{"name": "kubectl", **STUCK}]),
            "image.not_found",
            "train-launcher-0, which has no rank, could not start its init container kubectl",
        ),
        (
            without_rank(containerStatuses=[{"name": "main", **STUCK}]),
            "image.not_found",
            "train-launcher-0, which has no rank, could not start its container main",
        ),
        (
            without_rank(conditions=[UNSCHEDULABLE]),
            "scheduling.unschedulable",
            "train-launcher-0, which has no rank, could not be scheduled: Unschedulable: 0/4 nodes",
        ),
    ],
)
def test_pod_without_rank_that_cannot_start_is_cause(api, attached, launcher, cause, text):
    """Contract: the workers of an MPIJob wait for its launcher, so it is judged too."""
    api.objects["mpijob"] = [mpi_job(jobs.condition("Created", "MPIJobCreated"))]
    if "conditions" in launcher["status"]:
        launcher["spec"].pop("nodeName", None)
    api.objects["pod"] = [launcher, *(jobs.kubeflow("MPIJob", "worker", n, None) for n in (0, 1))]
    verdict = attached("mpijob/train").verdict
    assert verdict.verdict != "PASS"
    assert (verdict.cause, verdict.ranks) == (cause, [])
    assert text in verdict.explanation


def test_pod_without_rank_that_is_gated_is_not_unschedulable(api, attached):
    """Contract: Kueue or another controller gates the pod until its job is admitted."""
    gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
    launcher = without_rank(conditions=[gated])
    launcher["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    launcher["spec"].pop("nodeName", None)
    api.objects["mpijob"] = [mpi_job(jobs.condition("Created", "MPIJobCreated"))]
    api.objects["pod"] = [launcher, *(jobs.kubeflow("MPIJob", "worker", n, None) for n in (0, 1))]
    assert "scheduling.unschedulable" not in {each.cause for each in attached("mpijob/train").verdict.checks}


def test_crash_looping_pod_without_rank_has_its_image(api, attached):
    """Contract: an image pull that failed before the container first started is not the reason why it is
    waiting now."""
    ended = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": jobs.state(1)}
    launcher = without_rank(containerStatuses=[{"name": "main", "image": "mpi/kubectl", **ended}])
    api.objects["mpijob"] = [mpi_job(jobs.condition("Created", "MPIJobCreated"))]
    api.objects["pod"] = [launcher, *(jobs.kubeflow("MPIJob", "worker", n, None) for n in (0, 1))]
    path = attached("mpijob/train").bundle
    lines = (path / "objects/pod.jsonl").read_text().splitlines()
    (now,) = (json.loads(line) for line in lines if "CrashLoopBackOff" in line)
    before = json.loads(json.dumps(now))
    before["object"]["status"]["containerStatuses"] = [{"name": "main", **STUCK}]
    before["object"]["metadata"]["resourceVersion"] = "6"
    (path / "objects/pod.jsonl").write_text("".join(f"{line}\n" for line in [json.dumps(before), *lines]))
    assert "image.not_found" not in {each.cause for each in judge(Bundle.open(path)).checks}


TWICE = {"count": 2}
LATER = {"firstTimestamp": jobs.at(1800)}
"""The time of an Event that is not about the first pod of a rank. Events about the first pods have
expired."""
REPEATED = {"count": 3, "lastTimestamp": jobs.at(4000)}
"""An Event that has not expired because it was repeated. Others from the start of the job have expired."""


@pytest.mark.parametrize(
    ("created", "result"),
    [
        ({"train-master-0": {}, "train-worker-0": {}}, "PASS"),
        ({"train-master-0": {}, "train-worker-0": TWICE}, "UNKNOWN"),
        ({"train-master-0": {}, "train-worker-0": LATER}, "UNKNOWN"),
        ({"train-master-0": LATER, "train-worker-0": LATER}, "UNKNOWN"),
        ({"train-master-0": {}, "train-worker-01": {}}, "UNKNOWN"),
        ({}, "UNKNOWN"),
    ],
)
def test_events_show_whether_a_pytorchjob_replaced_a_pod(api, attached, created, result):
    """Contract: the PyTorchJob replaced no pod if each pod was created once and there are Events from the
    job's start."""
    api.objects["pytorchjob"] = [pytorch_job(jobs.condition("Succeeded", "PyTorchJobSucceeded"))]
    api.objects["pod"] = [jobs.kubeflow("PyTorchJob", part, 0, 0) for part in ("master", "worker")]
    api.objects["event"] = [
        jobs.event(pod, "PyTorchJob", "train", "SuccessfulCreatePod", f"Created pod: {pod}", **more)
        for pod, more in created.items()
    ]
    assert results(attached("pytorchjob/train").verdict)["restarts"] == result


def test_repeated_event_does_not_prove_complete_events(api, attached):
    """Contract: the API server deletes an Event an hour after its last update, not after its first one."""
    api.objects["pytorchjob"] = [pytorch_job(jobs.condition("Succeeded", "PyTorchJobSucceeded"))]
    pods = [jobs.kubeflow("PyTorchJob", part, 0, 0) for part in ("master", "worker")]
    for pod in pods:  # These replaced earlier pods.
        pod["metadata"]["creationTimestamp"] = jobs.at(1800)
    api.objects["pod"] = pods
    names = [pod["metadata"]["name"] for pod in pods]
    api.objects["event"] = [
        jobs.event(name, "PyTorchJob", "train", "SuccessfulCreatePod", f"Created pod: {name}", **LATER)
        for name in names
    ]
    api.objects["event"] += [jobs.event("x", "PyTorchJob", "train", "Unhealthy", "no node", **REPEATED)]
    assert results(attached("pytorchjob/train").verdict)["restarts"] == "UNKNOWN"


def test_a_pytorchjob_whose_pods_the_backoff_limit_deleted(api, attached):
    """kubeflow/trainer#3419: without pods, no rank is accused, and the condition is quoted."""
    api.objects["pytorchjob"] = [
        pytorch_job(jobs.condition("Failed", "PyTorchJobFailed", "reached the limit"))
    ]
    verdict = attached("pytorchjob/train").verdict
    assert verdict.verdict == "UNKNOWN"
    assert any("reached the limit" in check.explanation for check in verdict.checks)


def test_an_evicted_worker_of_an_mpijob(api, attached):
    """kubeflow/mpi-operator#647: the evicted worker is the cause, and not the launcher that lost its
    connection to it."""
    api.objects["mpijob"] = [mpi_job(jobs.condition("Failed", "MPIJobEvicted", "1/2 workers are evicted"))]
    evicted = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}
    api.objects["pod"] = [
        jobs.kubeflow("MPIJob", "launcher", 0, 1, role="launcher"),
        jobs.kubeflow("MPIJob", "worker", 0, None),
        jobs.kubeflow("MPIJob", "worker", 1, 137, **evicted),
    ]
    verdict = attached("mpijob/train").verdict
    assert short(verdict) == ("FAIL", "rank.evicted", [1])


def test_an_mpijob_whose_launcher_failed_quotes_it(api, attached):
    """kubeflow/mpi-operator#90: mpirun names the rank, and no worker is accused."""
    api.objects["mpijob"] = [mpi_job(jobs.condition("Failed", "MPIJobFailed", "launcher failed"))]
    api.objects["pod"] = [jobs.kubeflow("MPIJob", "launcher", 0, 137, role="launcher")]
    api.objects["pod"] += [jobs.kubeflow("MPIJob", "worker", n, None) for n in (0, 1)]
    message = "mpirun noticed that process rank 1 on node train-worker-1 exited on signal 9 (Killed)."
    api.logs["train-launcher-0", "main"] = jobs.stamped(message)
    verdict = attached("mpijob/train").verdict
    assert verdict.verdict == "UNKNOWN"
    assert message.rstrip(".") in " ".join(check.explanation for check in verdict.checks)


@pytest.mark.parametrize("readable", [True, False])
def test_an_mpijob_of_the_training_operator(api, attached, readable, monkeypatch):
    """Its version is v1, and its pods have the role `master` or none, unlike those of the MPI operator."""
    failed = jobs.condition("Failed", "MPIJobFailed", "launcher failed")
    monkeypatch.setitem(bundle_api.RESOURCES, "mpijob", MPI_JOB_V1)
    api.objects["mpijob"] = [mpi_job(failed)] if readable else []
    api.objects["pod"] = [jobs.kubeflow("MPIJob", "launcher", 0, 137, role="master")]
    api.objects["pod"] += [jobs.kubeflow("MPIJob", "worker", n, None, role="") for n in (0, 1)]
    message = "mpirun noticed that process rank 1 on node train-worker-1 exited on signal 9 (Killed)."
    api.logs["train-launcher-0", "main"] = jobs.stamped(message)
    outcome = attached("mpijob/train")
    expected = Bundle.open(outcome.bundle).manifest.expected
    assert (outcome.verdict.verdict, expected.num_nodes) == ("UNKNOWN", 2)
    explained = " ".join(check.explanation for check in outcome.verdict.checks)
    assert message.rstrip(".") in explained or not readable, explained


def initializing(part: str, index: int) -> dict:
    """Return a pod of a PyTorchJob whose init container waits for the master."""
    pod = jobs.kubeflow("PyTorchJob", part, index, None)
    init = {"name": "init-pytorch", "image": "alpine:3.10"}
    pod["spec"]["initContainers"] = [init]
    pod["status"] = {
        "phase": "Pending",
        "initContainerStatuses": [{**init, "state": jobs.state(None)}],
        "containerStatuses": [{"name": "main", "state": {"waiting": {"reason": "PodInitializing"}}}],
    }
    return pod


def test_a_worker_that_never_started_although_the_pytorchjob_succeeded(api, attached):
    """kubeflow/pytorch-operator#348: the job succeeds when its master does."""
    api.objects["pytorchjob"] = [pytorch_job(jobs.condition("Succeeded", "PyTorchJobSucceeded"))]
    api.objects["pod"] = [jobs.kubeflow("PyTorchJob", "master", 0, 0), initializing("worker", 0)]
    verdict = attached("pytorchjob/train").verdict
    assert short(verdict) == ("FAIL", "rank.init_container_unended", [1])
    assert results(verdict)["completed"] == "UNKNOWN"


@pytest.mark.parametrize(
    ("error", "cause", "ranks"),
    [
        ("FileNotFoundError: data/FashionMNIST", "rank.crashed", [0]),
        ("torch.distributed.DistStoreError: Timed out", "rank.init_container_unended", [1]),
    ],
)
def test_workers_that_wait_for_a_master_that_crashes(api, attached, error, cause, ranks):
    """kubeflow/katib#1112: the crash is the cause, unless the master timed out waiting for the workers."""
    api.objects["pytorchjob"] = [pytorch_job(jobs.condition("Running", "PyTorchJobRunning"))]
    api.objects["pod"] = [jobs.kubeflow("PyTorchJob", "master", 0, 1), initializing("worker", 0)]
    api.logs["train-master-0", "main"] = jobs.stamped("Traceback (most recent call last):", error)
    verdict = attached("pytorchjob/train").verdict
    assert (verdict.cause, verdict.ranks) == (cause, ranks)


def test_ended_launcher_of_mpijob_that_runs_for_ever(api, attached):
    """kubeflow/mpi-operator#127: the workers run, and no condition shows that the launcher failed."""
    api.objects["mpijob"] = [mpi_job(jobs.condition("Running", "MPIJobRunning"))]
    launcher = jobs.kubeflow("MPIJob", "launcher", 0, 1, role="launcher")
    api.objects["pod"] = [launcher, *(jobs.kubeflow("MPIJob", "worker", n, None) for n in (0, 1))]
    explanation = attached("mpijob/train").verdict.explanation
    assert "Its launcher train-launcher-0 ended with exit code 1" in explanation


def test_a_pytorchjob_without_an_operator(api, attached):
    """kubeflow/trainer#1856: nothing writes its status or creates its pods."""
    job = pytorch_job(jobs.condition("Created"))
    api.objects["pytorchjob"] = [{**job, "status": {}}]
    explanation = attached("pytorchjob/train").verdict.explanation
    assert "The PyTorchJob has no conditions either: is its operator running?" in explanation
