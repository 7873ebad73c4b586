"""How `harness attach` finds a job by its name, and its messages about wrong names."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import attached_jobs as jobs
import pytest
from attached_jobs import serve, short

from harness.attach.job_lookup import Target
from harness.attach.session import Options, attach
from harness.context import RunContext
from harness.core.errors import HarnessError, UsageError
from harness.evidence import Bundle


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("job/other", "there is no Job other in namespace team"),
        ("jobset/train", "there is no JobSet train in namespace team"),
        ("deployment/train", "cannot attach to the kind deployment"),
        ("job/", "expected KIND/NAME"),
        ("twice", "2 jobs in namespace team are named twice: jobset/twice, job/twice"),
        ("none", "there is no job none in namespace team"),
        ("job/empty", "Job empty requests no pods"),
        ("job/loose", "4 pods without an index"),
        ("job/Train", "found 'Train'"),
        ("job/train?watch=true", "found 'train?watch=true'"),
        ("..", "found '..'"),
    ],
)
def test_wrong_names_are_one_sentence(word, expected, api, attached):
    """Contract: an invalid target gets a one-line error with advice, and leaves no bundle."""
    loose = jobs.job("loose", 4)
    loose["spec"]["completionMode"] = "NonIndexed"
    api.objects["job"] = [jobs.job(), jobs.job("twice"), jobs.job("empty", 0), loose]
    api.objects["jobset"] = [{"metadata": jobs.meta("twice"), "spec": {}, "status": {}}]
    with pytest.raises(UsageError) as error:
        attached(word)
    assert expected in error.value.message
    assert error.value.exit_code == 64


def test_pods_of_two_jobs_under_one_label_are_refused(api, attached):
    """Contract: two jobs are never judged as one."""
    api.objects["pod"] = [jobs.pod(0, labels={"app": "t"}), jobs.pod(0, job_name="b", labels={"app": "t"})]
    with pytest.raises(UsageError, match=r"matches pods of 2 jobs: Job/b, Job/train"):
        attached(selector="app=t")


def test_a_selector_that_the_api_server_rejects(api, attached):
    """Contract: the API server's rejection of the selector is a usage error, and not an unreachable
    cluster."""
    with pytest.raises(UsageError, match=r"rejects the selector app in train: .*unable to parse"):
        attached(selector="app in train")


def test_a_container_that_no_pod_has(api, settings):
    """Contract: no verdict is based on the log of a container that does not exist."""
    serve(api, jobs.job())
    context = RunContext(settings=settings, progress=lambda _: None)
    with pytest.raises(UsageError, match="Job train has no container trainer") as error:
        attach(Target("job/train", container="trainer"), Options(), context)
    assert error.value.hint == "choose one of the pods' containers: main"


@pytest.mark.parametrize(("namespace", "hint"), [("gone", "does not exist"), ("team", "existing Jobs: none")])
def test_a_namespace_that_does_not_exist(namespace, hint, api, attached):
    """Contract: the error names the missing namespace, and not the job."""
    with pytest.raises(UsageError, match=f"there is no Job train in namespace {namespace}") as error:
        attached("job/train", namespace=namespace)
    assert hint in error.value.hint


def test_two_at_once_have_a_bundle_each(api, attached):
    """Contract: the same job can be attached to twice at the same time."""
    serve(api, jobs.job("train", 2, jobs.condition("Complete")), jobs.pod(0), jobs.pod(1))
    with ThreadPoolExecutor(2) as pool:
        outcomes = [each.result() for each in [pool.submit(attached) for _ in range(2)]]
    assert len({each.bundle for each in outcomes}) == 2
    assert all(short(each.verdict) == ("UNKNOWN", "unification.not_recorded", []) for each in outcomes)


def test_a_namespace_without_rights_says_which_role_is_needed(api, attached):
    """Contract: exit code 2, and the command that prints the Role."""
    serve(api, jobs.job())
    api.forbidden = {"job"}
    with pytest.raises(HarnessError) as error:
        attached()
    assert (error.value.cause, error.value.exit_code) == ("cluster.forbidden", 2)
    assert "--print-rbac" in error.value.hint


def test_cluster_that_is_not_reached_is_exit_code_2(api, attached):
    """Contract: the error is one sentence, without a traceback."""
    api.shutdown()
    api.server_close()
    with pytest.raises(HarnessError) as error:
        attached()
    assert (error.value.cause, error.value.exit_code) == ("cluster.unreachable", 2)


def test_job_deleted_during_collection_keeps_evidence(api, attached):
    """Contract: the bundle contains the evidence that was read before the deletion, and the verdict is not
    PASS."""
    serve(api, jobs.job("train", 2, active=2), jobs.pod(0, None), jobs.pod(1, None))

    def deleted(path: str) -> None:
        if path.endswith("/log"):
            api.logs.clear()

    api.before = deleted
    outcome = attached()
    assert outcome.verdict.verdict == "UNKNOWN"
    assert Bundle.open(outcome.bundle).history("job")


def konduktor_jobset(suffix: str, *conditions: dict, **status) -> dict:
    spec = {"parallelism": 1, "completions": 1, "template": {"spec": jobs.template()}}
    name = f"train-{suffix}"
    return {
        "metadata": jobs.meta(
            name, labels={"trainy.ai/job-name": name}, creationTimestamp=jobs.at(len(suffix))
        ),
        "spec": {"replicatedJobs": [{"name": "workers", "replicas": 1, "template": {"spec": spec}}]},
        "status": {"conditions": list(conditions), **status},
    }


COMPLETED = {"terminalState": "Completed"}


@pytest.mark.parametrize("word", ["jobset/train", "train"])
def test_konduktor_job_by_name_in_its_job_file(word, api, attached):
    """Contract: konduktor appends four hex digits, which the user does not know before the launch."""
    api.objects["jobset"] = [konduktor_jobset("b9d3", **COMPLETED), konduktor_jobset("other-b9d3")]
    outcome = attached(word)
    assert Bundle.open(outcome.bundle).manifest.launch.object_name == "train-b9d3"


def test_two_konduktor_jobs_with_one_name_are_listed(api, attached):
    """Contract: none of the jobs is chosen, because a verdict on the wrong launch would be misleading."""
    api.objects["jobset"] = [konduktor_jobset("b9d3", **COMPLETED), konduktor_jobset("0a11")]
    with pytest.raises(UsageError, match="konduktor launched 2 jobs named train") as error:
        attached("jobset/train")
    assert "train-b9d3 (Completed)" in error.value.hint
    assert "train-0a11 (not ended)" in error.value.hint


def test_waiting_for_a_konduktor_job_ignores_an_earlier_launch(api, attached):
    """Contract: --wait waits for the next launch even if a launch with the same name has ended."""
    api.objects["jobset"] = [konduktor_jobset("b9d3", **COMPLETED)]
    lists = []

    def created(path: str) -> None:
        if path.endswith("/jobsets"):
            lists.append(path)
        if len(lists) == 2:
            api.objects["jobset"] = [konduktor_jobset("b9d3", **COMPLETED), konduktor_jobset("0a11")]

    api.before = created
    outcome = attached("jobset/train", wait=30)
    assert Bundle.open(outcome.bundle).manifest.launch.object_name == "train-0a11"


def train_job(*conditions: dict) -> dict:
    status = {"conditions": list(conditions)}
    return {"metadata": jobs.meta("train", uid="uid-trainjob"), "spec": {}, "status": status}


def test_a_trainjob_without_a_jobset_says_why(api, attached):
    """kubeflow/trainer#2351, #3671: only an Event, and no condition, contains the reason why the JobSet was
    not created."""
    api.objects["trainjob"] = [train_job()]
    with pytest.raises(UsageError, match="TrainJob train has no JobSet") as error:
        attached("trainjob/train")
    assert "no conditions and no Events" in error.value.hint
    event = jobs.event(
        "e", "TrainJob", "train", "TrainJobResourcesCreationFailed", "webhook denied the request"
    )
    api.objects["event"] = [{**event, "involvedObject": {"kind": "TrainJob", "uid": "uid-trainjob"}}]
    with pytest.raises(UsageError) as error:
        attached("trainjob/train")
    assert "webhook denied the request" in error.value.hint


def test_torchrunjob_and_daemonset_that_have_no_pods_yet(api, attached):
    """Contract: the controllers have not determined the number of pods yet. --wait waits for it, and without
    --wait, the reason is quoted.
    """
    waits = {
        **jobs.condition("QueueReady", "QueueNotFound", "TorchrunQueue cpu does not exist"),
        "status": "False",
    }
    api.objects["torchrunjob"] = [
        {"metadata": jobs.meta("train"), "spec": {}, "status": {"conditions": [waits]}}
    ]
    with pytest.raises(UsageError, match="TorchrunJob train has no JobSet") as error:
        attached("torchrunjob/train")
    assert "TorchrunQueue cpu does not exist" in error.value.hint
    spec = {"template": {"spec": jobs.template()}}
    daemons = {"metadata": jobs.meta("every"), "spec": spec, "status": {}}
    api.objects["daemonset"] = [daemons]
    reads = []

    def scheduled(path: str) -> None:
        reads.append(path)
        if len([each for each in reads if each.endswith("/daemonsets/every")]) == 2:
            daemons["status"] = {"desiredNumberScheduled": 2}

    api.before = scheduled
    outcome = attached("ds/every", wait=30)
    assert Bundle.open(outcome.bundle).manifest.expected.num_nodes == 2


def test_a_trainjob_whose_jobset_was_created_again(api, attached):
    """kubeflow/trainer#2981, #3737: a TTL deleted the JobSet of an ended TrainJob, and its controller created
    another one. A verdict on that JobSet would not apply to the TrainJob.
    """
    owned = [{"kind": "TrainJob", "name": "train", "uid": "uid-trainjob", "controller": True}]
    again = {**konduktor_jobset("x"), "metadata": jobs.meta("train", ownerReferences=owned)}
    again["metadata"]["creationTimestamp"] = jobs.at(120)
    api.objects["jobset"] = [again]
    api.objects["trainjob"] = [train_job(jobs.condition("Failed", "JobsFailed", when=60))]
    with pytest.raises(UsageError, match="was created after the TrainJob became Failed"):
        attached("trainjob/train")
    again["metadata"]["creationTimestamp"] = jobs.at(0)
    assert attached("trainjob/train").verdict.verdict == "UNKNOWN"


def test_pods_whose_job_was_deleted_without_them(api, attached):
    """kubernetes/kubernetes#92570, #71975: orphaned pods have no owner, but can be selected by their
    label."""
    api.objects["pod"] = [jobs.pod(n, n, owners=[]) for n in (0, 1)]
    for pod in api.objects["pod"]:
        api.logs[pod["metadata"]["name"], "main"] = jobs.stamped("ValueError: bad batch")
    with pytest.raises(UsageError, match="there is no Job train") as error:
        attached("job/train")
    assert "harness attach -l job-name=train" in error.value.hint
    assert short(attached(selector="job-name=train").verdict) == ("FAIL", "rank.crashed", [1])


def test_jobset_that_only_has_name_of_trainjob(api, attached):
    """Contract: a JobSet that the TrainJob does not own is not judged as its JobSet."""
    foreign = {**konduktor_jobset("x"), "metadata": jobs.meta("train")}
    api.objects["trainjob"], api.objects["jobset"] = [train_job()], [foreign]
    with pytest.raises(UsageError, match="does not belong to the TrainJob"):
        attached("trainjob/train")


@pytest.mark.parametrize("kind", ["TrainJob", "TorchrunJob"])
def test_jobset_does_not_replace_missing_job(kind, api, attached):
    """Contract: a JobSet with the job's name may belong to something else."""
    owned = [{"kind": kind, "name": "train", "uid": "uid-of-a-deleted-one", "controller": True}]
    for more in ({}, {"ownerReferences": owned}):
        api.objects["jobset"] = [{"metadata": jobs.meta("train", **more), "spec": {}, "status": {}}]
        with pytest.raises(UsageError, match=f"there is no {kind} train in namespace team") as error:
            attached(f"{kind.lower()}/train")
        assert "to judge it: `harness attach jobset/train`" in error.value.hint
