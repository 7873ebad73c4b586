"""Which pods of somebody else's job have ranks, and how the nodes are numbered."""

from __future__ import annotations

from typing import Any

import pytest

from harness.attach.job_lookup import Target, check
from harness.attach.rank_pods import AttachedJob, describe
from harness.attach.resources import JOB, JOBSET, MPI_JOB, POD, PYTORCH_JOB, STATEFULSET, target_of
from harness.core.errors import UsageError
from harness.evidence.kubernetes.workload_pods import group_index

Object = dict[str, Any]
TEMPLATE = {"spec": {"containers": [{"name": "side"}, {"name": "main", "command": ["torchrun", "t.py"]}]}}


def pod(name: str) -> Object:
    return {"metadata": {"name": name, "labels": {}, "uid": name}, "spec": TEMPLATE["spec"], "status": {}}


def jobset(*parts: tuple[str, int, int], **labels: dict[str, str]) -> Object:
    replicated = [
        {
            "name": name,
            "replicas": replicas,
            "template": {
                "metadata": {"labels": labels.get(name, {})},
                "spec": {"completions": pods, "template": TEMPLATE},
            },
        }
        for name, replicas, pods in parts
    ]
    return {"metadata": {"name": "train", "uid": "u"}, "spec": {"replicatedJobs": replicated}}


def described(resource: Any, item: Object | None, *pods: Object, **more: Any) -> AttachedJob:
    return describe(resource, "team", "train", item, pods, **more)


def of_jobset(part: str, job: int, index: int) -> Object:
    labels = {
        "jobset.sigs.k8s.io/jobset-name": "train",
        "jobset.sigs.k8s.io/replicatedjob-name": part,
        "jobset.sigs.k8s.io/job-index": str(job),
        "batch.kubernetes.io/job-completion-index": str(index),
    }
    return {"metadata": {"name": "p", "labels": labels}}


def test_a_jobset_numbers_its_pods_across_replicated_jobs():
    """Contract: first the replicated job, then its replica, then the completion index."""
    job = described(JOBSET, jobset(("lead", 1, 1), ("work", 2, 3)))
    assert job.expected.num_nodes == 7
    assert group_index(job.launch.pods, of_jobset("lead", 0, 0)) == 0
    assert group_index(job.launch.pods, of_jobset("work", 0, 2)) == 3
    assert group_index(job.launch.pods, of_jobset("work", 1, 0)) == 4
    assert group_index(job.launch.pods, of_jobset("other", 0, 0)) is None


def test_only_the_trainer_step_of_a_trainjob_has_ranks():
    """Contract: initializers of Kubeflow Trainer are pods of the job, and not ranks."""
    step = "trainer.kubeflow.org/trainjob-ancestor-step"
    item = jobset(("dataset-initializer", 1, 1), ("node", 1, 2), node={step: "trainer"})
    job = described(JOBSET, item)
    assert job.expected.num_nodes == 2
    assert group_index(job.launch.pods, of_jobset("node", 0, 1)) == 1
    assert group_index(job.launch.pods, of_jobset("dataset-initializer", 0, 0)) is None
    assert job.owns_pod(of_jobset("dataset-initializer", 0, 0))


def test_jobset_created_again_does_not_own_pods_of_former():
    """Contract: the JobSet's uid in a pod's label counts, where JobSet writes it."""
    job = described(JOBSET, jobset(("w", 1, 1)))
    former = of_jobset("w", 0, 0)
    former["metadata"]["labels"]["jobset.sigs.k8s.io/jobset-uid"] = "older"
    assert not job.owns_pod(former)


def test_the_container_is_the_one_that_runs_torchrun():
    """Contract: a sidecar has no rank; the annotation for kubectl and --container come first."""
    spec = {"completions": 1, "completionMode": "Indexed", "template": TEMPLATE}
    item = {"metadata": {"name": "train", "uid": "u"}, "spec": spec}
    assert described(JOB, item).launch.container == "main"
    assert described(JOB, item, container="side").launch.container == "side"
    chosen = pod("p")
    chosen["metadata"]["annotations"] = {"kubectl.kubernetes.io/default-container": "side"}
    assert described(JOB, item, chosen).launch.container == "side"
    python = {"name": "logs", "command": ["python3", "-m", "logship"]}
    first = {"spec": {"containers": [python, *TEMPLATE["spec"]["containers"]]}}
    assert described(JOB, {**item, "spec": {**spec, "template": first}}).launch.container == "main"


def test_a_statefulset_numbers_by_name_from_its_first_ordinal():
    """Contract: the ordinals of a StatefulSet may start at another number than 0."""
    spec = {"replicas": 2, "ordinals": {"start": 5}, "template": TEMPLATE}
    job = described(STATEFULSET, {"metadata": {"name": "train", "uid": "u"}, "spec": spec})
    assert job.launch.pods[0].names == {"train-5": 0, "train-6": 1}


def test_the_master_of_a_pytorchjob_comes_before_its_workers():
    """Contract: by the documented labels, also where the object cannot be read."""
    prefix = "training.kubeflow.org"
    pods = []
    for part, index in (("worker", 1), ("master", 0), ("worker", 0)):
        labels = {
            f"{prefix}/job-name": "train",
            f"{prefix}/replica-type": part,
            f"{prefix}/replica-index": str(index),
        }
        pods.append({"metadata": {"name": f"{part}-{index}", "labels": labels}, "spec": TEMPLATE["spec"]})
    job = described(PYTORCH_JOB, None, *pods)
    assert [group_index(job.launch.pods, each) for each in pods] == [2, 0, 1]


def test_the_ranks_of_an_mpijob_are_its_slots():
    """Contract: the launcher is no node, and slotsPerWorker is the number of ranks in each worker."""
    worker = {"replicas": 2, "template": TEMPLATE}
    spec = {"slotsPerWorker": 4, "mpiReplicaSpecs": {"Worker": worker, "Launcher": {"replicas": 1}}}
    job = described(MPI_JOB, {"metadata": {"name": "train", "uid": "u"}, "spec": spec})
    assert (job.expected.num_nodes, job.expected.ranks) == (2, 8)


def test_bare_pods_are_numbered_by_name_as_people_count():
    """Contract: without ranks in the specs, w-10 comes after w-9."""
    job = described(POD, None, *(pod(f"w-{n}") for n in (10, 9, 1)))
    assert job.launch.pods[0].names == {"w-1": 0, "w-9": 1, "w-10": 2}


@pytest.mark.parametrize(
    "word", ["job", "jobs", "Job", "jobs.batch", "sts", "trainjobs.trainer.kubeflow.org", "po"]
)
def test_kinds_are_named_as_for_kubectl(word):
    """Contract: singular, plural, short name and group, in any case."""
    assert target_of(word) is not None


@pytest.mark.parametrize(
    "target", [Target(), Target("job/a", "app=b"), Target("job/"), Target("/a"), Target("job/a/b")]
)
def test_what_names_no_job_is_refused(target):
    """Contract: one sentence before any request."""
    with pytest.raises(UsageError):
        check(target)
