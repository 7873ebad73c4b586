"""Read recorded Kubernetes objects.

Any field of a recorded object can be missing. In that case, these functions return a default and do not
raise.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

JOBSET_NAME = "jobset.sigs.k8s.io/jobset-name"
RESTART_ATTEMPT = "jobset.sigs.k8s.io/restart-attempt"
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
ENDED_BY_NODE = ("Evicted", "NodeLost", "Preempting", "Shutdown", "Terminated")
"""Status reasons of pods that ended because of their node, for example because the kubelet evicted them, or
because the node was lost or shut down."""


def mapping(value: Any, *keys: str) -> dict[str, Any]:
    """Return the mapping at a path of keys, or {} if the path does not lead to a mapping."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def items(value: Any, *keys: str) -> list[dict[str, Any]]:
    """Return the mappings in the list at a path of keys, or [] if there is no list."""
    entries = mapping(value, *keys[:-1]).get(keys[-1])
    return [item for item in entries if isinstance(item, dict)] if isinstance(entries, list) else []


def container_of(spec: object, name: str) -> dict[str, Any]:
    """Return the container with this name in the spec of a pod, or {} if there is none."""
    return next((each for each in items(spec, "containers") if each.get("name") == name), {})


_GROUP_ANNOTATIONS = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name", "pod-group-name")
_GROUP_LABEL = "scheduling.x-k8s.io/pod-group"
"""Annotations and the label in which Volcano, KAI and the coscheduling plugin name a pod's PodGroup."""


@dataclass(frozen=True)
class ObjectState:
    """One recorded state of an object.

    `ref` is the line in the bundle that contains the state, as FILE:LINE.
    """

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
    """Return the field managers that, between two states, wrote to any part of the object except its status.

    If managedFields has no new entries, the managers that are no longer listed are returned, because a
    manager disappears when it removes the only field that it has written.
    """

    def writes(state: ObjectState) -> set[tuple[str, str]]:
        entries = items(state.object, "metadata", "managedFields")
        return {
            (str(e.get("manager")), str(e.get("time"))) for e in entries if e.get("subresource") != "status"
        }

    old, new = writes(before), writes(after)
    departed = {manager for manager, _ in old} - {manager for manager, _ in new} if new else set()
    return sorted({manager for manager, _ in new - old} or departed)


@dataclass(frozen=True)
class Pod:
    """A pod of the job.

    `index` is the pod's node index. `history` contains the pod's states, ordered by resource version.
    """

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
        labels = [mapping(state.object, "metadata", "labels").get(RESTART_ATTEMPT) for state in self.history]
        text = str(next(filter(None, reversed(labels)), "0"))  # A later update may have removed the label.
        return int(text) if text.isdecimal() else 0

    @property
    def node(self) -> str | None:
        nodes = [mapping(state.object, "spec").get("nodeName") for state in self.history]
        return next((str(node) for node in reversed(nodes) if node), None)

    @property
    def hostname(self) -> str:
        return str(mapping(self.last.object, "spec").get("hostname") or self.name.rpartition("-")[0])

    @property
    def hostnames(self) -> set[str]:
        """Return the hostnames that a process in the pod can see."""
        on_host = mapping(self.last.object, "spec").get("hostNetwork") is True and self.node
        return {self.name, self.hostname, *([on_host] if on_host else [])}

    @property
    def addresses(self) -> set[str]:
        """Return the pod's IP addresses. With hostNetwork, these are the node's addresses."""
        status = mapping(self.last.object, "status")
        addresses = [status.get("podIP"), *(each.get("ip") for each in items(status, "podIPs"))]
        return {str(address) for address in addresses if address}

    def container(self, name: str, state: str) -> tuple[ObjectState, dict[str, Any]] | None:
        """Return the pod's latest state in which the container was in `state`, and the container's state.

        `state` is waiting, running or terminated. Returns None if the container was never in this state.
        """
        for recorded in reversed(self.history):
            for status in items(recorded.object, "status", "containerStatuses"):
                if status.get("name") == name and isinstance(mapping(status, "state").get(state), dict):
                    return recorded, status["state"][state]
        return None

    def condition(self, kind: str) -> tuple[ObjectState, dict[str, Any]] | None:
        """Return the pod's last state and its condition of type `kind`, or None if it does not have this
        condition."""
        for condition in items(self.last.object, "status", "conditions"):
            if condition.get("type") == kind:
                return self.last, condition
        return None


def claim_names(pod: dict[str, Any]) -> list[str]:
    """Return the names of a pod's volume claims, including those for its generic ephemeral volumes."""
    names = []
    for volume in items(pod, "spec", "volumes"):
        if claim := mapping(volume, "persistentVolumeClaim").get("claimName"):
            names.append(str(claim))
        elif "ephemeral" in volume:
            names.append(f"{mapping(pod, 'metadata').get('name')}-{volume.get('name')}")
    return names


def group_name(pod: dict[str, Any]) -> str:
    """Return the name of the PodGroup with which a gang scheduler schedules a pod, or ""."""
    metadata = mapping(pod, "metadata")
    annotations, labels = mapping(metadata, "annotations"), mapping(metadata, "labels")
    names = [annotations.get(key) for key in _GROUP_ANNOTATIONS] + [labels.get(_GROUP_LABEL)]
    return next((str(name) for name in names if name), "")


def termination(terminated: dict[str, Any]) -> tuple[int | None, dict[str, Any]]:
    """Return the exit code and the worker's JSON object from konduktor's termination message.

    If they are missing, the exit code is None and the object is {}.
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
