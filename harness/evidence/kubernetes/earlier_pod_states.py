"""Reconstruct the states that a pod had before the harness first read it, using the pod's container status.

The container status contains the number of restarts and the termination of the previous instance. This is
needed only for attached jobs. A bundle that was recorded from the start of a job already contains these
states.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from harness.evidence.kubernetes.objects import ObjectState, items, mapping


def with_earlier(states: list[ObjectState], container: str) -> list[ObjectState]:
    """Return a pod's states, preceded by earlier states that are derived from the status of `container` in
    the first state.

    The added states show the container's previous instance, first running and then terminated. Both refer to
    the same line as the first state and have no resource version.
    """
    if not states:
        return states
    first = states[0]
    status = _status(first.object, container)
    terminated = mapping(status, "lastState", "terminated")
    if not terminated or not status.get("restartCount"):
        return states
    earlier_states = [
        _state(
            first,
            container,
            {"running": {"startedAt": terminated.get("startedAt")}},
            terminated.get("startedAt"),
        ),
        _state(first, container, {"terminated": terminated}, terminated.get("finishedAt")),
    ]
    return [*earlier_states, *states]


def _status(pod: dict[str, Any], container: str) -> dict[str, Any]:
    statuses = items(pod, "status", "containerStatuses")
    return next((status for status in statuses if status.get("name") == container), {})


def _state(first: ObjectState, container: str, state: dict[str, Any], at: Any) -> ObjectState:
    """Return an earlier state of the pod, in which the container has the given state."""
    earlier = copy.deepcopy(first.object)
    earlier["metadata"] = {
        name: value
        for name, value in mapping(earlier, "metadata").items()
        if name not in ("resourceVersion", "deletionTimestamp", "deletionGracePeriodSeconds")
    }
    mapping(earlier, "status")["phase"] = "Running"
    status = _status(earlier, container)
    status.update(state=state, restartCount=0)
    status.pop("lastState", None)
    received = at if isinstance(at, str) else first.received_at
    return replace(first, type="ADDED", received_at=received, object=earlier)
