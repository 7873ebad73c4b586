"""Turn a file into a workload: a konduktor job file, or a manifest of Kubernetes objects."""

from __future__ import annotations

from pathlib import Path

from harness.core.user_yaml import yaml_documents
from harness.launch.konduktor.job_file import JobFile
from harness.launch.konduktor.program import Konduktor
from harness.launch.konduktor.workload import KonduktorWorkload
from harness.launch.workloads.base import Workload


def load(path: Path, konduktor: Konduktor | None = None) -> Workload:
    """Load a workload. `konduktor`: its process, where it was started already.

    Raises UsageError for a file that is missing, not YAML, or nothing that can be launched.
    """
    hint = "jobs/ has job files that work, and manifests/ has manifests"
    documents = [each for each in yaml_documents(path, "job file", hint=hint) if each is not None]
    if not any(isinstance(each, dict) and "apiVersion" in each and "kind" in each for each in documents):
        return KonduktorWorkload(JobFile.of_documents(documents, str(path)), konduktor=konduktor)
    from harness.launch.workloads.loader import of_manifest  # seven kinds, of which a job file needs none

    return of_manifest(documents, str(path))
