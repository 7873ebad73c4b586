"""Situations from public bug reports, as jobs that are read by `harness attach`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attached_jobs as jobs
import pytest
from attached_jobs import Object, serve, short
from bundle_api import BundleApi

from harness.evidence.schema.bundle import Verdict
from harness.report.finalize import Outcome

Attach = Callable[..., Outcome]
ALONE = """Rendezvous complete for workers. Result:
  group_rank=0
  group_world_size=1
  global_ranks=[0]
  global_world_sizes=[1]
"""
TOGETHER = """Rendezvous complete for workers. Result:
  group_rank={0}
  group_world_size=2
  global_ranks=[{0}]
  global_world_sizes=[2]
"""
COUNTED = {"restartCount": 1}
TORCHRUN = "torchrun --nnodes=4 --nproc-per-node=1 --node-rank=$RANK train.py"


def kubeflow(kind: str, part: str, index: int, code: int | None, role: str = "worker", **more: Any) -> Object:
    pod = jobs.kubeflow(kind, part, index, code, role, **more)
    pod["spec"]["restartPolicy"] = "OnFailure"
    return pod


def pytorch_job(condition: Object, workers: int = 1) -> Object:
    each = {"replicas": 1, "template": {"spec": jobs.template("python train.py", restartPolicy="OnFailure")}}
    spec = {"pytorchReplicaSpecs": {"Master": each, "Worker": {**each, "replicas": workers}}}
    return {"metadata": jobs.meta("train"), "spec": spec, "status": {"conditions": [condition]}}


def bare(name: str, code: int | None, command: str = TORCHRUN, **env: str) -> Object:
    """Return a pod without a controller, as SkyPilot creates it."""
    pod = jobs.pod(0, code, name=name, owners=[])
    pod["metadata"].update(labels={"cluster": "a74"}, annotations={})
    variables = [{"name": key, "value": value} for key, value in env.items()]
    pod["spec"]["containers"][0].update(command=["bash", "-c", command], env=variables)
    return pod


def jobset(*conditions: Object, **status: Any) -> Object:
    """Return a JobSet of two Jobs with one pod each, which may restart three times."""
    pods = {"spec": jobs.template("torchrun --nnodes=2 --nproc-per-node=1 train.py")}
    spec = {"parallelism": 1, "completions": 1, "backoffLimit": 0, "template": pods}
    replicated = [{"name": "w", "replicas": 2, "template": {"spec": spec}}]
    return {
        "metadata": jobs.meta("train"),
        "spec": {"replicatedJobs": replicated, "failurePolicy": {"maxRestarts": 3}},
        "status": {"restarts": 0, "conditions": list(conditions), **status},
    }


def of_jobset(index: int, code: int | None, **metadata: Any) -> Object:
    prefix = "jobset.sigs.k8s.io"
    labels = {f"{prefix}/jobset-name": "train", f"{prefix}/replicatedjob-name": "w"}
    labels |= {f"{prefix}/job-index": str(index), f"{prefix}/restart-attempt": "0"}
    name, job = f"train-w-{index}-0-x", f"train-w-{index}"
    return jobs.pod(0, code, name=name, job_name=job, labels=labels, metadata=metadata)


def explanation(verdict: Verdict, name: str) -> str:
    return next(check.explanation for check in verdict.checks if check.name == name)


def test_failed_master_of_job_that_says_it_is_restarting(api: BundleApi, attached: Attach) -> None:
    """kubeflow/trainer#2044: the condition remains Restarting, but nothing is restarted."""
    api.objects["pytorchjob"] = [pytorch_job(jobs.condition("Restarting", "PyTorchJobRestarting"))]
    api.objects["pod"] = [kubeflow("PyTorchJob", "master", 0, 1), kubeflow("PyTorchJob", "worker", 0, None)]
    api.logs["train-master-0", "main"] = jobs.stamped("ValueError: config")
    assert short(attached("pytorchjob/train").verdict) == ("FAIL", "rank.crashed", [0])


def test_ranks_restarting_in_turn_show_which_failed_first(api: BundleApi, attached: Attach) -> None:
    """kubeflow/trainer#2000: with OnFailure, each rank restarts after its own timeout, so the rendezvous
    never completes."""
    pods = []
    for part, index, code, ended in (("master", 0, 134, 690), ("worker", 0, 134, 680), ("worker", 1, 1, 80)):
        again = {"running": {"startedAt": jobs.at(ended + 10)}}
        before = {**COUNTED, "lastState": jobs.state(code, ended)}
        pods.append(kubeflow("PyTorchJob", part, index, None, state=again, container=before))
        name = f"train-{part}-{index}"
        api.previous[name, "main"] = jobs.stamped("RuntimeError: lost", start=ended)
        api.logs[name, "main"] = jobs.stamped("waiting", start=701)
    api.objects["pytorchjob"], api.objects["pod"] = [pytorch_job(jobs.condition("Running"), 2)], pods
    verdict = attached("pytorchjob/train").verdict
    assert (verdict.verdict, verdict.cause) == ("UNKNOWN", "run.not_ended")
    first = (
        "The container of rank 2 (pod train-worker-1 on node node-1) had ended earlier with exit code 1 at "
    )
    assert f"{first}2026-11-28T10:01:20" in verdict.explanation
    assert verdict.explanation.index("of rank 2 (") < verdict.explanation.index("of rank 1 (")
    assert "started again at 2026-11-28T10:01:30" in explanation(verdict, "restarts")


def test_pod_that_was_deleted_and_created_again_is_younger(api: BundleApi, attached: Attach) -> None:
    """kubeflow/pytorch-operator#364: the new pod has the old name, and the others do not let it join."""
    again = {"running": {"startedAt": jobs.at(601)}}
    young = kubeflow(
        "PyTorchJob", "worker", 1, None, metadata={"creationTimestamp": jobs.at(600)}, state=again
    )
    old = [kubeflow("PyTorchJob", part, 0, None) for part in ("master", "worker")]
    api.objects["pytorchjob"] = [pytorch_job(jobs.condition("Running"), 2)]
    api.objects["pod"] = [*old, young]
    verdict = attached("pytorchjob/train").verdict
    assert (verdict.verdict, verdict.cause) == ("UNKNOWN", "run.not_ended")
    text = "The pod of rank 2 (pod train-worker-1 on node node-1) was created 599 s after another rank had"
    assert f"{text} started, so it may have replaced an earlier pod" in verdict.explanation


def test_a_launcher_that_fails_again_and_again_is_quoted(api: BundleApi, attached: Attach) -> None:
    """kubeflow/mpi-operator#481, #482: it cannot resolve its workers, and the MPIJob stays Running."""
    spec = {"mpiReplicaSpecs": {"Worker": {"replicas": 2, "template": {"spec": jobs.template("sshd")}}}}
    status = {"conditions": [jobs.condition("Running", "MPIJobRunning")]}
    api.objects["mpijob"] = [{"metadata": jobs.meta("train"), "spec": spec, "status": status}]
    before = {"restartCount": 7, "lastState": jobs.state(255, 400)}
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}}
    launcher = kubeflow("MPIJob", "launcher", 0, None, role="launcher", state=waiting, container=before)
    api.objects["pod"] = [launcher, *(kubeflow("MPIJob", "worker", n, None) for n in (0, 1))]
    lines = jobs.stamped("ssh: Could not resolve hostname train-worker-0.train: Name or service not known")
    api.logs["train-launcher-0", "main"] = lines
    verdict = attached("mpijob/train").verdict
    assert (verdict.verdict, verdict.cause) == ("UNKNOWN", "run.not_ended")
    assert (
        "is waiting (CrashLoopBackOff) after 7 restarts, and last ended with exit code 255"
        in verdict.explanation
    )
    assert "Could not resolve hostname train-worker-0.train" in verdict.explanation


@pytest.mark.parametrize("running", [True, False])
def test_pods_whose_torchrun_met_only_itself(running: bool, api: BundleApi, attached: Attach) -> None:
    """mlc-ai/pith-train#91: the address of rank 0 became localhost, and each pod trained alone."""
    job = jobs.job("train", 2) if running else jobs.job("train", 2, jobs.condition("Complete"))
    code = None if running else 0
    alone = jobs.stamped(*ALONE.splitlines())
    serve(api, job, jobs.pod(0, code), jobs.pod(1, code), r0=alone, r1=alone)
    verdict = attached().verdict
    assert short(verdict) == ("FAIL", "variables.world_of_one", [0, 1])
    assert "pod train-1-abcd1 ran rank 0 of a world of 1" in verdict.explanation


def test_torchruns_log_proves_one_world(api: BundleApi, attached: Attach) -> None:
    logs = {f"r{n}": jobs.stamped(*TOGETHER.format(n).splitlines(), "done") for n in (0, 1)}
    serve(api, jobs.job("train", 2, jobs.condition("Complete")), jobs.pod(0), jobs.pod(1), **logs)
    verdict = attached().verdict
    assert jobs.results(verdict)["rendezvous"] == "PASS"
    assert verdict.cause == "unification.not_recorded"
    serve(api, api.objects["job"][0], jobs.pod(0), jobs.pod(1), r0=logs["r0"])
    assert jobs.results(attached().verdict)["rendezvous"] == "UNKNOWN"


def test_a_worker_that_failed_while_the_head_still_runs(api: BundleApi, attached: Attach) -> None:
    """skypilot-org/skypilot#3116: the job continues after one node has failed."""
    api.objects["pod"] = [bare("head", None, RANK="0"), bare("worker1", 1, RANK="1")]
    api.logs["worker1", "main"] = jobs.stamped("ValueError: shard")
    assert short(attached(selector="cluster=a74").verdict) == ("FAIL", "rank.crashed", [1])


@pytest.mark.parametrize("command", [TORCHRUN, "python train.py"])
def test_bare_pods_of_which_some_are_gone(command: str, api: BundleApi, attached: Attach) -> None:
    """skypilot-org/skypilot#7490: pods 1 and 3 of 4 were evicted. The others keep their ranks."""
    size = {} if command == TORCHRUN else {"WORLD_SIZE": "4"}
    api.objects["pod"] = [bare(f"p{rank}", 0, command, RANK=rank, **size) for rank in ("0", "2")]
    for name in ("p0", "p2"):
        api.logs[name, "main"] = jobs.stamped("done")
    verdict = attached(selector="cluster=a74").verdict
    assert short(verdict) == ("UNKNOWN", "run.evidence_missing", [1, 3])
    assert jobs.results(verdict)["completed"] == "UNKNOWN"


def test_an_index_that_failed_alone(api: BundleApi, attached: Attach) -> None:
    """kubernetes/kubernetes#109712: with backoffLimitPerIndex, the other indexes run to completion."""
    failed = jobs.condition("Failed", "FailedIndexes", "Job has failed indexes")
    job = jobs.job("train", 2, failed, failedIndexes="1", completedIndexes="0", failed=2, succeeded=1)
    job["spec"].update(backoffLimitPerIndex=1, backoffLimit=2147483647)
    first = jobs.pod(1, 1, name="train-1-a", when=20)
    second = jobs.pod(1, 1, name="train-1-b", when=40, metadata={"creationTimestamp": jobs.at(21)})
    serve(api, job, jobs.pod(0), first, second, r1=jobs.stamped("KeyError: 'lr'"))
    assert short(attached().verdict) == ("FAIL", "rank.crashed", [1])


def test_failed_jobset_without_pods_names_job_that_failed_first(api: BundleApi, attached: Attach) -> None:
    """kubernetes-sigs/jobset#461: the name is only in the message of the condition."""
    text = "jobset failed due to one or more job failures (first failed job: train-w-1)"
    api.objects["jobset"] = [jobset(jobs.condition("Failed", "FailedJobs", text), terminalState="Failed")]
    verdict = attached("jobset/train").verdict
    assert (verdict.verdict, verdict.cause) == ("UNKNOWN", "run.evidence_missing")
    assert any("first failed job: train-w-1" in each for each in verdict.consequences)


@pytest.mark.parametrize("leaving", [True, False])
def test_a_jobset_that_restarts_within_its_limit(leaving: bool, api: BundleApi, attached: Attach) -> None:
    """flyteorg/flyte#7517: the rank that failed is named, and not the pods that are deleted because of it."""
    gone = {"deletionTimestamp": jobs.at(90), "deletionGracePeriodSeconds": 30} if leaving else {}
    api.objects["jobset"] = [jobset(restarts=1 if leaving else 0)]
    api.objects["pod"] = [of_jobset(0, None, **gone), of_jobset(1, 1, **gone)]
    api.logs["train-w-1-0-x", "main"] = jobs.stamped("ValueError: shard")
    assert short(attached("jobset/train").verdict) == ("FAIL", "rank.crashed", [1])
