"""Launch a training job with `harness run` from manifests that `harness train --print-manifests` printed.

The user can edit the manifests before the launch. Therefore, the launch reads all settings from the objects:
the run's folder from the command, the PersistentVolumeClaims from the volumes, and the claims' namespace from
the metadata.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from harness.context import RunContext
from harness.core.errors import UsageError
from harness.core.kubernetes import Kube, Object
from harness.evidence.kubernetes.objects import items, mapping
from harness.launch.user_secrets import HF_TOKEN, Wanted
from harness.launch.workloads import training_volumes
from harness.launch.workloads.base import Surroundings
from harness.launch.workloads.indexed_job import IndexedJobWorkload
from harness.launch.workloads.pod_template_workload import PlainWorkload
from harness.launch.workloads.statefulset import StatefulSetWorkload
from harness.launch.workloads.training import (
    ETCD,
    Shared,
    Training,
    check_tracking,
    on_one_node,
    shared_folder,
)
from harness.launch.workloads.training_spec import TrainingSpec
from harness.settings import Settings

_CLAIM = "PersistentVolumeClaim"
_RUN = ("--run-name", "--run")


@dataclass(frozen=True)
class PrintedTraining(Training):
    """The base class for training jobs from printed manifests. The pod template determines the volumes."""

    @property
    def mounts(self) -> tuple[training_volumes.Mount, ...]:
        """Return the volumeMounts of the ranks' container whose volumes are PersistentVolumeClaims."""
        pod = self._pod
        claims_by_volume = {
            str(each.get("name")): mapping(each, "persistentVolumeClaim") for each in items(pod, "volumes")
        }
        mounts = []
        for each in items(items(pod, "containers")[0], "volumeMounts"):
            claim = claims_by_volume.get(str(each.get("name"))) or {}
            if claim:
                read_only = bool(each.get("readOnly") or claim.get("readOnly"))
                place = (str(claim.get("claimName")), str(each.get("mountPath")))
                mounts.append(training_volumes.Mount(*place, read_only, str(each.get("subPath") or "")))
        return tuple(mounts)

    @property
    def _pod(self) -> Object:
        return dict(self.document["spec"]["template"]["spec"])  # type: ignore[attr-defined] # of PlainWorkload

    @property
    def _lacking(self) -> tuple[training_volumes.Mount, ...]:
        """Return the mounts whose claims are not in the file."""
        other_objects: Sequence[Object] = self.other_objects  # type: ignore[attr-defined] # of PlainWorkload
        claim_names = {each["metadata"]["name"] for each in other_objects if each["kind"] == _CLAIM}
        return tuple(one for one in self.mounts if one.claim not in claim_names)

    def check(self, settings: Settings) -> None:
        """Raise UsageError if the pods mount a claim and the file contains neither the claim nor its
        namespace."""
        super(Training, self).check(settings)  # type: ignore[misc] # of PlainWorkload
        check_tracking(self.envs)  # type: ignore[attr-defined] # of PlainWorkload
        names = sorted({one.claim for one in self._lacking})
        if self.spec.claims_namespace or not names:
            return
        unknown = sorted(set(names) - training_volumes.CLAIMS.keys())
        if unknown or settings.kubeconfig is not None:
            raise UsageError(
                f"the pods mount claims that are not in the file ({', '.join(unknown or names)}); expected "
                "the claims in the file, or their namespace in the workload's metadata.namespace",
                hint="print the manifests again, with --storage-class or --claims-namespace",
            )

    def install(self, kube: Kube, context: RunContext) -> None:
        """Install nothing. Raises UsageError if the cluster lacks a Secret, claim or storage class."""
        super(Training, self).install(kube, context)  # type: ignore[misc] # of PlainWorkload
        self._secrets(kube, context)
        self._user_claims(kube)
        for each in self.other_objects:  # type: ignore[attr-defined] # of PlainWorkload
            if each["kind"] == _CLAIM and (name := mapping(each, "spec").get("storageClassName")):
                training_volumes.prove_class(kube, str(name))

    def _user_claims(self, kube: Kube) -> list[training_volumes.Claimed]:
        if not self.spec.claims_namespace:
            return []
        return training_volumes.read(kube, self.spec.claims_namespace, self._lacking, self.spec.replicas)

    def volumes(self, surroundings: Surroundings) -> tuple[list[Object], Shared]:
        """Return the PersistentVolumes and claims to create, and the pods' mounts. Claims that the file
        contains are left out."""
        namespace, nonce = surroundings.namespace, surroundings.nonce
        if not self._lacking:
            return [], Shared(self.mounts)
        if self.spec.claims_namespace:
            user_claims = self._user_claims(surroundings.kube)
            documents = list(training_volumes.of_namespace(user_claims, namespace, nonce))
            return documents, Shared(self.mounts, training_volumes.on_one_node(user_claims))
        folder = shared_folder(surroundings)
        return list(training_volumes.of_folder(folder, namespace, namespace, nonce)), Shared(self.mounts)

    def prepare(self, document: Object, surroundings: Surroundings) -> None:
        """Remove the variable TRAINING_HOLD, because the init already keeps the containers running."""
        super(Training, self).prepare(document, surroundings)  # type: ignore[misc] # of PlainWorkload
        template = document["spec"]["template"]
        env = template["spec"]["containers"][0]["env"]
        env[:] = [each for each in env if each["name"] != "TRAINING_HOLD"]
        if self.volumes(surroundings)[1].one_node:
            on_one_node(template["spec"], template["metadata"]["labels"])


@dataclass(frozen=True)
class PrintedStatefulSet(PrintedTraining, StatefulSetWorkload):
    """A training job from printed manifests that runs as a StatefulSet."""


@dataclass(frozen=True)
class PrintedJob(PrintedTraining, IndexedJobWorkload):
    """A training job from printed manifests that runs as an Indexed Job."""


def of_documents(document: Object, other_objects: Sequence[Object], source: str) -> PlainWorkload:
    """Return the training job that the printed manifests describe. Raises UsageError if they contain
    mistakes."""
    stateful = document["kind"] == "StatefulSet"
    workload_class = PrintedStatefulSet if stateful else PrintedJob
    own = tuple(each for each in other_objects if each["metadata"]["name"] != ETCD)
    plain_workload = workload_class(document, own, source)  # The constructor raises UsageError for mistakes.
    namespace = document["metadata"].get("namespace")
    words = _words(document["spec"]["template"]["spec"]["containers"][0])
    replicas = plain_workload.members(None)  # type: ignore[arg-type] # no cluster is needed
    nodes = plain_workload.envs.get("NNODES", "")
    spec = TrainingSpec(
        kind="statefulset" if stateful else "job",
        replicas=replicas,
        max_replicas=_max_replicas(nodes, replicas, source) if stateful else None,
        rdzv="c10d" if len(own) == len(other_objects) else "etcd",
        run=next(
            (value for name, value in pairwise(words) if name in _RUN),
            plain_workload.envs.get("RUN_ID", "run"),
        ),
        smoke="training.train" in words,
        claims_namespace=str(namespace) if namespace else None,
        secrets=tuple(_secrets(document["spec"]["template"]["spec"], namespace)),
    )
    return workload_class(document, own, source, spec)


def _max_replicas(nodes: str, replicas: int, source: str) -> int | None:
    """Return MAX if the variable NNODES is a range MIN:MAX, or None if it is not a range. Raises UsageError
    for an invalid range."""
    minimum, colon, maximum = nodes.partition(":")
    if not colon:
        return None
    if not (minimum.isdecimal() and maximum.isdecimal() and int(minimum) <= replicas <= int(maximum)):
        raise UsageError(
            f"{source}: NNODES: expected a number, or a range MIN:MAX that includes the {replicas} replicas, "
            f"found {nodes!r}"
        )
    return int(maximum)


def _words(container: Object) -> list[str]:
    """Return the words of the ranks' command. If the command runs a shell script, the script's words are
    included."""
    text = " ".join(map(str, [*(container.get("command") or []), *(container.get("args") or [])]))
    try:
        return shlex.split(text.replace("$$", "$").replace("=", " "))
    except ValueError:
        return text.split()


def _secrets(pod: Object, namespace: str | None) -> list[Wanted]:
    """Return the Secrets that the pods need to start, because environment variables refer to them."""
    container = items(pod, "containers")[0]
    names = [mapping(each, "secretRef") for each in items(container, "envFrom")]
    names += [mapping(each, "valueFrom", "secretKeyRef") for each in items(container, "env")]
    needed = {str(each["name"]) for each in names if each.get("name") and not each.get("optional")}
    return [Wanted(name, namespace) for name in sorted(needed, key=lambda name: (name != HF_TOKEN, name))]
