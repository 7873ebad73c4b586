"""Read a konduktor job file, check it before any object is created, and render it for a launch."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml

from harness.core.errors import UsageError
from harness.core.input_limits import listed, ranks_problem, shown
from harness.core.user_yaml import yaml_documents
from harness.evidence.io.redaction import secret_variables, secrets_in
from harness.launch.konduktor.job_file_mistakes import DURATION_LABEL, mistakes
from harness.launch.labels import LOCAL_IMAGE, QUEUE_LABEL
from harness.launch.workloads import nproc_per_node

_ONE_THAT_WORKS = "for a working example, see jobs/multinode.yaml in the harness's repository"


@dataclass(frozen=True)
class JobFile:
    """A valid job file. `source` is the file's path, for messages."""

    document: dict[str, Any]
    source: str

    @classmethod
    def load(cls, path: Path) -> JobFile:
        """Return the job file at `path`.

        Raises UsageError if the file is missing, or is not a konduktor job in YAML.
        """
        return cls.of_documents(yaml_documents(path, "job file", hint=_ONE_THAT_WORKS), str(path))

    @classmethod
    def of_documents(cls, documents: Iterable[Any], source: str) -> JobFile:
        """Return the job file in a list of parsed YAML documents. Empty documents are ignored.

        Raises UsageError if the job file has mistakes or if there are several documents.
        """
        contents = [document for document in documents if document is not None]
        if len(contents) > 1:
            raise UsageError(f"job file {source}: expected one YAML document, found {len(contents)}")
        return cls.of(contents[0] if contents else None, source)

    @classmethod
    def of(cls, document: Any, source: str = "job") -> JobFile:
        """Return a job file with the given content. Raises UsageError with a list of all mistakes in it."""
        if problems := listed(mistakes(document)):
            raise UsageError(
                f"job file {source}: {problems}",
                hint=_ONE_THAT_WORKS,
            )
        return cls(copy.deepcopy(document), source)

    def with_(self, **changes: Any) -> JobFile:
        """Return a variant of the job file. `resources` and `envs` are merged. Other fields are replaced."""
        document = copy.deepcopy(self.document)
        for field, value in changes.items():
            if field in ("resources", "envs"):
                document[field] = {**(document.get(field) or {}), **value}
            else:
                document[field] = value
        return JobFile.of(document, self.source)

    @property
    def num_nodes(self) -> int:
        return int(self.document.get("num_nodes", 1))

    @property
    def ranks(self) -> int:
        """Return the world size, or an estimate if the script computes it.

        Raises UsageError for an invalid number of ranks.
        """
        if self._processes.wrong:
            raise UsageError(
                f"job file {self.source}: --nproc_per_node: expected a number of at least 1, "
                f"found {shown(self._processes.wrong)}",
                hint="torchrun also accepts auto, cpu and gpu",
            )
        if problem := ranks_problem(self.num_nodes, self._processes.guess):
            raise UsageError(f"job file {self.source}: {problem}")
        return self.num_nodes * self._processes.guess

    @property
    def has_rank_count(self) -> bool:
        """Return whether the number of ranks can be determined from the file."""
        return self._processes.count is not None

    @property
    def _processes(self) -> nproc_per_node.Processes:
        gpus = str(self.document["resources"].get("accelerators") or "").rpartition(":")[2]
        return nproc_per_node.read(
            str(self.document["run"]), self.envs, int(gpus) if gpus.isdecimal() and len(gpus) < 6 else None
        )

    @property
    def queue(self) -> str | None:
        return (self.document["resources"].get("labels") or {}).get(QUEUE_LABEL)

    @property
    def cpus(self) -> Decimal:
        """Return the number of CPUs that each pod requests."""
        return Decimal(str(self.document["resources"]["cpus"]))

    @property
    def resources(self) -> set[str]:
        """Return the Kubernetes names of the resources requested by each pod."""
        devices = {"nvidia.com/gpu"} if self.document["resources"].get("accelerators") else set()
        return {"cpu", "memory", *devices}

    @property
    def pod_spec(self) -> dict[str, Any]:
        """Return a pod's spec as konduktor 0.1 creates it, with the fields that admission rules check."""
        resources = self.document["resources"]
        requests = {"cpu": str(resources["cpus"]), "memory": f"{resources['memory']}Gi"}
        container = {
            "name": "konduktor-container",
            "image": self.image,
            "resources": {"requests": requests, "limits": requests},
            "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
        }
        gpus = [{"key": "nvidia.com/gpu", "operator": "Exists"}] if resources.get("accelerators") else []
        tolerations = {"tolerations": gpus} if gpus else {}
        return {"containers": [container], "restartPolicy": "Never", **tolerations}

    @property
    def image(self) -> str:
        return str(self.document["resources"]["image_id"])

    @property
    def uses_worker_image(self) -> bool:
        """Return whether the ranks run in the worker image that the harness builds."""
        return self.image == LOCAL_IMAGE

    @property
    def envs(self) -> dict[str, str]:
        return {str(k): str(v) for k, v in (self.document.get("envs") or {}).items()}

    @property
    def secret_envs(self) -> dict[str, str]:
        """Return the secret variables in `envs`. The ranks read them from a Secret."""
        return secret_variables(self.envs)

    @property
    def secrets(self) -> set[str]:
        """Return all secret values in the file, including secrets in its scripts."""
        texts = [*self.envs.values(), str(self.document.get("run")), str(self.document.get("setup"))]
        return {*self.secret_envs.values()}.union(*map(secrets_in, texts))

    def render(self, *, image: str, envs: dict[str, str], max_seconds: float) -> str:
        """Return the YAML for konduktor, with the image, environment and maximum duration of this launch.

        The YAML contains no secrets, because konduktor would write them into its log and into the JobSet.
        """
        document = copy.deepcopy(self.document)
        plain = {name: value for name, value in self.envs.items() if name not in self.secret_envs}
        document["envs"] = {**plain, **envs}
        resources = document["resources"]
        resources["image_id"] = image
        labels = dict(resources.get("labels") or {})
        labels[DURATION_LABEL] = str(min(int(labels.get(DURATION_LABEL, max_seconds)), int(max_seconds)))
        resources["labels"] = labels
        return yaml.dump(document, Dumper=_Dumper, sort_keys=False)


class _Dumper(yaml.CSafeDumper):
    """A YAML dumper that writes multi-line text as a block, so that scripts are readable."""


def _text(dumper: yaml.CSafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)
