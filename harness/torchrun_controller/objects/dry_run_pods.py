"""Build the pods that the API server validates in dry runs: one for each new job, and one for each queue."""

from __future__ import annotations

from harness.core.kubernetes import Object
from harness.torchrun_controller.api import names
from harness.torchrun_controller.api.models import JobSpec, QueueSpec, Storage
from harness.torchrun_controller.objects import pod_template
from harness.torchrun_controller.objects.pod_template import Resolved, resolve
from harness.torchrun_controller.plan.gpu_layout import Refused

ANY_NAME = "job"
"""A fixed job name for dry runs, so that jobs that differ only in their names have equal pods."""
COMMAND = "python train.py"
IMAGE = "image-of-the-job"
"""The image in the dry-run pod of a queue that sets no image. Each job of such a queue specifies its own
image."""


def of_job(job: Object, resolved: Resolved, *, kai: bool) -> Object:
    """Return the pod that a job will create for node 0."""
    name = f"{resolved.name}-{names.NODES}-0-0"
    return _pod(name, job["metadata"]["namespace"], pod_template.pod(resolved, kai=kai))


def of_queue(queue: Object, spec: QueueSpec, *, kai: bool) -> Object:
    """Return the pod of a job with one node that uses all of the node's GPUs and overrides none of the
    queue's settings. The pod omits volumes that the queue's jobs can override. Raises Refused if none of the
    queue's jobs can run.
    """
    _check_label(queue, spec, kai=kai)
    allowed = spec.overrides.allowed
    if "storage" in allowed:
        spec = spec.model_copy(update={"storage": Storage(shm_size_per_gpu=spec.storage.shm_size_per_gpu)})
    no_image = not (spec.image or pod_template.trainer_of(spec).get("image"))
    if no_image and spec.overrides.images:
        overrides = spec.overrides.model_copy(update={"images": [IMAGE]})
        spec = spec.model_copy(update={"overrides": overrides})
    job_spec = JobSpec(
        job_queue=queue["metadata"]["name"],
        command=COMMAND,
        num_nodes=1,
        image=IMAGE if no_image and spec.overrides.images else None,
    )
    resolved = resolve("job", job_spec, {}, spec)
    name = f"{queue['metadata']['name'][:200]}-pod"
    return _pod(name, queue["metadata"]["namespace"], pod_template.pod(resolved, kai=kai))


def _check_label(queue: Object, spec: QueueSpec, *, kai: bool) -> None:
    """Raise Refused if the name of the queue in which the jobs wait is too long for a label value.

    The API server accepts such a queue, but rejects the JobSet or the pods of each of its jobs.
    """
    in_kai, in_kueue = pod_template.kai_queue(spec), spec.local_queue
    name = str((in_kai if kai else in_kueue) or queue["metadata"]["name"])
    if len(name) > names.LONGEST_LABEL:
        kind = "kai-scheduler Queue" if kai else "LocalQueue"
        field = "kaiQueue" if kai else "localQueue"
        raise Refused(
            "QueueName",
            f"{kind} {name} has {len(name)} characters, but the label in which jobs name it can have at most "
            f"{names.LONGEST_LABEL}: create a TorchrunQueue with a shorter name, or set {field}",
        )


def _pod(name: str, namespace: str, spec: Object) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**spec["metadata"], "name": name, "namespace": namespace},
        "spec": spec["spec"],
    }


def storage_classes(spec: QueueSpec) -> list[tuple[str, str]]:
    """Return the storage classes in a queue's spec as (field, name) pairs."""
    claims = {
        "workspace": spec.storage.workspace,
        "datasets": spec.storage.datasets,
        "checkpoints": spec.storage.checkpoints,
    }
    return [
        (f"spec.storage.{field}.storageClass", claim.storage_class)
        for field, claim in claims.items()
        if claim is not None and claim.storage_class
    ]
