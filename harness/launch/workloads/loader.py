"""Load a workload from a manifest of Kubernetes objects."""

from __future__ import annotations

from typing import Any

from harness.core.errors import UsageError
from harness.core.input_limits import listed
from harness.launch.labels import ACCEPT, NETCHECK, TRAINING
from harness.launch.workloads import printed_training
from harness.launch.workloads.acceptance import DdpWorkload, NodesWorkload
from harness.launch.workloads.daemonset import DaemonSetWorkload
from harness.launch.workloads.indexed_job import IndexedJobWorkload
from harness.launch.workloads.manifest_shape import object_problems, workload_problems
from harness.launch.workloads.netcheck_job import NetcheckJob
from harness.launch.workloads.pod_template_workload import PlainWorkload
from harness.launch.workloads.statefulset import StatefulSetWorkload
from harness.launch.workloads.torchrun_job import TorchrunJobWorkload
from harness.torchrun_controller.api.names import API, JOB_KIND

PLAIN: dict[tuple[str, str], type[PlainWorkload]] = {
    ("apps/v1", "StatefulSet"): StatefulSetWorkload,
    ("batch/v1", "Job"): IndexedJobWorkload,
    ("apps/v1", "DaemonSet"): DaemonSetWorkload,
    (API, JOB_KIND): TorchrunJobWorkload,
}

SPECIAL: list[tuple[str, str, type[PlainWorkload]]] = [
    (NETCHECK, "alone", NetcheckJob),
    (ACCEPT, "nodes", NodesWorkload),
    (ACCEPT, "ddp", DdpWorkload),
]
"""Tuples of (annotation, value, Python class). A workload whose annotation has this value is loaded as this
class."""


def of_manifest(documents: list[Any], source: str) -> PlainWorkload:
    """Return the workload in a manifest.

    Raises UsageError unless the manifest contains exactly one valid workload.
    """
    if problems := listed(problem for each in documents for problem in object_problems(each)):
        raise UsageError(f"manifest {source}: {problems}")
    classified = [
        (each, PLAIN.get((str(each.get("apiVersion")), str(each.get("kind"))))) for each in documents
    ]
    workloads = [(each, kind) for each, kind in classified if kind is not None]
    if len(workloads) != 1:
        kinds = ", ".join(f"{api} {kind}" for api, kind in PLAIN)
        contents = listed(f"{each['apiVersion']} {each['kind']}" for each in documents)
        raise UsageError(
            f"manifest {source}: expected exactly one of {kinds}, found {contents}",
            hint="for a working example of each kind, see manifests/ in the harness's repository",
        )
    for each in documents:
        metadata = each.get("metadata")
        if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
            raise UsageError(f"manifest {source}: {each.get('kind')}: metadata.name is missing")
    workload, workload_class = workloads[0]
    if problems := listed(workload_problems(workload)):
        raise UsageError(f"manifest {source}: {problems}")
    annotations = workload["metadata"].get("annotations") or {}
    for key, value, special in SPECIAL:
        if issubclass(special, workload_class) and annotations.get(key) == value:
            workload_class = special
    other_objects = tuple(each for each in documents if each is not workload)
    if annotations.get(TRAINING) == "true" and workload_class in (StatefulSetWorkload, IndexedJobWorkload):
        return printed_training.of_documents(workload, other_objects, source)
    return workload_class(workload, other_objects, source)
