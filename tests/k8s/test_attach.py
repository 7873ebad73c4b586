"""`harness attach` to jobs that other tools launched, with an account that has only the printed Role."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from foreign_jobs import LONG, SECRET, ForeignJobs, pods
from harness_command import Harness, environment, family
from torchrun_team import Team, led

from bench import kubeflow_trainer
from harness.attach.secret import SecretKey
from harness.attach.tracker import TrackerOptions
from harness.context import RunContext
from harness.core import processes
from harness.evidence import Bundle
from harness.evidence.schema.bundle import Verdict
from harness.fixtures.plugin import progress
from harness.judge.engine import judge
from harness.launch import recorder_admission as admission
from harness.launch import recorder_policy as policy
from harness.provision.cluster import Ready
from harness.provision.controllers import tracker
from harness.report.finalize import Outcome
from harness.settings import Settings

pytestmark = [pytest.mark.attach, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def foreign(
    cluster: Ready, harness_settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ForeignJobs]:
    folder = tmp_path_factory.mktemp("attach")
    name = f"foreign-{secrets.token_hex(3)}"
    found = ForeignJobs(cluster.kube, name, cluster.worker.tag, folder, harness_settings)
    yield found
    found.remove()


@pytest.fixture(scope="module")
def torchrun(foreign: ForeignJobs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    """The torchrun controller, for the namespace of the foreign jobs."""
    team = Team(foreign.kube, foreign.namespace, foreign.image)
    team.prepare()
    with led(team, tmp_path_factory.mktemp("controller")) as found:
        found.queue()
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
    kubeflow_trainer.install(cluster.kind, cluster.kube, context, tmp_path_factory.mktemp("trainer"))
    spec = pods(foreign.image, "", "")
    (node,) = spec["containers"]
    node["name"] = "node"
    node["command"] = ["bash", "-c", 'printf %s "$PROGRAM" >/tmp/train.py; exec torchrun /tmp/train.py']
    runtime = kubeflow_trainer.runtime(foreign.namespace, {**spec, "restartPolicy": "Never"})
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    replicated["template"]["spec"]["backoffLimit"] = 0  # By default, a Job replaces six failed pods.
    kubeflow_trainer.until_applied(cluster.kube, runtime)
    yield
    cluster.kube.delete(kubeflow_trainer.API, runtime["kind"], foreign.namespace)
    hooks = ("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration")
    cluster.kube.delete(*hooks, "validator.trainer.kubeflow.org")
    cluster.kube.delete("v1", "Namespace", kubeflow_trainer.NAMESPACE)


def train_job(foreign: ForeignJobs, name: str, **env: str) -> None:
    document = kubeflow_trainer.job(name, foreign.namespace, foreign.namespace)
    variables = [{"name": key, "value": value} for key, value in env.items()]
    document["spec"]["trainer"] = {"env": variables}
    kubeflow_trainer.until_applied(foreign.kube, document)


def short(outcome: Outcome) -> tuple[str, str | None, list[int]]:
    return outcome.verdict.verdict, outcome.verdict.cause, outcome.verdict.ranks


COMPLETE = ("UNKNOWN", "unification.not_recorded", [])
"""The verdict on a completed job whose points were not recorded."""
CRASHED = ("FAIL", "rank.crashed", [1])
ALL_BUT_POINTS = {"scheduling", "image", "rank-exit", "completed", "restarts", "logs"}


def passed(verdict: Verdict) -> set[str]:
    return {check.name for check in verdict.checks if check.result == "PASS"}


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


@pytest.fixture
def policy_installed(foreign: ForeignJobs) -> Iterator[None]:
    """The policy records every new pod of the namespace."""
    admission.install(foreign.kube, [foreign.namespace])
    labels = {policy.RECORD: "true"}
    metadata = {"name": foreign.namespace, "labels": labels}
    foreign.kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    foreign.until_recorded()
    yield
    admission.uninstall(foreign.kube)


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
    assert "rank 1: loss/1: 1 of 1201 points, in steps 1000–1999" in outcome.verdict.explanation
    assert {"rendezvous", "rank-exit", "completed", "recorded"} <= passed(outcome.verdict)


@pytest.mark.nightly
def test_a_lost_point_of_a_long_training_is_named_with_its_block(
    foreign: ForeignJobs, policy_installed: None
) -> None:
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
    torchrun.job("t-broken", env=[{"name": "FAILING_RANK", "value": "1"}], reliability={"maxRestarts": 0})
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
    during = foreign.attach("trainjob/dies", follow=True, wait=30)
    foreign.finished("TrainJob", "dies")
    after = foreign.attach("trainjob/dies")
    for outcome in (during, after):
        assert short(outcome) == CRASHED, outcome.verdict
        assert "rank 1 has a bad batch" in outcome.verdict.explanation
