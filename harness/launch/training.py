"""Launch a training: a StatefulSet or an Indexed Job of torchrun's nodes that share their volumes.

The trainers are in the worker image (harness/workers/training). What is killed comes back: a rank by
torchrun, a node by training.sh, a pod by its controller. How often it may, the launch says.
"""

from __future__ import annotations

import copy
import json
import shlex
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml
from kubernetes.utils.quantity import parse_quantity

from harness.core.errors import HarnessError, UsageError
from harness.core.kubernetes import Object
from harness.evidence.lookup import opened
from harness.launch import claims
from harness.launch.indexed_job import IndexedJobWorkload
from harness.launch.names import LOCAL_IMAGE, RESTARTS
from harness.launch.plain import PlainWorkload, apply
from harness.launch.statefulset import StatefulSetWorkload
from harness.launch.workload import Handle, Record, Surroundings
from harness.provision.cluster import SharedFolder
from harness.provision.images import scripts
from harness.settings import Settings

GPU = "nvidia.com/gpu"
PORT = 29500
SMOKE = "--epochs 2 --batch 256 --samples 4096 --features 128 --classes 4 --lr 3e-3 --seed 42"
"""The guide's own flags of train.py."""
TEXTS = ("train.jsonl", "val.jsonl")
_FILES = Path(__file__).parent / "files"
_OWN = {"--run", "--data-dir", "--out-dir", "--device"}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What to train, and on how many pods."""

    kind: Literal["statefulset", "job"] = "statefulset"
    replicas: int = 4
    processes: int = 1
    """Ranks of each pod."""
    gpus: int | None = None
    """GPUs of each pod. None: it trains on CPUs."""
    memory: str | None = None
    """Most memory of each pod, as Kubernetes writes it. None: 8Gi on CPUs, no limit with GPUs."""
    restarts: int = 3
    """How often each rank may run again, whatever ended it."""
    run: str = "train"
    """The folder of the run below /out."""
    smoke: bool = False
    """train.py, the guide's smoke test, in place of train_framework.py."""
    trainer: tuple[str, ...] = ("training.train_framework",)
    """The module that is run, and words before its options. Tests run a faulty one
    (harness/workers/training/faulty.py).
    """
    options: tuple[str, ...] = ()
    """More options of the trainer."""
    image: str = LOCAL_IMAGE
    data: Path | None = None
    """A folder here with train.jsonl and val.jsonl. None: texts of a known entropy are made."""
    volumes: str | None = None
    """A folder of a kind cluster that stays, for later launches. None: one of this launch alone."""
    storage_class: str | None = None
    claims_namespace: str | None = None
    reach: float | None = None
    """How far above the known entropy of the texts the loss may end, as a fraction. None: any."""
    same_as: tuple[str, str] | None = None
    """A bundle, and the digest of the weights that this training must end with, which are that one's."""

    def __post_init__(self) -> None:
        claims.check(self.volumes, self.storage_class, self.claims_namespace, existing=False)
        for name in ("run", "volumes"):
            value = getattr(self, name)
            if value is not None and (not value or "/" in value or value.startswith(".")):
                raise UsageError(f"--{name}: the name of one folder is expected; seen {value!r}")
        if self.memory is not None and not _positive(self.memory):
            raise UsageError(f"--memory: a quantity such as 8Gi is expected; seen {self.memory!r}")
        taken = sorted({option.partition("=")[0] for option in self.options} & _OWN)
        if taken:
            raise UsageError(
                f"{', '.join(taken)}: the launch sets it",
                hint="--run and --gpus-per-pod come before `--`; /data and /out are volumes",
            )
        if self.data is not None:
            missing = [name for name in TEXTS if not (self.data / name).is_file()]
            if missing:
                raise UsageError(
                    f"--data {self.data}: {' and '.join(TEXTS)} are expected; {missing[0]} is not there"
                )
        if self.data is not None and (self.storage_class or self.claims_namespace):
            raise UsageError("--data is for kind: put the texts into datasets-pvc of the cluster yourself")

    def words(self) -> list[str]:
        """Return what runs in each pod: training.sh with options of torchrun, the trainer and its options."""
        head = ["sh", "/workspace/training/training.sh", f"--nproc-per-node={self.processes}", "-m"]
        if self.smoke:
            return [*head, "training.train", *SMOKE.split(), *self.options]
        own = ["--run", self.run, "--data-dir", "/data", "--out-dir", "/out"]
        device = ["--device", "cuda" if self.gpus else "cpu"]
        return [*head, *self.trainer, *own, *device, *self.options]

    def environment(self) -> dict[str, str]:
        """Return the variables of training.sh and of NCCL."""
        first = "train-llm-0.train-rdzv"
        nccl = {"NCCL_DEBUG": "WARN", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"} if self.gpus else {}
        return {
            "NNODES": f"{self.replicas}",
            "NPROC_PER_NODE": f"{self.processes}",
            "MASTER_ADDR": first,
            "MASTER_PORT": f"{PORT}",
            "RUN_ID": self.run,
            "RESTARTS": f"{self.restarts}",
            "TRAINING_SOURCE": "0" if self.data or self.smoke else "1",
            **nccl,
        }


@dataclass(frozen=True)
class Training:
    """What both kinds share: their volumes come before them, and go after them."""

    asked: Asked = Asked()

    def check(self, settings: Settings) -> None:
        """Refuse what this cluster cannot have. Raises UsageError."""
        super().check(settings)  # type: ignore[misc] # of PlainWorkload
        asked, existing = self.asked, settings.kubeconfig is not None
        claims.check(asked.volumes, asked.storage_class, asked.claims_namespace, existing)
        if existing and asked.data is not None:
            raise UsageError("--data is for kind: put the texts into datasets-pvc of the cluster yourself")

    def volumes(self, surroundings: Surroundings) -> Iterable[Object]:
        """Return the claims of this launch, and volumes where the harness makes them."""
        asked, namespace, nonce = self.asked, surroundings.namespace, surroundings.nonce
        if asked.storage_class:
            return claims.of_class(asked.storage_class, namespace)
        if asked.claims_namespace:
            return claims.of_namespace(surroundings.kube, asked.claims_namespace, namespace, nonce)
        return claims.of_folder(_shared(surroundings), asked.volumes or namespace, namespace, nonce)

    def submit(self, surroundings: Surroundings, record: Record) -> Handle:
        """Make the volumes, bring the texts, then apply the workload. Raises HarnessError, cause launch.*."""
        made = list(self.volumes(surroundings))
        record("launch/volumes.yaml", yaml.safe_dump_all(made, sort_keys=False))
        if self.asked.data is not None:
            folder = self.asked.volumes or surroundings.namespace
            there = _shared(surroundings).here / folder / claims.DATASETS
            there.mkdir(parents=True, exist_ok=True)
            for path in sorted(self.asked.data.glob("*")):
                if path.is_file():
                    shutil.copy(path, there)
        for document in made:
            apply(surroundings.kube, document)
        return super().submit(surroundings, record)  # type: ignore[misc,no-any-return] # of PlainWorkload

    def clean(self, surroundings: Surroundings) -> None:
        """Delete the volumes' objects. Folders of kind go with Cluster.free_disk."""
        claims.remove(surroundings.kube, surroundings.nonce)


@dataclass(frozen=True)
class TrainingStatefulSet(Training, StatefulSetWorkload):
    """A StatefulSet, as the guide has it."""


@dataclass(frozen=True)
class TrainingJob(Training, IndexedJobWorkload):
    """An Indexed Job."""


def _shared(surroundings: Surroundings) -> SharedFolder:
    """Return the folder that all nodes share. Raises HarnessError, cause cluster.mismatch."""
    if surroundings.shared_folder is None:
        raise HarnessError(
            "a folder that all nodes share is expected; this kind cluster was made without one",
            hint="`harness down` removes it, and the next launch makes one with it",
            cause="cluster.mismatch",
        )
    return surroundings.shared_folder


def workload(asked: Asked) -> PlainWorkload:
    """Return what `harness train` launches."""
    service, document = yaml.safe_load_all((_FILES / f"train-{asked.kind}.yaml").read_text())
    spec = document["spec"]
    if asked.kind == "statefulset":
        spec["replicas"] = asked.replicas
    else:
        spec |= {"completions": asked.replicas, "parallelism": asked.replicas}
        spec["backoffLimit"] = asked.restarts * asked.replicas
    document["metadata"]["annotations"] = {RESTARTS: f"{asked.restarts}"}
    pod = spec["template"]["spec"]
    _complete(pod, asked, document["metadata"]["labels"])
    made = TrainingStatefulSet if asked.kind == "statefulset" else TrainingJob
    return made(document=document, beside=(service,), source=f"train-{asked.kind}.yaml", asked=asked)


def weights_of(run: Path, runs_dir: Path) -> tuple[str, str]:
    """Return a bundle's name, and the digest of the weights that it ended with. Raises UsageError."""
    bundle = opened(run, runs_dir)
    try:
        found = json.loads((bundle.path / "training-audit.json").read_text())
        weights = str(found["checkpoints"][-1]["weights"])
    except (OSError, ValueError, LookupError, TypeError):
        raise UsageError(
            f"--same-as {run}: the bundle of a training whose checkpoints were audited is expected",
            hint="`harness list` shows bundles; `harness train` makes such ones",
        ) from None
    return bundle.path.name, weights


def manifests(asked: Asked) -> str:
    """Return the objects as YAML for `kubectl apply -f -`: the guide's own commands work on them.

    The claims are those of the namespace. A pod of a StatefulSet that is done stays until it is deleted.
    """
    made = workload(asked)
    document = copy.deepcopy(made.document)
    document["metadata"].pop("annotations")
    hold = {"name": "TRAINING_HOLD", "value": "1" if asked.kind == "statefulset" else "0"}
    document["spec"]["template"]["spec"]["containers"][0]["env"].append(hold)
    return yaml.safe_dump_all([*made.beside, document], sort_keys=False, width=110)


def _complete(pod: Object, asked: Asked, labels: Object) -> None:
    """Add what both kinds need: command, environment, volumes, GPUs, a place on different nodes."""
    container = pod["containers"][0]
    memory = asked.memory or ("8Gi" if asked.gpus is None else None)
    limits: Object = {"memory": memory} if memory else {}
    requests = {"memory": asked.memory or "4Gi"} if asked.gpus else {"cpu": "250m", "memory": "512Mi"}
    if asked.gpus:
        limits[GPU] = asked.gpus
    token = {"secretKeyRef": {"name": "hf-token", "key": "HUGGINGFACE_HUB_TOKEN", "optional": True}}
    container |= {
        "image": asked.image,
        "command": ["sh", "-c"],
        "args": [f"exec {shlex.join(asked.words())}\n"],
        "resources": {"requests": requests, "limits": limits},
        "env": [
            *container["env"],
            *({"name": name, "value": value} for name, value in asked.environment().items()),
            {"name": "HUGGINGFACE_HUB_TOKEN", "valueFrom": token},
        ],
        "ports": [{"name": "rdzv", "containerPort": PORT}],
        "volumeMounts": [*mounts(), {"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108 - torch's own
    }
    pod["volumes"] = [*pod_volumes(), {"name": "shm", "emptyDir": {"medium": "Memory"}}]
    pod["topologySpreadConstraints"] = [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": dict(labels)},
        }
    ]


def _positive(quantity: str) -> bool:
    try:
        return bool(parse_quantity(quantity) > 0)
    except ValueError:
        return False


def script_volumes(surroundings: Surroundings) -> list[Object]:
    """Return the volumes of changed scripts of the worker image."""
    return scripts.volumes(surroundings.scripts) if surroundings.scripts else []


def mounts() -> list[Object]:
    """Return the volumeMounts of the claims."""
    return [{"name": claim, "mountPath": path} for claim, path in claims.CLAIMS.items()]


def pod_volumes() -> list[Object]:
    """Return the volumes that `mounts` refers to."""
    return [{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in claims.CLAIMS]
