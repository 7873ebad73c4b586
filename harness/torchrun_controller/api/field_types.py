"""Base classes, field types and CEL rules that all models share. Field names are camelCase in the API."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel

from harness.core.kubernetes import Object

Json = dict[str, Any]


class Spec(BaseModel):
    """Base class for spec models. An unknown field is an error.

    The API server prunes fields that are not in the CRD. So an unknown field means that the CRD and the
    controller have different versions.
    """

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")


class Status(BaseModel):
    """Base class for status models. It ignores unknown fields, which other versions may have written."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore")


Free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}

Name = Annotated[str, Field(min_length=1, max_length=253)]
Text = Annotated[str, Field(min_length=1, max_length=65536)]
Word = Annotated[str, Field(max_length=1024)]
QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"
MAX_QUANTITY = 64


def _quantity(value: str | int) -> str | int:
    """Return a quantity unchanged. Raises ValueError for a value that the CRD would reject."""
    if len(str(value)) > MAX_QUANTITY or not re.fullmatch(QUANTITY, str(value)):
        raise ValueError("expected a non-negative quantity, e.g. 2, 500m or 64Gi")
    return value


Quantity = Annotated[
    str | int,
    AfterValidator(_quantity),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "x-kubernetes-int-or-string": True,
            "minimum": 0,
            "pattern": QUANTITY,
            "maxLength": MAX_QUANTITY,
        }
    ),
]
"""A non-negative Kubernetes quantity."""
Count = Annotated[int, Field(ge=1, le=10000)]
Gpus = Annotated[int, Field(ge=0, le=100000)]
Seconds = Annotated[int, Field(ge=0, le=2**31 - 1)]
Anything = Annotated[Object, WithJsonSchema(Free)]
"""An object of any Kubernetes type, such as a pod's affinity. The API server validates it only when the pod
is created."""
Labels = Annotated[dict[str, str], Field(max_length=256)]


def _named(value: Object) -> Object:
    if not isinstance(value.get("name"), str):
        raise ValueError("expected a name of type string")
    return value


Named = Annotated[
    Object,
    AfterValidator(_named),
    WithJsonSchema(
        {
            **Free,
            "required": ["name"],
            "properties": {"name": {"type": "string", "minLength": 1, "maxLength": 1024}},
        }
    ),
]
"""An item of a Kubernetes list whose items have unique names, such as an environment variable or a volume."""
Time = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]


def rule(expression: str, message: str) -> Json:
    """Return a CEL validation rule (x-kubernetes-validations) with the message for a violation."""
    return {"rule": expression, "message": message}


def first(expression: str, message: str) -> Json:
    """Return a CEL rule that applies only when an object is created.

    Use such a rule for immutable fields, so that older objects that violate the rule can still be suspended
    or cancelled.
    """
    return {**rule(f"oldSelf.hasValue() || ({expression})", message), "optionalOldSelf": True}


def positive(*fields: str) -> list[Json]:
    """Return CEL rules that require the named quantities to be greater than 0."""
    return [
        rule(
            f"!has(self.{name}) || (type(self.{name}) == int ? self.{name} > 0 : "
            rf"!self.{name}.matches(r'^0+(\.0+)?[A-Za-z]*$'))",
            f"{name} is nothing: expected more",
        )
        for name in fields
    ]


def immutable(*fields: str) -> list[Json]:
    """Return CEL rules that make the named fields immutable."""
    return [
        rule(
            f"has(self.{name}) == has(oldSelf.{name}) && "
            f"(!has(self.{name}) || self.{name} == oldSelf.{name})",
            f"{name} cannot be changed: create a new object",
        )
        for name in fields
    ]


def validations(*cel_rules: Json) -> Json:
    """Return a schema fragment that contains CEL rules."""
    return {"x-kubernetes-validations": list(cel_rules)}


def rules(*cel_rules: Json) -> ConfigDict:
    """Return a pydantic model configuration that adds CEL rules to the model's schema."""
    return ConfigDict(json_schema_extra=validations(*cel_rules))
