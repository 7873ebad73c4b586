"""Every pod template that the harness makes passes the Pod Security Standard "restricted"."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.core import pod_security
from harness.faults import places
from harness.launch.workloads import acceptance, netcheck_job, training, training_audit, training_pod
from harness.launch.workloads.asked_training import Asked
from harness.launch.workloads.plain import PlainWorkload
from harness.launch.workloads.training_pod import Volumes
from harness.provision.controllers import prove, tracker, victoria_logs
from harness.provision.images.victoria_logs import LogImages
from harness.torchrun_controller.objects import etcd, manifests

CPU = acceptance.Asked(device="cpu")
VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected"}
ROOT = {"capabilities": {"drop": ["ALL"], "add": ["CHOWN", "DAC_OVERRIDE", "FOWNER"]}}
SECCOMP = {"seccompProfile": {"type": "RuntimeDefault"}}


def violations(spec: dict[str, Any]) -> Iterator[str]:
    """Yield what the standard "restricted" forbids, by the documentation of the Pod Security Standards."""
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(field):
            yield field
    for volume in spec.get("volumes") or []:
        if not set(volume) - {"name"} <= VOLUMES | {"secret"}:
            yield f"volume {volume}"
    pod = spec.get("securityContext") or {}
    for container in [*(spec.get("initContainers") or []), *spec["containers"]]:
        own = container.get("securityContext") or {}
        both = {**pod, **own}
        if both.get("runAsNonRoot") is not True or both.get("runAsUser") == 0:
            yield "root"
        if (both.get("seccompProfile") or {}).get("type") not in ("RuntimeDefault", "Localhost"):
            yield "seccomp"
        if own.get("allowPrivilegeEscalation") is not False or own.get("privileged"):
            yield "privilege escalation"
        capabilities = own.get("capabilities") or {}
        if capabilities.get("drop") != ["ALL"] or set(capabilities.get("add") or []) - {"NET_BIND_SERVICE"}:
            yield f"capabilities {capabilities}"
        if any("hostPort" in port for port in container.get("ports") or []):
            yield "hostPort"


def hardened(workload: PlainWorkload, *, rejects_root: bool = False) -> dict[str, Any]:
    spec: dict[str, Any] = copy.deepcopy(workload.pod_spec)
    workload.harden(spec, rejects_root=rejects_root)
    return spec


def audit(asked: Asked, *, rejects_root: bool = False) -> dict[str, Any]:
    """Return the helper pod of a training."""
    workload: Any = training.workload(asked)
    ranks = hardened(workload, rejects_root=rejects_root)
    surroundings: Any = type("", (), {"image": "i", "scripts": [], "pull_secret": None, "namespace": "n"})
    pod = training_pod.pod(
        training_audit.program(workload), Volumes(asked.mounts(), False, ranks), surroundings
    )
    return dict(pod["spec"])


def of_objects(documents: list[Any]) -> dict[str, dict[str, Any]]:
    """Return the pod specs in some objects, by kind and name."""
    found = {f"{each['kind']} {each['metadata']['name']}": each.get("spec") or {} for each in documents}
    return {
        name: spec["template"]["spec"] if "template" in spec else spec
        for name, spec in found.items()
        if "template" in spec or name.startswith("Pod ")
    }


def printed(text: str) -> dict[str, Any]:
    (spec,) = of_objects(list(yaml.safe_load_all(text))).values()
    return spec


LOGS = of_objects(victoria_logs.manifest(LogImages("server", "agent", local=True), "tracker"))
TRAININGS = {
    "smoke": Asked(smoke=True),
    "folder": Asked(),
    "job": Asked(kind="job"),
    "gpus": Asked(gpus=8),
    "kept folder": Asked(volumes="mine"),
    "claims": Asked(claims_namespace="team"),
    "class": Asked(storage_class="fast"),
    "image": Asked(image="mine:1"),
}
SPECS: dict[str, dict[str, Any]] = {
    "tracker": tracker._deployment("i", {})["template"]["spec"],
    **of_objects(manifests.documents()),
    **of_objects(etcd.documents()),
    **{name: spec for name, spec in LOGS.items() if "vlagent" not in name},
    **of_objects(list(yaml.safe_load_all((places.FILES / "tracker-proxy.yaml").read_text()))),
    **of_objects(training.etcd("i")),
    "probe": next(each["spec"] for each in prove._probes() if each["kind"] == "Pod"),
    "netcheck": hardened(netcheck_job.job(4)),
    "netcheck, an image of the user's": hardened(netcheck_job.job(4, "mine:1")),
    "accept --nodes": hardened(acceptance.nodes(CPU)),
    "accept --nodes with GPUs": hardened(acceptance.nodes(acceptance.Asked(image="mine:1"))),
    "accept --ddp": hardened(acceptance.ddp(CPU, 2)),
    "accept --screen": hardened(acceptance.screen(CPU, 2)),
    "accept, printed": printed(acceptance.manifests(acceptance.nodes(CPU))),
    "train, printed": printed(training.manifests(Asked(claims_namespace="team"), rejects_root=True)),
    **{
        f"train, {name}": hardened(training.workload(asked), rejects_root=True)
        for name, asked in TRAININGS.items()
    },
    **{f"audit, {name}": audit(asked, rejects_root=True) for name, asked in TRAININGS.items()},
}


@pytest.mark.parametrize("name", SPECS)
def test_a_pod_of_the_harness_passes_the_standard_restricted(name: str) -> None:
    """Contract: and it has no token of a service account, except the controller, which uses the API."""
    spec = SPECS[name]
    assert list(violations(spec)) == []
    assert spec.get("automountServiceAccountToken") is False or "torchrun-controller" in name


@pytest.mark.parametrize("name", SPECS)
def test_only_users_images_and_containers_with_gpus_can_write_to_their_root(name: str) -> None:
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
def test_a_training_on_volumes_of_the_user_keeps_the_images_user(name: str) -> None:
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
    from harness.launch import workload_file

    found = workload_file.load(Path(places.FILES / "netcheck.yaml"))
    assert isinstance(found, PlainWorkload)
    assert not found.own
    assert found.pod_standard is None
