"""Read and validate the fields of a create or resume request.

Config and metadata are strings that contain JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.tracker.shared.requests import Refused, Sender, from_ms, integer, loads

MAX_EXTERNAL_ID_LENGTH = 255
MAX_TAGS = 50


@dataclass(frozen=True)
class Attach:
    """A process that attaches to a run, as described by the metadata in its request."""

    sender: Sender
    name: str | None = None
    hostname: str | None = None
    rank: int | None = None
    job_name: str | None = None
    restart_attempt: int | None = None
    node_name: str | None = None
    client_version: str | None = None


@dataclass(frozen=True)
class Create:
    """The validated fields of a request to create a run."""

    project: str
    name: str
    external_id: str | None
    config: Any
    logger_settings: Any
    system_metadata: Any
    tags: list[str]
    forked_from: int | None
    fork_step: int | None
    inherit_config: bool
    inherit_tags: bool
    created_at: str | None = None
    """The start time of a run that is imported from another tracker. None means the current time."""
    updated_at: str | None = None


def document(body: Mapping[str, Any], name: str) -> Any:
    """Return the parsed value of a field that contains a JSON string.

    Raises Refused 400 for invalid JSON, for example NaN.
    """
    value = body.get(name)
    if not isinstance(value, str):
        return value
    try:
        return loads(value, constants=False)
    except (ValueError, RecursionError):
        raise Refused(400, f"Invalid {name} JSON") from None


def moment(body: Mapping[str, Any], name: str) -> str | None:
    """Return the time in a field that contains milliseconds, or None if the field is missing.

    Raises Refused 400 if the field is not an integer.
    """
    value = body.get(name)
    return None if value is None else from_ms(integer(value, name))


def string(body: Mapping[str, Any], name: str, max_length: int = 4096) -> str:
    """Return the string in a field.

    Raises Refused 400 if the string is blank or longer than `max_length` characters.
    """
    value = body.get(name)
    if not isinstance(value, str) or not 1 <= len(value) <= max_length or value.isspace():
        raise Refused(400, f"{name}: expected a string of 1 to {max_length} characters, not blank")
    return value


def tags(value: object) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(tag, str) for tag in value):
        raise Refused(400, "tags: expected a list of strings")
    if len(value) > MAX_TAGS:
        raise Refused(400, f"tags: a run can have at most {MAX_TAGS} tags")
    return value


def merged(into: Any, new: Any) -> Any:
    """Merge `new` into `into` recursively, and return the result.

    Values other than JSON objects are replaced.
    """
    if isinstance(into, dict) and isinstance(new, dict):
        return {**into, **{key: merged(into[key], new[key]) if key in into else new[key] for key in new}}
    return new


def read_create(body: Mapping[str, Any]) -> Create:
    """Return the fields of a create request. Raises Refused 400 with the name of the invalid field."""
    external_id, parent, step = body.get("externalId"), body.get("forkRunId"), body.get("forkStep")
    if (parent is None) != (step is None):
        raise Refused(400, "forkRunId and forkStep: a fork needs both")
    if step is not None and integer(step, "forkStep") < 0:
        raise Refused(400, "forkStep: must not be negative")
    return Create(
        project=string(body, "projectName"),
        name=string(body, "runName"),
        external_id=None if external_id is None else string(body, "externalId", MAX_EXTERNAL_ID_LENGTH),
        config=document(body, "config"),
        logger_settings=document(body, "loggerSettings"),
        system_metadata=document(body, "systemMetadata"),
        tags=tags(body.get("tags")),
        forked_from=None if parent is None else integer(parent, "forkRunId"),
        fork_step=None if step is None else integer(step, "forkStep"),
        inherit_config=body.get("inheritConfig", True) is not False,
        inherit_tags=bool(body.get("inheritTags")),
        created_at=moment(body, "createdAt"),
        updated_at=moment(body, "updatedAt"),
    )


def read_attach(sender: Sender, new: Create | None = None) -> Attach:
    """Return the process that a create request's metadata describes.

    A field that is missing or invalid is None, so that the create request still succeeds.
    """
    if new is None:
        return Attach(sender, name=sender.name)
    metadata, settings = _object(new.system_metadata), _object(new.logger_settings)
    konduktor = _object(metadata.get("konduktor"))
    return Attach(
        sender,
        name=new.name,
        hostname=_text(_object(metadata.get("os_info")).get("hostname")),
        rank=_whole(konduktor.get("rank")),
        job_name=_text(konduktor.get("job_name")),
        restart_attempt=_whole(konduktor.get("restart_attempt")),
        node_name=_text(konduktor.get("node_name")),
        client_version=_text(settings.get("pluto_version")),
    )


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str | None:
    return str(value) if isinstance(value, (str, int)) and value != "" else None


def _whole(value: object) -> int | None:
    text = str(value) if isinstance(value, (str, int)) else ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
