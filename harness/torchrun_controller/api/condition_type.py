"""Status conditions as Kubernetes defines them: type, status, time of the last transition, and reason."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from harness.torchrun_controller.api.field_types import Status, Time, Word

Truth = Literal["True", "False", "Unknown"]


class Condition(Status):
    """A status condition. `lastTransitionTime` changes only when `status` changes."""

    type: Word
    status: Truth
    reason: Word = ""
    message: Annotated[str, Field(max_length=32768)] = ""
    last_transition_time: Time | None = None
    observed_generation: int | None = None


def stamp(now: datetime) -> str:
    """Format a time as a Kubernetes timestamp, such as 2026-11-23T14:00:00Z."""
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")


def parsed(time: str) -> datetime:
    """Parse a Kubernetes timestamp, such as 2026-11-23T14:00:00Z."""
    return datetime.fromisoformat(time.replace("Z", "+00:00"))


def found(conditions: list[Condition], kind: str) -> Condition | None:
    """Return the condition of type `kind`, or None if it does not exist."""
    return next((condition for condition in conditions if condition.type == kind), None)


def true(conditions: list[Condition], kind: str) -> bool:
    """Return whether a condition of type `kind` exists and its status is True."""
    condition = found(conditions, kind)
    return condition is not None and condition.status == "True"


def with_condition(old: list[Condition], new: Condition, now: datetime) -> list[Condition]:
    """Return the conditions in `old` and the condition `new`, which replaces an existing condition of the
    same type.

    The transition time changes only if the status changes.
    """
    before = found(old, new.type)
    since = before.last_transition_time if before and before.status == new.status else stamp(now)
    changed = new.model_copy(update={"last_transition_time": since})
    if before is None:
        return [*old, changed]
    return [changed if condition.type == new.type else condition for condition in old]
