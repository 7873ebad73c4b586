"""Kubernetes objects as they were recorded. Any field may be missing, so reading them never raises."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"
RESTART_ATTEMPT = "jobset.sigs.k8s.io/restart-attempt"
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"


def mapping(value: Any, *keys: str) -> dict[str, Any]:
    """Return the mapping at a path of keys, or {} where there is none."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def items(value: Any, *keys: str) -> list[dict[str, Any]]:
    """Return the list of mappings at a path of keys, or []."""
    found = mapping(value, *keys[:-1]).get(keys[-1])
    return [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []


@dataclass(frozen=True)
class ObjectState:
    """One state of one object, and its line in the bundle."""

    ref: str
    type: str
    received_at: str
    object: dict[str, Any]

    @property
    def name(self) -> str:
        return str(mapping(self.object, "metadata").get("name", ""))

    @property
    def uid(self) -> str:
        return str(mapping(self.object, "metadata").get("uid") or self.name)

    @property
    def version(self) -> int:
        text = str(mapping(self.object, "metadata").get("resourceVersion", ""))
        return int(text) if text.isdecimal() else -1


def changed_by(before: ObjectState, after: ObjectState) -> list[str]:
    """Return the field managers that wrote the object, not its status, between two of its states.

    Where nobody wrote, it was one who is no field manager any more, because they removed the only field that
    they had written.
    """

    def writes(state: ObjectState) -> set[tuple[str, str]]:
        entries = items(state.object, "metadata", "managedFields")
        return {
            (str(e.get("manager")), str(e.get("time"))) for e in entries if e.get("subresource") != "status"
        }

    old, new = writes(before), writes(after)
    left = {manager for manager, _ in old} - {manager for manager, _ in new} if new else set()
    return sorted({manager for manager, _ in new - old} or left)


@dataclass(frozen=True)
class Pod:
    """The pod of one node of the job. Its history is ordered by resource version, the last state last."""

    index: int
    history: tuple[ObjectState, ...]

    @property
    def last(self) -> ObjectState:
        return self.history[-1]

    @property
    def name(self) -> str:
        return self.last.name

    @property
    def attempt(self) -> int:
        labels = [mapping(seen.object, "metadata", "labels").get(RESTART_ATTEMPT) for seen in self.history]
        text = str(next(filter(None, reversed(labels)), "0"))  # a label may have been taken away
        return int(text) if text.isdecimal() else 0

    @property
    def node(self) -> str | None:
        nodes = [mapping(seen.object, "spec").get("nodeName") for seen in self.history]
        return next((str(node) for node in reversed(nodes) if node), None)

    @property
    def hostname(self) -> str:
        return str(mapping(self.last.object, "spec").get("hostname") or self.name.rpartition("-")[0])

    def container(self, name: str, state: str) -> tuple[ObjectState, dict[str, Any]] | None:
        """Return the latest state in which a container was `state` (waiting, running, terminated)."""
        for seen in reversed(self.history):
            for status in items(seen.object, "status", "containerStatuses"):
                if status.get("name") == name and isinstance(mapping(status, "state").get(state), dict):
                    return seen, status["state"][state]
        return None

    def condition(self, kind: str) -> tuple[ObjectState, dict[str, Any]] | None:
        """Return the last state's condition of this type."""
        for condition in items(self.last.object, "status", "conditions"):
            if condition.get("type") == kind:
                return self.last, condition
        return None


def termination(terminated: dict[str, Any]) -> tuple[int | None, dict[str, Any]]:
    """Return konduktor's exit code and the worker's value from a termination message.

    The worker's value is {} where there is none.
    """
    try:
        message = json.loads(str(terminated.get("message") or ""))
    except ValueError:
        return None, {}
    exit_code = message.get("exit") if isinstance(message, dict) else None
    value = message.get("value") if isinstance(message, dict) else None
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = None
    return exit_code if isinstance(exit_code, int) else None, value if isinstance(value, dict) else {}
