"""Turn a file into a workload: a konduktor job file, or a manifest of Kubernetes objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from harness.launch.konduktor.job_file import JobFile
from harness.launch.konduktor.program import Konduktor
from harness.launch.konduktor.workload import KonduktorWorkload
from harness.launch.workload import Workload


def load(path: Path, konduktor: Konduktor | None = None) -> Workload:
    """Load a workload. `konduktor`: its process, where it was started already.

    Raises UsageError for a file that is missing, not YAML, or nothing that can be launched.
    """
    documents = _documents(path)
    if documents is None or not any("apiVersion" in each and "kind" in each for each in documents):
        return KonduktorWorkload(JobFile.load(path), konduktor=konduktor)
    from harness.launch.manifests import of_manifest  # seven kinds, of which a job file needs none

    return of_manifest(documents, str(path))


def _documents(path: Path) -> list[dict[str, Any]] | None:
    """Return the file's documents.

    Returns None for errors that JobFile.load explains better: no file, no YAML, no mappings.
    """
    try:
        documents = [each for each in yaml.safe_load_all(path.read_text()) if each is not None]
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return None
    return documents if documents and all(isinstance(each, dict) for each in documents) else None
