"""Trainings on a cluster that is not the harness's: its volumes are used as they are, and left as they were.

A kind cluster stands for it. Its volumes are made by hand, as an administrator does where nothing makes them.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harness import run as running
from harness.context import RunContext
from harness.core.errors import UsageError
from harness.core.kubernetes import Object
from harness.evidence.io.reader import Bundle
from harness.launch import workload_file
from harness.launch.user_secrets import Wanted
from harness.launch.workloads import training, training_volumes
from harness.launch.workloads.training_spec import TrainingSpec
from harness.provision.cluster import Ready
from harness.report.finalize import Outcome
from harness.settings import Settings

pytestmark = [pytest.mark.training, pytest.mark.nightly]
CLASS, THEIRS = "by-hand", "their-data"
MODEL = ("--width", "32", "--layers", "1", "--context", "64", "--batch", "64", "--micro-batch", "16")


MANY, READERS, ONE_NODE = "ReadWriteMany", "ReadOnlyMany", "ReadWriteOnce"


@dataclass
class Volumes:
    """Volumes of an administrator, and a namespace with claims of a user."""

    cluster: Ready
    modes: dict[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Return the folder of all volumes on this machine."""
        shared = self.cluster.cluster.shared_folder
        assert shared is not None
        return shared.local_path / CLASS

    def make(self, **modes: str) -> None:
        """Make a volume of the class for each claim, with an access mode."""
        shared = self.cluster.cluster.shared_folder
        assert shared is not None
        self.modes = {f"{name}-pvc": mode for name, mode in modes.items()}
        for claim, mode in self.modes.items():
            path = {"path": f"{shared.on_nodes}/{CLASS}/{claim}", "type": "DirectoryOrCreate"}
            spec = {"accessModes": [mode], "capacity": {"storage": "10Gi"}, "hostPath": path}
            spec |= {"storageClassName": CLASS, "persistentVolumeReclaimPolicy": "Retain"}
            self.cluster.kube.apply(_object("PersistentVolume", f"{CLASS}-{claim}", spec))

    def claim(self) -> None:
        """Claim the volumes in the user's namespace, and wait until the claims are bound."""
        kube = self.cluster.kube
        kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": THEIRS}})
        for claim, mode in self.modes.items():
            spec = {"resources": {"requests": {"storage": "10Gi"}}, "accessModes": [mode]}
            spec |= {"storageClassName": CLASS, "volumeName": f"{CLASS}-{claim}"}
            kube.apply(_object("PersistentVolumeClaim", claim, spec, THEIRS))
        self.bound()

    def bound(self) -> None:
        """Require that all claims are bound."""

        def unbound(found: dict[str, Object]) -> str | None:
            phases = {name: found.get(name, {}).get("status", {}).get("phase") for name in self.modes}
            return None if set(phases.values()) == {"Bound"} else f"{phases}"

        kind = ("v1", "PersistentVolumeClaim")
        self.cluster.kube.wait("their claims to be bound", *kind, unbound, seconds=60, namespace=THEIRS)

    def remove(self) -> None:
        """Remove all of it."""
        kube = self.cluster.kube
        kube.delete("v1", "Namespace", THEIRS)
        for claim in training_volumes.CLAIMS:
            kube.delete("v1", "PersistentVolume", f"{CLASS}-{claim}")

        def left(found: dict[str, Object]) -> str | None:
            return f"there is {THEIRS}" if THEIRS in found else None

        kube.wait(f"namespace {THEIRS} to go", "v1", "Namespace", left, seconds=90)
        self.cluster.cluster.free_disk(CLASS, lambda _: None)


@pytest.fixture
def volumes(cluster: Ready) -> Iterator[Volumes]:
    """Volumes of a class that nobody provisions."""
    made = Volumes(cluster)
    yield made
    made.remove()


def _object(kind: str, name: str, spec: Object, namespace: str | None = None) -> Object:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": spec}


def train(settings: Settings, steps: int, **asked: Any) -> Outcome:
    """Train on two pods."""
    options = (*MODEL, "--save-every=12", f"--max-steps={steps}")
    workload = training.workload(TrainingSpec(**{"replicas": 2, "options": options, **asked}))
    return running.run(workload, RunContext(settings=settings, progress=lambda text: print(f"  {text}")))


def passed(outcome: Outcome) -> Outcome:
    """Require a PASS."""
    assert outcome.verdict.verdict == "PASS", f"{outcome.verdict.explanation} [{outcome.bundle}]"
    return outcome


def test_claims_of_a_storage_class(volumes: Volumes, theirs: Settings) -> None:
    """Contract: one is made for the launch, bound, and gone with its namespace; the volume stays."""
    volumes.make(outputs=MANY)
    kube = volumes.cluster.kube
    kube.apply(_class())
    try:
        outcome = passed(train(theirs, 12, storage_class=CLASS))
    finally:
        kube.delete("storage.k8s.io/v1", "StorageClass", CLASS)
    manifest = Bundle.open(outcome.bundle).manifest
    assert manifest is not None
    assert manifest.launch is not None
    namespace = manifest.launch.namespace

    def left(found: dict[str, Object]) -> str | None:
        return f"there is {namespace}" if namespace in found else None

    kube.wait(f"namespace {namespace} to go", "v1", "Namespace", left, seconds=90)
    kept = [each for each in kube.objects("v1", "PersistentVolume") if CLASS in each["metadata"]["name"]]
    assert len(kept) == 1


def _class() -> Object:
    metadata = {"name": CLASS}
    storage_class = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": metadata}
    return {**storage_class, "provisioner": "kubernetes.io/no-provisioner"}


def test_claims_of_a_namespace_are_resumed(volumes: Volumes, theirs: Settings) -> None:
    """Contract: a second launch goes on where the first one ended; their claims stay as they are."""
    volumes.make(outputs=MANY)
    volumes.claim()
    first = passed(train(theirs, 12, claims_namespace=THEIRS, synthetic=True))
    second = passed(train(theirs, 24, claims_namespace=THEIRS, synthetic=True))
    logs = b"".join(path.read_bytes() for path in second.bundle.glob("logs/*"))
    assert b"resumed at step 12 of 24" in logs
    volumes.bound()
    prefixes = tuple(f"e2e-{_nonce(outcome)}-" for outcome in (first, second))

    def kept(found: dict[str, Object]) -> str | None:
        left = [name for name in found if name.startswith(prefixes)]
        return f"there are {left}" if left else None

    kube = volumes.cluster.kube
    kube.wait("the launches' own volumes to go", "v1", "PersistentVolume", kept, seconds=90)
    assert f"{CLASS}-outputs-pvc" in {
        each["metadata"]["name"] for each in kube.objects("v1", "PersistentVolume")
    }


@pytest.mark.parametrize("mode", [READERS, ONE_NODE])
def test_data_of_a_user_is_only_read(volumes: Volumes, theirs: Settings, mode: str) -> None:
    """Contract: data for readers alone, or for one node, is trained on and stays to the byte; no models."""
    volumes.make(datasets=mode, outputs=MANY)
    volumes.claim()
    texts = volumes.folder / training_volumes.DATASETS
    texts.mkdir(parents=True, exist_ok=True)
    for name in ("train.jsonl", "val.jsonl"):
        (texts / name).write_text('{"text": "the user wrote this line, and nobody else"}\n' * 200)
    before = {path.name: path.read_bytes() for path in texts.iterdir()}
    outcome = passed(train(theirs, 12, claims_namespace=THEIRS))
    assert {path.name: path.read_bytes() for path in texts.iterdir()} == before
    pods = [state.object for state in Bundle.open(outcome.bundle).history("pod")]
    nodes = {pod["spec"].get("nodeName") for pod in pods if pod["metadata"]["name"].startswith("train-llm-")}
    assert mode == READERS or len(nodes - {None}) == 1


def test_printed_manifests_are_judged_as_a_training(
    volumes: Volumes, theirs: Settings, tmp_path: Path
) -> None:
    """Contract: printed, edited and given to `harness run`, with claims of a namespace and a Secret."""
    volumes.make(outputs=MANY)
    volumes.claim()
    value = secrets.token_hex(16)
    named = {"metadata": {"name": "wandb", "namespace": THEIRS}, "stringData": {"WANDB_MODE": value}}
    volumes.cluster.kube.apply({"apiVersion": "v1", "kind": "Secret", **named})
    asked = TrainingSpec(
        replicas=2,
        options=(*MODEL, "--max-steps=12"),
        claims_namespace=THEIRS,
        synthetic=True,
        secrets=(Wanted("wandb"),),
        image=str(theirs.worker_image),
    )
    path = tmp_path / "train.yaml"
    path.write_text(training.manifests(asked).replace("--max-steps=12", "--max-steps=20"))
    context = RunContext(settings=theirs, progress=lambda text: print(f"  {text}"))
    outcome = passed(running.run(workload_file.load(path), context))
    assert {"training-checkpoints", "training-data"} <= {check.name for check in outcome.verdict.checks}
    assert "step 20" in outcome.verdict.explanation
    texts = [each.read_bytes() for each in outcome.bundle.rglob("*") if each.is_file()]
    assert not [text for text in texts if value.encode() in text]


def test_claims_that_cannot_serve_are_refused_before_the_launch(volumes: Volumes, theirs: Settings) -> None:
    """Contract: claim and mode are named within seconds, and no namespace was made."""
    volumes.make(datasets=READERS, outputs=ONE_NODE)
    volumes.claim()
    began = time.monotonic()
    with pytest.raises(UsageError, match="outputs-pvc needs the access mode ReadWriteMany") as refused:
        train(theirs, 12, claims_namespace=THEIRS)
    assert time.monotonic() - began < 60
    assert "it has ReadWriteOnce" in refused.value.message
    names = [each["metadata"]["name"] for each in volumes.cluster.kube.objects("v1", "Namespace")]
    latest = Bundle.open(theirs.runs_dir / "latest").manifest
    assert latest is not None
    assert latest.launch is None
    assert not [name for name in names if latest.nonce in name]


def test_the_smoke_test_needs_no_claim(theirs: Settings) -> None:
    """Contract: the guide's smoke test runs on a cluster of the user's without any volume."""
    passed(train(theirs, 0, smoke=True, options=()))


def _nonce(outcome: Outcome) -> str:
    manifest = Bundle.open(outcome.bundle).manifest
    assert manifest is not None
    return manifest.nonce
