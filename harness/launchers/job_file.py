"""konduktor's job file: read, checked before anything is created, and rendered for one launch.

konduktor itself answers most mistakes with a traceback and accepts others that fail later in the cluster
(names of more than 40 characters, `A_b`); here each gets one sentence that says what was expected.
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import yaml

from harness.errors import UsageError
from harness.evidence.redaction import secret_variable

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
DURATION_LABEL = "maxRunDurationSeconds"
LOCAL_IMAGE = "pluto-multinode-test:local"
"""The image_id that stands for the image built from ./Dockerfile."""
MAX_NAME = 40
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_NPROC = re.compile(r"--nproc[_-]per[_-]node[= ](\S+)")


@dataclass(frozen=True)
class JobFile:
    """A job file that passed its checks. `source` is where it came from, for messages."""

    document: dict[str, Any]
    source: str

    @classmethod
    def load(cls, path: Path) -> JobFile:
        """Raises UsageError for a file that is missing, not YAML, or not a konduktor job."""
        try:
            document = yaml.safe_load(path.read_text())
        except FileNotFoundError:
            raise UsageError(f"job file {path} does not exist") from None
        except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
            raise UsageError(f"job file {path} cannot be read as YAML: {error}") from None
        return cls.of(document, str(path))

    @classmethod
    def of(cls, document: Any, source: str = "job") -> JobFile:
        problems = list(_problems(document))
        if problems:
            raise UsageError(
                f"{source}: " + "; ".join(problems), hint="jobs/multinode.yaml is a job file that works"
            )
        return cls(copy.deepcopy(document), source)

    def with_(self, **changes: Any) -> JobFile:
        """A variant: top-level fields replaced, `resources` and `envs` merged."""
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
        """World size. torchrun's --nproc_per_node must be a number to be known before launch."""
        found = _NPROC.search(self.document["run"])
        if not found:
            return self.num_nodes
        try:
            return self.num_nodes * int(found.group(1))
        except ValueError:
            raise UsageError(
                f"{self.source}: --nproc_per_node={found.group(1)} is not a number: how many ranks?",
                hint="write the number of processes per node into the job file",
            ) from None

    @property
    def queue(self) -> str | None:
        return (self.document["resources"].get("labels") or {}).get(QUEUE_LABEL)

    @property
    def cpus(self) -> Decimal | None:
        """CPUs that each node asks for; None when it is written in a way that only konduktor reads."""
        try:
            return Decimal(str(self.document["resources"]["cpus"]))
        except InvalidOperation:
            return None

    @property
    def image(self) -> str:
        return str(self.document["resources"]["image_id"])

    @property
    def envs(self) -> dict[str, str]:
        return {str(k): str(v) for k, v in (self.document.get("envs") or {}).items()}

    @property
    def secret_envs(self) -> dict[str, str]:
        """Those of `envs` whose name says that they are secrets. Ranks get them out of a Secret."""
        return {name: value for name, value in self.envs.items() if secret_variable(name)}

    def render(self, *, image: str, envs: dict[str, str], max_seconds: float) -> str:
        """The YAML that konduktor gets: image, environment and run duration of this launch.

        Secrets are left out of it: konduktor would put them into its log and into the JobSet.
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


class _Dumper(yaml.SafeDumper):
    """Scripts stay readable: text of several lines is written as a block."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def _problems(document: Any) -> Any:
    if not isinstance(document, dict):
        yield f"a mapping is expected, seen {type(document).__name__}"
        return
    name = document.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > MAX_NAME:
        yield (
            f"name: lower-case letters, digits and '-', a letter first, at most {MAX_NAME} characters "
            f"(konduktor and JobSet append to it); seen {name!r}"
        )
    nodes = document.get("num_nodes", 1)
    if not isinstance(nodes, int) or isinstance(nodes, bool) or nodes < 1:
        yield f"num_nodes: a whole number from 1 on; seen {nodes!r}"
    if not isinstance(document.get("run"), str) or not document["run"].strip():
        yield "run: the commands of every node are expected; seen none"
    if document.get("envs") is not None and not isinstance(document["envs"], dict):
        yield f"envs: a mapping is expected; seen {type(document['envs']).__name__}"
    resources = document.get("resources")
    if not isinstance(resources, dict):
        yield "resources: a mapping with cpus, memory and image_id is expected"
        return
    for field in ("cpus", "memory", "image_id"):
        if not resources.get(field):
            yield f"resources.{field} is expected"
    image = str(resources.get("image_id") or "")
    if image.endswith(":latest") or (image and "@" not in image and ":" not in image.rsplit("/", 1)[-1]):
        yield f"resources.image_id: a tag other than latest, or a digest, is expected; seen {image!r}"
    labels = resources.get("labels") or {}
    if not isinstance(labels, dict) or not all(isinstance(v, str) for v in labels.values()):
        yield "resources.labels: a mapping of text to text is expected (quote the numbers)"
    elif not str(labels.get(DURATION_LABEL, "1")).isdigit():
        seen = labels[DURATION_LABEL]
        yield f"resources.labels.{DURATION_LABEL}: whole seconds are expected; seen {seen!r}"
