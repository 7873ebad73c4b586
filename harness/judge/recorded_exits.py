"""Read the exit codes of commands in containers that the harness keeps running after the command.

The controllers of some workloads restart containers that exit, so the harness's init keeps the container
running, and records the command's exit code in exits.jsonl.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal

from harness.core.clock import seconds
from harness.evidence.io.reader import Bundle
from harness.evidence.kubernetes.objects import ObjectState, Pod, items, mapping
from harness.evidence.schema.bundle import ContainerExit, Launch
from harness.judge.finding import LATE


def terminal(
    bundle: Bundle, pods: Iterable[Pod], nodes: int, until: float | None
) -> Literal["Completed", "Failed"] | None:
    """Return "Completed" if every node's command exited with 0, or "Failed" if one exited with another code.

    Returns None if commands are still running. `pods` are the nodes' last pods. `until` is the time at which
    the harness stopped waiting, because its deadline passed or the user interrupted it, or None. After that
    time, the harness itself stops the commands.
    """
    exits = [_exit(bundle, pod, until) for pod in pods]
    codes = [end[1].exit_code for end in exits if end is not None]
    if any(codes):
        return "Failed"
    return "Completed" if len(codes) == nodes else None


def as_it_ended(bundle: Bundle, launch: Launch, pod: Pod, until: float | None) -> Pod:
    """Return the pod as if its container had terminated when the command exited.

    A workload whose containers are kept running after the command can then be judged like any other workload.
    If the command is still running at `until`, the pod's history ends at that time.
    """
    end = _exit(bundle, pod, until)
    if end is None:
        states = [one for one in pod.history if until is None or (seconds(one.received_at) or 0.0) <= until]
        return replace(pod, history=tuple(states or pod.history[:1]))
    line, exit_ = end
    ended_at = seconds(exit_.at) or 0.0
    history = [states for states in pod.history if (seconds(states.received_at) or 0.0) <= ended_at] or [
        pod.history[0]
    ]
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
        history[-1], launch.container, {"terminated": terminated}, f"exits.jsonl:{line}", exit_.at
    )
    return replace(pod, history=(*history, last))


def _exit(bundle: Bundle, pod: Pod, until: float | None) -> tuple[int, ContainerExit] | None:
    """Return (line number, record) of the first exit of this pod's command, or None.

    Pods are distinguished by UID and creation time, because a StatefulSet's replacement pod has the same
    name.
    """
    metadata = mapping(pod.history[0].object, "metadata")
    created, uid = seconds(metadata.get("creationTimestamp")) or 0.0, metadata.get("uid")
    own = (entry for entry in bundle.exits() if entry[1].pod == pod.name and entry[1].uid in (None, uid))
    last = LATE if until is None else until
    return next(((line, one) for line, one in own if created <= (seconds(one.at) or 0.0) <= last), None)


def _with_state(before: ObjectState, container: str, state: dict[str, Any], ref: str, at: str) -> ObjectState:
    changed = copy.deepcopy(before.object)
    statuses = items(changed, "status", "containerStatuses")
    for status in statuses:
        if status.get("name") == container:
            status["state"] = state
    return replace(before, ref=ref, type="MODIFIED", received_at=at, object=changed)
