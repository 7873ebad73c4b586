"""A training whose run goes to a real S3 server, comes back on another volume, and ends to the bit."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from harness import run as running
from harness.context import RunContext
from harness.core.errors import UsageError
from harness.evidence.io.reader import Bundle
from harness.fixtures.plugin import progress
from harness.launch.user_secrets import Wanted
from harness.launch.workloads import training
from harness.launch.workloads.training_spec import TrainingSpec
from harness.provision.cluster import Ready
from harness.report.finalize import Outcome
from harness.settings import Settings
from harness.workers.training.object_store import VARIABLES
from tests.s3_server import S3Server, s3_server

pytestmark = [pytest.mark.training, pytest.mark.nightly, pytest.mark.timeout(1200)]
BUCKET = "runs"
MODEL = ("--width", "32", "--layers", "1", "--context", "64", "--batch", "64", "--micro-batch", "16")
SMALL = (*MODEL, "--save-every", "12", "--warmup", "100")
"""While it warms up, the learning rate of a step does not depend on the number of all steps."""
Train = Callable[..., Outcome]


@pytest.fixture(scope="module")
def server(harness_settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A server on this machine that pods reach."""
    form = "{{range .IPAM.Config}}{{.Gateway}} {{end}}"
    asked = ["docker", "network", "inspect", "kind", "--format", form]
    out = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    gateway = next(address for address in out.split() if ":" not in address)
    context = RunContext(settings=harness_settings, progress=progress)
    with s3_server(context, tmp_path_factory.mktemp("s3"), gateway) as found:
        found.client().make_bucket(BUCKET)
        yield found


@pytest.fixture
def train(
    cluster: Ready, harness_settings: Settings, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> Train:
    """Return what trains on two pods, with the keys of the server in the environment."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)

    def trained(steps: int, **asked: Any) -> Outcome:
        workload = training.workload(
            TrainingSpec(**{"replicas": 2, "options": (*SMALL, f"--max-steps={steps}"), **asked})
        )
        context = RunContext(
            settings=harness_settings, progress=lambda text: print(f"  {text}", file=sys.stderr)
        )
        return running.launch(workload, context, cluster)

    return trained


@pytest.fixture
def volumes(cluster: Ready) -> Iterator[str]:
    """A folder of the cluster that outlives a launch, and not the test."""
    name = f"transfer-{secrets.token_hex(4)}"
    yield name
    cluster.cluster.free_disk(name, progress)


def checks(outcome: Outcome, verdict: str = "PASS") -> dict[str, str]:
    """Require a verdict. Return the text of each check."""
    seen = outcome.verdict
    assert seen.verdict == verdict, f"{seen.cause} {seen.ranks}: {seen.explanation} [{outcome.bundle}]"
    return {check.name: check.explanation for check in seen.checks}


def keyless(bundle: Path, server: S3Server) -> None:
    """Require that no file of a bundle has a key."""
    contents = {path: path.read_bytes() for path in bundle.rglob("*") if path.is_file()}
    keys = [server.access_key.encode(), server.secret_key.encode()]
    assert not [path for path, text in contents.items() if any(key in text for key in keys)]


def test_a_run_resumed_on_another_volume_is_bit_identical(
    train: Train, server: S3Server, cluster: Ready
) -> None:
    """Contract: trained, sent, brought back where nothing of it is, gone on with: the weights of one that
    nobody interrupted. No key is in a bundle or left in the cluster.
    """
    url = f"s3://{BUCKET}/llama"
    whole = train(40)
    checks(whole)
    first = train(20, upload=url)
    explanations = checks(first)
    assert f"2 checkpoints at {url}, read back and equal to the manifests" in explanations["training-upload"]
    assert f"at {url}" in first.verdict.explanation
    second = train(
        40,
        resume_from=url,
        upload=url,
        run="other",
        same_as=training.weights_of(whole.bundle, whole.bundle.parent),
    )
    explanations = checks(second)
    assert f"which are those of {whole.bundle.name}" in explanations["training-checkpoints"]
    assert "training-transfer" not in explanations["disturbances"]
    assert "from step 20 on, which an earlier launch had reached" in explanations["training-data"]
    assert b"resumed at step 20 of 40" in b"".join(path.read_bytes() for path in second.bundle.glob("logs/*"))
    names = {each.object_name for each in server.client().list_objects(BUCKET, "llama/", recursive=True)}
    steps = {name.split("/")[1].rpartition("-")[2] for name in map(str, names) if "manifest.json" in name}
    assert {"00000012", "00000020", "00000040"} <= steps
    for outcome in (first, second):
        keyless(outcome.bundle, server)
        manifest = Bundle.open(outcome.bundle).manifest
        assert manifest is not None
        assert manifest.launch is not None
        left = cluster.kube.objects("v1", "Secret", manifest.launch.namespace)
        assert "training-transfer" not in {each["metadata"]["name"] for each in left}


def test_a_lost_training_resumes_from_its_uploaded_checkpoint(train: Train, server: S3Server) -> None:
    """Contract: the whole checkpoints of a training that failed are sent, too, and resumed to the bit."""
    url = f"s3://{BUCKET}/lost"
    whole = train(24)
    checks(whole)
    lost = train(24, trainer=("training.faulty", "killed:18"), restarts=0, upload=url)
    explanations = checks(lost, "FAIL")
    assert lost.verdict.cause != "training.upload_failed"
    assert f"1 checkpoint at {url}" in explanations["training-upload"]
    found = train(24, resume_from=url, same_as=training.weights_of(whole.bundle, whole.bundle.parent))
    assert f"which are those of {whole.bundle.name}" in checks(found)["training-checkpoints"]


def test_a_run_with_a_failed_upload_is_uploaded_later(train: Train, server: S3Server, volumes: str) -> None:
    """Contract: the verdict names the object in the way, the training stays proved, and the volume has the
    run: a launch with more steps and another prefix sends all of it.
    """
    taken = f"s3://{BUCKET}/taken"
    server.client().put_object(BUCKET, "taken/trackers/id", BytesIO(b"another"), 7)
    outcome = train(12, upload=taken, volumes=volumes)
    explanations = checks(outcome, "FAIL")
    assert outcome.verdict.cause == "training.upload_failed"
    assert f"{taken} holds another run" in explanations["training-upload"]
    results = {check.name: check.result for check in outcome.verdict.checks}
    assert {name for name, result in results.items() if result != "PASS"} == {"training-upload"}
    again = train(24, upload=f"s3://{BUCKET}/free", volumes=volumes)
    assert "2 checkpoints at s3://" in checks(again)["training-upload"]


def test_a_run_on_the_volume_stays(train: Train, server: S3Server, volumes: str) -> None:
    """Contract: --resume-from beside a run of that name ends before the ranks start, and names the folder."""
    url = f"s3://{BUCKET}/once"
    checks(train(12, upload=url, volumes=volumes))
    outcome = train(24, resume_from=url, volumes=volumes)
    assert (outcome.verdict.verdict, outcome.verdict.cause) == ("FAIL", "training.resume_from_failed")
    assert "/out/train already exists, and is never replaced" in outcome.verdict.explanation
    assert not list(outcome.bundle.glob("logs/train-llm-*"))


def test_keys_of_a_secret_go_to_the_transfer_alone(
    train: Train, server: S3Server, cluster: Ready, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract: without keys in the environment a Secret of the user serves, and the ranks do not get it."""
    for name in server.environment:
        monkeypatch.delenv(name)
    metadata = {"name": "bucket-keys", "namespace": "default"}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": server.environment}
    cluster.kube.apply(secret)
    try:
        outcome = train(12, upload=f"s3://{BUCKET}/by-secret", secrets=(Wanted("bucket-keys", "default"),))
    finally:
        cluster.kube.delete("v1", "Secret", "bucket-keys", "default")
    assert "1 checkpoint at" in checks(outcome)["training-upload"]
    keyless(outcome.bundle, server)
    for state in Bundle.open(outcome.bundle).history("pod"):
        if state.name.startswith("train-llm-"):
            assert "bucket-keys" not in f"{state.object['spec']}"


def test_a_missing_bucket_is_refused_before_anything_is_created(train: Train, cluster: Ready) -> None:
    """Contract: one sentence, and no namespace."""
    before = {each["metadata"]["name"] for each in cluster.kube.objects("v1", "Namespace")}
    with pytest.raises(UsageError, match="--upload s3://nowhere/a: there is no bucket nowhere at http://"):
        train(12, upload="s3://nowhere/a")
    after = {each["metadata"]["name"] for each in cluster.kube.objects("v1", "Namespace")}
    assert after <= before
