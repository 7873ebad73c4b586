"""Generate the CustomResourceDefinitions from the models: schemas, defaults, CEL rules, printer columns.

`python -m harness.torchrun_controller.api.crd_generator` prints manifests/torchrun-controller/crds.yaml.
"""

from __future__ import annotations

import copy

import yaml
from pydantic import BaseModel

from harness.core.kubernetes import Object
from harness.torchrun_controller.api import names
from harness.torchrun_controller.api.field_types import Json, rule
from harness.torchrun_controller.api.models import JobSpec, JobStatus, QueueSpec, QueueStatus

HEADER = (
    "# Generated from harness/torchrun_controller/api/models.py by "
    "`python -m harness.torchrun_controller.api.crd_generator`.\n"
)


def structural(model: type[BaseModel]) -> Json:
    """Return the structural schema of a model.

    A structural schema has no references, null types or titles.
    """
    schema = model.model_json_schema(by_alias=True)
    return _structural(schema, schema.get("$defs", {}))


def _structural(schema: Json, parts: Json) -> Json:
    if "$ref" in schema:
        part = parts[schema["$ref"].removeprefix("#/$defs/")]
        return _structural(
            {**part, **{name: value for name, value in schema.items() if name != "$ref"}}, parts
        )
    choices = schema.get("anyOf", [])
    if {"type": "null"} in choices:
        [variant] = [choice for choice in choices if choice != {"type": "null"}]
        outer = {name: value for name, value in schema.items() if name not in ("anyOf", "default")}
        return _structural({**outer, **variant}, parts)
    result = {
        name: copy.deepcopy(value)
        for name, value in schema.items()
        if name not in ("title", "$defs", "const")
    }
    if "const" in schema:
        result["enum"] = [schema["const"]]
    if "properties" in schema:
        # A structural schema cannot have both properties and additionalProperties. The API server prunes
        # unknown fields.
        result.pop("additionalProperties", None)
        required = schema.get("required", [])
        result["properties"] = {
            name: _with_defaults(_structural(subschema, parts), subschema, name in required)
            for name, subschema in schema["properties"].items()
        }
    if isinstance(result.get("additionalProperties"), dict):
        result["additionalProperties"] = _structural(schema["additionalProperties"], parts)
        # OpenAPI limits the number of entries in a map with maxProperties.
        result.update({"maxProperties": result.pop("maxLength")} if "maxLength" in result else {})
    elif result.get("additionalProperties") is True:
        del result["additionalProperties"]
    if "items" in schema:
        result["items"] = _structural(schema["items"], parts)
    return result


def _with_defaults(result: Json, source: Json, required: bool) -> Json:
    """Return an object's schema, with the default {} if one of the object's fields has a default.

    The field's default then also applies if the object is omitted. An optional object gets no default.
    """
    optional = {"type": "null"} in source.get("anyOf", [])
    if result.get("type") == "object" and not required and not optional and _has_default(result):
        result["default"] = {}
    return result


def _has_default(schema: Json) -> bool:
    return any("default" in field for field in schema.get("properties", {}).values())


def _column(name: str, kind: str, path: str, priority: int = 0) -> Json:
    return {"name": name, "type": kind, "jsonPath": path, **({"priority": priority} if priority else {})}


def _ready(path: str) -> str:
    return f'.status.conditions[?(@.type=="{path}")].status'


QUEUE_COLUMNS = [
    _column("Queue", "string", ".status.localQueue"),
    _column("Ready", "string", _ready("Ready")),
    _column("Phase", "string", ".status.phase"),
    _column("GPUs", "integer", ".spec.nodeResources.gpus"),
    _column("Age", "date", ".metadata.creationTimestamp"),
]
JOB_COLUMNS = [
    _column("Queue", "string", ".status.queue"),
    _column("Nodes", "integer", ".status.numNodes"),
    _column("Phase", "string", ".status.phase"),
    _column("Workers", "string", ".status.workersStatus"),
    _column("Restarts", "integer", ".status.restarts"),
    _column("Message", "string", ".status.message", 1),
    _column("Age", "date", ".metadata.creationTimestamp"),
]
REPLICAS = {"specReplicasPath": ".spec.maxNodes", "statusReplicasPath": ".status.numNodes"}
JOB_NAME = rule(
    f"size(self.metadata.name) <= {names.LONGEST_JOB_NAME} && "
    "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
    f"a job's name is part of its pods' host names: at most {names.LONGEST_JOB_NAME} small letters, digits "
    "and -, beginning with a letter",
)
_SCALED = (
    "!has(oldSelf.spec.maxNodes) || !has(self.spec.maxNodes) || self.spec.maxNodes == oldSelf.spec.maxNodes"
)
SCALE = [
    rule(
        f"{_SCALED} || (self.spec.suspend && has(oldSelf.status) && has(oldSelf.status.conditions) && "
        "oldSelf.status.conditions.exists(c, c.type == 'Suspended' && c.status == 'True' && "
        "c.reason == 'Suspended'))",
        "torchrun's --nnodes=MIN:MAX is fixed when it starts; an elastic job grows and shrinks within these "
        "limits by itself. To change maxNodes, suspend the job, scale it once it has no pods, and resume it",
    ),
    rule(
        f"{_SCALED} || !has(self.spec.numGPUs) || self.spec.numGPUs == 0",
        "numGPUs are split over maxNodes, so this job cannot be scaled: create a new one",
    ),
    rule(
        f"{_SCALED} || (self.spec.maxNodes > 1 && oldSelf.spec.maxNodes > 1)",
        "a job with one node has different volumes than a larger one: expected at least 2 nodes before and "
        "after scaling",
    ),
]
"""CEL rules that check the changes that `kubectl scale` makes to maxNodes. A suspended job can be scaled,
because it resumes with a new JobSet."""


def _definition(
    kind: str,
    short: list[str],
    spec: type[BaseModel],
    status: type[BaseModel],
    columns: list[Json],
    *cel_rules: Json,
    scale: Json | None = None,
) -> Object:
    plural = f"{kind.lower()}s"
    schema: Json = {
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": structural(spec),
            "status": structural(status),
        },
        **({"x-kubernetes-validations": list(cel_rules)} if cel_rules else {}),
    }
    version = {
        "name": names.VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}, **({"scale": scale} if scale else {})},
        "additionalPrinterColumns": columns,
        "schema": {"openAPIV3Schema": schema},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{names.GROUP}"},
        "spec": {
            "group": names.GROUP,
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": short,
                "categories": ["torchrun"],
            },
            "scope": "Namespaced",
            "versions": [version],
        },
    }


def definitions() -> list[Object]:
    """Return the CRDs for TorchrunQueue and TorchrunJob."""
    return [
        _definition(names.QUEUE_KIND, ["trq"], QueueSpec, QueueStatus, QUEUE_COLUMNS),
        _definition(
            names.JOB_KIND, ["trj", "tj"], JobSpec, JobStatus, JOB_COLUMNS, JOB_NAME, *SCALE, scale=REPLICAS
        ),
    ]


def text() -> str:
    """Return the content of crds.yaml."""
    return HEADER + yaml.safe_dump_all(definitions(), sort_keys=False, width=110)


if __name__ == "__main__":
    print(text(), end="")
