"""`harness train --upload` and `--resume-from`: whose keys, which pod, and what is refused."""

from __future__ import annotations

import base64
from types import SimpleNamespace
from typing import Any

import pytest

from harness.cli.main import main
from harness.core.errors import UsageError
from harness.launch.user_secrets import HF_KEY, UserSecret, Wanted
from harness.launch.workloads import (
    training,
    training_audit,
    training_pod,
    training_transfer,
    training_volumes,
)
from harness.launch.workloads.training_pod import Program, Volumes
from harness.launch.workloads.training_spec import TrainingSpec
from harness.settings import load

URL = "s3://runs/llama"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "AKIAOFTHEENVIRONMENT",
    "AWS_SECRET_ACCESS_KEY": "secret-of-the-environment",
    "AWS_REGION": "eu-central-1",
    "AWS_PROFILE": "other",
}
OURS: Any = SimpleNamespace(
    namespace="e2e-1", nonce="1", image="worker:1", scripts=[], pull_secret="ours", kube=None
)
"""Surroundings that ask no cluster."""


def secret(name: str, **data: str) -> UserSecret:
    """Return a Secret of the user."""
    return UserSecret(name, {key: base64.b64encode(text.encode()).decode() for key, text in data.items()})


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"upload": "/mnt/runs"}, r"--upload: s3://BUCKET/PREFIX is expected; found '/mnt/runs'"),
        ({"upload": "s3://runs"}, r"--upload: s3://BUCKET/PREFIX is expected"),
        ({"upload": "s3://runs/"}, r"--upload: s3://BUCKET/PREFIX is expected"),
        ({"upload": "s3://runs/a//b"}, r"--upload: s3://BUCKET/PREFIX is expected"),
        ({"resume_from": "https://runs/a"}, r"--resume-from: s3://BUCKET/PREFIX is expected"),
        ({"resume_from": "s3://runs/../a"}, r"--resume-from: s3://BUCKET/PREFIX is expected"),
        ({"upload": URL, "smoke": True}, "--upload transfers checkpoints, but --smoke writes none"),
        ({"resume_from": URL, "smoke": True}, "--resume-from transfers checkpoints"),
    ],
)
def test_what_names_no_storage_is_refused(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TrainingSpec(**asked)


@pytest.mark.parametrize("option", ["--upload", "--resume-from"])
def test_printed_manifests_transfer_nothing(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Contract: one sentence with exit code 64, and no manifest that would leave the option out."""
    with pytest.raises(SystemExit) as ended:
        main(["train", "--print-manifests", option, URL])
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (64, "")
    assert f"{option} needs a helper pod, which printed manifests do not contain" in err


def test_without_keys_nothing_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract: it is refused before there is a cluster."""
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(
        UsageError, match="--upload needs S3 keys: expected AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    ):
        training.workload(TrainingSpec(upload=URL)).check(load())


def test_keys_of_a_secret_override_the_environment() -> None:
    """Contract: nothing else of either goes to the pod, and a Secret with a place of its own has its own."""
    own = secret("bucket", AWS_ACCESS_KEY_ID="AKIA1", AWS_SECRET_ACCESS_KEY="s1", OTHER="x")
    half = secret("half", AWS_ACCESS_KEY_ID="AKIA2")
    of_environment = training_transfer.keys_of([half], "--upload", ENVIRONMENT)
    assert of_environment == {name: text for name, text in ENVIRONMENT.items() if name != "AWS_PROFILE"}
    found = training_transfer.keys_of([half, own], "--upload", ENVIRONMENT)
    assert found == {
        "AWS_ACCESS_KEY_ID": "AKIA1",
        "AWS_SECRET_ACCESS_KEY": "s1",
        "AWS_REGION": "eu-central-1",
    }
    placed = secret("b", **found, AWS_ENDPOINT_URL="https://s3.example.com")  # type: ignore[arg-type]
    found = training_transfer.keys_of([placed], "--upload", {"AWS_ENDPOINT_URL": "https://other"})
    assert found["AWS_ENDPOINT_URL"] == "https://s3.example.com"
    assert training_transfer.credentials(found) == ["AKIA1", "s1"]


def test_the_ranks_do_not_get_the_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract: of the user's Secrets the pods of the ranks name the others alone."""
    keys = secret("bucket", AWS_ACCESS_KEY_ID="AKIA1", AWS_SECRET_ACCESS_KEY="s1")
    there = [keys, secret("wandb", WANDB_MODE="offline"), secret("hf-token", **{HF_KEY: "t"})]
    monkeypatch.setattr("harness.launch.user_secrets.read", lambda *_: there)
    asked = TrainingSpec(upload=URL, secrets=tuple(Wanted(one.name) for one in there))
    workload = training.workload(asked)
    at: Any = SimpleNamespace(
        **{
            **vars(OURS),
            "context": None,
            "netcheck": False,
            "shared_folder": SimpleNamespace(local_path=None, on_nodes="/there"),
        }
    )
    document = {"spec": {"template": {**workload.template, "metadata": {"labels": {}}}}}
    workload.prepare(document, at)
    (container,) = document["spec"]["template"]["spec"]["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": "wandb"}}]


def test_pod_runs_where_ranks_may_and_reads_alone() -> None:
    """Contract: tolerations, node selector and affinity of the ranks, so that tainted nodes take it too."""
    ranks = {
        "tolerations": [{"operator": "Exists"}],
        "nodeSelector": {"pool": "gpu"},
        "affinity": {"nodeAffinity": {"a": 1}, "podAffinity": {"b": 2}},
        "imagePullSecrets": [{"name": "theirs"}],
        "securityContext": {"runAsUser": 1000},
        "hostNetwork": True,
        "containers": [{"securityContext": {"allowPrivilegeEscalation": False}}],
    }
    asked = TrainingSpec()
    program = training_audit.program(training.workload(asked))  # type: ignore[arg-type]
    pod = training_pod.pod(program, Volumes(asked.mounts(), False, ranks), OURS)
    spec = pod["spec"]
    assert (spec["tolerations"], spec["nodeSelector"]) == (ranks["tolerations"], ranks["nodeSelector"])
    assert spec["affinity"] == {"nodeAffinity": {"a": 1}}
    assert spec["imagePullSecrets"] == [{"name": "theirs"}, {"name": "ours"}]
    assert spec["securityContext"] == {"runAsUser": 1000}
    assert "hostNetwork" not in spec
    (container,) = spec["containers"]
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert "runAsUser" not in container["securityContext"]
    assert all(mount["readOnly"] for mount in container["volumeMounts"] if mount["mountPath"] != "/tmp")
    assert "envFrom" not in container
    assert "labels" not in pod["metadata"]


def test_only_the_pod_that_brings_a_run_back_writes() -> None:
    """Contract: and only to the outputs, where texts and models are the user's."""
    mounts = TrainingSpec(claims_namespace="team", options=("--model-local-dir", "/models/a")).mounts()
    program = Program("training-resume", ("true",), "it", 1, 1, writes=True, secret="keys")
    pod = training_pod.pod(program, Volumes(mounts, False, {}), OURS)
    (container,) = pod["spec"]["containers"]
    written = [mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
    assert written == [training_volumes.CLAIMS[training_volumes.OUTPUTS], "/tmp"]
    assert container["envFrom"] == [{"secretRef": {"name": "keys"}}]
    assert {each["name"] for each in container["env"]} == {"HOME"}
