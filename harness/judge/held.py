"""Ranks of a StatefulSet or a DaemonSet: the controller starts again what ends, so their containers are held.

A rank is done when its command has ended, by the exit code that its container's init wrote (exits.jsonl).
What comes after it, the harness's own deletion of the pod, says nothing of the rank.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal

from harness.core.clock import seconds
from harness.evidence.objects import ObjectState, Pod, items, mapping
from harness.evidence.reader import Bundle
from harness.evidence.schema import ContainerExit, Launch
from harness.judge.finding import LATE


def terminal(
    bundle: Bundle, pods: Iterable[Pod], nodes: int, until: float | None
) -> Literal["Completed", "Failed"] | None:
    """Completed: the command of every node ended with 0. Failed: one ended with something else.

    `pods`: the last pod of each node. `until`: the time at which the deadline or a user's interruption ended
    the wait. After it, the harness itself ends the commands.
    """
    ended = [_exit(bundle, pod, until) for pod in pods]
    codes = [found[1].exit_code for found in ended if found is not None]
    if any(codes):
        return "Failed"
    return "Completed" if len(codes) == nodes else None


def as_it_ended(bundle: Bundle, launch: Launch, pod: Pod, until: float | None) -> Pod:
    """The pod as if its container had ended when its command did, which other kinds of pods do.

    Where its command runs at `until`, the pod is as it was at that time.
    """
    found = _exit(bundle, pod, until)
    if found is None:
        seen = [one for one in pod.history if until is None or (seconds(one.received_at) or 0.0) <= until]
        return replace(pod, history=tuple(seen or pod.history[:1]))
    line, exit_ = found
    ended = seconds(exit_.at) or 0.0
    before = [seen for seen in pod.history if (seconds(seen.received_at) or 0.0) <= ended] or [pod.history[0]]
    real = pod.container(launch.container, "terminated")
    terminated = {
        "exitCode": exit_.exit_code,
        "reason": "Completed" if exit_.exit_code == 0 else "Error",
        "finishedAt": exit_.at,
        "message": real[1].get("message", "") if real else "",
    }
    if real and real[1].get("reason") == "OOMKilled":
        terminated["reason"] = "OOMKilled"
    last = _with_state(
        before[-1], launch.container, {"terminated": terminated}, f"exits.jsonl:{line}", exit_.at
    )
    return replace(pod, history=(*before, last))


def _exit(bundle: Bundle, pod: Pod, until: float | None) -> tuple[int, ContainerExit] | None:
    """The first end of the pod's own command; a pod of a StatefulSet has the name of the one before it."""
    metadata = mapping(pod.history[0].object, "metadata")
    created, uid = seconds(metadata.get("creationTimestamp")) or 0.0, metadata.get("uid")
    own = (entry for entry in bundle.exits() if entry[1].pod == pod.name and entry[1].uid in (None, uid))
    last = LATE if until is None else until
    return next(((line, one) for line, one in own if created <= (seconds(one.at) or 0.0) <= last), None)


def _with_state(seen: ObjectState, container: str, state: dict[str, Any], ref: str, at: str) -> ObjectState:
    changed = copy.deepcopy(seen.object)
    statuses = items(changed, "status", "containerStatuses")
    for status in statuses:
        if status.get("name") == container:
            status["state"] = state
    return replace(seen, ref=ref, type="MODIFIED", received_at=at, object=changed)
