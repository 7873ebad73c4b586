"""Every pod template that the harness makes passes the Pod Security Standard "restricted"."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from pod_templates import SPECS, TRAININGS, audit, hardened, violations

from harness.core import pod_security
from harness.faults import step_variables
from harness.launch import workload_file
from harness.launch.workloads import training
from harness.launch.workloads.pod_template_workload import PlainWorkload

ROOT = {"capabilities": {"drop": ["ALL"], "add": ["CHOWN", "DAC_OVERRIDE", "FOWNER"]}}
SECCOMP = {"seccompProfile": {"type": "RuntimeDefault"}}


@pytest.mark.parametrize("name", SPECS)
def test_a_pod_of_the_harness_passes_the_standard_restricted(name: str) -> None:
    """Contract: and it has no token of a service account, except the controller, which uses the API."""
    spec = SPECS[name]
    assert list(violations(spec)) == []
    assert spec.get("automountServiceAccountToken") is False or "torchrun-controller" in name


@pytest.mark.parametrize("name", SPECS)
def test_only_user_images_and_gpu_containers_write_root(name: str) -> None:
    """Contract: such a container runs the ranks. The runtime changes the root of a container with GPUs."""
    writable = name.startswith(("train", "accept", "netcheck")) and any(
        word in name for word in ("image", "gpus", "GPUs")
    )
    for container in SPECS[name]["containers"]:
        assert ("readOnlyRootFilesystem" not in container["securityContext"]) == writable


@pytest.mark.parametrize("name", [name for name in SPECS if name.startswith(("train", "audit", "accept"))])
def test_the_pods_have_a_home_and_a_user_name(name: str) -> None:
    """Contract: torch, Triton and the client write to the home folder, and torch asks for the user's name."""
    (container,) = SPECS[name]["containers"]
    variables = {each["name"]: each.get("value") for each in container["env"]}
    assert variables["HOME"] == "/tmp"
    assert variables["USER"]
    mounted = "/tmp" in {mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounted == ("readOnlyRootFilesystem" in container["securityContext"])


@pytest.mark.parametrize("name", ["kept folder", "claims", "class", "image"])
def test_training_on_volumes_of_user_keeps_images_user(name: str) -> None:
    """Contract: root wrote files there before, so it keeps the capabilities for files, and nothing else."""
    spec = hardened(training.workload(TRAININGS[name]))
    context = spec["containers"][0]["securityContext"]
    read_only = {} if name == "image" else {"readOnlyRootFilesystem": True}
    assert context == {**ROOT, **SECCOMP, "allowPrivilegeEscalation": False, **read_only}
    assert "securityContext" not in spec
    assert audit(TRAININGS[name])["containers"][0]["securityContext"] == {
        **context,
        "readOnlyRootFilesystem": True,
    }


def test_only_new_volumes_get_the_group_of_the_pods() -> None:
    """Contract: Kubernetes changes the group of every file on a volume, so existing volumes keep theirs."""
    group = {"fsGroup": pod_security.USER, "fsGroupChangePolicy": "OnRootMismatch"}
    for name, asked in TRAININGS.items():
        spec = hardened(training.workload(asked), rejects_root=True)
        assert spec.get("securityContext") == (group if name == "class" else None)


@pytest.mark.parametrize(
    ("pod", "container", "expected"),
    [
        ({"runAsUser": 0}, {}, {**ROOT, **SECCOMP, "allowPrivilegeEscalation": False}),
        ({"runAsNonRoot": False}, {}, {**ROOT, **SECCOMP, "allowPrivilegeEscalation": False}),
        (
            {"runAsUser": 1000},
            {},
            {
                "runAsNonRoot": True,
                **SECCOMP,
                "capabilities": {"drop": ["ALL"]},
                "allowPrivilegeEscalation": False,
            },
        ),
        (
            {"runAsNonRoot": True},
            {},
            {**SECCOMP, "capabilities": {"drop": ["ALL"]}, "allowPrivilegeEscalation": False},
        ),
        ({}, {"privileged": True}, {"privileged": True}),
        (
            {},
            {"capabilities": {"add": ["IPC_LOCK"]}},
            {"capabilities": {"add": ["IPC_LOCK"]}, **SECCOMP, "allowPrivilegeEscalation": False},
        ),
        (
            {"seccompProfile": {"type": "Unconfined"}},
            {"capabilities": {"add": ["CAP_SYS_ADMIN"]}},
            {"capabilities": {"add": ["CAP_SYS_ADMIN"]}},
        ),
        (
            {},
            {"allowPrivilegeEscalation": True, "readOnlyRootFilesystem": False, "runAsUser": 7},
            {
                "allowPrivilegeEscalation": True,
                "readOnlyRootFilesystem": False,
                "runAsUser": 7,
                "runAsNonRoot": True,
                **SECCOMP,
                "capabilities": {"drop": ["ALL"]},
            },
        ),
    ],
    ids=str,
)
def test_what_the_user_sets_is_kept(pod: Any, container: Any, expected: Any) -> None:
    """Contract: no default contradicts it. Capabilities have an effect only for root."""
    spec = {"securityContext": pod, "containers": [{"name": "a", "securityContext": container}]}
    before = copy.deepcopy(pod)
    pod_security.harden(spec)
    read_only = {"readOnlyRootFilesystem": True}
    assert spec["containers"][0]["securityContext"] == {**read_only, **expected}
    assert spec["securityContext"] == before


def test_an_init_container_of_the_user_is_not_changed() -> None:
    """Contract: a `--pod` file can add one that prepares a volume as root."""
    own = {"name": "prepare", "image": "i", "command": ["chown", "-R", "65532", "/out"]}
    spec: dict[str, Any] = {"initContainers": [dict(own)], "containers": [{"name": "a"}]}
    pod_security.harden(spec)
    assert spec["initContainers"] == [own]
    assert "securityContext" not in spec


def test_volumes_and_variables_of_the_user_take_precedence() -> None:
    mine = {"name": "tmp", "persistentVolumeClaim": {"claimName": "mine"}}
    container = {"name": "a", "env": [{"name": "HOME", "value": "/mine"}]}
    spec: dict[str, Any] = {"volumes": [mine], "containers": [container]}
    pod_security.harden(spec)
    assert spec["volumes"] == [mine, {"name": "harness-tmp", "emptyDir": {}}]
    assert container["env"] == [{"name": "HOME", "value": "/mine"}, {"name": "USER", "value": "harness"}]
    again = copy.deepcopy(spec)
    pod_security.harden(again)
    assert again == spec


def test_a_named_service_account_keeps_its_token() -> None:
    spec: dict[str, Any] = {"serviceAccountName": "reader", "containers": [{"name": "a"}]}
    pod_security.harden(spec)
    assert "automountServiceAccountToken" not in spec


def test_a_users_manifest_is_not_changed() -> None:
    """Contract: manifests/ are examples of users' jobs."""
    found = workload_file.load(Path(step_variables.FILES / "netcheck.yaml"))
    assert isinstance(found, PlainWorkload)
    assert not found.own
    assert found.pod_standard is None
