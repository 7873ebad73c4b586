"""Printed manifests of a training: what they contain, and that `harness run` launches them as a training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.core.errors import UsageError
from harness.launch import workload_file
from harness.launch.description import launch_of
from harness.launch.user_secrets import Wanted
from harness.launch.workloads import training, training_volumes
from harness.launch.workloads.printed_training import PrintedTraining
from harness.launch.workloads.training_spec import TrainingSpec
from harness.settings import load


def printed(asked: TrainingSpec, folder: Path, edit: Any = None, pull_secret: str | None = None) -> Path:
    """Print the manifests into a file, after somebody has edited the objects."""
    documents = list(yaml.safe_load_all(training.manifests(asked, pull_secret=pull_secret)))
    if edit is not None:
        edit(documents)
    path = folder / "train.yaml"
    path.write_text("---\n".join(yaml.safe_dump(each) for each in documents))
    return path


def loaded(path: Path) -> PrintedTraining:
    """Return the training in a file."""
    found = workload_file.load(path)
    assert isinstance(found, PrintedTraining)
    return found


@pytest.mark.parametrize("kind", ["statefulset", "job"])
def test_edited_manifest_is_training_as_it_was_edited(tmp_path: Path, kind: Any) -> None:
    """Contract: the run's folder and the number of pods are those of the objects."""

    def edit(documents: list[dict[str, Any]]) -> None:
        spec = documents[-1]["spec"]
        spec |= {"replicas": 3} if kind == "statefulset" else {"completions": 3, "parallelism": 3}
        container = spec["template"]["spec"]["containers"][0]
        container["args"] = [text.replace("--run-name a", "--run-name=b") for text in container["args"]]

    workload = loaded(printed(TrainingSpec(kind=kind, run="a", synthetic=True), tmp_path, edit))
    assert (workload.spec.run, workload.spec.replicas, workload.spec.smoke) == ("b", 3, False)
    assert [(one.claim, one.path, one.folder) for one in workload.mounts] == [
        ("outputs-pvc", "/data", "harness-texts"),
        ("outputs-pvc", "/out", ""),
    ]


@pytest.mark.parametrize(("nodes", "found"), [("1:64", 64), ("2:2", 2), ("2", None), ("4", None)])
def test_nnodes_says_whether_the_pods_may_be_scaled(tmp_path: Path, nodes: str, found: int | None) -> None:
    """Contract: a range is what a launch may be scaled to, and one number is fixed."""
    workload = loaded(printed(TrainingSpec(replicas=2), tmp_path, _nnodes(nodes)))
    assert workload.spec.max_replicas == found


@pytest.mark.parametrize("nodes", ["3:64", "1:", "1:1", "a:b", "1:2:3"])
def test_a_range_without_the_replicas_is_refused(tmp_path: Path, nodes: str) -> None:
    with pytest.raises(UsageError, match=f"NNODES: .*that includes the 2 replicas, found '{nodes}'"):
        loaded(printed(TrainingSpec(replicas=2), tmp_path, _nnodes(nodes)))


def _nnodes(value: str) -> Any:
    """Return what sets NNODES of a printed StatefulSet."""

    def edit(documents: list[dict[str, Any]]) -> None:
        (container,) = documents[-1]["spec"]["template"]["spec"]["containers"]
        next(each for each in container["env"] if each["name"] == "NNODES")["value"] = value

    return edit


def test_printed_storage_class_claims_are_loaded_again(tmp_path: Path) -> None:
    workload = loaded(printed(TrainingSpec(storage_class="nfs"), tmp_path))
    other_objects = workload.other_objects  # type: ignore[attr-defined] # of PlainWorkload
    names = {each["metadata"]["name"] for each in other_objects if each["kind"] == "PersistentVolumeClaim"}
    assert names == {training_volumes.DATASETS, training_volumes.OUTPUTS}
    workload.check(load(kubeconfig=tmp_path / "kubeconfig"))
    assert workload.volumes(Nobody())[0] == []  # type: ignore[arg-type]


class Nobody:
    """Surroundings of which only names are asked."""

    namespace, nonce = "e2e-1", "1"


class Context:
    """A context of which only the nonce and the settings are asked."""

    nonce, settings = "1", load()


def test_the_namespace_of_claims_is_that_of_every_object(tmp_path: Path) -> None:
    """Contract: kubectl applies them beside the claims, and a launch takes the claims from there."""
    path = printed(
        TrainingSpec(claims_namespace="team", secrets=(Wanted("wandb"),)), tmp_path, None, "registry"
    )
    assert {each["metadata"]["namespace"] for each in yaml.safe_load_all(path.read_text())} == {"team"}
    workload = loaded(path)
    assert workload.spec.claims_namespace == "team"
    assert workload.spec.secrets == (Wanted("wandb", "team"),)


def test_claims_that_nobody_provides_are_refused(tmp_path: Path) -> None:
    """Contract: on a cluster of the user's; on kind, folders stand for the three claims, and for no other."""
    workload = loaded(printed(TrainingSpec(), tmp_path))
    workload.check(load())
    with pytest.raises(UsageError, match=r"claims that are not in the file .datasets-pvc, outputs-pvc"):
        workload.check(load(kubeconfig=tmp_path / "kubeconfig"))

    def edit(documents: list[dict[str, Any]]) -> None:
        volumes = documents[-1]["spec"]["template"]["spec"]["volumes"]
        last = [each for each in volumes if "persistentVolumeClaim" in each][-1]
        last["persistentVolumeClaim"]["claimName"] = "mine"

    with pytest.raises(UsageError, match=r"claims that are not in the file .mine"):
        loaded(printed(TrainingSpec(), tmp_path, edit)).check(load())


def test_two_jobs_in_one_file_are_refused(tmp_path: Path) -> None:
    path = printed(TrainingSpec(), tmp_path, lambda documents: documents.append(documents[-1]))
    with pytest.raises(UsageError, match="exactly one of"):
        workload_file.load(path)


def test_a_printed_training_is_launched_to_be_audited(tmp_path: Path) -> None:
    """Contract: its checkpoints are judged. The smoke test has none."""
    full = loaded(printed(TrainingSpec(restarts=2), tmp_path))
    assert launch_of(full, "e2e-1", Context()).training  # type: ignore[arg-type]
    smoke = loaded(printed(TrainingSpec(smoke=True), tmp_path))
    assert (smoke.spec.smoke, smoke.mounts) == (True, ())
    assert not launch_of(smoke, "e2e-1", Context()).training  # type: ignore[arg-type]
