"""What all models share: names in camelCase, kinds of fields that a CRD knows, CEL rules as data."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema
from pydantic.alias_generators import to_camel

from harness.core.kubernetes import Object

Json = dict[str, Any]


class Spec(BaseModel):
    """Part of a spec. A field that is not known is refused: the API server has removed those that are not
    in the CRD, so another one means that CRD and controller are of different versions.
    """

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")


class Status(BaseModel):
    """Part of a status. It may have been written by another version, whose fields are left out."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore")


Free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}

Name = Annotated[str, Field(min_length=1, max_length=253)]
Text = Annotated[str, Field(min_length=1, max_length=65536)]
Word = Annotated[str, Field(max_length=1024)]
QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"
MAX_QUANTITY = 64


def _quantity(value: str | int) -> str | int:
    """Return the quantity. Raises ValueError for one that the CRD refuses too."""
    if len(str(value)) > MAX_QUANTITY or not re.fullmatch(QUANTITY, str(value)):
        raise ValueError("expected a quantity that is not negative, e.g. 2, 500m or 64Gi")
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
"""A Kubernetes quantity that is not negative."""
Count = Annotated[int, Field(ge=1, le=10000)]
Gpus = Annotated[int, Field(ge=0, le=100000)]
Seconds = Annotated[int, Field(ge=0, le=2**31 - 1)]
Anything = Annotated[Object, WithJsonSchema(Free)]
"""An object of Kubernetes, e.g. a pod's spec: the API server checks it when the pod is made."""
Labels = Annotated[dict[str, str], Field(max_length=256)]


def _named(value: Object) -> Object:
    if not isinstance(value.get("name"), str):
        raise ValueError("expected a name, which is text")
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
"""An object of Kubernetes in a list that is keyed by name: a variable, a volume."""
Time = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]


def rule(expression: str, message: str) -> Json:
    """Return a CEL rule (x-kubernetes-validations)."""
    return {"rule": expression, "message": message}


def first(expression: str, message: str) -> Json:
    """Return a rule for a new object alone. It is for fields that cannot change: with a rule that came after
    an object, nobody could suspend or cancel it.
    """
    return {**rule(f"oldSelf.hasValue() || ({expression})", message), "optionalOldSelf": True}


def positive(*fields: str) -> list[Json]:
    """Return rules by which these quantities are more than nothing."""
    return [
        rule(
            f"!has(self.{name}) || (type(self.{name}) == int ? self.{name} > 0 : "
            rf"!self.{name}.matches(r'^0+(\.0+)?[A-Za-z]*$'))",
            f"{name} is nothing: expected more",
        )
        for name in fields
    ]


def immutable(*fields: str) -> list[Json]:
    """Return rules by which these fields of an object keep what they had when it was created."""
    return [
        rule(
            f"has(self.{name}) == has(oldSelf.{name}) && "
            f"(!has(self.{name}) || self.{name} == oldSelf.{name})",
            f"{name} cannot be changed: make a new object",
        )
        for name in fields
    ]


def validations(*found: Json) -> Json:
    """Return these CEL rules as part of a schema."""
    return {"x-kubernetes-validations": list(found)}


def rules(*found: Json) -> ConfigDict:
    """Return a model's configuration with these CEL rules."""
    return ConfigDict(json_schema_extra=validations(*found))
