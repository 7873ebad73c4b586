"""Find the pods of the launched workload, and the node index of each pod."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable
from typing import Any

from harness.evidence.kubernetes.objects import (
    COMPLETION_INDEX,
    JOBSET_NAME,
    ObjectState,
    Pod,
    items,
    mapping,
)
from harness.evidence.schema.bundle import Launch

POD_INDEX = "apps.kubernetes.io/pod-index"
States = list[ObjectState]


def pod_index(pod: dict[str, Any]) -> int | None:
    """Return a pod's index in its StatefulSet according to its label, or None without such a label."""
    text = str(mapping(pod, "metadata", "labels").get(POD_INDEX, ""))
    return int(text) if text.isdecimal() else None


def members(launch: Launch, pods: Iterable[States]) -> dict[int, list[Pod]]:
    """Map each node index of the launched workload to its pods, oldest first.

    `pods` contains a list of states for each observed pod. Each list starts with the oldest state.
    """
    own = [states for states in pods if _belongs(launch, states)]
    index = _by_address(own) if launch.kind == "DaemonSet" else _by_label
    found: dict[int, list[tuple[tuple[int, str, int], Pod]]] = {}
    for states in own:
        at = index(states)
        if at is None:
            continue
        pod = Pod(at, tuple(states))
        created = str(mapping(states[-1].object, "metadata").get("creationTimestamp", ""))
        # Creation times are whole seconds. If two pods have the same time, the resource version decides.
        found.setdefault(at, []).append(((pod.attempt, created, states[0].version), pod))
    ordered = {at: sorted(found[at], key=lambda entry: entry[0]) for at in sorted(found)}
    return {at: [pod for _, pod in entries] for at, entries in ordered.items()}


def _belongs(launch: Launch, states: States) -> bool:
    """Return whether a pod belongs to the launch.

    A konduktor pod is owned by a Job and not by the JobSet, so it is recognised by the JobSet's label. Other
    pods are recognised by their owner reference. One recorded state with this label or reference is enough.
    """
    if launch.kind == "JobSet":
        labels = [mapping(state.object, "metadata", "labels").get(JOBSET_NAME) for state in states]
        return bool(launch.object_name) and launch.object_name in labels
    owners = [owner for state in states for owner in items(state.object, "metadata", "ownerReferences")]
    return any(owner.get("uid") == launch.uid for owner in owners)


def _by_label(states: States) -> int | None:
    for state in states:
        metadata = mapping(state.object, "metadata")
        labels, annotations = mapping(metadata, "labels"), mapping(metadata, "annotations")
        text = str(annotations.get(COMPLETION_INDEX, labels.get(COMPLETION_INDEX, labels.get(POD_INDEX, ""))))
        if text.isdecimal():
            return int(text)
    return None


def _by_address(pods: list[States]) -> Callable[[States], int | None]:
    """Return a function that numbers a DaemonSet's pods by address, like manifests/daemonset.yaml.

    If a pod replaced another pod on the same node, it gets the number of the replaced pod.
    """
    first: dict[str, tuple[int, str]] = {}
    for states in sorted(pods, key=lambda states: states[0].version):
        node, address = _node(states), _address(states)
        if node and address is not None:
            first.setdefault(node, (address, node))
    order = {node: at for at, (_, node) in enumerate(sorted(first.values()))}
    return lambda states: order.get(_node(states))


def _node(states: States) -> str:
    found = [mapping(state.object, "spec").get("nodeName") for state in states]
    return next((str(node) for node in reversed(found) if node), "")


def _address(states: States) -> int | None:
    for state in reversed(states):
        text = mapping(state.object, "status").get("podIP")
        if text:
            try:
                return int(ipaddress.ip_address(str(text)))
            except ValueError:
                return None
    return None
