"""The base class for workloads with a pod template: StatefulSets, Indexed Jobs and DaemonSets.

The manifest is applied with the launch's additions: labels, image, environment, references to Secrets,
scripts that have changed since the image was built, and an init process that wraps the command
(files/worker_init.sh). The init forwards SIGTERM and logs the command's exit code.
"""

from __future__ import annotations

import copy
import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from typing import ClassVar

import yaml

from harness.context import RecordedContext, RunContext
from harness.core import pod_security
from harness.core.errors import UsageError
from harness.core.input_limits import listed
from harness.core.kubernetes import Kube, Object
from harness.core.pod_security import Standard
from harness.evidence.io.redaction import secret_variables, secrets_in
from harness.evidence.kubernetes import kinds
from harness.evidence.schema.bundle import Purpose
from harness.launch import inits
from harness.launch.apply import apply
from harness.launch.labels import LOCAL_IMAGE, NONCE_LABEL, QUEUE_LABEL
from harness.launch.mounts import netcheck, recorder
from harness.launch.pods import references
from harness.launch.user_secrets import UserSecret
from harness.launch.workloads import nproc_per_node
from harness.launch.workloads.base import Handle, Record, Surroundings
from harness.launch.workloads.manifest_mistakes import mistakes_in
from harness.provision.images import scripts
from harness.settings import Settings

_GPU = "nvidia.com/gpu"


def take_image(spec: Object, image: str) -> None:
    """Replace the placeholder image with `image` in all containers and init containers of a pod spec."""
    for part in ("initContainers", "containers"):
        for container in spec.get(part) or []:
            if container.get("image") == LOCAL_IMAGE:
                container["image"] = image
                container.setdefault("imagePullPolicy", "IfNotPresent")


@dataclass(frozen=True)
class PlainWorkload(ABC):
    """A workload whose object has a pod template. `other_objects` contains the other objects in its file."""

    document: Object
    other_objects: tuple[Object, ...]
    source: str
    own: bool = field(default=False, kw_only=True)
    """Whether the harness generated the pod template, and therefore sets the pods' security defaults."""

    kind: ClassVar[str]
    keep_alive: ClassVar[bool]
    spreads: ClassVar[bool] = False
    """Always False, because the manifest decides whether the pods are spread over the nodes."""
    purpose: ClassVar[Purpose] = "training"
    watched_kind: ClassVar[kinds.WatchedKind]
    launcher: ClassVar[str] = "apply"

    def __post_init__(self) -> None:
        problems = listed([*mistakes_in(self.document, self.other_objects), *self.mistakes()])
        if problems:
            raise UsageError(
                f"manifest {self.source}: {problems}",
                hint="for a working example of each kind, see manifests/ in the harness's repository",
            )

    @abstractmethod
    def mistakes(self) -> Iterable[str]:
        """Yield the mistakes in a workload of this kind, in the form "field: expected …, found …"."""

    @abstractmethod
    def members(self, kube: Kube, /) -> int: ...

    def must_answer(self, _kube: Kube, /) -> list[str]:
        """Return no nodes, because the workload does not test individual nodes."""
        return []

    def prepare(self, document: Object, surroundings: Surroundings) -> None:  # noqa: B027 - optional
        """Change the document before it is applied, as this kind of workload requires."""

    # -- the content of the file -------------------------------------------------------------------------
    @property
    def name(self) -> str:
        return str(self.document["metadata"]["name"])

    @cached_property
    def template(self) -> Object:
        return dict(self.document["spec"]["template"])

    @cached_property
    def _container(self) -> Object:
        """Return the container in which the ranks run, which is the pod's first container."""
        return dict(self.template["spec"]["containers"][0])

    @property
    def container(self) -> str:
        return str(self._container["name"])

    @property
    def _command(self) -> str:
        return " ".join(map(str, [*self._container["command"], *(self._container.get("args") or [])]))

    @property
    def first_host(self) -> str | None:
        """Return the first pod's DNS name, or None if the pods have no DNS names."""
        return None

    @property
    def per_node(self) -> int:
        return self._processes.guess

    @property
    def has_rank_count(self) -> bool:
        return self._processes.count is not None

    @cached_property
    def _processes(self) -> nproc_per_node.Processes:
        limits = (self._container.get("resources") or {}).get("limits") or {}
        gpus = str(limits.get(_GPU, ""))
        words = [*self._container["command"], *(self._container.get("args") or [])]
        script = shlex.join(map(str, words))
        return nproc_per_node.read(
            script, self.envs, int(gpus) if gpus.isdecimal() and len(gpus) < 6 else None
        )

    def job_name(self, nonce: str, /) -> str:
        """Return the job name that the tracker uses for this launch.

        The name contains the nonce, because the same manifest can be launched several times with one tracker.
        """
        return f"{self.name}-{nonce}"

    @property
    def queue(self) -> str | None:
        return (self.document["metadata"].get("labels") or {}).get(QUEUE_LABEL)

    @property
    def watched(self) -> tuple[kinds.WatchedKind, ...]:
        return (self.watched_kind, *(kinds.QUEUED if self.queue else ()))

    @property
    def cpus(self) -> Decimal | None:
        return None

    @property
    def image(self) -> str:
        return str(self._container["image"])

    @property
    def uses_worker_image(self) -> bool:
        return self.image == LOCAL_IMAGE

    @property
    def pod_spec(self) -> Object:
        return dict(self.template["spec"])

    @property
    def pod_standard(self) -> Standard | None:
        """Return "restricted" for pods generated by the harness, and None for pods in a user's manifest."""
        return "restricted" if self.own else None

    def harden(self, pod: Object, *, rejects_root: bool = False) -> None:
        """Set the security defaults in a pod spec that the harness generated."""
        del rejects_root
        pod_security.harden(pod, read_only=self.fits_read_only)

    @property
    def fits_read_only(self) -> bool:
        """Return whether the containers run with a read-only root filesystem.

        A user's image may need a writable root filesystem. The container runtime may also need it to be
        writable to add GPUs.
        """
        return self.uses_worker_image and _GPU not in self.resources

    def placed(self, _settings: Settings, /) -> Object:
        """Return the pod template."""
        return self.template

    @property
    def resources(self) -> set[str]:
        resources = [
            amounts
            for container in self.template["spec"]["containers"]
            for amounts in (container.get("resources") or {}).values()
            if isinstance(amounts, dict)
        ]
        return {"cpu", "memory", *(name for amounts in resources for name in amounts)}

    @property
    def envs(self) -> dict[str, str]:
        return {e["name"]: str(e["value"]) for e in self._container.get("env") or [] if "value" in e}

    @property
    def annotations(self) -> dict[str, str]:
        return dict(self.document["metadata"].get("annotations") or {})

    @property
    def secret_envs(self) -> dict[str, str]:
        return secret_variables(self.envs)

    @property
    def secrets(self) -> set[str]:
        texts = [
            *self.envs.values(),
            yaml.dump_all([self.document, *self.other_objects], Dumper=yaml.CSafeDumper),
        ]
        return {*self.secret_envs.values()}.union(*map(secrets_in, texts))

    def check(self, settings: Settings) -> None:
        """Raise UsageError if a konduktor config is set, or if netcheck is set but pods lack DNS names."""
        if settings.netcheck and self.first_host is None and self.purpose != "nodes":
            raise UsageError(
                f"manifest {self.source}: netcheck needs pods with DNS names, but the pods of this "
                f"{self.kind} have none",
                hint="add a headless Service; in an Indexed Job, also set spec.template.spec.subdomain",
            )
        if settings.konduktor_config is not None:
            raise UsageError(
                f"HARNESS_KONDUKTOR_CONFIG is set, but konduktor does not launch manifest {self.source}",
                hint="unset the variable, and put node selectors and tolerations into the manifest",
            )

    def begun(self, context: RunContext) -> AbstractContextManager[None]:
        """Start nothing, because the harness applies the manifest itself."""
        del context
        return nullcontext()

    def provide(self, context: RunContext) -> Iterable[str]:
        """Provide nothing, because the harness applies the manifest itself."""
        del context
        return ()

    def install(self, kube: Kube, context: RunContext) -> None:
        """Install nothing. Raises UsageError if the pods refer to an object that the cluster lacks."""
        references.check(kube, self.template["spec"], self.other_objects)
        self._pull_secrets(kube, context)

    def _pull_secrets(self, kube: Kube, context: RunContext) -> list[UserSecret]:
        """Return the user's image pull Secrets for the pods, and add their values to the redactor."""
        own_secret = (context.settings.image_pull_secret or "").rpartition("/")[2] or None
        namespace = self.document["metadata"].get("namespace")
        pod = self.template["spec"]
        secrets = references.pull_secrets(kube, pod, self.other_objects, namespace, own_secret)
        if isinstance(context, RecordedContext):
            for value in (value for secret in secrets for value in secret.values):
                context.writer.redactor.add(value)
        return secrets

    # -- the launch ---------------------------------------------------------------------------------------
    def render(self, surroundings: Surroundings) -> list[Object]:
        """Return the objects to apply: first the other objects in the file, then the workload."""
        document = copy.deepcopy(self.document)
        label = {NONCE_LABEL: surroundings.nonce}
        template = document["spec"]["template"]
        for metadata in (document["metadata"], template.setdefault("metadata", {})):
            metadata["labels"] = {**(metadata.get("labels") or {}), **label}
        spec = template["spec"]
        take_image(spec, surroundings.image)
        worker = spec["containers"][0]
        worker["image"] = surroundings.image
        worker.setdefault("imagePullPolicy", "IfNotPresent")
        words = [*worker.pop("command"), *(worker.pop("args", None) or [])]
        worker["command"] = ["sh", "-c", inits.WORKER, "sh", *words]
        worker["env"] = self._env(surroundings)
        if surroundings.cpu_request is not None:
            resources = worker.setdefault("resources", {})
            resources["requests"] = {**(resources.get("requests") or {}), "cpu": surroundings.cpu_request}
        if surroundings.scripts:
            worker["volumeMounts"] = [*(worker.get("volumeMounts") or []), *surroundings.scripts]
            spec["volumes"] = [*(spec.get("volumes") or []), *scripts.volumes(surroundings.scripts)]
        if surroundings.recorder:
            worker["volumeMounts"] = [*(worker.get("volumeMounts") or []), recorder.MOUNTED.mount()]
            spec["volumes"] = [*(spec.get("volumes") or []), recorder.MOUNTED.volume()]
        if surroundings.netcheck:
            worker["volumeMounts"] = [*(worker.get("volumeMounts") or []), netcheck.MOUNTED.mount()]
            spec["volumes"] = [*(spec.get("volumes") or []), netcheck.MOUNTED.volume()]
        if surroundings.pull_secret is not None:
            pull_secrets = [{"name": surroundings.pull_secret}]
            own = [each for each in spec.get("imagePullSecrets") or [] if each not in pull_secrets]
            spec["imagePullSecrets"] = [*own, *pull_secrets]
        spec.setdefault("terminationGracePeriodSeconds", 30)
        self.prepare(document, surroundings)
        if self.own:
            self.harden(spec, rejects_root=surroundings.rejects_root)
        documents = [*copy.deepcopy(list(self.other_objects)), document]
        for each in documents:
            each["metadata"]["namespace"] = surroundings.namespace
        return documents

    def _env(self, surroundings: Surroundings) -> list[Object]:
        """Return the manifest's environment without secrets, overridden by the launch's variables."""
        values = {
            # Pluto's client reads the job name only from this variable.
            "KONDUKTOR_JOB_NAME": self.job_name(surroundings.nonce),
            "HARNESS_NODES": str(surroundings.nodes),
            "HARNESS_HOLD": "1" if self.keep_alive else "0",
            **(netcheck.master(self._command, self.first_host) if surroundings.netcheck else {}),
            **surroundings.envs,
        }
        names = {*values, *surroundings.secret_env}
        own = [
            e for e in self._container.get("env") or [] if e["name"] not in names | self.secret_envs.keys()
        ]
        plain = [{"name": name, "value": value} for name, value in values.items()]
        secrets = [
            {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
            for name, (secret, key) in surroundings.secret_env.items()
        ]
        return [*plain, *secrets, *own]

    def submit(self, surroundings: Surroundings, record: Record) -> Handle:
        """Apply the manifest and return the created workload. Raises HarnessError (cause launch.rejected)."""
        documents = self.render(surroundings)
        record("launch/manifest.yaml", yaml.dump_all(documents, Dumper=yaml.CSafeDumper, sort_keys=False))
        for secret in self._pull_secrets(surroundings.kube, surroundings.context):
            apply(surroundings.kube, secret.copy(surroundings.namespace))
        for document in documents:
            applied = apply(surroundings.kube, document)
        metadata = applied["metadata"]
        return Handle(metadata["name"], metadata["uid"])

    def cancel(self, surroundings: Surroundings) -> None:
        """Delete the workload. The garbage collector deletes its pods, with their grace periods."""
        kube, kind = surroundings.kube, self.kind
        kube.delete(self.document["apiVersion"], kind, self.name, surroundings.namespace)

    def clean(self, surroundings: Surroundings) -> None:  # noqa: B027 - not every kind needs it
        """Remove nothing, because workloads of this kind leave no files on this machine."""
