"""Load a workload from a konduktor job file or from a manifest of Kubernetes objects."""

from __future__ import annotations

from pathlib import Path

from harness.core.user_yaml import yaml_documents
from harness.launch.konduktor.job_file import JobFile
from harness.launch.konduktor.launch_process import Konduktor
from harness.launch.konduktor.workload import KonduktorWorkload
from harness.launch.workloads.base import Workload


def load(path: Path, konduktor: Konduktor | None = None) -> Workload:
    """Return the workload in a file. `konduktor` is the konduktor process, if it has already been started.

    Raises UsageError if the file is missing, is not YAML, or has no workload.
    """
    hint = "for working examples, see jobs/ and manifests/ in the harness's repository"
    documents = [each for each in yaml_documents(path, "job file", hint=hint) if each is not None]
    if not any(isinstance(each, dict) and "apiVersion" in each and "kind" in each for each in documents):
        return KonduktorWorkload(JobFile.of_documents(documents, str(path)), konduktor=konduktor)
    from harness.launch.workloads.loader import of_manifest  # Job files do not need this import.

    return of_manifest(documents, str(path))
