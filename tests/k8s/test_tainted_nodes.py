"""Nodes that only take pods with a toleration, as GPU nodes often do: --pod, manifests, the message."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from harness import run as running
from harness.context import RunContext
from harness.core.kubernetes import Kube
from harness.evidence.io.reader import Bundle
from harness.launch.workload_file import load
from harness.launch.workloads import acceptance, training
from harness.launch.workloads.netcheck_job import job
from harness.launch.workloads.pod_options import PodOptions
from harness.launch.workloads.pod_template_workload import PlainWorkload
from harness.launch.workloads.training_spec import TrainingSpec
from harness.provision.cluster import Ready
from harness.report.finalize import Outcome
from harness.settings import Settings

pytestmark = pytest.mark.nightly
KEY = "nvidia.com/gpu"
TAINT = {"key": KEY, "value": "present", "effect": "NoSchedule"}
TOLERATION = {"key": KEY, "operator": "Exists", "effect": "NoSchedule"}
SECRET = "h1dden-t0ken-of-a-test"


@pytest.fixture(autouse=True, scope="module")
def tainted(cluster: Ready) -> Iterator[list[str]]:
    """The nodes that take pods, tainted meanwhile. Their other taints stay."""
    kube = cluster.kube
    names = [
        node["metadata"]["name"] for node in kube.objects("v1", "Node") if not node["spec"].get("taints")
    ]
    for name in names:
        _taint(kube, name, [TAINT])
    yield names
    for name in names:
        _taint(kube, name, [])


def _taint(kube: Kube, name: str, ours: list[dict[str, str]]) -> None:
    node = kube.get("v1", "Node", name)
    assert node is not None
    others = [taint for taint in node["spec"].get("taints") or [] if taint["key"] != KEY]
    body = {"spec": {"taints": [*others, *ours] or None}}
    kube.resource("v1", "Node").patch(body=body, name=name, content_type="application/merge-patch+json")


@pytest.fixture
def tolerating(tmp_path: Path) -> PodOptions:
    """A `--pod` file with the toleration, and a secret variable of `--env`."""
    file = tmp_path / "pod.yaml"
    file.write_text(yaml.safe_dump({"spec": {"tolerations": [TOLERATION]}}))
    return PodOptions(file=file, env={"TEST_API_TOKEN": SECRET, "NCCL_DEBUG": "INFO"})


@pytest.fixture(params=["kubeconfig", "name"])
def there(request: pytest.FixtureRequest, theirs: Settings, harness_settings: Settings) -> Settings:
    """The cluster by a kubeconfig of the user's, and by its name."""
    chosen = theirs if request.param == "kubeconfig" else harness_settings
    return chosen.model_copy(update={"wait_seconds": 300.0, "keep_cluster": True})


def launched(workload: PlainWorkload, settings: Settings) -> Outcome:
    return running.run(workload, RunContext(settings=settings, progress=lambda text: print(f"  {text}")))


def passed(outcome: Outcome) -> Bundle:
    assert outcome.verdict.verdict == "PASS", outcome.verdict.explanation
    files = [path for path in outcome.bundle.rglob("*") if path.is_file()]
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
    return Bundle.open(outcome.bundle)


def test_without_toleration_taint_and_option_are_named(there: Settings, tainted: list[str]) -> None:
    """Contract: said before a namespace is made, with the taint, and where a toleration goes."""
    outcome = launched(job(2), there)
    assert (outcome.verdict.verdict, outcome.verdict.cause) == ("FAIL", "scheduling.unschedulable")
    assert f"the taint {KEY}=present:NoSchedule" in outcome.verdict.explanation
    assert all(name in outcome.verdict.explanation for name in tainted)
    assert any("--pod FILE" in step for step in outcome.verdict.next), outcome.verdict.next
    manifest = Bundle.open(outcome.bundle).manifest
    assert manifest
    assert manifest.launch is None, "no namespace was made"


def test_netcheck_goes_where_it_tolerates_the_taint(
    there: Settings, tainted: list[str], tolerating: PodOptions
) -> None:
    bundle = passed(launched(tolerating.applied(job(2)), there))
    ((pod, *_), *_) = bundle.objects("pod").values()
    env = {each["name"]: each for each in pod.object["spec"]["containers"][0]["env"]}
    assert env["NCCL_DEBUG"]["value"] == "INFO"
    assert env["TEST_API_TOKEN"]["valueFrom"]["secretKeyRef"]["key"] == "TEST_API_TOKEN"


def test_collectives_are_tested_there(there: Settings, tolerating: PodOptions) -> None:
    passed(launched(tolerating.applied(acceptance.ddp(acceptance.AcceptanceSpec(device="cpu"), 2)), there))


def test_a_training_runs_there(harness_settings: Settings, tolerating: PodOptions) -> None:
    """Contract: ranks and the pod that audits their checkpoints tolerate the taint."""
    model = ("--width", "32", "--layers", "1", "--context", "64", "--batch", "64", "--micro-batch", "16")
    asked = TrainingSpec(replicas=2, memory="2Gi", options=(*model, "--max-steps", "12"))
    passed(launched(tolerating.applied(training.workload(asked)), harness_settings))


def test_a_manifest_that_tolerates_the_taint_runs_there(there: Settings, tmp_path: Path) -> None:
    """Contract: the harness adds no toleration, and counts the nodes as the manifest's own pods see them."""
    documents = list(yaml.safe_load_all(Path("manifests/indexed-job.yaml").read_text()))
    (workload,) = [each for each in documents if each["kind"] == "Job"]
    workload["metadata"].get("labels", {}).pop("kueue.x-k8s.io/queue-name", None)
    workload["spec"].pop("suspend", None)
    workload["spec"]["template"]["spec"]["tolerations"] = [TOLERATION]
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    plain_workload = load(path)
    assert isinstance(plain_workload, PlainWorkload)
    passed(launched(plain_workload, there))
