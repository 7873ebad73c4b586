"""Describe a job that the harness did not launch: the pods with ranks, and the node index of each pod.

All functions are pure, so they also work on recorded objects.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from harness.attach import pod_variables, rank_count
from harness.attach.resources import MPI_JOB_V1, Resource
from harness.core.errors import UsageError
from harness.core.input_limits import MAX_NODES, MAX_RANKS
from harness.core.kubernetes import Object
from harness.evidence.kubernetes.objects import COMPLETION_INDEX, JOBSET_NAME, items, mapping
from harness.evidence.schema.bundle import Expected, Launch, PodGroup
from harness.launch.labels import QUEUE_LABEL

JOBSET_UID = "jobset.sigs.k8s.io/jobset-uid"
REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"
JOB_INDEX = "jobset.sigs.k8s.io/job-index"
TRAINER_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
"""Label that Kubeflow Trainer sets on its replicated jobs. The ranks run in the `trainer` step."""
KUBEFLOW_JOB = "training.kubeflow.org/job-name"
REPLICA_TYPE = "training.kubeflow.org/replica-type"
REPLICA_INDEX = "training.kubeflow.org/replica-index"
JOB_ROLE = "training.kubeflow.org/job-role"
"""Pod labels documented by Kubeflow's training operator and MPI operator."""
DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
_KNOWN_CONTAINERS = ("konduktor-container", "pytorch", "trainer", "node")
_RUNS_RANKS = (
    re.compile(r"torchrun|torch\.distributed|accelerate|deepspeed|mpirun"),
    re.compile(r"python"),
)
"""Patterns for the command of the container with the ranks. The second pattern is used only if no container's
command matches the first, because a sidecar can run Python too."""


class NoPodsError(UsageError):
    """Raised if a job requests no pods, or if it is not known yet how many pods it requests."""


@dataclass(frozen=True)
class ReplicaGroup:
    """Pods with the same template. `count` is the number of pods that the job's object requests."""

    pods: PodGroup
    count: int
    template: Object
    """The spec of these pods, as in the job's pod template."""


@dataclass(frozen=True)
class AttachedJob:
    """A job that the harness did not launch."""

    resource: Resource
    name: str
    """The name of the job's object, or the selector for its pods."""
    item: Object | None
    groups: tuple[ReplicaGroup, ...]
    launch: Launch
    expected: Expected

    @property
    def uid(self) -> str:
        return str(mapping(self.item, "metadata").get("uid") or self.name)

    def owns_pod(self, pod: Object) -> bool:
        """Return whether a pod belongs to the job, even if it has no ranks."""
        metadata = mapping(pod, "metadata")
        labels, kind = mapping(metadata, "labels"), self.resource.kind.kind
        if kind in ("JobSet", "TorchrunJob"):
            same = kind == "TorchrunJob" or labels.get(JOBSET_UID) in (None, self.uid)
            return same and labels.get(JOBSET_NAME) == self.name
        if kind in ("PyTorchJob", "MPIJob"):
            return bool(labels.get(KUBEFLOW_JOB) == self.name)
        if kind == "Pod":
            return str(metadata.get("name")) in self.groups[0].pods.names
        return self.uid in owners(pod)

    def owns_job(self, job: Object) -> bool:
        """Return whether a Kubernetes Job is the attached job itself, or belongs to the attached JobSet."""
        metadata = mapping(job, "metadata")
        if self.resource.kind.kind == "Job":
            return metadata.get("uid") == self.uid
        labels = mapping(metadata, "labels")
        own = labels.get(JOBSET_NAME) == self.name and self.resource.kind.kind in ("JobSet", "TorchrunJob")
        return own and (self.uid in owners(job) or self.resource.kind.kind == "TorchrunJob")

    def owns_workload(self, workload: Object) -> bool:
        """Return whether a Kueue Workload belongs to the job."""
        name = str(mapping(workload, "metadata").get("name"))
        prefix = re.escape(f"{self.resource.kind.kind.lower()}-{self.name}-")
        return self.uid in owners(workload) or re.fullmatch(f"{prefix}[a-z0-9]{{5}}", name) is not None


def owners(item: Object) -> set[str]:
    """Return the uids of the object's owners."""
    return {str(owner.get("uid")) for owner in items(item, "metadata", "ownerReferences")}


def describe(
    resource: Resource,
    namespace: str,
    name: str,
    item: Object | None,
    pods: Sequence[Object],
    *,
    container: str | None = None,
) -> AttachedJob:
    """Return the description of a job. `pods` are the pods that may belong to the job.

    `item` is the job's object, if it could be read. `container` is the container in which the ranks run, if
    the user named one. Raises NoPodsError if the job requests no pods, and UsageError if the job's pods have
    no order, if the job has more than MAX_NODES pods, or if it has no such container.
    """
    groups = _groups(resource.kind.kind, name, item, pods)
    if not groups:
        raise NoPodsError(
            f"{resource.kind.kind} {name} requests no pods",
            hint="scale this object up, or attach to another one",
        )
    templates = [group.template for group in groups]
    names = [str(each.get("name")) for spec in templates for each in items(spec, "containers")]
    if container and container not in names:
        raise UsageError(
            f"{resource.kind.kind} {name} has no container {container}",
            hint=f"choose one of the pods' containers: {', '.join(dict.fromkeys(names)) or 'none'}",
        )
    ranks_in = container or _container(templates, [*pods, *([item] if item else [])])
    groups = tuple(g for g in groups if _has(g.template, ranks_in)) or groups
    nodes, first_index, placed = 0, 0, list[ReplicaGroup]()
    for group in groups:
        shifted = group.pods.model_copy(update={"first": first_index})
        placed.append(ReplicaGroup(shifted, group.count, group.template))
        first_index += group.count
        nodes += group.count
    if nodes > MAX_NODES:
        raise UsageError(
            f"{resource.kind.kind} {name} has {nodes} pods, but the harness can judge at most {MAX_NODES}"
        )
    launch = Launch(
        launcher="attach",
        namespace=namespace,
        kind=resource.kind.kind,
        object_name=name,
        uid=str(mapping(item, "metadata").get("uid") or name),
        attached=True,
        pods=[group.pods for group in placed],
        container=ranks_in,
    )
    counts = [rank_count.of_pod(group.template, ranks_in, nodes) for group in placed]
    if resource.kind.kind == "MPIJob" and item is not None:
        slots = _count(mapping(item, "spec").get("slotsPerWorker"), 1)
        counts = [rank_count.RankCount(slots or None, f"slotsPerWorker ({slots}) of the MPIJob")]
    return AttachedJob(
        resource, name, item, tuple(placed), launch, expected(nodes, counts, item, placed, ranks_in)
    )


def expected(
    nodes: int,
    counts: Sequence[rank_count.RankCount],
    item: Object | None,
    groups: Sequence[ReplicaGroup],
    container: str,
) -> Expected:
    """Return the expected ranks and pods of a job with `nodes` pods.

    `counts` contains the number of ranks per pod for each group.
    """
    per_pod = {count.per_pod for count in counts}
    each = next(iter(per_pod)) if len(per_pod) == 1 else None
    source = counts[0].source if len(per_pod) == 1 else "the pods have different numbers of ranks"
    if each is not None and nodes * each > MAX_RANKS:
        each, source = None, f"{source}, which is more than {MAX_RANKS} ranks in total"
    env = _environment(groups, container)
    return Expected(
        num_nodes=nodes,
        ranks=nodes * (each or 1),
        ranks_given=each is not None,
        ranks_from=source,
        run_id=env.get("PLUTO_RUN_ID", ""),
        project=env.get("PLUTO_PROJECT", ""),
        queue=mapping(item, "metadata", "labels").get(QUEUE_LABEL),
    )


def _environment(groups: Sequence[ReplicaGroup], container: str) -> dict[str, str]:
    variables: dict[str, str] = {}
    for group in groups:
        for each in items(group.template, "containers"):
            if each.get("name") == container:
                variables |= {
                    str(e["name"]): str(e["value"])
                    for e in items(each, "env")
                    if "value" in e and "name" in e
                }
    return variables


def _has(spec: Object, container: str) -> bool:
    return any(each.get("name") == container for each in items(spec, "containers"))


def _container(templates: Sequence[Object], annotated: Iterable[Object]) -> str:
    """Return the name of the ranks' container.

    It is identified by kubectl's default-container annotation, by a known name, or by its command.
    """
    names = [str(each.get("name")) for spec in templates for each in items(spec, "containers")]
    for item in annotated:
        default = mapping(item, "metadata", "annotations").get(DEFAULT_CONTAINER)
        if default in names:
            return str(default)
    for name in _KNOWN_CONTAINERS:
        if name in names:
            return name
    commands = {
        str(each.get("name")): " ".join(map(str, [*(each.get("command") or []), *(each.get("args") or [])]))
        for spec in templates
        for each in items(spec, "containers")
    }
    for pattern in _RUNS_RANKS:
        for name, command in commands.items():
            if pattern.search(command):
                return name
    return names[0] if names else ""


def _groups(kind: str, name: str, item: Object | None, pods: Sequence[Object]) -> tuple[ReplicaGroup, ...]:
    if kind == "JobSet":
        return _of_jobset(item or {}, name)
    if kind == "TorchrunJob":  # The JobSet of the TorchrunJob no longer exists.
        return _of_labels({JOBSET_NAME: name}, {COMPLETION_INDEX: 1}, pods)
    if kind in ("PyTorchJob", "MPIJob"):
        return _of_kubeflow(kind, name, item, pods)
    if kind == "Pod":
        return _of_pods(pods)
    return _of_job(item or {}, name) if kind == "Job" else _of_set(kind, name, item or {}, pods)


def _of_set(kind: str, name: str, item: Object, pods: Sequence[Object]) -> tuple[ReplicaGroup, ...]:
    """Return the group of a StatefulSet or a DaemonSet."""
    uid = str(mapping(item, "metadata").get("uid") or "")
    spec = mapping(item, "spec")
    template = mapping(spec, "template", "spec")
    if kind == "DaemonSet":
        count = _count(mapping(item, "status").get("desiredNumberScheduled"), len(pods))
        return (ReplicaGroup(PodGroup(owner=uid), count, template),) if count else ()
    count, start = _count(spec.get("replicas"), 1), _count(mapping(spec, "ordinals").get("start"), 0)
    names = {f"{name}-{start + index}": index for index in range(count)}
    return (ReplicaGroup(PodGroup(owner=uid, names=names), count, template),) if count else ()


def _count(value: Any, otherwise: int) -> int:
    return value if isinstance(value, int) and value >= 0 else otherwise


def _of_jobset(item: Object, name: str) -> tuple[ReplicaGroup, ...]:
    """Return one group per replicated job. In a TrainJob's JobSet, only the `trainer` step has ranks."""
    groups: list[tuple[bool, ReplicaGroup]] = []
    for job in items(item, "spec", "replicatedJobs"):
        spec = mapping(job, "template", "spec")
        each = _count(spec.get("completions"), _count(spec.get("parallelism"), 1))
        labels = {JOBSET_NAME: name, REPLICATED_JOB: str(job.get("name"))}
        group = PodGroup(labels=labels, strides={JOB_INDEX: each, COMPLETION_INDEX: 1})
        count = each * _count(job.get("replicas"), 1)
        trains = mapping(job, "template", "metadata", "labels").get(TRAINER_STEP) == "trainer"
        if count:
            groups.append((trains, ReplicaGroup(group, count, mapping(spec, "template", "spec"))))
    return tuple(group for trains, group in groups if trains) or tuple(group for _, group in groups)


def _of_job(item: Object, name: str) -> tuple[ReplicaGroup, ...]:
    spec = mapping(item, "spec")
    count = _count(spec.get("completions"), _count(spec.get("parallelism"), 1))
    indexed = spec.get("completionMode") == "Indexed"
    if not indexed and count > 1:
        raise UsageError(
            f"Job {name} has {count} pods without an index (completionMode NonIndexed), so a rank's pod "
            "cannot be distinguished from its replacement",
            hint="set completionMode: Indexed, or attach to the pods with -l job-name=…",
        )
    group = PodGroup(
        owner=str(mapping(item, "metadata").get("uid")), strides={COMPLETION_INDEX: 1} if indexed else {}
    )
    return (ReplicaGroup(group, count, mapping(spec, "template", "spec")),) if count else ()


def _of_labels(
    labels: dict[str, str], strides: dict[str, int], pods: Sequence[Object]
) -> tuple[ReplicaGroup, ...]:
    """Return one group with the existing pods, for a job whose object does not specify the number of pods."""
    own = [pod for pod in pods if labels.items() <= mapping(pod, "metadata", "labels").items()]
    values = [{**mapping(p, "metadata", "labels"), **mapping(p, "metadata", "annotations")} for p in own]
    indexes = [
        sum(int(value[key]) * stride for key, stride in strides.items())
        for value in values
        if all(str(value.get(key, "")).isdecimal() for key in strides)
    ]
    if not indexes:
        return ()
    template = mapping(own[0], "spec")
    return (ReplicaGroup(PodGroup(labels=labels, strides=strides), max(indexes) + 1, template),)


def _of_kubeflow(
    kind: str, name: str, item: Object | None, pods: Sequence[Object]
) -> tuple[ReplicaGroup, ...]:
    """Return the groups of a PyTorchJob (master, then workers) or an MPIJob (workers).

    The launcher of an MPIJob has no rank. The pods are selected by the labels that the operator documents.
    """
    label = REPLICA_TYPE
    if kind == "MPIJob" and mapping(item).get("apiVersion") != MPI_JOB_V1.kind.api_version:
        types = {mapping(pod, "metadata", "labels").get(REPLICA_TYPE) for pod in pods}
        roles = {mapping(pod, "metadata", "labels").get(JOB_ROLE) for pod in pods}
        label = REPLICA_TYPE if "worker" in types - roles else JOB_ROLE
    specs = mapping(item, "spec", "mpiReplicaSpecs" if kind == "MPIJob" else "pytorchReplicaSpecs")
    groups = list[ReplicaGroup]()
    for part in ("Worker",) if kind == "MPIJob" else ("Master", "Worker"):
        part_groups = tuple(
            group
            for value in (part.lower(), part)
            for group in _of_labels({KUBEFLOW_JOB: name, label: value}, {REPLICA_INDEX: 1}, pods)
        )
        spec = mapping(specs, part)
        if spec:
            pod_group = PodGroup(labels={KUBEFLOW_JOB: name, label: part.lower()}, strides={REPLICA_INDEX: 1})
            own = part_groups[0].pods if part_groups else pod_group
            count = _count(spec.get("replicas"), 1)
            part_groups = (ReplicaGroup(own, count, mapping(spec, "template", "spec")),) if count else ()
        groups += part_groups
    return tuple(groups)


def _of_pods(pods: Sequence[Object]) -> tuple[ReplicaGroup, ...]:
    """Return the group of bare pods, numbered by RANK or NODE_RANK in their specs, or otherwise by name.

    Some pods may have been deleted. The count is therefore the number of pods in the specs, or the highest
    pod number plus 1 if that is larger.
    """
    if not pods:
        return ()
    pods_by_name = {str(mapping(pod, "metadata").get("name")): pod for pod in pods}
    ranks = {name: _own_index(pod) for name, pod in pods_by_name.items()}
    names = {name: rank for name, rank in ranks.items() if rank is not None}
    if (
        len(names) < len(pods_by_name)
        or len(set(names.values())) < len(pods_by_name)
        or max(names.values()) >= MAX_NODES
    ):
        names = {name: index for index, name in enumerate(sorted(pods_by_name, key=_natural))}
    requested = max(rank_count.nodes_of_pod(mapping(pod, "spec")) or 0 for pod in pods)
    count = max(max(names.values()) + 1, min(requested, MAX_NODES))
    return (ReplicaGroup(PodGroup(names=names), count, mapping(pods[0], "spec")),)


def _own_index(pod: Object) -> int | None:
    for container in items(pod, "spec", "containers"):
        env = pod_variables.of_container(container, pod)
        for variable in ("NODE_RANK", "GROUP_RANK", "PET_NODE_RANK", "RANK"):
            if env.get(variable, "").isdecimal():
                return int(env[variable])
    return None


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts `w-10` after `w-9`."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
