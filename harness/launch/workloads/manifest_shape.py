"""Check the types and lengths of the manifest fields that the harness reads.

In the pod template, the types of all fields are checked (pods/fields.py). The API server checks the
manifest's other fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.core.input_limits import (
    MAX_IMAGE,
    MAX_PROBLEMS,
    MAX_SCRIPT_BYTES,
    environment_problems,
    image_problem,
    shown,
    text_problem,
)
from harness.launch.pods import fields as pod_fields

_Key = Annotated[str, Field(max_length=317)]
_LabelValue = Annotated[str, Field(max_length=63)]
_Name = Annotated[str, Field(min_length=1, max_length=253)]
_Word = str | int | float | bool


class _Shape(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class _Metadata(_Shape):
    name: Any = None
    labels: dict[_Key, _LabelValue] | None = None
    annotations: dict[_Key, str] | None = None


class _Variable(_Shape):
    name: str
    value: _Word | None = None


class _Container(_Shape):
    image: Annotated[str, Field(max_length=MAX_IMAGE)] | None = None
    command: list[_Word] | None = None
    args: list[_Word] | None = None
    env: list[_Variable] | None = None
    resources: dict[str, Any] | None = None
    volumeMounts: list[dict[str, Any]] | None = None


class _Pod(_Shape):
    containers: list[_Container] | None = None
    initContainers: list[_Container] | None = None
    volumes: list[dict[str, Any]] | None = None
    subdomain: str | None = None
    nodeSelector: dict[_Key, str] | None = None
    tolerations: list[dict[str, Any]] | None = None
    affinity: dict[str, Any] | None = None


class _Template(_Shape):
    metadata: _Metadata | None = None
    spec: _Pod | None = None


class _Spec(_Shape):
    template: _Template | None = None
    serviceName: str | None = None
    activeDeadlineSeconds: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None


class _Workload(_Shape):
    spec: _Spec | None = None


class _Object(_Shape):
    apiVersion: _Name
    kind: _Name
    metadata: _Metadata | None = None


def object_problems(document: Any) -> Iterator[str]:
    """Yield the problems in the apiVersion, kind and metadata of an object in a manifest."""
    yield from _problems(_Object, document)


def workload_problems(document: Any) -> Iterator[str]:
    """Yield the problems in a workload's pod template: wrong types, and strings that are too long."""
    has_problems = False
    for problem in _problems(_Workload, document):
        has_problems = True
        yield problem
    if not has_problems:
        pod = ((document.get("spec") or {}).get("template") or {}).get("spec") or {}
        for at, container in enumerate(pod.get("containers") or []):
            yield from _container_problems(f"containers[{at}]", container)
        yield from pod_fields.problems(pod, "V1PodSpec", "spec.template.spec", newer=True)


def _container_problems(field: str, container: dict[str, Any]) -> Iterator[str]:
    image = container.get("image")
    if image and (problem := image_problem(f"{field}.image", image)):
        yield problem
    for words in ("command", "args"):
        for at, word in enumerate(container.get(words) or []):
            if problem := text_problem(f"{field}.{words}[{at}]", str(word), MAX_SCRIPT_BYTES):
                yield problem
    variables = [(each["name"], str(each.get("value", ""))) for each in container.get("env") or []]
    yield from environment_problems(f"{field}.env", variables)


def _problems(model: type[BaseModel], document: Any) -> Iterator[str]:
    try:
        model.model_validate(document)
    except ValidationError as error:
        fields = set()
        for each in islice(error.errors(include_url=False), 10 * MAX_PROBLEMS):
            field = ".".join(str(part) for part in each["loc"] if part not in _UNION)
            if field not in fields:  # For a union, pydantic reports one error per type.
                fields.add(field)
                # The value of an environment variable may be a secret.
                value = "" if "env" in each["loc"] else f"; found {shown(each['input'])}"
                yield f"{field or 'document'}: {each['msg']}{value}"


_UNION = {"str", "int", "float", "bool", "[key]"}
