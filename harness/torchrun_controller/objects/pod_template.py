"""Build a job's pod template from its queue's pod template and the job's overrides."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from kubernetes.utils.quantity import parse_quantity

from harness.core.kubernetes import Object
from harness.torchrun_controller.api import names
from harness.torchrun_controller.api.models import Distributed, JobSpec, QueueSpec, Scheduling, Storage
from harness.torchrun_controller.objects import command, job_volumes, workspace
from harness.torchrun_controller.objects.permission_check import check_job
from harness.torchrun_controller.plan.capacity import GPU, Capacity, best_fit
from harness.torchrun_controller.plan.gpu_layout import Plan, Refused, distribute
from harness.torchrun_sync.pod_script import supervised
from harness.torchrun_sync.pods import CONTROL, STORE

HOST_NAMES = ("hostname", "hostnameOverride", "subdomain", "setHostnameAsFQDN")
"""Pod fields that are not permitted, because they would replace the host names of the ranks' pods, or make
the host names longer than Linux permits."""
WHOLE = re.compile("[0-9]{1,6}")


@dataclass(frozen=True)
class Resolved:
    """A job merged with the settings of its queue."""

    name: str
    spec: JobSpec
    queue_name: str
    queue: QueueSpec
    workspace_digest: str | None
    workspace_parts: int
    plan: Plan
    image: str
    distributed: Distributed
    scheduling: Scheduling
    volumes: tuple[job_volumes.Volume, ...]
    torchrun: str


def capacity(queue: QueueSpec) -> int:
    """Return the number of GPUs on a node.

    This is nodeResources.gpus if it is set, otherwise the trainer's number of GPUs in the pod template.
    Raises Refused if the number in the pod template is not an integer.
    """
    resources = trainer_of(queue).get("resources") or {}
    count = (resources.get("limits") or {}).get(GPU) or (resources.get("requests") or {}).get(GPU) or 0
    if not WHOLE.fullmatch(str(count)):
        raise Refused(
            "TemplateGPUs", f"expected a whole number of {GPU} in the pod template, found {count!r}"
        )
    return queue.node_resources.gpus or int(count)


def resolve(
    name: str, spec: JobSpec, annotations: Object, queue: QueueSpec, now: Capacity | None = None
) -> Resolved:
    """Return the job merged with the settings of its queue.

    Raises Refused if the job cannot run. If the queue's distribution is BestFit, the number of pods depends
    on `now`, the nodes' current capacity.
    """
    _permitted(spec, queue)
    node_gpus = capacity(queue)

    def fits(gpus: int) -> int | None:
        if now is None or queue.distribution != "BestFit":
            return None
        free = now.free(queue, spec.scheduling)
        later = Capacity(now.nodes, []).free(queue, spec.scheduling)
        return best_fit(gpus, free, queue, node_gpus) or best_fit(gpus, later, queue, node_gpus)

    plan = distribute(spec, node_gpus, fits)
    distributed = Distributed.model_validate(_overlaid(queue.distributed, spec.distributed))
    shared = Storage.model_validate(_overlaid(queue.storage, spec.storage))
    image = spec.image or trainer_of(queue).get("image") or queue.image
    if not image:
        raise Refused("NoImage", "expected an image in the job, in its queue, or in the queue's pod template")
    digest = annotations.get(names.WORKSPACE_ANNOTATION)
    code = job_volumes.workspace(name, spec.workspace_storage, shared.workspace, plan, digest is not None)
    memory = job_volumes.shared_memory(shared, plan)
    volumes = [*filter(None, [code, memory]), *job_volumes.lasting(name, spec.queue_name, shared, plan)]
    return Resolved(
        name=name,
        spec=spec,
        queue_name=spec.queue_name,
        queue=queue,
        workspace_digest=digest,
        workspace_parts=workspace.parts_of(annotations) or 0,
        plan=plan,
        image=image,
        distributed=distributed,
        scheduling=Scheduling.model_validate(_overlaid(queue.scheduling, spec.scheduling)),
        volumes=tuple(volumes),
        torchrun=command.torchrun(name, spec, plan, distributed),
    )


def _permitted(spec: JobSpec, queue: QueueSpec) -> None:
    check_job(spec, queue)
    reserved = [variable["name"] for variable in spec.env if command.RESERVED.fullmatch(variable["name"])]
    if reserved:
        raise Refused(
            "ReservedEnv",
            f"expected env without {', '.join(reserved)}, which the controller and torchrun set",
        )


def _set_fields(part: Distributed | Scheduling | Storage | object) -> Object:
    fields: Object = part.model_dump(exclude_none=True, exclude_defaults=True)  # type: ignore[union-attr]
    return fields


def _overlaid(queue: Distributed | Scheduling | Storage, job: Distributed | Scheduling | Storage) -> Object:
    """Return the settings of the queue, overridden by those of the job. Maps are merged."""
    result = queue.model_dump(exclude_none=True)
    for name, value in _set_fields(job).items():
        before = result.get(name)
        result[name] = {**before, **value} if isinstance(before, dict) and isinstance(value, dict) else value
    return result


def trainer_of(queue: QueueSpec) -> Object:
    """Return the `trainer` container of a queue's pod template, or {} if the template has no containers."""
    containers = queue.pod_template.spec.get("containers")
    return dict(containers[0]) if containers else {}


def pod(job: Resolved, *, kai: bool) -> Object:
    """Return the pod template of a job's JobSet.

    Raises Refused if the queue's pod template cannot be used.
    """
    spec: Object = copy.deepcopy(dict(job.queue.pod_template.spec))
    host_fields = [field for field in HOST_NAMES if spec.get(field)]
    if host_fields:
        raise Refused(
            "HostName",
            "the ranks find each other by host names that Kubernetes gives to their pods, but the pod "
            f"template sets {', '.join(host_fields)}: remove the setting",
        )
    helpers = [*map(_with_last_lines, (spec.get("containers") or [{}])[1:])]
    trainer = _container(job)
    spec["containers"] = [trainer, *(each for each in helpers if not _serves(each))]
    if spec.get("hostNetwork") and spec.get("dnsPolicy") in (None, "ClusterFirst"):
        # With ClusterFirst, a pod on the host network uses the node's DNS, which cannot resolve Services.
        spec["dnsPolicy"] = "ClusterFirstWithHostNet"
    # A single restarted rank could not rejoin the others, so the JobSet restarts all ranks.
    spec["restartPolicy"] = "Never"
    account = spec.get("serviceAccountName") or spec.get("serviceAccount") or job.queue.service_account_name
    spec["serviceAccountName"] = account
    if account == "default" and spec.get("automountServiceAccountToken") is None:
        # If the queue does not name a service account, its jobs get no service account token.
        spec["automountServiceAccountToken"] = False
    added = [{"name": volume.name, **volume.source} for volume in job.volumes]
    spec["volumes"] = _named([*(spec.get("volumes") or []), *added, *job.spec.volumes.additional_volumes])
    code = next((volume for volume in job.volumes if volume.name == "workspace"), None)
    digest, parts = job.workspace_digest, job.workspace_parts
    fs_group = "fsGroup" in (spec.get("securityContext") or {})
    init_container = workspace.container(
        job.spec.workspace_storage, job.name, digest, parts, code, trainer, fs_group=fs_group
    )
    if init_container and digest and parts:
        spec["volumes"].append(workspace.parts_volume(job.name, parts))
    initial = [
        *map(_with_last_lines, spec.get("initContainers") or []),
        *([init_container] if init_container else []),
        *({**each, "restartPolicy": "Always"} for each in helpers if _serves(each)),
    ]
    if initial:
        spec["initContainers"] = initial
    _schedule(spec, job, kai=kai)
    metadata = job.queue.pod_template.metadata
    labels = {**metadata.labels, **job.spec.labels, **labels_of(job)}
    if kai:
        labels[names.KAI_QUEUE_LABEL] = kai_queue(job.queue) or job.queue_name
    return {
        "metadata": {"labels": labels, "annotations": {**metadata.annotations, **job.spec.annotations}},
        "spec": spec,
    }


def _serves(helper: Object) -> bool:
    """Return whether an additional container of the pod template becomes a native sidecar.

    A pod ends only when all of its regular containers have ended. An additional container would therefore
    keep a finished job running, and keep a failed rank from being restarted. Kubernetes terminates a native
    sidecar after the trainer has ended. A container with a restart policy other than Always is not changed.
    """
    return helper.get("restartPolicy") in (None, "Always")


def _with_last_lines(container: Object) -> Object:
    """Return the container with a termination message policy.

    If the container fails, the kubelet copies the last lines of the container's log to the pod's status.
    """
    return {"terminationMessagePolicy": "FallbackToLogsOnError", **container}


def labels_of(job: Resolved) -> dict[str, str]:
    """Return the labels of all objects that the controller creates for a job."""
    gpu_type = job.queue.node_resources.gpu_type
    return {
        names.JOB_LABEL: job.name,
        names.QUEUE_LABEL: names.queue_label(job.queue_name),
        **({names.GPU_TYPE_LABEL: gpu_type} if gpu_type and job.plan.gpus else {}),
    }


def kai_queue(queue: QueueSpec) -> str | None:
    """Return the name of the kai-scheduler Queue from spec.kaiQueue, or else from spec.queue, or None if
    neither is set."""
    return queue.kai_queue or (queue.queue.name if queue.queue else None)


def _container(job: Resolved) -> Object:
    trainer = trainer_of(job.queue)
    # A container cannot have two mounts with the same path, so the template's mount takes precedence.
    mount_paths = {mount["mountPath"] for mount in trainer.get("volumeMounts") or []}
    mounts = [
        {"name": volume.name, "mountPath": volume.path, **({"readOnly": True} if volume.read_only else {})}
        for volume in job.volumes
        if volume.path not in mount_paths
    ]
    additional_mounts = [
        mount.model_dump(by_alias=True, exclude_none=True) for mount in job.spec.volumes.additional_mounts
    ]
    code = next((volume for volume in job.volumes if volume.name == "workspace"), None)
    folder = code.path if code else trainer.get("workingDir") or job.queue.working_dir
    run_id = {"fieldRef": {"fieldPath": "metadata.labels['batch.kubernetes.io/controller-uid']"}}
    own_env: list[Object] = [
        {"name": command.RUN_ID, "valueFrom": run_id},
        {"name": command.POD_IP, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "TORCHRUN_JOB", "value": job.name},
        {
            "name": "TORCHRUN_BACKEND",
            "value": job.distributed.backend or ("nccl" if job.plan.gpus else "gloo"),
        },
    ]
    probe = command.liveness(job.name, job.plan, job.distributed)
    return {
        **({"livenessProbe": probe} if probe else {}),
        **_with_last_lines(trainer),
        "name": names.TRAINER,
        "image": job.image,
        "imagePullPolicy": trainer.get("imagePullPolicy") or job.queue.image_pull_policy,
        "command": _command(job, code),
        "args": [],
        "env": _named([*(trainer.get("env") or []), *job.queue.env, *job.spec.env, *own_env]),
        "resources": _resources(trainer.get("resources") or {}, job),
        "volumeMounts": [*(trainer.get("volumeMounts") or []), *mounts, *additional_mounts],
        **({"workingDir": folder} if folder else {}),
    }


def _command(job: Resolved, code: job_volumes.Volume | None) -> list[str]:
    """Return the command of the `trainer` container.

    If the job's code is synced, a supervisor runs the command and restarts it for new code.
    """
    words = ["bash", "-c", command.script(job.name, job.spec, job.plan, job.distributed)]
    if code is not None and job.workspace_digest:
        words = supervised(words, f"{code.path.rstrip('/')}/{STORE}", CONTROL)
    return command.verbatim(words)


def _named(items: Iterable[Object]) -> list[Object]:
    """Return a list of items with unique names.

    If several items have the same name, only the last item is kept.
    """
    return list({item["name"]: item for item in items}.values())


def _resources(template: Object, job: Resolved) -> Object:
    node_resources, plan = job.queue.node_resources, job.plan
    share = Decimal(plan.gpus) / Decimal(capacity(job.queue)) if plan.gpus else Decimal(1)
    amounts: Object = {}
    if node_resources.cpus is not None:
        amounts["cpu"] = f"{int(parse_quantity(node_resources.cpus) * share * 1000)}m"
    if node_resources.memory is not None:
        amounts["memory"] = str(int(parse_quantity(node_resources.memory) * share))
    if plan.gpus:
        amounts[GPU] = str(plan.gpus)
    result = copy.deepcopy(template)
    for kind in ("requests", "limits"):
        merged = {**(result.get(kind) or {}), **amounts}
        if not plan.gpus:
            merged.pop(GPU, None)
        if merged:
            result[kind] = merged
    return result


def _schedule(spec: Object, job: Resolved, *, kai: bool) -> None:
    scheduling = job.scheduling
    if scheduling.node_selector:
        spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **scheduling.node_selector}
    if scheduling.affinity is not None:
        spec["affinity"] = scheduling.affinity
    if scheduling.tolerations:
        spec["tolerations"] = [*(spec.get("tolerations") or []), *scheduling.tolerations]
    if scheduling.priority_class_name:
        spec["priorityClassName"] = scheduling.priority_class_name
    if kai:
        spec["schedulerName"] = "kai-scheduler"
    elif scheduling.scheduler and scheduling.scheduler != "kai-scheduler":
        # With Kueue, kai-scheduler might not be installed, and a pod waits forever for a scheduler that does
        # not exist.
        spec["schedulerName"] = scheduling.scheduler
