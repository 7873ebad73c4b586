"""Trainings on a real cluster: what is killed comes back by itself, and ends with the same weights.

`make test` runs a StatefulSet of four pods that is struck, beside one that is not. The
nightly set strikes at more moments, in all ways.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from training_strikes import RUN, Strike, Striker

from harness import run as running
from harness.context import RunContext
from harness.core import processes
from harness.evidence.io.reader import Bundle
from harness.fixtures.plugin import record
from harness.launch.workloads import training, training_volumes
from harness.launch.workloads.training_spec import TrainingSpec
from harness.provision.cluster import Ready
from harness.report.finalize import Outcome
from harness.settings import Settings

pytestmark = pytest.mark.training
NODES = 4
MODEL = ("--width", "32", "--layers", "1", "--context", "64", "--batch", "64", "--micro-batch", "16")
STEPS = ("--epochs", "2", "--save-every", "12")
"""64 steps: two epochs over the texts that are made."""
SMALL = (*MODEL, *STEPS, "--log-every", "1", "--keep", "20")
WAIT_SECONDS = 240.0
Train = Callable[..., Outcome]


@pytest.fixture(scope="module")
def train(cluster: Ready, harness_settings: Settings) -> Train:
    """Return what launches a training and strikes it."""

    def trained(*strikes: str, volumes: str = "", wait: float = WAIT_SECONDS, **asked: Any) -> Outcome:
        settings = harness_settings.model_copy(update={"wait_seconds": wait})
        more = {"replicas": NODES, "options": SMALL, "run": RUN, **asked}
        workload = training.workload(TrainingSpec(volumes=volumes or None, **more))
        context = RunContext(settings=settings, progress=lambda text: print(f"  {text}", file=sys.stderr))
        with Striker(cluster, settings, [Strike.of(one) for one in strikes], volumes) as striker:
            outcome = running.launch(workload, context, cluster)
        assert len(striker.struck) == len(strikes), striker.struck
        done = ("killed", "deleted", "scaled")
        assert all(any(word in one for word in done) for one in striker.struck), striker.struck
        return outcome

    return trained


def weights(outcome: Outcome) -> str:
    """Return the digest of the weights at the end, as rank 0 printed it."""
    logs = b"\n".join(path.read_bytes() for path in sorted(outcome.bundle.glob("logs/*")))
    found = re.findall(rb"\[DONE\].* weights ([0-9a-f]{64})", logs)
    assert found, outcome.verdict.explanation
    return str(found[-1].decode())


def passed(outcome: Outcome) -> dict[str, str]:
    """Return the text of each check of a launch that passed."""
    seen = outcome.verdict
    assert seen.verdict == "PASS", f"{seen.cause} {seen.ranks}: {seen.explanation} [{outcome.bundle}]"
    return {check.name: check.explanation for check in seen.checks}


@pytest.fixture(scope="module")
def undisturbed(train: Train) -> Outcome:
    """A training that nobody disturbed."""
    outcome = train()
    assert passed(outcome)["restarts"] == "Every rank ran once"
    return outcome


def test_a_killed_rank_changes_nothing(train: Train, record_property: Any) -> None:
    """Contract: the job comes back, ends with the same weights, and the verdict shows the restart.

    Two nodes are enough for `make test`. The nightly tests below have four.
    """
    undisturbed = train(replicas=2)
    assert passed(undisturbed)["restarts"] == "Every rank ran once"
    outcome = train("rank:1@named:2", replicas=2)
    record(outcome, record_property)
    assert "ran again" in passed(outcome)["restarts"]
    assert weights(outcome) == weights(undisturbed)


@pytest.mark.nightly
def test_an_indexed_job_survives_the_loss_of_a_pod(train: Train, undisturbed: Outcome) -> None:
    """Contract: as a StatefulSet does, and the pod that was deleted is named."""
    outcome = train("pod:1@named:2", kind="job")
    assert "was deleted while it ran" in passed(outcome)["restarts"]
    assert weights(outcome) == weights(undisturbed)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "strikes",
    [
        ("rank:0@met",),
        ("rank:3@step:1",),
        ("rank:1@writing:1",),
        ("rank:0@writing:3",),
        ("rank:0@named:1", "rank:3@named:3"),
        ("rank:2@step:63",),
        ("torchrun:1@named:2",),
        ("torchrun:0@named:2",),
        ("pod:0@named:2",),
        ("pod:3@step:3",),
        ("forced:2@writing:2",),
        ("rank:1@named:5",),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("kind", ["statefulset"])
def test_no_strike_changes_a_bit(
    train: Train, undisturbed: Outcome, kind: str, strikes: tuple[str, ...]
) -> None:
    """Contract: whatever is killed when, weights and points are those of the undisturbed run."""
    outcome = train(*strikes, kind=kind)
    assert "ran again" in passed(outcome)["restarts"]
    assert weights(outcome) == weights(undisturbed)


@pytest.mark.nightly
@pytest.mark.parametrize("strike", ["rank:2@named:2", "torchrun:0@named:2", "pod:0@named:2"])
def test_a_rendezvous_in_etcd(train: Train, undisturbed: Outcome, strike: str) -> None:
    """Contract: an Indexed Job whose nodes meet in etcd: the same weights, whatever is lost."""
    outcome = train(strike, kind="job", rdzv="etcd")
    assert "ran again" in passed(outcome)["restarts"]
    assert weights(outcome) == weights(undisturbed)


@pytest.mark.nightly
@pytest.mark.parametrize("node", [0, 2])
def test_a_rank_that_the_kernel_ends_changes_nothing(train: Train, undisturbed: Outcome, node: int) -> None:
    """Contract: out of memory in one pod: the job comes back, with the same weights."""
    outcome = train(f"memory:{node}@named:2", memory="1536Mi")
    assert "ran again" in passed(outcome)["restarts"]
    assert weights(outcome) == weights(undisturbed)


@pytest.mark.nightly
@pytest.mark.parametrize("node", [0, 3])
def test_a_machine_without_power_for_a_moment_changes_nothing(
    train: Train, undisturbed: Outcome, node: int
) -> None:
    """Contract: all pods of a node of Kubernetes are gone at once, and come back with it."""
    outcome = train(f"machine:{node}@named:2")
    assert "ran again" in passed(outcome)["restarts"]
    assert weights(outcome) == weights(undisturbed)


@pytest.mark.nightly
def test_a_full_disk_that_is_emptied_changes_nothing(
    train: Train, undisturbed: Outcome, small_disk: str
) -> None:
    """Contract: a checkpoint that could not be written is no checkpoint; the next attempt writes it."""
    outcome = train("disk:0@named:2", volumes=small_disk)
    assert "ran again" in passed(outcome)["restarts"]
    assert weights(outcome) == weights(undisturbed)


@pytest.mark.nightly
def test_a_disk_that_stays_full_is_named(train: Train, small_disk: str) -> None:
    """Contract: the verdict says what could not be written, and by which rank."""
    outcome = train(volumes=small_disk, options=(*SMALL, "--width", "256"), restarts=0)
    assert (outcome.verdict.verdict, outcome.verdict.cause) == ("FAIL", "rank.write_failed")


@pytest.fixture
def small_disk(cluster: Ready, tmp_path: Path) -> Iterator[str]:
    """Yield a folder of volumes whose outputs are on a disk of 24 MiB, which all nodes and we see."""
    shared = cluster.cluster.shared_folder
    assert shared is not None
    name, image = "small-disk", tmp_path / "disk"
    image.write_bytes(bytes(24 << 20))
    image.chmod(0o600)

    def run(*words: str) -> str:
        return processes.run(list(words), timeout=60).stdout.strip()

    run("mkfs.ext4", "-q", "-m", "0", str(image))
    device = run("losetup", "--find", "--show", str(image))
    # One kernel: however often it is mounted, it is one file system.
    mounts = [((), f"{shared.local_path}/{name}/{training_volumes.OUTPUTS}")]
    inside = f"{shared.on_nodes}/{name}/{training_volumes.OUTPUTS}"
    mounts += [(("docker", "exec", node), inside) for node in cluster.cluster.nodes()]
    try:
        for where, folder in mounts:
            run(*where, "mkdir", "-p", folder)
            run(*where, "mount", device, folder)
        yield name
    finally:
        for where, folder in mounts:
            processes.run([*where, "umount", "--lazy", folder], timeout=60, check=False)
        run("losetup", "--detach", device)
        cluster.cluster.free_disk(name, lambda _: None)


@pytest.mark.nightly
def test_more_pods_go_on_where_fewer_were(train: Train, tmp_path: Path) -> None:
    """Contract: a second launch on the same volumes resumes the run, with another number of pods."""
    first = train(volumes="scaled", replicas=2, options=(*MODEL, "--max-steps", "24", "--save-every", "12"))
    passed(first)
    then = train(volumes="scaled", replicas=4, options=(*MODEL, "--max-steps", "48", "--save-every", "12"))
    passed(then)
    logs = b"".join(path.read_bytes() for path in then.bundle.glob("logs/*"))
    assert b", which 2 ranks wrote" in logs


@pytest.mark.nightly
def test_more_restarts_than_allowed_are_a_failure(train: Train) -> None:
    """Contract: the verdict says how often, and how often was allowed."""
    outcome = train("rank:1@named:1", "rank:1@named:4", restarts=1)
    assert outcome.verdict.verdict == "FAIL"
    assert "1 are allowed" in " ".join(check.explanation for check in outcome.verdict.checks)


@pytest.mark.nightly
@pytest.mark.parametrize("replicas", [3, 5])
def test_a_scaled_training_is_said(train: Train, replicas: int) -> None:
    """Contract: `kubectl scale` of a running one is in the verdict, whether the job survives it or not."""
    outcome = train(f"scale:{replicas}@named:1")
    explanation = f"{outcome.verdict.explanation} {[check.explanation for check in outcome.verdict.checks]}"
    assert f"StatefulSet train-llm was scaled from {NODES} to {replicas} replicas by kubectl" in explanation
    if replicas < NODES:
        assert outcome.verdict.verdict == "FAIL"


@pytest.mark.nightly
def test_a_world_forms_again_when_its_statefulset_is_scaled(train: Train) -> None:
    """Contract: pods join and leave, each sequence is taken once, and the verdict says who scaled."""
    steps = ("--epochs", "40", "--max-steps", "300", "--save-every", "10", "--log-every", "1")
    asked = {"replicas": 2, "max_replicas": 3, "options": (*MODEL, *steps), "wait": 3 * WAIT_SECONDS}
    outcome = train("scale:3@step:20", "scale:1@met:3", **asked)
    checks = passed(outcome)
    for was, now in ((2, 3), (3, 1)):
        assert f"scaled from {was} to {now} replicas by kubectl" in checks["restarts"]
    assert "formed a world of 3 ranks" in checks["restarts"]
    assert "used exactly once" in checks["training-data"]


@pytest.mark.nightly
def test_the_smoke_test(train: Train) -> None:
    """Contract: the guide's smoke test runs on the cluster with its own flags, and logs what it learned."""
    outcome = train(smoke=True, replicas=2, options=())
    passed(outcome)
    assert Bundle.open(outcome.bundle).manifest is not None
