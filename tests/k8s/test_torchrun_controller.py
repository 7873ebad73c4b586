"""The torchrun controller on a real cluster, with JobSet and Kueue: what its guide promises.

The controller runs beside the cluster, as a process that the tests can kill.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import wrong_objects
import yaml
from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic.exceptions import DynamicApiError
from torchrun_team import LISTED, Controller, Team, preempting

from harness.core.kubernetes import Object, condition
from harness.provision.controllers import queues
from harness.torchrun_controller.api import names

pytestmark = pytest.mark.controller
README = Path("tests/unit/torchrun_controller/readme.yaml")
MET = ["rank 0 of 2: sum 3", "rank 1 of 2: sum 3"]
LONG = [{"name": "STEPS", "value": "3000"}]
"""Ten minutes: longer than any test looks at it."""
QUICK = {"podTemplate": {"spec": {"terminationGracePeriodSeconds": 3}}}
"""Of a queue. A torchrun that waits for other nodes hears no signal meanwhile, and takes all of its time."""
ENOUGH = [{"name": "STEPS", "value": "25"}]


def documents() -> list[Object]:
    return list(yaml.safe_load_all(README.read_text()))


def test_readme_is_accepted_as_written(team: Team) -> None:
    """Contract: the API server takes every example of the original's README without a change."""
    for document in documents():
        placed = {**document, "metadata": {**document["metadata"], "namespace": team.namespace}}
        applied = team.kube.apply(placed, dry_run=True)
        assert applied["metadata"]["name"] == document["metadata"]["name"]


def submit_readme(team: Team, **distributed: str) -> tuple[str, ...]:
    """Apply the README's jobs with their queues for CPUs and the image of the tests, and this rendezvous in
    place of theirs. Return their names.
    """
    by_name = {document["metadata"]["name"]: document for document in documents()}
    jobs = ("training-job", "vit-training")
    for job in jobs:
        asked = by_name[job]["spec"]
        queue = by_name[asked["jobQueue"]]["spec"]
        queue["scheduling"].pop("nodeSelector", None)
        queue["storage"].pop("checkpoints", None)
        queue["nodeResources"].update(gpus=0, cpus="250m", memory="512Mi")
        if "priorityClassName" in queue["scheduling"]:
            priority = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 5}
            team.kube.apply({**priority, "metadata": {"name": queue["scheduling"]["priorityClassName"]}})
        team.queue(asked["jobQueue"], **{**queue, "image": team.image})
        rendezvous = {**asked["distributed"], "backend": "gloo", **distributed}
        team.job(job, jobQueue=asked["jobQueue"], distributed=rendezvous)
    return jobs


def test_the_readme_jobs_run_on_cpus(team: Team, controller: Controller) -> None:
    """Contract: the README's jobs run on CPUs: their ranks meet, by names, and the job has succeeded.

    Changed are what a machine without GPUs and without their images lacks: node resources, image, command,
    number of GPUs, and the rendezvous of etcd.
    """
    for job in submit_readme(team, rdzvBackend="c10d"):
        ended = team.until(job, "Succeeded")
        assert team.printed(job) == MET
        assert ended["status"]["numNodes"] == 2
        assert f"--rdzv-endpoint={names.host(job, 0)}:29500" in ended["status"]["torchrunCommand"]


def test_static_rendezvous_beside_a_job_before_its_queue(team: Team, controller: Controller) -> None:
    """Contract: a job without its queue waits with a condition, makes nothing, and starts when it comes.

    Beside it, a static rendezvous meets too, on a port of its own, after a setup of several lines.
    """
    team.job("early", jobQueue="later")
    waiting = team.until("early", "Pending")
    assert condition(waiting, "QueueReady")["reason"] == "QueueNotFound"
    assert "early" not in {found["metadata"]["name"] for found in team.jobsets()}
    team.queue()
    setup = "cd /tmp && mkdir -p made\ncd made\n"
    command = "test $(basename $PWD) = made && python /code/add.py"
    static = {"rdzvBackend": "static", "port": 29600}
    team.job("static", distributed=static, setupCommand=setup, command=command)
    team.queue("later")
    team.until("early", "Succeeded")
    team.until("static", "Succeeded")
    assert team.printed("static") == MET


def test_suspend_and_resume(team: Team, controller: Controller) -> None:
    """Contract: suspend after creation stops the pods; resumed, the job runs again and is not Suspended."""
    team.queue(**QUICK)
    team.job("pausing", env=LONG)
    first = team.until("pausing", "Running")
    assert first["status"]["workersStatus"] == "2/2 ready"
    team.change("pausing", suspend=True)
    team.until_status(
        "pausing",
        "no pod of the suspended job",
        lambda job: condition(job, "Suspended").get("reason") == "Suspended",
    )
    assert [pod for pod in team.pods("pausing") if pod["status"]["phase"] == "Running"] == []
    team.change("pausing", suspend=False)
    again = team.until("pausing", "Running")
    assert condition(again, "Suspended")["status"] == "False"
    assert again["status"]["jobID"] != first["status"]["jobID"]
    team.change("pausing", cancel=True)
    cancelled = team.until("pausing", "Cancelled")
    assert condition(cancelled, "Failed")["reason"] == "Cancelled"


def test_failed_rank_is_no_success(team: Team, controller: Controller) -> None:
    """Contract: one rank of two fails; all restart together, once; then the job is Failed."""
    team.queue(**QUICK)
    team.job("failing", env=[{"name": "FAILING_RANK", "value": "1"}], reliability={"maxRestarts": 1})
    ended = team.until("failing", "Failed")
    assert ended["status"]["restarts"] == 1
    assert condition(ended, "Failed")["reason"] == "RankFailed"
    assert "exit code 1" in ended["status"]["message"]


def test_deadline_and_ttl(team: Team, controller: Controller) -> None:
    """Contract: a job over its deadline is TimedOut; the TTL deletes its JobSet, and it never runs again."""
    team.queue(**QUICK)
    team.job("long", env=LONG, reliability={"activeDeadlineSeconds": 5, "ttlSecondsAfterFinished": 0})
    ended = team.until("long", "TimedOut")
    team.until_status(
        "long", "its JobSet to go", lambda job: condition(job, "CleanedUp").get("status") == "True"
    )
    # The controller has looked again when it has seen this change; a job that it made again would be there.
    changed = team.change("long", reliability={"ttlSecondsAfterFinished": 1})
    seen = team.until_status(
        "long",
        "the change to be seen",
        lambda job: job["status"]["observedGeneration"] == changed["metadata"]["generation"],
    )
    assert seen["status"]["completionTime"] == ended["status"]["completionTime"]
    assert "long" not in {found["metadata"]["name"] for found in team.jobsets()}


def test_preempted_is_shown_and_comes_back(team: Team, controller: Controller) -> None:
    """Contract: what Kueue takes back for a higher priority is Preempted, and runs again afterwards."""
    name = f"{team.namespace}-small"
    priority = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": 100,
    }
    try:
        team.kube.apply(preempting(name, team.namespace, cpu="500m", memory="1Gi"))
        team.queue("small", clusterQueue=name, overrides={**LISTED, "priorityClasses": [name]}, **QUICK)
        team.job("low", jobQueue="small", env=ENOUGH)
        team.until("low", "Running")
        team.job("high", jobQueue="small", env=LONG, scheduling={"priorityClassName": name})
        waiting = team.until("high", "Pending")
        assert name in waiting["status"]["message"]  # the class is not there yet
        team.kube.apply(priority)
        team.until("low", "Preempted")
        team.until("high", "Running")
        team.change("high", cancel=True)
        team.until("low", "Succeeded")
    finally:
        team.kube.delete(queues.API, "ClusterQueue", name)
        team.kube.delete("scheduling.k8s.io/v1", "PriorityClass", name)


@pytest.mark.nightly
def test_controller_killed_in_between(team: Team, controller: Controller, tmp_path: Path) -> None:
    """Contract: a job goes on without a controller; the next one takes the Lease and finds how it ended."""
    team.queue()
    team.job("orphan", env=ENOUGH)
    before = team.until("orphan", "Running")
    other = Controller(controller.kubeconfig, team.namespace, tmp_path / "log")
    other.start()  # it waits for the Lease
    controller.kill()
    try:
        team.kube.wait(
            "the JobSet to complete",
            names.JOBSET_API,
            "JobSet",
            lambda found: None if condition(found["orphan"], "Completed") else "not Completed",
            seconds=60,
            namespace=team.namespace,
        )
        ended = team.until("orphan", "Succeeded")
        assert ended["status"]["jobID"] == before["status"]["jobID"]  # one JobSet, made once
        team.job("next")
        team.until("next", "Succeeded")
    finally:
        assert other.stop() == 0
        controller.start()
        team.until_led()


@pytest.mark.nightly
def test_token_is_read_again(team: Team, controller: Controller) -> None:
    """Contract: a token that ends is replaced in its file, as the kubelet does it: the same controller goes
    on, and writes with the new one.
    """
    holder = team.holder()
    team.renew_token(controller.kubeconfig.with_name("token"))
    team.queue("renewed")
    team.until_queue_ready("renewed")
    team.job("after", jobQueue="renewed")
    team.until("after", "Succeeded")
    assert team.holder() == holder


def test_api_server_checks_pods(team: Team, controller: Controller) -> None:
    """Contract: a queue is not Ready, and a job Failed or waiting, with the API server's sentence about its
    pod. These are rows of docs/torchrun-wrong-objects.md; test_torchrun_wrong.py has all of them.
    """
    team.queue()
    team.until_queue_ready("cpu")
    cases = {case.case: case for of in wrong_objects.cases().values() for case in of}
    expected = {case: answer.says for case, answer in wrong_objects.answers().items()}
    wrong_queues = ("text-as-grace-period", "misspelt-node-selector", "no-service-account")
    wrong_jobs = ("job-equals-in-env", "queue-not-ready")
    for case in wrong_queues:
        team.queue(case, **cases[case].spec)
    for case in wrong_jobs:
        team.job(case, **cases[case].spec)

    def done(found: dict[str, Object]) -> str | None:
        messages = {case: condition(found.get(case, {}), "Ready").get("message", "") for case in wrong_queues}
        wrong = [
            each
            for each in wrong_queues
            if wrong_objects.normal(messages[each], team.namespace) != expected[each]
        ]
        return f"{wrong}: {messages}" if wrong else None

    team.kube.wait("answers", names.API, names.QUEUE_KIND, done, seconds=30, namespace=team.namespace)
    for case in wrong_jobs:
        team.until_status(
            case,
            expected[case],
            lambda job, case=case: (
                wrong_objects.normal(str((job.get("status") or {}).get("message")), team.namespace)
                == expected[case]
            ),
            30,
        )
    assert not {found["metadata"]["name"] for found in team.jobsets()} & set(wrong_jobs)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"queue": "cpu"}, "jobQueue or in queue"),
        ({"minNodes": 1, "maxNodes": 2}, "not both"),
        ({"numNodes": 0}, "greater than or equal to 1"),
        ({"reliability": {"restartPolicy": "Always"}}, "Unsupported value"),
        ({"workspaceStorage": {"source": "git"}}, "needs a url"),
        ({"numGPUs": 9}, "do not split evenly over numNodes"),
        ({"numNodes": None, "minNodes": 1, "maxNodes": 2, "numGPUs": 9}, "do not split evenly over maxNodes"),
        (
            {
                "numNodes": None,
                "minNodes": 1,
                "maxNodes": 2,
                "distributed": {"rdzvBackend": "static"},
            },
            "a static rendezvous has a fixed size",
        ),
        ({"command": " "}, "seen blanks"),
        ({"command": "torchrun --nnodes=2 x.py"}, "the controller starts torchrun"),
        ({"env": [{"name": "PET_NNODES", "value": "3"}]}, "leave them out"),
        ({"storage": {"checkpoints": {"size": "0Gi"}}}, "size is nothing"),
        ({"workspaceStorage": {"size": 0}}, "size is nothing"),
    ],
)
def test_api_server_refuses(team: Team, fields: dict[str, Any], says: str) -> None:
    """Contract: what is wrong in the object is refused when it is applied, by its field."""
    with pytest.raises((ApiException, DynamicApiError), match=says):
        team.job("wrong", **fields)


def test_api_server_keeps_what_cannot_change(team: Team) -> None:
    """Contract: the command of a job is its own for ever; a name that gives no host name is refused."""
    team.job("fixed", suspend=True)
    with pytest.raises((ApiException, DynamicApiError), match="command cannot be changed"):
        team.change("fixed", command="python other.py")
    with pytest.raises((ApiException, DynamicApiError), match="host names"):
        team.job("has.a.dot")
    with pytest.raises((ApiException, DynamicApiError), match="trainer"):
        team.queue("wrong", podTemplate={"spec": {"containers": [{"name": "worker"}]}})
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}
    with pytest.raises((ApiException, DynamicApiError), match="Unsupported value"):
        team.queue("wrong", resources=[{"name": "s", "template": secret}])
