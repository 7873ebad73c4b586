"""Launch a training job: a StatefulSet or Indexed Job whose pods are torchrun's nodes and share volumes.

The trainers are in the worker image (harness/workers/training). torchrun restarts killed ranks, training.sh
restarts torchrun on its node, and the StatefulSet or Job replaces pods. The launch limits the number of
restarts.
"""

from __future__ import annotations

import copy
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import yaml

from harness.context import RecordedContext, RunContext
from harness.core import pod_security
from harness.core.errors import HarnessError, UsageError
from harness.core.kubernetes import Kube, Object
from harness.core.pod_security import Standard
from harness.evidence.io.runs_folder import opened
from harness.evidence.kubernetes.objects import mapping
from harness.evidence.schema.training import RESUMED_FROM
from harness.launch import huggingface_access, user_secrets
from harness.launch.apply import apply
from harness.launch.labels import RESTARTS, TRAINING
from harness.launch.user_secrets import HF_KEY, HF_TOKEN, UserSecret
from harness.launch.workloads import training_transfer, training_volumes
from harness.launch.workloads.base import Handle, Record, Surroundings
from harness.launch.workloads.indexed_job import IndexedJobWorkload
from harness.launch.workloads.pod_options import PodOptions, by_reference
from harness.launch.workloads.pod_template_workload import PlainWorkload
from harness.launch.workloads.statefulset import StatefulSetWorkload
from harness.launch.workloads.training_pod import Volumes
from harness.launch.workloads.training_spec import MEMORY, PORT, TrainingSpec
from harness.launch.workloads.training_texts import copy_texts
from harness.provision.cluster import SharedFolder
from harness.provision.images.etcd import etcd_image
from harness.provision.source.programs import pinned
from harness.settings import Settings
from harness.workers.training import gloo, mlflow_client
from harness.workers.training.gloo import GLOO

GPU = "nvidia.com/gpu"
HOST = "kubernetes.io/hostname"
ETCD = "train-etcd"
MOST_REPLICAS = 64
"""The maximum number of nodes to which a printed StatefulSet can be scaled by default."""
_FILES = Path(__file__).parents[1] / "files"


@dataclass(frozen=True)
class Shared:
    """The mounts of a training job's pods, and the placement that their volumes require."""

    mounts: Sequence[training_volumes.Mount] = ()
    one_node: bool = False
    """Whether all pods must run on one node."""


@dataclass(frozen=True)
class Training:
    """The base class for training jobs. Creates volumes before the workload and removes them afterwards."""

    spec: TrainingSpec = field(default_factory=TrainingSpec)

    def check(self, settings: Settings) -> None:
        """Raise UsageError if the training job's options are invalid or do not apply to this kind of
        cluster."""
        super().check(settings)  # type: ignore[misc] # of PlainWorkload
        check_tracking(self.envs)  # type: ignore[attr-defined] # of PlainWorkload
        if self.spec.gpus is None:
            check_gloo(self.envs)  # type: ignore[attr-defined] # of PlainWorkload
        spec, existing = self.spec, settings.kubeconfig is not None
        if not spec.smoke:
            training_volumes.check(spec.volumes, spec.storage_class, spec.claims_namespace, existing)
        if existing and spec.data is not None:
            raise UsageError(
                "--data applies only to kind; on your own cluster, copy the texts to the claim datasets-pvc"
            )
        if not spec.secrets:  # Otherwise, the S3 keys may come from a Secret in the cluster.
            for option, url in spec.transfers():
                training_transfer.check(option, url, training_transfer.keys_of((), option))
        spec.examine_data()

    def provide(self, context: RunContext) -> Iterable[str]:
        """Return the etcd image if the launch has its own etcd."""
        return [etcd_image(context)] if self.spec.brings_etcd else []

    def install(self, kube: Kube, context: RunContext) -> None:
        """Install nothing. Raises UsageError if this training job cannot use its Secrets, model or claims.

        This check runs before any object of the launch is created.
        """
        super().install(kube, context)  # type: ignore[misc] # of PlainWorkload
        spec, secrets = self.spec, self._secrets(kube, context)
        for warning in spec.data_warnings():
            context.progress(f"warning: --data {warning}")
        if (model := spec.hub_model) is not None:
            tokens = [value for one in secrets if one.name == HF_TOKEN for value in one.values]
            huggingface_access.check(model, next(iter(tokens), None), context.progress)
        for option, url in spec.transfers():
            keys = training_transfer.keys_of(secrets, option)
            _redact(context, training_transfer.credentials(keys))
            if spec.secrets:
                training_transfer.check(option, url, keys)
        self._claimed(kube)
        if spec.storage_class and not spec.smoke:
            training_volumes.prove_class(kube, spec.storage_class)

    def _secrets(self, kube: Kube, context: RunContext) -> list[UserSecret]:
        """Return the user's Secrets, and add their values to the redactor. Raises UsageError."""
        secrets = user_secrets.read(kube, self.spec.secrets)
        _redact(context, (value for secret in secrets for value in secret.values))
        return secrets

    def _claimed(self, kube: Kube) -> list[training_volumes.Claimed]:
        """Return the user's claims that the pods mount. Raises UsageError."""
        spec = self.spec
        if not spec.claims_namespace:
            return []
        return training_volumes.read(kube, spec.claims_namespace, spec.mounts(), spec.replicas)

    def volumes(self, surroundings: Surroundings) -> tuple[list[Object], Shared]:
        """Return the claims and volumes to create, and the pods' mounts."""
        spec, namespace, nonce = self.spec, surroundings.namespace, surroundings.nonce
        pod_mounts = spec.mounts()
        if not pod_mounts:
            return [], Shared()
        if spec.storage_class:
            return list(training_volumes.of_class(spec.storage_class, pod_mounts, namespace)), Shared(
                pod_mounts
            )
        if spec.claims_namespace:
            claimed = self._claimed(surroundings.kube)
            existing = {one.mount.claim for one in claimed}
            existing_mounts = tuple(one for one in pod_mounts if one.claim in existing)
            documents = list(training_volumes.of_namespace(claimed, namespace, nonce))
            return documents, Shared(existing_mounts, training_volumes.on_one_node(claimed))
        folder = spec.volumes or namespace
        return list(
            training_volumes.of_folder(shared_folder(surroundings), folder, namespace, nonce)
        ), Shared(pod_mounts)

    def prepare(self, document: Object, surroundings: Surroundings) -> None:
        """Add the volumes to the pods. Remove the S3 keys' Secret from the ranks' environment, because only
        transfers need the keys."""
        super().prepare(document, surroundings)  # type: ignore[misc] # of PlainWorkload
        _, shared = self.volumes(surroundings)
        template = document["spec"]["template"]
        use(template["spec"], shared, template["metadata"]["labels"])
        if (keys := self._keys_secret(surroundings)) is not None:
            container = template["spec"]["containers"][0]
            env_from = container.get("envFrom") or []
            container["envFrom"] = [e for e in env_from if mapping(e, "secretRef").get("name") != keys.name]

    @property
    def pod_standard(self) -> Standard | None:
        """Return "baseline" if the pods run as the image's user, otherwise the standard of the base class."""
        standard: Standard | None = super().pod_standard  # type: ignore[misc] # of PlainWorkload
        return "baseline" if standard and self._as_images_user else standard

    @property
    def _as_images_user(self) -> bool:
        """Return whether the pods run as the user that their image sets, which is root in most images.

        They do if the job uses volumes that may be writable only by root (--volumes, --storage-class or
        --claims-namespace), or a custom image, whose trainer may write to folders in the image.
        """
        spec = self.spec
        volumes = spec.volumes or spec.storage_class or spec.claims_namespace
        return bool(volumes) or not self.uses_worker_image  # type: ignore[attr-defined] # of PlainWorkload

    def harden(self, pod: Object, *, rejects_root: bool = False) -> None:
        """Set the security defaults in a pod spec that the harness generated."""
        pod_security.harden(
            pod,
            root=self._as_images_user and not rejects_root,
            read_only=self.fits_read_only,  # type: ignore[attr-defined] # of PlainWorkload
            fs_group=self.spec.storage_class is not None,
        )

    def _keys_secret(self, surroundings: Surroundings) -> UserSecret | None:
        """Return the Secret with the S3 keys for the transfers, or None.

        The ranks must not get this Secret.
        """
        if not self.spec.transfers():
            return None
        return training_transfer.source_of(self._secrets(surroundings.kube, surroundings.context))

    def of_pods(self, surroundings: Surroundings) -> Volumes:
        """Return the ranks' volumes and pod spec, for a helper pod."""
        _, shared = self.volumes(surroundings)
        ranks = copy.deepcopy(self.pod_spec)  # type: ignore[attr-defined] # of PlainWorkload
        if self.own:  # type: ignore[attr-defined] # of PlainWorkload
            self.harden(ranks, rejects_root=surroundings.rejects_root)
        return Volumes(shared.mounts, shared.one_node, ranks)

    def upload(self, surroundings: Surroundings) -> str:
        """Upload the run to the --upload URL. Return a JSON document with the result or the error."""
        assert self.spec.upload is not None
        keys = self._transfer_keys("--upload", surroundings)
        place = (self.of_pods(surroundings), surroundings, surroundings.context.progress)
        return training_transfer.upload(self.spec.run, self.spec.upload, keys, *place)

    def _transfer_keys(self, option: training_transfer.Option, at: Surroundings) -> training_transfer.Keys:
        return training_transfer.keys_of(self._secrets(at.kube, at.context), option)

    def _restore(self, surroundings: Surroundings, record: Record) -> None:
        """Restore the run given by --resume-from, unless this launch has already restored it.

        Raises HarnessError (cause training.resume_from_failed).
        """
        url, context = self.spec.resume_from, surroundings.context
        if url is None:
            return
        if isinstance(context, RecordedContext) and (context.writer.path / RESUMED_FROM).exists():
            return  # The launch is being submitted again after an API server error.
        keys = self._transfer_keys("--resume-from", surroundings)
        place = (self.of_pods(surroundings), surroundings, context.progress)
        record(RESUMED_FROM, training_transfer.restore(self.spec.run, url, keys, *place))

    def submit(self, surroundings: Surroundings, record: Record) -> Handle:
        """Create the volumes, fill them with the --data texts and the run to resume, and apply the workload.

        Raises HarnessError with a launch.* cause, or with training.resume_from_failed.
        """
        documents, shared = self.volumes(surroundings)
        record("launch/volumes.yaml", yaml.safe_dump_all(documents, sort_keys=False))
        if shared.one_node:
            surroundings.context.progress(
                "all pods will run on one node, because one of their volumes can be attached to only one node"
            )
        if surroundings.shared_folder is not None and self.spec.volumes is None:
            training_volumes.make_folders(surroundings.shared_folder, surroundings.namespace)
        if self.spec.data is not None:
            folder = self.spec.volumes or surroundings.namespace
            copy_texts(
                self.spec.data, shared_folder(surroundings).local_path / folder / training_volumes.DATASETS
            )
        if self.spec.brings_etcd:
            documents += etcd(etcd_image(surroundings.context), surroundings.namespace)
        keys = self._keys_secret(surroundings)
        for secret in self._secrets(surroundings.kube, surroundings.context):
            if keys is None or secret.name != keys.name:
                apply(surroundings.kube, secret.copy(surroundings.namespace))
        for document in documents:
            apply(surroundings.kube, document)
        self._restore(surroundings, record)
        return super().submit(surroundings, record)  # type: ignore[misc,no-any-return] # of PlainWorkload

    def clean(self, surroundings: Surroundings) -> None:
        """Delete etcd and the PersistentVolumes. On kind, Cluster.free_disk later deletes the folders."""
        if self.spec.brings_etcd:
            surroundings.kube.delete("v1", "Pod", ETCD, surroundings.namespace)
        training_volumes.remove(surroundings.kube, surroundings.nonce)


@dataclass(frozen=True)
class TrainingStatefulSet(Training, StatefulSetWorkload):
    """A training job that runs as a StatefulSet."""


@dataclass(frozen=True)
class TrainingJob(Training, IndexedJobWorkload):
    """A training job that runs as an Indexed Job."""


def shared_folder(surroundings: Surroundings) -> SharedFolder:
    """Return the folder that all nodes share. Raises HarnessError (cause cluster.mismatch) if the cluster has
    none."""
    if surroundings.shared_folder is None:
        raise HarnessError(
            "training needs a folder that all nodes share, but this kind cluster was created without one",
            hint="run `harness down`; the next launch then creates a cluster with a shared folder",
            cause="cluster.mismatch",
        )
    return surroundings.shared_folder


def workload(spec: TrainingSpec) -> PlainWorkload:
    """Return the workload for `harness train`."""
    service, document = yaml.load_all((_FILES / f"train-{spec.kind}.yaml").read_text(), yaml.CSafeLoader)
    workload_spec = document["spec"]
    if spec.kind == "statefulset":
        workload_spec["replicas"] = spec.replicas
    else:
        workload_spec |= {"completions": spec.replicas, "parallelism": spec.replicas}
        workload_spec["backoffLimit"] = spec.restarts * spec.replicas
    document["metadata"]["annotations"] = {RESTARTS: f"{spec.restarts}"}
    pod = workload_spec["template"]["spec"]
    _complete(pod, spec, document["metadata"]["labels"])
    workload_class = TrainingStatefulSet if spec.kind == "statefulset" else TrainingJob
    source = f"train-{spec.kind}.yaml"
    return workload_class(document=document, other_objects=(service,), source=source, spec=spec, own=True)


def etcd(image: str, namespace: str | None = None) -> list[Object]:
    """Return a Service and a pod for etcd. The pod's data is lost when the pod is deleted."""
    service, pod = yaml.load_all((_FILES / "train-etcd.yaml").read_text(), yaml.CSafeLoader)
    pod["spec"]["containers"][0]["image"] = image
    pod_security.harden(pod["spec"])
    for document in (service, pod):
        document["metadata"] |= {"namespace": namespace} if namespace else {}
    return [service, pod]


def _redact(context: RunContext, values: Iterable[str]) -> None:
    """Add values to the bundle's redactor."""
    if isinstance(context, RecordedContext):
        for value in values:
            context.writer.redactor.add(value)


def weights_of(run: Path, runs_dir: Path) -> tuple[str, str]:
    """Return a bundle's name and the digest of its last checkpoint's weights. Raises UsageError."""
    bundle = opened(run, runs_dir)
    audit = bundle.training_audit
    weights = audit.checkpoints[-1].weights if audit is not None and audit.checkpoints else None
    if weights is None:
        raise UsageError(
            f"--same-as {run}: expected the bundle of a training job whose checkpoints were audited",
            hint="choose a bundle of `harness train`; `harness runs` lists bundles",
        )
    return bundle.path.name, weights


def check_tracking(envs: Mapping[str, str]) -> None:
    """Raise UsageError if the ranks cannot log to the MLflow server set in their environment."""
    if (uri := envs.get("MLFLOW_TRACKING_URI")) and (problem := mlflow_client.problem(uri)):
        raise UsageError(problem)


def check_gloo(envs: Mapping[str, str]) -> None:
    """Raise UsageError if gloo's variable GLOO_SOCKET_IFNAME does not name a valid interface."""
    if (value := envs.get(GLOO)) and (problem := gloo.problem(value)):
        raise UsageError(
            f"{GLOO}: {problem}",
            hint="omit the variable: gloo then uses the interface that has the pod's IP address",
        )


def manifests(
    spec: TrainingSpec,
    of_pods: PodOptions | None = None,
    pull_secret: str | None = None,
    rejects_root: bool = False,
) -> str:
    """Return the objects as YAML for `kubectl apply -f -`.

    If the options contain a storage class, the objects include PersistentVolumeClaims. Otherwise, the claims
    must already exist in the namespace, as must the Secrets and `pull_secret`. Set `rejects_root` if the
    namespace enforces the standard "restricted". The pods of a StatefulSet keep running after their training
    until they are deleted. NNODES is a range, so `kubectl scale` can change the number of nodes, up to
    `TrainingSpec.max_replicas` or MOST_REPLICAS.
    """
    if spec.kind == "statefulset" and not spec.smoke and spec.max_replicas is None:
        spec = replace(spec, max_replicas=max(MOST_REPLICAS, spec.replicas))
    for option, _ in spec.transfers():
        raise UsageError(
            f"{option} needs a helper pod, which printed manifests do not contain",
            hint="omit this option, or omit --print-manifests",
        )
    for on_kind, folder in (("--data", spec.data), ("--volumes", spec.volumes)):
        if folder is not None:
            raise UsageError(
                f"{on_kind} applies only to a launch on kind, but printed manifests use volume claims",
                hint="copy the texts to the claim datasets-pvc, or use --synthetic",
            )
    printed_workload = (of_pods or PodOptions()).applied(workload(spec))
    check_tracking(printed_workload.envs)
    if spec.gpus is None:
        check_gloo(printed_workload.envs)
    document, comment = by_reference(copy.deepcopy(printed_workload.document), printed_workload)
    document["metadata"]["annotations"][TRAINING] = "true"
    template, pod_mounts = document["spec"]["template"], spec.mounts(printed=True)
    use(template["spec"], Shared(pod_mounts), template["metadata"]["labels"])
    if pull_secret:
        template["spec"]["imagePullSecrets"] = [{"name": pull_secret}]
    hold_variable = {"name": "TRAINING_HOLD", "value": "1" if spec.kind == "statefulset" else "0"}
    env = template["spec"]["containers"][0]["env"]
    source = {"name": "TRAINING_SOURCE", "value": "1" if spec.generates_texts(printed=True) else "0"}
    env[:] = [*(source if one["name"] == source["name"] else one for one in env), hold_variable]
    pod_security.harden(
        template["spec"],
        root=(bool(pod_mounts) or not printed_workload.uses_worker_image)
        and not rejects_root,  # The user's volumes may be writable only by root.
        read_only=printed_workload.fits_read_only,
        fs_group=spec.storage_class is not None,
    )
    other_objects = [*printed_workload.other_objects]
    if spec.brings_etcd:
        other_objects += etcd(pinned("rendezvous", "image"))
    if spec.storage_class:
        other_objects += training_volumes.of_class(spec.storage_class, pod_mounts)
    documents = [copy.deepcopy(each) for each in (*other_objects, document)]
    for each in documents:
        each["metadata"] |= {"namespace": spec.claims_namespace} if spec.claims_namespace else {}
    return comment + yaml.safe_dump_all(documents, sort_keys=False, width=110)


def _complete(pod: Object, spec: TrainingSpec, labels: Object) -> None:
    """Complete the pod spec of a StatefulSet or Job: command, environment, volumes, GPUs and spread over
    nodes."""
    container = pod["containers"][0]
    memory = spec.memory or (MEMORY if spec.gpus is None else None)
    limits: Object = {"memory": memory} if memory else {}
    requests = {"memory": spec.memory or "4Gi"} if spec.gpus else {"cpu": "250m", "memory": "512Mi"}
    if spec.gpus:
        limits[GPU] = spec.gpus
    names = [one.name for one in spec.secrets]
    token = {"secretKeyRef": {"name": HF_TOKEN, "key": HF_KEY, "optional": HF_TOKEN not in names}}
    env_from = [{"secretRef": {"name": name}} for name in names if name != HF_TOKEN]
    container |= {
        "image": spec.image,
        "command": ["sh", "-c"],
        # The kubelet expands $(NAME) and replaces $$ with $.
        "args": [f"exec {shlex.join(spec.words())}\n".replace("$", "$$")],
        "resources": {"requests": requests, "limits": limits},
        "env": [
            *container["env"],
            *({"name": name, "value": value} for name, value in spec.environment().items()),
            {"name": HF_KEY, "valueFrom": token},
        ],
        **({"envFrom": env_from} if env_from else {}),
        "ports": [{"name": "rdzv", "containerPort": PORT}],
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108 - torch's own
    }
    pod["volumes"] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    pod["topologySpreadConstraints"] = [
        {
            "maxSkew": 1,
            "topologyKey": HOST,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": dict(labels)},
        }
    ]


def use(pod: Object, shared: Shared, labels: Object) -> None:
    """Add the shared volumes to a pod. `labels` selects all pods of the training job."""
    container = pod["containers"][0]
    volume_mounts, volumes = (
        training_volumes.mounts(shared.mounts),
        training_volumes.pod_volumes(shared.mounts),
    )
    if not shared.mounts:  # The smoke test's output need not outlive the pod.
        volume_mounts = [{"name": "out", "mountPath": training_volumes.CLAIMS[training_volumes.OUTPUTS]}]
        volumes = [{"name": "out", "emptyDir": {}}]
    container["volumeMounts"] = [*container["volumeMounts"], *volume_mounts]
    pod["volumes"] = [*pod["volumes"], *volumes]
    if shared.one_node:
        on_one_node(pod, labels)


def on_one_node(pod: Object, labels: Object) -> None:
    """Add an affinity with which the scheduler places all pods of a training job on one node."""
    term = {"topologyKey": HOST, "labelSelector": {"matchLabels": dict(labels)}}
    pod_affinity = pod.setdefault("affinity", {}).setdefault("podAffinity", {})
    pod_affinity.setdefault("requiredDuringSchedulingIgnoredDuringExecution", []).append(term)
    pod.pop("topologySpreadConstraints", None)
