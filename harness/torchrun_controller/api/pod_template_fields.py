"""Types of the pod template fields that the controller reads.

The CRD has the same types, so `kubectl apply` reports fields with invalid values. The controller copies all
other fields unchanged, and the API server validates them in a pod dry run (reconcile.py).
"""

from __future__ import annotations

from typing import Annotated, Required

from pydantic import ConfigDict, Field, WithJsonSchema
from typing_extensions import TypedDict

from harness.core.kubernetes import Object
from harness.torchrun_controller.api import names
from harness.torchrun_controller.api.field_types import Json, Named, rule, validations

_OPEN: Json = {"x-kubernetes-preserve-unknown-fields": True}
_NULLABLE: Json = {"nullable": True}
Amount = Annotated[str | int, WithJsonSchema({"x-kubernetes-int-or-string": True})]
Amounts = Annotated[dict[str, Amount] | None, Field(json_schema_extra=_NULLABLE)]
NamedList = Annotated[list[Named] | None, Field(json_schema_extra=_NULLABLE)]
ObjectList = Annotated[
    list[Annotated[Object, WithJsonSchema({"type": "object", **_OPEN})]] | None,
    Field(json_schema_extra=_NULLABLE),
]
StringMap = Annotated[dict[str, str] | None, Field(json_schema_extra=_NULLABLE)]


class Mount(TypedDict, total=False):
    __pydantic_config__ = ConfigDict(extra="allow", json_schema_extra=_OPEN)  # type: ignore[misc]

    mountPath: Required[str]


class Resources(TypedDict, total=False):
    __pydantic_config__ = ConfigDict(extra="allow", json_schema_extra=_OPEN)  # type: ignore[misc]

    limits: Amounts
    requests: Amounts


class Container(TypedDict, total=False):
    __pydantic_config__ = ConfigDict(extra="allow", json_schema_extra=_OPEN)  # type: ignore[misc]

    name: Required[Annotated[str, Field(max_length=63)]]
    image: Annotated[str | None, Field(json_schema_extra=_NULLABLE)]
    imagePullPolicy: Annotated[str | None, Field(json_schema_extra=_NULLABLE)]
    workingDir: Annotated[str | None, Field(json_schema_extra=_NULLABLE)]
    env: NamedList
    volumeMounts: Annotated[list[Mount] | None, Field(json_schema_extra=_NULLABLE)]
    resources: Annotated[Resources | None, Field(json_schema_extra=_NULLABLE)]


class PodSpec(TypedDict, total=False):
    """A pod spec. The first container is `trainer`."""

    __pydantic_config__ = ConfigDict(  # type: ignore[misc]
        extra="allow",
        json_schema_extra={
            **_OPEN,
            **validations(
                rule(
                    "!has(self.containers) || size(self.containers) == 0 || "
                    "self.containers[0].name == 'trainer'",
                    "the first container must have the name trainer: torchrun runs in it",
                ),
                rule(
                    "!has(self.containers) || self.containers.filter(c, c.name == 'trainer').size() <= 1",
                    "only one container can have the name trainer",
                ),
            ),
        },
    )

    containers: Annotated[list[Container], Field(max_length=32)]
    initContainers: Annotated[list[Container] | None, Field(json_schema_extra=_NULLABLE)]
    volumes: NamedList
    tolerations: ObjectList
    nodeSelector: StringMap


class ResourceMetadata(TypedDict, total=False):
    __pydantic_config__ = ConfigDict(extra="allow", json_schema_extra=_OPEN)  # type: ignore[misc]

    name: Annotated[str | None, Field(json_schema_extra=_NULLABLE)]
    labels: StringMap
    annotations: StringMap


class Permitted(TypedDict, total=False):
    """An additional object of a kind that the controller is permitted to create."""

    __pydantic_config__ = ConfigDict(extra="allow", json_schema_extra=_OPEN)  # type: ignore[misc]

    apiVersion: Required[
        Annotated[
            str, Field(json_schema_extra={"type": "string", "enum": sorted(set(names.PERMITTED.values()))})
        ]
    ]
    kind: Required[
        Annotated[str, Field(json_schema_extra={"type": "string", "enum": sorted(names.PERMITTED)})]
    ]
    metadata: Annotated[ResourceMetadata | None, Field(json_schema_extra=_NULLABLE)]
