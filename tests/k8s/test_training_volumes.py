"""Trainings on a cluster that is not the harness's: its volumes are used as they are, and left as they were.

A kind cluster stands for it. Its volumes are made by hand, as an administrator does where nothing makes them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness import run as running
from harness.context import RunContext
from harness.core.kubernetes import Kube, Object
from harness.evidence.reader import Bundle
from harness.launch import claims, training
from harness.launch.asked_training import Asked
from harness.provision.cluster import Ready
from harness.report.finalize import Outcome
from harness.settings import Settings

pytestmark = [pytest.mark.e2e, pytest.mark.training, pytest.mark.nightly]
CLASS, THEIRS = "by-hand", "their-data"
MODEL = ("--width", "32", "--layers", "1", "--context", "64", "--batch", "64", "--micro-batch", "16")


@pytest.fixture
def volumes(cluster: Ready) -> Iterator[Kube]:
    """Three volumes for many writers, of a class that nobody provisions."""
    shared, kube = cluster.cluster.shared_folder, cluster.kube
    assert shared is not None
    names = {claim: f"{CLASS}-{claim}" for claim in claims.CLAIMS}
    for claim, name in names.items():
        path = {"path": f"{shared.on_nodes}/{CLASS}/{claim}", "type": "DirectoryOrCreate"}
        spec = {"accessModes": ["ReadWriteMany"], "capacity": {"storage": "10Gi"}, "hostPath": path}
        spec |= {"storageClassName": CLASS, "persistentVolumeReclaimPolicy": "Retain"}
        kube.apply(_object("PersistentVolume", name, spec))
    yield kube
    kube.delete("v1", "Namespace", THEIRS)
    for name in names.values():
        kube.delete("v1", "PersistentVolume", name)
    cluster.cluster.free_disk(CLASS, lambda _: None)


def _object(kind: str, name: str, spec: Object, namespace: str | None = None) -> Object:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": spec}


def train(settings: Settings, steps: int, **asked: str) -> Outcome:
    """Train on two pods, and require a PASS."""
    options = (*MODEL, "--save-every=12", f"--max-steps={steps}")
    workload = training.workload(Asked(replicas=2, options=options, **asked))  # type: ignore[arg-type] # str
    outcome = running.run(workload, RunContext(settings=settings, progress=lambda text: print(f"  {text}")))
    assert outcome.verdict.verdict == "PASS", f"{outcome.verdict.explanation} [{outcome.bundle}]"
    return outcome


def test_claims_of_a_storage_class(volumes: Kube, theirs: Settings) -> None:
    """Contract: they are made for the launch, bound, and gone with its namespace; the volumes stay."""
    outcome = train(theirs, 12, storage_class=CLASS)
    manifest = Bundle.open(outcome.bundle).manifest
    assert manifest is not None
    assert manifest.launch is not None
    namespace = manifest.launch.namespace

    def left(found: dict[str, Object]) -> str | None:
        return f"there is {namespace}" if namespace in found else None

    volumes.wait(f"namespace {namespace} to go", "v1", "Namespace", left, seconds=90)
    kept = [each for each in volumes.objects("v1", "PersistentVolume") if CLASS in each["metadata"]["name"]]
    assert len(kept) == len(claims.CLAIMS)


def test_claims_of_a_namespace_are_resumed(volumes: Kube, theirs: Settings) -> None:
    """Contract: a second launch goes on where the first one ended; their claims stay as they are."""
    volumes.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": THEIRS}})
    request = {"resources": {"requests": {"storage": "10Gi"}}, "accessModes": ["ReadWriteMany"]}
    for claim in claims.CLAIMS:
        spec = {**request, "storageClassName": CLASS, "volumeName": f"{CLASS}-{claim}"}
        volumes.apply(_object("PersistentVolumeClaim", claim, spec, THEIRS))

    def unbound(found: dict[str, Object]) -> str | None:
        phases = {name: found.get(name, {}).get("status", {}).get("phase") for name in claims.CLAIMS}
        return None if set(phases.values()) == {"Bound"} else f"{phases}"

    kind = ("v1", "PersistentVolumeClaim")
    volumes.wait("their claims to be bound", *kind, unbound, seconds=60, namespace=THEIRS)
    first = train(theirs, 12, claims_namespace=THEIRS)
    second = train(theirs, 24, claims_namespace=THEIRS)
    logs = b"".join(path.read_bytes() for path in second.bundle.glob("logs/*"))
    assert b"resumed at step 12 of 24" in logs
    volumes.wait("their claims to be bound", *kind, unbound, seconds=5, namespace=THEIRS)
    made = tuple(f"e2e-{_nonce(outcome)}-" for outcome in (first, second))

    def kept(found: dict[str, Object]) -> str | None:
        left = [name for name in found if name.startswith(made)]
        return f"there are {left}" if left else None

    volumes.wait("the launches' own volumes to go", "v1", "PersistentVolume", kept, seconds=90)
    assert {f"{CLASS}-{claim}" for claim in claims.CLAIMS} <= {
        each["metadata"]["name"] for each in volumes.objects("v1", "PersistentVolume")
    }


def _nonce(outcome: Outcome) -> str:
    manifest = Bundle.open(outcome.bundle).manifest
    assert manifest is not None
    return manifest.nonce
