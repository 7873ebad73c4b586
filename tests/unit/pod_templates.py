"""Every pod template that the harness makes, and a checker for the Pod Security Standard "restricted"."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import yaml

from harness.faults import step_variables
from harness.launch.workloads import acceptance, netcheck_job, training, training_audit, training_pod
from harness.launch.workloads.pod_template_workload import PlainWorkload
from harness.launch.workloads.training_pod import Volumes
from harness.launch.workloads.training_spec import TrainingSpec
from harness.provision.controllers import tracker, victoria_logs, webhooks
from harness.provision.images.victoria_logs import LogImages
from harness.torchrun_controller.objects import etcd, manifests

CPU = acceptance.AcceptanceSpec(device="cpu")
VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected"}


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


def audit(asked: TrainingSpec, *, rejects_root: bool = False) -> dict[str, Any]:
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
    (spec,) = of_objects(list(yaml.load_all(text, yaml.CSafeLoader))).values()
    return spec


LOGS = of_objects(victoria_logs.manifest(LogImages("server", "agent", local=True), "tracker"))
TRAININGS = {
    "smoke": TrainingSpec(smoke=True),
    "folder": TrainingSpec(),
    "job": TrainingSpec(kind="job"),
    "gpus": TrainingSpec(gpus=8),
    "kept folder": TrainingSpec(volumes="mine"),
    "claims": TrainingSpec(claims_namespace="team"),
    "class": TrainingSpec(storage_class="fast"),
    "image": TrainingSpec(image="mine:1"),
}
SPECS: dict[str, dict[str, Any]] = {
    "tracker": tracker._deployment("i", {})["template"]["spec"],
    **of_objects(manifests.documents()),
    **of_objects(etcd.documents()),
    **{name: spec for name, spec in LOGS.items() if "vlagent" not in name},
    **of_objects(list(yaml.safe_load_all((step_variables.FILES / "tracker-proxy.yaml").read_text()))),
    **of_objects(training.etcd("i")),
    "probe": next(each["spec"] for each in webhooks._probes() if each["kind"] == "Pod"),
    "netcheck": hardened(netcheck_job.job(4)),
    "netcheck, an image of the user's": hardened(netcheck_job.job(4, "mine:1")),
    "accept --nodes": hardened(acceptance.nodes(CPU)),
    "accept --nodes with GPUs": hardened(acceptance.nodes(acceptance.AcceptanceSpec(image="mine:1"))),
    "accept --ddp": hardened(acceptance.ddp(CPU, 2)),
    "accept --screen": hardened(acceptance.screen(CPU, 2)),
    "accept, printed": printed(acceptance.manifests(acceptance.nodes(CPU))),
    "train, printed": printed(training.manifests(TrainingSpec(claims_namespace="team"), rejects_root=True)),
    **{
        f"train, {name}": hardened(training.workload(asked), rejects_root=True)
        for name, asked in TRAININGS.items()
    },
    **{f"audit, {name}": audit(asked, rejects_root=True) for name, asked in TRAININGS.items()},
}
