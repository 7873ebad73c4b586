"""Turn a file into a workload: a konduktor job file, or a manifest of Kubernetes objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from harness.core.errors import UsageError
from harness.launch.acceptance import DdpWorkload, NodesWorkload
from harness.launch.daemonset import DaemonSetWorkload
from harness.launch.indexed_job import IndexedJobWorkload
from harness.launch.konduktor.job_file import JobFile
from harness.launch.konduktor.workload import KonduktorWorkload
from harness.launch.names import ACCEPT, NETCHECK
from harness.launch.netcheck_job import NetcheckJob
from harness.launch.plain import PlainWorkload
from harness.launch.statefulset import StatefulSetWorkload
from harness.launch.torchrun_job import TorchrunJobWorkload
from harness.launch.workload import Workload
from harness.torchrun_controller.names import API, JOB_KIND

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
"""Annotation and value of workloads that run no training."""


def load(path: Path) -> Workload:
    """Load a workload.

    Raises UsageError for a file that is missing, not YAML, or nothing that can be launched.
    """
    documents = _documents(path)
    if documents is None or not any("apiVersion" in each and "kind" in each for each in documents):
        return KonduktorWorkload(JobFile.load(path))
    return of_manifest(documents, str(path))


def of_manifest(documents: list[Any], source: str) -> PlainWorkload:
    """Return the workload of a manifest. Raises UsageError where the documents hold none or more than one."""
    named = [(each, PLAIN.get((str(each.get("apiVersion")), str(each.get("kind"))))) for each in documents]
    found = [(each, made) for each, made in named if made is not None]
    if len(found) != 1:
        kinds = ", ".join(f"{api} {kind}" for api, kind in PLAIN)
        seen = ", ".join(f"{each.get('apiVersion')} {each.get('kind')}" for each in documents)
        raise UsageError(
            f"manifest {source}: exactly one of {kinds} is expected; seen {seen}",
            hint="manifests/ has one that works for each kind",
        )
    for each in documents:
        metadata = each.get("metadata")
        if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
            raise UsageError(f"manifest {source}: {each.get('kind')}: metadata.name is expected")
    workload, made = found[0]
    annotations = workload["metadata"].get("annotations") or {}
    for key, value, special in SPECIAL:
        if issubclass(special, made) and annotations.get(key) == value:
            made = special
    return made(workload, tuple(each for each in documents if each is not workload), source)


def _documents(path: Path) -> list[dict[str, Any]] | None:
    """Return the file's documents.

    Returns None for errors that JobFile.load explains better: no file, no YAML, no mappings.
    """
    try:
        documents = [each for each in yaml.safe_load_all(path.read_text()) if each is not None]
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return None
    return documents if documents and all(isinstance(each, dict) for each in documents) else None
