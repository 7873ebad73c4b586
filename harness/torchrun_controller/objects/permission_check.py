"""Check that a queue permits the fields that a job sets, and lists the privileges that the job's pods need.

A job's author might have no other rights in the namespace. The controller must therefore not give the job any
access that only the queue's author has. The conditions are defined in api/permissions.py. The privilege check
also covers the fields that a job adds to its pods. For example, a hostPath volume needs the privilege even if
the queue lists the volume.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from harness.core.kubernetes import Object
from harness.torchrun_controller.api.models import JobSpec, QueueSpec
from harness.torchrun_controller.api.permissions import HARMLESS, JOB, OWNER, POD
from harness.torchrun_controller.api.queue_fields import Overrides
from harness.torchrun_controller.plan.gpu_layout import Refused

GROUPS = ("image", "distributed", "scheduling", "storage", "env", "volumes")
"""The groups of fields that `overrides.allowed` can list. If a group is not listed, no job of the queue may
set its fields."""
SOURCES = ("zip", "git")
"""The sources of a job's code that need no entry in the queue's `overrides`."""
OWN_VOLUMES = frozenset({"workspace", "workspace-kept", "datasets", "checkpoints", "dshm"})
"""The names of the volumes that the controller adds."""
_VOLUME = "volumes.additionalVolumes[]."
_APPARMOR = "container.apparmor.security.beta.kubernetes.io/"
"""The prefix of the annotations that the API server still accepts in place of the appArmorProfile field."""


class Value(NamedTuple):
    """A value in a spec, and the condition for this value from a table in api/permissions.py."""

    path: str
    """The value's path in the table of conditions, e.g. `env[].value`."""
    shown: str
    """The value's path as shown in messages. The path contains the names of list items, e.g.
    `env[LR].value`."""
    by: str | None
    """The condition, or None if the table has no entry for the field."""
    found: object

    @property
    def field(self) -> str:
        """Return the value's path in the syntax of `overrides.fields`, without `[]`."""
        return self.path.replace("[]", "")

    @property
    def key(self) -> str:
        return self.path.rpartition(".")[2]


def values(
    content: object, table: Mapping[str, str], path: str = "", display_path: str = "", by: str | None = None
) -> Iterator[Value]:
    """Yield each value in an object with its condition.

    Null values are skipped, because they set nothing. A list or mapping is yielded as a whole if the table
    has no entries for its fields.
    """
    by = table.get(path, by)
    if content is None:
        return
    has_children = not path or any(key.startswith((f"{path}.", f"{path}[")) for key in table)
    if has_children and isinstance(content, dict):
        for key, value in content.items():
            below = f"{path}.{key}" if path else f"{key}"
            yield from values(value, table, below, f"{display_path}.{key}" if path else f"{key}", by)
    elif has_children and isinstance(content, list):
        for index, item in enumerate(content):
            name = item.get("name", index) if isinstance(item, dict) else index
            yield from values(item, table, f"{path}[]", f"{display_path}[{name}]", by)
    else:
        yield Value(path, display_path, by, content)


def check_job(spec: JobSpec, queue: QueueSpec) -> None:
    """Raise Refused if the job sets a field that its queue does not permit."""
    overrides = queue.overrides
    fields: Object = spec.model_dump(by_alias=True, exclude_none=True, exclude_defaults=True)
    withdrawn = [group for group in GROUPS if fields.get(group) and group not in overrides.allowed]
    refused = [f"{group} (allowed: {group})" for group in withdrawn]
    rest = {field: value for field, value in fields.items() if field not in withdrawn}
    for value in values(rest, JOB):
        refused += [f"{value.shown} ({entry})" for entry in _missing(value, spec, overrides)]
    if refused:
        raise Refused(
            "OverrideNotAllowed",
            f"the queue does not permit its jobs to set {', '.join(refused)}: remove them, or add the "
            "entries in parentheses to the queue's overrides",
        )
    volume_names = OWN_VOLUMES | {volume["name"] for volume in queue.pod_template.spec.get("volumes") or []}
    for volume in spec.volumes.additional_volumes:
        if volume["name"] in volume_names:
            raise Refused(
                "VolumeNameTaken",
                f"expected a different name for the volume {volume['name']}: "
                "the queue or the controller already has "
                "a volume with this name",
            )


def _missing(value: Value, spec: JobSpec, overrides: Overrides) -> Iterable[str]:
    """Return the entries that `overrides` needs to permit a value in a job, or [] if the value is
    permitted."""
    if value.by is None:
        return ["this version of the controller does not know the field"]
    if value.path.startswith(_VOLUME) and {value.key: value.found} in map(_source, overrides.volumes):
        return []
    if value.by in ("fields", "mounts", "source") and any(
        value.field == each or value.field.startswith(f"{each}.") for each in overrides.fields
    ):
        return []
    return _RULES[value.by](value, spec, overrides)


def _of_names(names_of: Callable[[Overrides], list[str]]) -> _Rule:
    """Return the rule for values that refer to an object by name. The queue must list the name."""

    def missing(value: Value, _: JobSpec, overrides: Overrides) -> Iterable[str]:
        name = value.found
        if isinstance(name, dict):
            name = name.get(_NAME_OF.get(value.key, "name"))
        return [] if name in names_of(overrides) else [f"{value.by}: {name}"]

    return missing


def _of_keys(names_of: Callable[[Overrides], list[str]]) -> _Rule:
    """Return the rule for labels and annotations. The queue must list their keys."""

    def missing(value: Value, _: JobSpec, overrides: Overrides) -> Iterable[str]:
        keys = value.found if isinstance(value.found, dict) else {}
        return [f"{value.by}: {key}" for key in keys if key not in names_of(overrides)]

    return missing


def _image(value: Value, _: JobSpec, overrides: Overrides) -> Iterable[str]:
    image = str(value.found)
    permitted = any(
        image.startswith(each[:-1]) if each.endswith("*") else image == each for each in overrides.images
    )
    return [] if permitted else [f"images: {image}"]


def _mount(value: Value, spec: JobSpec, _: Overrides) -> Iterable[str]:
    """Return the entry that `overrides` lacks for a mount, or [] if the mount is permitted.

    A job may mount its own volumes. Other volumes need an entry, because the queue may intend them only for
    other containers.
    """
    own = [volume["name"] for volume in spec.volumes.additional_volumes]
    volume_name = value.found.get("name") if isinstance(value.found, dict) else None
    return [] if volume_name in own else [f"fields: {value.field}"]


def _code(value: Value, spec: JobSpec, _: Overrides) -> Iterable[str]:
    """Return the entry that `overrides` lacks for a source of code, or [] if the source is permitted.

    A source that names a claim or a bucket's Secret is permitted here. Another rule requires that the queue
    lists these names.
    """
    workspace_storage = spec.workspace_storage
    name = workspace_storage and (
        workspace_storage.claim_name
        if workspace_storage.source == "existing"
        else workspace_storage.secret_name
    )
    return [] if value.found in SOURCES or name else [f"fields: {value.field}"]


_Rule = Callable[[Value, JobSpec, Overrides], Iterable[str]]
_NAME_OF = {"secret": "secretName", "persistentVolumeClaim": "claimName"}
"""Maps a volume type to the field with the name of the volume's object. All other volume types use the field
`name`."""
_RULES: Mapping[str, _Rule] = {
    "free": lambda *_: [],
    "fields": lambda value, *_: [f"fields: {value.field}"],
    "images": _image,
    "secrets": _of_names(lambda overrides: overrides.secrets),
    "configMaps": _of_names(lambda overrides: overrides.config_maps),
    "claims": _of_names(lambda overrides: overrides.claims),
    "priorityClasses": _of_names(lambda overrides: overrides.priority_classes),
    "tolerations": lambda value, _, overrides: (
        [] if value.found in overrides.tolerations else [f"tolerations: {value.found}"]
    ),
    "volumes": lambda value, *_: [f"volumes: {{{value.key}: …}}"],
    "labels": _of_keys(lambda overrides: overrides.labels),
    "annotations": _of_keys(lambda overrides: overrides.annotations),
    "mounts": _mount,
    "source": _code,
}


def _source(volume: Object) -> Object:
    return {key: value for key, value in volume.items() if key != "name"}


def check_pod(pod: Object, queue: QueueSpec) -> None:
    """Raise Refused if a queue's pods need a privilege that the queue does not list."""
    needed: list[tuple[str, str]] = []
    for value in values(pod["spec"], POD):
        if value.by is None:
            raise Refused(
                "FieldUnknown",
                f"expected fields of a pod that this version of the controller knows, found {value.shown}: "
                "leave it out, or upgrade the controller",
            )
        if value.by != OWNER and value.found and value.found not in HARMLESS.get(value.by, ()):
            needed.append((value.by, value.shown))
    for name, profile in (pod["metadata"].get("annotations") or {}).items():
        if name.startswith(_APPARMOR) and profile == "unconfined":
            needed.append(("appArmor", f"the annotation {name}"))
    missing = [(privilege, field) for privilege, field in needed if privilege not in queue.privileges]
    if missing:
        fields = [field for _, field in missing]
        privileges = dict.fromkeys(privilege for privilege, _ in missing)
        verb, them = ("give", "them") if len(fields) > 1 else ("gives", "it")
        raise Refused(
            "PrivilegeNotGranted",
            f"{', '.join(fields)} {verb} pods access to their node, and whoever may create a TorchrunJob can "
            f"use {them}: leave {them} out, or add {', '.join(privileges)} to the queue's privileges",
        )
