"""Launch the acceptance tests, as a DaemonSet that tests each node or a StatefulSet that tests collectives.

The launch's ConfigMaps contain the tests (harness/workers/acceptance), so any image with PyTorch can run
them.
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import ClassVar, Literal

import yaml

from harness.core.errors import UsageError
from harness.core.kubernetes import Kube, Object
from harness.core.user_files import toml
from harness.evidence.kubernetes.gpu_nodes import GPU, is_gpu_node
from harness.evidence.kubernetes.objects import mapping
from harness.evidence.kubernetes.unschedulable import accepts
from harness.evidence.schema.bundle import Purpose
from harness.launch.labels import LOCAL_IMAGE
from harness.launch.mounts.folder import MountedFolder, projected
from harness.launch.workloads import gpu_request
from harness.launch.workloads.base import Surroundings
from harness.launch.workloads.daemonset import DaemonSetWorkload
from harness.launch.workloads.pod_options import by_reference
from harness.launch.workloads.pod_template_workload import PlainWorkload
from harness.launch.workloads.statefulset import StatefulSetWorkload
from harness.settings import Settings
from harness.workers.acceptance.gpu_sharing import WHOLE
from harness.workers.acceptance.limits import MAX_BYTES, Limits

FOLDER = "/opt/harness/acceptance"
PORT = 29500
MAX_CONFIG_MAP = 120_000
"""The maximum size of a ConfigMap with the tests, in bytes.

`kubectl apply` stores a copy of the ConfigMap in an annotation, whose limit is more than twice this size.
"""
LOCAL = re.compile(r"acceptance\.screen .*--local (\d+)")
_READY = {
    "exec": {
        "command": [
            "sh",
            "-c",
            "cat /app/reports/ended.txt 2>/dev/null || echo 'the tests run'; "
            "grep -qE '^(PASS|WARN|DONE)' /app/reports/ended.txt 2>/dev/null",
        ]
    },
    "periodSeconds": 5,
    "timeoutSeconds": 20,
    "failureThreshold": 1,
}
"""A readiness probe that succeeds once the tests have passed. If the tests fail, the probe's Event shows the
verdict."""
_LABELLED = {
    "nvidia.com/gpu.present": ["true"],
    "feature.node.kubernetes.io/pci-10de.present": ["true"],
    **dict.fromkeys(
        (
            "cloud.google.com/gke-accelerator",
            "k8s.amazonaws.com/accelerator",
            "kubernetes.azure.com/accelerator",
        )
    ),
}
"""Labels that identify GPU nodes. They are set by GPU feature discovery, node feature discovery, GKE, EKS or
AKS.

If this table lists values for a label, a node with any other value has no GPU. Otherwise, the label
identifies a GPU node regardless of its value.
"""
_GPU_NODES = [
    {
        "matchExpressions": [
            {"key": key, "operator": "In", "values": values} if values else {"key": key, "operator": "Exists"}
        ]
    }
    for key, values in _LABELLED.items()
]
_OF_GPU_NODES = (
    "# Runs one pod on each node that has a GPU label from GPU feature discovery, NFD, GKE, EKS or AKS.\n"
    "# To add other nodes: kubectl label node NODE nvidia.com/gpu.present=true, or use --selector "
    "LABEL=VALUE.\n"
)
_FILES = Path(__file__).parents[1] / "files"
_PACKAGE = Path(str(resources.files("harness"))) / "workers" / "acceptance"
_LIMITS = "limits-of-this-launch.toml"


@dataclass(frozen=True, kw_only=True)
class AcceptanceSpec:
    """The options for an acceptance test."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """The device to test. With "cpu", no GPU is tested. Otherwise, every node must have a GPU."""
    full: bool = False
    image: str = LOCAL_IMAGE
    limits: Path | None = None
    """The user's limits file. Its limits take precedence over the package's own limits."""
    gpus: int | None = None
    """The number of GPUs per pod. None means all GPUs on a node."""
    selector: tuple[tuple[str, str], ...] = ()
    """Labels that select the nodes to test."""
    busbw_limit: float | None = None
    """The minimum bus bandwidth of each group of nodes in a search, in GB/s.

    If this is None, groups of the same size are compared with each other.
    """

    def __post_init__(self) -> None:
        hint = "`harness accept --calibrate FILE` writes a valid limits file"
        if self.limits is not None:
            toml(self.limits, "limits", hint=hint, max_bytes=MAX_BYTES)
        try:
            Limits.load(self.limits)
        except (OSError, ValueError) as error:
            raise UsageError(f"limits file {self.limits} cannot be used: {error}", hint=hint) from error

    def words(self) -> list[str]:
        """Return the tests' command-line options."""
        limits = ["--limits", f"{FOLDER}/{_LIMITS}"] if self.limits else []
        gpus = ["--gpus", str(self.gpus)] if self.gpus and self.device != "cpu" else []
        mode = "--full" if self.full else "--quick"
        return [mode, "--device", self.device, "--report-dir", "/app/reports", *limits, *gpus]

    def mounted(self) -> MountedFolder:
        """Return the folder with the tests, which is mounted into the pods."""
        package = {f"acceptance/{path.name}": path for path in sorted(_PACKAGE.glob("*.*")) if path.is_file()}
        own = {_LIMITS: self.limits} if self.limits else {}
        script = {"acceptance.sh": _FILES / "acceptance.sh"}
        return MountedFolder("acceptance", FOLDER, {**script, **package, **own})


@dataclass(frozen=True)
class NodesWorkload(DaemonSetWorkload):
    """A DaemonSet whose pods each test their node once."""

    every_gpu: bool = False
    """Whether each pod requests all GPUs on its node. The number of GPUs is read from the cluster."""
    purpose: ClassVar[Purpose] = "nodes"

    def must_answer(self, kube: Kube, /) -> list[str]:
        """Return the nodes that accept a pod. If the pods request GPUs, return only nodes with GPUs.

        These include nodes whose device plugin lost the GPUs or is not running, if their capacity or their
        labels show that they have GPUs.
        """
        return sorted(str(node["metadata"]["name"]) for node in self._tested(kube))

    def _tested(self, kube: Kube) -> list[Object]:
        nodes = [node for node in kube.objects("v1", "Node") if accepts(self.template, node)]
        return [node for node in nodes if is_gpu_node(node)] if GPU in self.resources else nodes

    def members(self, kube: Kube, /) -> int:
        """Return the number of nodes to test. Raises UsageError if there are none, or if their GPUs cannot be
        tested together."""
        if tested := self._tested(kube):
            if GPU in self.resources:
                gpu_request.of(tested, self._requested)
            return len(tested)
        selector = mapping(self.template, "spec").get("nodeSelector") or {}
        if GPU in self.resources:
            raise gpu_request.no_gpus(kube.objects("v1", "Node"), selector)
        raise UsageError(
            f"no node has the labels {selector}",
            hint="compare with the output of `kubectl get nodes --show-labels`",
        )

    @property
    def _requested(self) -> int | None:
        """Return the number of GPUs per pod that the user requests, or None for all GPUs on a node."""
        limits = mapping(self.template["spec"]["containers"][0], "resources", "limits")
        return None if self.every_gpu else int(limits.get(GPU, 1))

    def prepare(self, document: Object, surroundings: Surroundings) -> None:
        """Restrict the pods to the nodes to test. On other nodes, a pod would remain Pending forever, waiting
        for a GPU."""
        tested = self._tested(surroundings.kube)
        names = sorted(str(node["metadata"]["name"]) for node in tested)
        # Nodes are matched by name, because the label kubernetes.io/hostname may differ from a node's name.
        # Kubernetes permits only one name per term.
        terms = [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]} for name in names
        ]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        pod = document["spec"]["template"]["spec"]
        _remove_probe(pod)
        pod.setdefault("affinity", {})["nodeAffinity"] = required
        if GPU in self.resources:
            request, container = gpu_request.of(tested, self._requested), pod["containers"][0]
            limits = container["resources"]["limits"]
            limits.pop(GPU, None)
            limits[request.resource] = request.count
            env = {WHOLE: "1"} if request.whole else {}
            env |= {"ACCEPT_GPUS": str(request.count)} if self.every_gpu else {}
            container["env"] += [{"name": name, "value": value} for name, value in env.items()]


@dataclass(frozen=True)
class DdpWorkload(StatefulSetWorkload):
    """A StatefulSet whose pods test the collectives together, or search for bad nodes."""

    purpose: ClassVar[Purpose] = "ddp"

    def prepare(self, document: Object, surroundings: Surroundings) -> None:
        """Prepare the object like any StatefulSet, and remove the readiness probe."""
        super().prepare(document, surroundings)
        _remove_probe(document["spec"]["template"]["spec"])

    @property
    def per_node(self) -> int:
        """Return the number of ranks per pod. In a search, this is the number of GPUs that each pod tests."""
        local = LOCAL.search(self._command)
        return int(local[1]) if local else super().per_node


def nodes(spec: AcceptanceSpec) -> NodesWorkload:
    """Return the DaemonSet that tests each node."""
    (document,) = _read("acceptance-nodes.yaml")
    pod = document["spec"]["template"]["spec"]
    pod["containers"][0]["args"] = [_script("acceptance.run_all_tests", spec)]
    if spec.selector:
        pod["nodeSelector"] = dict(spec.selector)
    _complete(pod, spec)
    every = spec.gpus is None and spec.device != "cpu"
    return NodesWorkload(document, tuple(_files(spec)), "acceptance-nodes.yaml", every_gpu=every, own=True)


def ddp(spec: AcceptanceSpec, replicas: int) -> DdpWorkload:
    """Return the StatefulSet that tests the collectives with `replicas` pods."""
    service, document = _read("acceptance-ddp.yaml")
    workload_spec = document["spec"]
    workload_spec["replicas"] = replicas
    pod, name = workload_spec["template"]["spec"], document["metadata"]["name"]
    torchrun = (
        f"torch.distributed.run --nnodes={replicas} --nproc-per-node={spec.gpus or 1} "
        f"--node-rank=${{HOSTNAME##*-}} --master-addr={name}-0.{service['metadata']['name']} "
        f"--master-port={PORT} -m acceptance.ddp_tests"
    )
    pod["containers"][0]["args"] = [_script(torchrun, spec)]
    if spec.selector:
        pod["nodeSelector"] = dict(spec.selector)
    _complete(pod, spec)
    return DdpWorkload(document, (*_files(spec), service), "acceptance-ddp.yaml", own=True)


def screen(spec: AcceptanceSpec, replicas: int) -> DdpWorkload:
    """Return the StatefulSet whose pods, one per node, search for bad nodes.

    Without GPUs, several pods can share a node, so the search can be tried on a small cluster.
    """
    workload = ddp(spec, replicas)
    name = workload.name
    words = (
        f"acceptance.screen --nodes {replicas} --node-rank ${{HOSTNAME##*-}} --local {spec.gpus or 1} "
        f"--master {name}-0.{name} --device {'cpu' if spec.device == 'cpu' else 'cuda'} "
        "--report-dir /app/reports"
    )
    if spec.busbw_limit is not None:
        words += f" --limit {spec.busbw_limit:g}"
    pod = workload.document["spec"]["template"]["spec"]
    pod["containers"][0]["args"] = [f"exec sh {FOLDER}/acceptance.sh {words}\n"]
    if spec.device != "cpu":
        (spread,) = pod["topologySpreadConstraints"]
        anti_affinity = {"topologyKey": spread["topologyKey"], "labelSelector": spread["labelSelector"]}
        pod["affinity"] = {
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [anti_affinity]}
        }
    return workload


def manifests(workload: PlainWorkload, settings: Settings | None = None) -> str:
    """Return the objects as YAML for `kubectl apply -f -`, without a namespace.

    After their tests, the pods keep running until they are deleted, so that their reports can be read. A pod
    becomes Ready once its tests have passed. If `settings` is given, the pods use its image and pull secret.
    """
    document, comment = by_reference(workload.document, workload)
    document = copy.deepcopy(document)
    pod = document["spec"]["template"]["spec"]
    container = pod["containers"][0]
    container["env"].append({"name": "ACCEPT_HOLD", "value": "1"})
    container["readinessProbe"] = copy.deepcopy(_READY)
    if settings is not None and settings.worker_image and workload.uses_worker_image:
        container["image"] = settings.worker_image
    if settings is not None and settings.image_pull_secret:
        namespace, _, name = settings.image_pull_secret.partition("/")
        pod["imagePullSecrets"] = [*(pod.get("imagePullSecrets") or []), {"name": name}]
        comment += f"# Copy the Secret {name} from namespace {namespace} to the pods' namespace.\n"
    if isinstance(workload, NodesWorkload) and GPU in workload.resources and not pod.get("nodeSelector"):
        required = pod.setdefault("affinity", {}).setdefault("nodeAffinity", {})
        required.setdefault(
            "requiredDuringSchedulingIgnoredDuringExecution", {"nodeSelectorTerms": _GPU_NODES}
        )
        comment += _OF_GPU_NODES
    workload.harden(pod)
    return comment + yaml.dump_all(
        [*workload.other_objects, document], Dumper=_Plain, sort_keys=False, width=110
    )


def _remove_probe(pod: Object) -> None:
    """Remove the readiness probe.

    The probe reads a file that is created only with the manifests from --print-manifests, so a launch's pod
    would never become Ready.
    """
    pod["containers"][0].pop("readinessProbe", None)


class _Plain(yaml.CSafeDumper):
    """A YAML dumper that writes repeated values in full instead of using aliases."""

    def ignore_aliases(self, _data: object) -> bool:
        return True


def _script(module: str, spec: AcceptanceSpec) -> str:
    """Return a pod's shell command, which runs a module with the tests' options."""
    return f"exec sh {FOLDER}/acceptance.sh {module} {' '.join(spec.words())}\n"


def _read(name: str) -> list[Object]:
    return list(yaml.load_all((_FILES / name).read_text(), yaml.CSafeLoader))


def _complete(pod: Object, spec: AcceptanceSpec) -> None:
    """Add the image, the GPUs and the folder with the tests to an acceptance test's pod."""
    container, mounted = pod["containers"][0], spec.mounted()
    container["image"] = spec.image
    if spec.device != "cpu":
        container["resources"]["limits"] = {GPU: spec.gpus or 1}
    container["volumeMounts"].append(mounted.mount())
    pod["volumes"].append(projected(mounted.name, mounted.parts(MAX_CONFIG_MAP)))


def _files(spec: AcceptanceSpec) -> list[Object]:
    documents = [part.config_map("") for part in spec.mounted().parts(MAX_CONFIG_MAP)]
    for document in documents:
        del document["metadata"]["namespace"]
    return documents
