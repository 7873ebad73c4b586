"""`harness attach` to jobs that other tools launched, with an account that has only the printed Role."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from foreign_jobs import API_KEY, LOGGING, LONG, SECRET, ForeignJobs, passed, pods, short
from harness_command import Harness, environment, family
from torchrun_team import LISTED, PROGRAM, Team, led

from bench import kubeflow
from harness.attach.tracker import TrackerOptions
from harness.attach.tracker_key import SecretKey
from harness.context import RunContext
from harness.core import processes
from harness.core.kubernetes import Object
from harness.evidence import Bundle
from harness.fixtures.plugin import progress
from harness.judge.engine import judge
from harness.provision.cluster import Ready
from harness.provision.controllers import tracker
from harness.settings import Settings
from harness.workers.recorder.digest_lines import SUMMARY_MARK

pytestmark = [pytest.mark.attach, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def torchrun(foreign: ForeignJobs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    """The torchrun controller, for the namespace of the foreign jobs."""
    team = Team(foreign.kube, foreign.namespace, foreign.image)
    team.prepare()
    with led(team, tmp_path_factory.mktemp("controller")) as found:
        whole = {"cpus": "1", "memory": "1Gi"}
        found.queue(nodeResources=whole, overrides={**LISTED, "secrets": [SECRET]})
        foreign.apply("v1", "ConfigMap", "code", data={"add.py": PROGRAM, "log.py": LOGGING})
        yield found


@pytest.fixture(scope="module")
def trainer(
    foreign: ForeignJobs,
    cluster: Ready,
    harness_settings: Settings,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[None]:
    """Kubeflow Trainer v2, built from its Go module, with a runtime of the foreign jobs' image."""
    context = RunContext(settings=harness_settings, progress=progress)
    kubeflow.install(
        kubeflow.TRAINER, cluster.kind, cluster.kube, context, tmp_path_factory.mktemp("trainer")
    )
    spec = pods(foreign.image, "", "")
    (node,) = spec["containers"]
    node["name"] = "node"
    node["command"] = ["bash", "-c", 'printf %s "$PROGRAM" >/tmp/train.py; exec torchrun /tmp/train.py']
    runtime = kubeflow.runtime(foreign.namespace, {**spec, "restartPolicy": "Never"})
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    replicated["template"]["spec"]["backoffLimit"] = 0  # By default, a Job replaces six failed pods.
    kubeflow.until_applied(cluster.kube, runtime)
    yield
    cluster.kube.delete(kubeflow.API, runtime["kind"], foreign.namespace)
    kubeflow.remove(kubeflow.TRAINER, cluster.kube)


@pytest.fixture(scope="module")
def training_operator(
    foreign: ForeignJobs,
    cluster: Ready,
    harness_settings: Settings,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[None]:
    """Kubeflow's training operator, built from its Go module."""
    context = RunContext(settings=harness_settings, progress=progress)
    images = [f"--{name}={foreign.image}" for name in ("pytorch-init-container-image", KUBECTL_IMAGE)]
    work = tmp_path_factory.mktemp("operator")
    operator = kubeflow.TRAINING_OPERATOR
    kubeflow.install(operator, cluster.kind, cluster.kube, context, work, arguments=images)
    yield
    kubeflow.remove(kubeflow.TRAINING_OPERATOR, cluster.kube)


def variables(env: dict[str, str]) -> list[Object]:
    """Return the variables of a container, with the key by reference if it logs with Pluto."""
    named: list[Object] = [{"name": key, "value": value} for key, value in env.items()]
    return [*named, API_KEY] if "PLUTO_RUN_ID" in env else named


def pytorch_job(foreign: ForeignJobs, name: str, start: str, **env: str) -> None:
    """Create a PyTorchJob whose ranks are started by `start`."""
    spec = pods(foreign.image, "", "", **env)
    command = f'printf %s "$PROGRAM" >/tmp/train.py; exec {start} /tmp/train.py'
    spec["containers"][0]["command"] = ["bash", "-c", command]
    kubeflow.until_applied(foreign.kube, kubeflow.pytorch_job(name, foreign.namespace, spec))


def train_job(foreign: ForeignJobs, name: str, **env: str) -> None:
    document = kubeflow.job(name, foreign.namespace, foreign.namespace)
    document["spec"]["trainer"] = {"env": variables(env)}
    kubeflow.until_applied(foreign.kube, document)


KUBECTL_IMAGE = "mpi-kubectl-delivery-image"
"""An option of the operator. The image gives launchers kubectl, which those of the tests do not use."""
COMPLETE = ("UNKNOWN", "unification.not_recorded", [])
"""The verdict on a completed job whose points were not recorded."""
CRASHED = ("FAIL", "rank.crashed", [1])
ALL_BUT_POINTS = {"scheduling", "image", "rank-exit", "completed", "restarts", "logs"}


def is_crashed_during_and_after(foreign: ForeignJobs, kind: str, name: str) -> None:
    """Assert that rank 1 is the cause, followed to the end of the job and read afterwards."""
    during = foreign.attach(f"{kind.lower()}/{name}", follow=True, wait=30)
    foreign.finished(kind, name)
    after = foreign.attach(f"{kind.lower()}/{name}")
    for outcome in (during, after):
        assert short(outcome) == CRASHED, outcome.verdict
        assert "rank 1 has a bad batch" in outcome.verdict.explanation


def unread(bundle: Bundle) -> dict[str, str]:
    return bundle.manifest.unread if bundle.manifest else {"manifest": "absent"}


def test_an_indexed_job_during_and_after(foreign: ForeignJobs) -> None:
    """Contract: followed to its failure and read afterwards, the rank that raised is the cause. The printed
    Role permits every request, and the API server forbids all others.
    """
    foreign.job("broken", FAILING_RANK="1", STEPS="20")
    foreign.job("healthy")
    followed = foreign.attach("job/broken", follow=True, wait=10)
    afterwards = foreign.attach("job/broken")
    for outcome in (followed, afterwards):
        assert (outcome.verdict.verdict, outcome.verdict.cause) == ("FAIL", "rank.crashed"), outcome.verdict
        assert outcome.verdict.ranks == [1]
        assert "rank 1 has a bad batch" in outcome.verdict.explanation
        assert unread(Bundle.open(outcome.bundle)) == {}
    foreign.ended("healthy")
    outcome = foreign.attach("job/healthy")
    assert (outcome.verdict.verdict, outcome.verdict.cause) == ("UNKNOWN", "unification.not_recorded")
    assert {"scheduling", "image", "rank-exit", "completed", "restarts", "logs"} <= passed(outcome.verdict)


@pytest.mark.nightly
def test_a_statefulset_whose_rank_dies_again_and_again(foreign: ForeignJobs) -> None:
    """Contract: the crash of the previous execution is the cause, with its log."""
    foreign.statefulset("crashing", FAILING_RANK="1")
    foreign.kube.wait(
        "a restarted container",
        "v1",
        "Pod",
        lambda pods: None if any(_restarts(pod) for pod in pods.values()) else "none",
        seconds=300,
        namespace=foreign.namespace,
        selector="app=crashing",
    )
    outcome = foreign.attach("sts/crashing")
    assert outcome.verdict.verdict != "PASS"
    text = "\n".join(check.explanation for check in outcome.verdict.checks)
    assert outcome.verdict.cause in ("rank.crashed", "rank.restarted"), text


def _restarts(pod: dict) -> int:
    return sum(status.get("restartCount", 0) for status in pod["status"].get("containerStatuses") or [])


@pytest.mark.nightly
def test_a_jobset_that_hangs_and_ends(foreign: ForeignJobs) -> None:
    """Contract: a JobSet that hangs is UNKNOWN, and one that is followed passes all but the points."""
    foreign.jobset("hanging", HANGING_RANK="1")
    foreign.kube.wait(
        "running pods",
        "v1",
        "Pod",
        lambda pods: (
            None
            if len(pods) == 2 and all(p["status"].get("phase") == "Running" for p in pods.values())
            else "no"
        ),
        seconds=300,
        namespace=foreign.namespace,
        selector="jobset.sigs.k8s.io/jobset-name=hanging",
    )
    outcome = foreign.attach("jobset/hanging")
    assert (outcome.verdict.verdict, outcome.verdict.cause) == ("UNKNOWN", "run.not_ended")
    foreign.jobset("whole")
    outcome = foreign.attach("jobset/whole", follow=True, wait=10)
    assert (outcome.verdict.verdict, outcome.verdict.cause) == ("UNKNOWN", "unification.not_recorded")
    assert {"scheduling", "image", "rank-exit", "completed", "restarts"} <= passed(outcome.verdict)


@pytest.mark.nightly
def test_a_job_that_the_policy_recorded(foreign: ForeignJobs, policy_installed: None) -> None:
    """Contract: with the key of a Secret, a job of others passes if its run has every point. A point that an
    uploader lost is named with its rank, metric and block. The printed Roles permit every request.
    """
    foreign.logging_job("complete")
    foreign.logging_job("losing", LOSING_RANK="1")
    options = TrackerOptions(secret=SecretKey(SECRET))
    foreign.ended("complete")
    outcome = foreign.attach("job/complete", tracker=options)
    assert outcome.verdict.verdict == "PASS", [c for c in outcome.verdict.checks if c.result != "PASS"]
    assert unread(Bundle.open(outcome.bundle)) == {}
    foreign.ended("losing")
    outcome = foreign.attach("job/losing", tracker=options)
    assert (outcome.verdict.verdict, outcome.verdict.cause) == ("FAIL", "unification.lost_points")
    assert outcome.verdict.ranks == [1]
    assert "rank 1: loss/1: 1 of 121 points, in steps 1000–1999" in outcome.verdict.explanation
    assert {"rendezvous", "rank-exit", "completed", "recorded"} <= passed(outcome.verdict)


@pytest.mark.nightly
def test_lost_point_of_long_training_names_its_block(foreign: ForeignJobs, policy_installed: None) -> None:
    """Contract: the tracker has a digest of each block, to which the lines in the log commit. Without them,
    the summary names several blocks.
    """
    foreign.logging_job("long", PROGRAM=LONG, LOSING_RANK="1")
    foreign.ended("long")
    outcome = foreign.attach("job/long", tracker=TrackerOptions(secret=SecretKey(SECRET)))
    verdict = outcome.verdict
    assert (verdict.verdict, verdict.cause, verdict.ranks) == ("FAIL", "unification.lost_points", [1])
    assert "rank 1: loss/1: 1 of 1201 points, in steps 12000–12999" in verdict.explanation
    bundle = Bundle.open(outcome.bundle)
    assert bundle.summary is not None
    assert bundle.summary.digests == len(bundle.digests()) >= 2
    (outcome.bundle / "tracker/digests.jsonl").write_text("")
    summary = outcome.bundle / "tracker/summary.json"
    summary.write_text(bundle.summary.model_copy(update={"digests": None}).model_dump_json())
    merged = judge(Bundle.open(outcome.bundle)).explanation
    assert "rank 1: loss/1: 1 of 1201 points, in steps 12000–15999" in merged


@pytest.mark.nightly
def test_the_key_of_a_secret_is_shown_nowhere(
    foreign: ForeignJobs, policy_installed: None, tmp_path: Path
) -> None:
    """Contract: typed with --secret, a konduktor job that has every point in its run is PASS. The key is not
    printed, in no file of the bundle and in no command line.
    """
    foreign.finished("JobSet", foreign.konduktor("keyed", logging=True))
    key = tracker.find(foreign.kube).key
    words = ["attach", "jobset/keyed", "-n", foreign.namespace, "--secret", SECRET, "--json"]
    words += ["--kubeconfig", str(foreign.settings.kubeconfig), "--context", "own"]
    command_lines = set[str]()
    with Harness(*words, env=environment(tmp_path)) as run:
        while run.process.poll() is None:
            command_lines |= {processes.command_line(each) for each in family(run.process.pid)}
        run.end(60)
    verdict = run.verdict
    assert verdict.verdict == "PASS", [each for each in verdict.checks if each.result != "PASS"]
    assert {"no-lost-points", "values", "one-run", "run-exists", "tracker"} <= passed(verdict)
    assert any("attach" in each for each in command_lines)
    shown = [*command_lines, run.stdout, run.stderr]
    shown += [path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file()]
    for text in (key, base64.b64encode(key.encode()).decode()):
        assert not [each[:200] for each in shown if text in each]


@pytest.mark.nightly
def test_a_konduktor_job_before_during_and_after(foreign: ForeignJobs) -> None:
    """Contract: a job that konduktor alone launched is found by the name in its job file, also before the
    launch. Its queue is judged, and the rank that raised is the cause.
    """
    before = foreign.attach_before("jobset/early", lambda: foreign.konduktor("early"))
    assert short(before) == COMPLETE, before.verdict
    assert passed(before.verdict) >= {*ALL_BUT_POINTS, "queue", "admission"}
    assert short(foreign.attach("early")) == COMPLETE
    name = foreign.konduktor("dying", FAILING_RANK="1", STEPS="50")
    during = foreign.attach("dying", follow=True)
    after = foreign.attach(f"jobset/{name}")
    for outcome in (during, after):
        assert short(outcome) == CRASHED, outcome.verdict
        assert "rank 1 has a bad batch" in outcome.verdict.explanation


@pytest.mark.nightly
def test_a_torchrunjob_that_ends_well_and_one_that_crashes(foreign: ForeignJobs, torchrun: Team) -> None:
    """Contract: a TorchrunJob is judged by its JobSet, followed and after its end."""
    before = foreign.attach_before(
        "torchrunjob/t-whole", lambda: torchrun.job("t-whole", env=[{"name": "STEPS", "value": "5"}])
    )
    assert short(before) == COMPLETE, before.verdict
    env = [{"name": "FAILING_RANK", "value": "1"}, {"name": "STEPS", "value": "50"}]
    torchrun.job("t-broken", env=env, reliability={"maxRestarts": 0})
    during = foreign.attach("torchrunjob/t-broken", follow=True, wait=30)
    torchrun.until("t-broken", "Failed")
    after = foreign.attach("torchrunjob/t-broken")
    for outcome in (during, after):
        assert short(outcome) == CRASHED, outcome.verdict
    assert passed(foreign.attach("torchrunjob/t-whole").verdict) >= ALL_BUT_POINTS


@pytest.mark.nightly
@pytest.mark.timeout(2400)  # Building the controller takes minutes, once for a machine.
def test_a_trainjob_before_during_and_after(foreign: ForeignJobs, trainer: None) -> None:
    """Contract: a TrainJob of Kubeflow Trainer v2 is judged by the JobSet that its controller creates."""
    before = foreign.attach_before("trainjob/trains", lambda: train_job(foreign, "trains", STEPS="5"))
    assert short(before) == COMPLETE, before.verdict
    assert passed(before.verdict) >= ALL_BUT_POINTS
    expected = next(check for check in before.verdict.checks if check.name == "expected")
    assert "PET_NPROC_PER_NODE in its environment (1)" in expected.explanation
    train_job(foreign, "dies", FAILING_RANK="1", STEPS="50")
    is_crashed_during_and_after(foreign, "TrainJob", "dies")


@pytest.mark.nightly
@pytest.mark.timeout(2400)  # Building the operator takes minutes, once for a machine.
def test_a_pytorchjob_before_during_and_after(foreign: ForeignJobs, training_operator: None) -> None:
    """Contract: a PyTorchJob of Kubeflow's training operator is judged, also if its ranks are started
    without torchrun.
    """
    before = foreign.attach_before(
        "pytorchjob/trains", lambda: pytorch_job(foreign, "trains", "python3", STEPS="5")
    )
    assert short(before) == COMPLETE, before.verdict
    assert passed(before.verdict) >= ALL_BUT_POINTS - {"restarts"}  # A PyTorchJob does not count them.
    pytorch_job(foreign, "dies", "python3", FAILING_RANK="1", STEPS="50")
    is_crashed_during_and_after(foreign, "PyTorchJob", "dies")


@pytest.mark.nightly
@pytest.mark.timeout(2400)
def test_an_mpijob_whose_launcher_fails(foreign: ForeignJobs, training_operator: None) -> None:
    """Contract: the operator's labels show which pods are workers, and the end of the launcher is quoted."""
    launcher, worker = (pods(foreign.image, "", "") for _ in range(2))
    message = "mpirun noticed that process rank 1 on node mpi-worker-1 exited on signal 9 (Killed)"
    launcher["containers"][0]["command"] = ["bash", "-c", f"sleep 5; echo '{message}'; exit 137"]
    worker["containers"][0]["command"] = ["sleep", "600"]
    document = kubeflow.mpi_job("mpi", foreign.namespace, launcher, worker)
    kubeflow.until_applied(foreign.kube, document)
    foreign.finished("MPIJob", "mpi")
    outcome = foreign.attach("mpijob/mpi")
    assert outcome.verdict.verdict == "UNKNOWN", outcome.verdict
    assert message in " ".join(check.explanation for check in outcome.verdict.checks)
    assert {"scheduling", "image", "rank-pods", "expected"} <= passed(outcome.verdict)


@pytest.fixture
def launcher(request: pytest.FixtureRequest) -> Callable[[ForeignJobs], str]:
    """A function that launches a job whose rank 1 loses a point, waits for its end, and returns its name.

    The policy is installed afterwards, because the controllers create the namespace again.
    """
    if request.param == "torchrunjob":
        return partial(lossy_torchrun_job, request.getfixturevalue("torchrun"))
    if request.param == "trainjob":
        request.getfixturevalue("trainer")
    if request.param == "pytorchjob":
        request.getfixturevalue("training_operator")
    return {"jobset": lossy_konduktor_job, "trainjob": lossy_train_job, "pytorchjob": lossy_pytorch_job}[
        request.param
    ]


def lossy_konduktor_job(foreign: ForeignJobs) -> str:
    name = foreign.konduktor("lossy", logging=True, LOSING_RANK="1")
    foreign.finished("JobSet", name)
    return f"jobset/{name}"


def lossy_train_job(foreign: ForeignJobs) -> str:
    train_job(foreign, "lossy", **foreign.logging("lossy-trainjob"), LOSING_RANK="1")
    foreign.finished("TrainJob", "lossy")
    return "trainjob/lossy"


def lossy_torchrun_job(team: Team, foreign: ForeignJobs) -> str:
    env = foreign.logging("lossy-torchrunjob") | {"LOSING_RANK": "1"}
    team.job("t-lossy", env=variables(env), command="python /code/log.py")
    team.until("t-lossy", "Succeeded")
    return "torchrunjob/t-lossy"


def lossy_pytorch_job(foreign: ForeignJobs) -> str:
    env = foreign.logging("lossy-pytorchjob") | {"LOSING_RANK": "1"}
    pytorch_job(foreign, "lossy", "python3", **env)
    foreign.finished("PyTorchJob", "lossy")
    return "pytorchjob/lossy"


@pytest.mark.nightly
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("launcher", ["jobset", "trainjob", "torchrunjob", "pytorchjob"], indirect=True)
def test_a_lost_point_is_named_whatever_launched_the_job(
    foreign: ForeignJobs, launcher: Callable[[ForeignJobs], str], policy_installed: None
) -> None:
    """Contract: the policy records every launcher's pods. A point that an uploader lost is named, and the
    recorders show that the ranks met, also without torchrun.
    """
    outcome = foreign.attach(launcher(foreign), tracker=TrackerOptions(secret=SecretKey(SECRET)))
    verdict = outcome.verdict
    assert short(outcome) == ("FAIL", "unification.lost_points", [1]), verdict
    assert "rank 1: loss/1: 1 of 121 points, in steps 1000–1999" in verdict.explanation
    assert {"rendezvous", "rank-exit", "completed", "recorded"} <= passed(verdict)


def without_end(spec: Object) -> None:
    """Let the container run on after its rank, because a StatefulSet would start the rank again."""
    (container,) = spec["containers"]
    shell, option, command = container["command"]
    container["command"] = [shell, option, f"{command.replace('exec torchrun', 'torchrun')}; sleep 3600"]


@pytest.mark.nightly
def test_lost_point_is_named_although_statefulset_never_ends(
    foreign: ForeignJobs, policy_installed: None
) -> None:
    """Contract: UNKNOWN, because more points may come, with the point that is absent so far."""
    foreign.statefulset("lossy", without_end, **foreign.logging("lossy-sts"), LOSING_RANK="1")
    for index in range(2):
        foreign.until_logged("app=lossy", index, SUMMARY_MARK)
    outcome = foreign.attach("sts/lossy", tracker=TrackerOptions(secret=SecretKey(SECRET)))
    assert short(outcome) == ("UNKNOWN", "run.not_ended", [0, 1]), outcome.verdict
    (lost,) = [check for check in outcome.verdict.checks if check.name == "no-lost-points"]
    assert "rank 1: loss/1: 1 of 121 points, in steps 1000–1999" in lost.explanation


@pytest.mark.nightly
@pytest.mark.timeout(2400)
def test_a_pytorchjob_whose_number_of_ranks_its_node_decides(
    foreign: ForeignJobs, training_operator: None, policy_installed: None
) -> None:
    """Contract: with nprocPerNode: auto, the recorders show how many ranks there were."""
    pytorch_job(foreign, "auto", "torchrun", **foreign.logging("auto"))
    foreign.finished("PyTorchJob", "auto")
    outcome = foreign.attach("pytorchjob/auto", tracker=TrackerOptions(secret=SecretKey(SECRET)))
    assert short(outcome) == ("PASS", None, []), outcome.verdict
    (expected,) = [each for each in outcome.verdict.checks if each.name == "expected"]
    assert "on 2 nodes, from the recorders' lines" in expected.explanation
