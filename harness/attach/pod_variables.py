"""Read a container's environment variables, if their values are in the pod's object."""

from __future__ import annotations

import re
from collections.abc import Mapping

from harness.core.kubernetes import Object
from harness.evidence.kubernetes.objects import COMPLETION_INDEX, container_of, items, mapping

_VARIABLE = re.compile(r"\$(?:\((\w+)\)|\{(\w+)(?::-([^}]*))?\}|(\w+))")
_ASSIGNED = re.compile(r"(?:^|[\s;&|])(RANK|WORLD_SIZE)=([\"']?)([^\s;&|\"']+)\2")
_FIELD = re.compile(r"metadata\.(?:(annotations|labels)\['([^']+)'\]|(name))")
_INDEX = "JOB_COMPLETION_INDEX"
"""The variable that the Job controller adds to the pods of an Indexed Job."""


def command(container: Object) -> str:
    """Return the command line of a container."""
    return " ".join(map(str, [*(container.get("command") or []), *(container.get("args") or [])]))


def of_container(container: Object, pod: Object | None = None) -> dict[str, str]:
    """Return a container's environment variables whose values are known, as a mapping from name to value.

    References to pod fields are resolved if `pod` is given. Values from Secrets and ConfigMaps are not known.
    """
    variables: dict[str, str] = {}
    if pod is not None and (index := mapping(pod, "metadata", "annotations").get(COMPLETION_INDEX)):
        variables[_INDEX] = str(index)
    for each in items(container, "env"):
        value = each["value"] if "value" in each else _field(each, pod or {})
        if value is not None:
            variables[str(each.get("name"))] = str(value)
    return variables


def _field(variable: Object, pod: Object) -> str | None:
    """Return the value of a variable that refers to the pod's name, a label or an annotation.

    Returns None for other variables, and if the pod does not have this label or annotation.
    """
    path = _FIELD.fullmatch(str(mapping(variable, "valueFrom", "fieldRef").get("fieldPath")))
    if path is None:
        return None
    value = (
        mapping(pod, "metadata", path[1]).get(path[2]) if path[1] else mapping(pod, "metadata").get("name")
    )
    return None if value is None else str(value)


def assigned(text: str) -> dict[str, str]:
    """Return the values that a command line assigns to RANK and WORLD_SIZE. Variables are not expanded."""
    return {name: value for name, _, value in _ASSIGNED.findall(text)}


def expanded(text: str, env: Mapping[str, str]) -> str:
    """Return the text with its shell variables expanded, except those without a value or a default."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2] or match[4]
        return env.get(name) or match[3] or match[0]

    return _VARIABLE.sub(value, text)


def rank(pod: Object, container: str) -> int | None:
    """Return the RANK of a pod's container, or None if it is not known."""
    own = container_of(mapping(pod, "spec"), container)
    env = of_container(own, pod)
    value = expanded(assigned(command(own)).get("RANK") or env.get("RANK", ""), env)
    return int(value) if value.isdecimal() else None


def has_rank(pod: Object, container: str) -> bool:
    """Return whether RANK is set in a pod's container, even if its value is not known."""
    own = container_of(mapping(pod, "spec"), container)
    return "RANK" in assigned(command(own)) or any(each.get("name") == "RANK" for each in items(own, "env"))
