"""Find the pods of the launched workload, and the node index of each pod."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable
from typing import Any

from harness.evidence.kubernetes.earlier_pod_states import with_earlier
from harness.evidence.kubernetes.objects import (
    COMPLETION_INDEX,
    JOBSET_NAME,
    ObjectState,
    Pod,
    items,
    mapping,
)
from harness.evidence.schema.bundle import Launch, PodGroup

POD_INDEX = "apps.kubernetes.io/pod-index"
States = list[ObjectState]


def pod_index(pod: dict[str, Any]) -> int | None:
    """Return a pod's index in its StatefulSet, read from a label, or None if the pod does not have that
    label."""
    text = str(mapping(pod, "metadata", "labels").get(POD_INDEX, ""))
    return int(text) if text.isdecimal() else None


def members(launch: Launch, pods: Iterable[States]) -> dict[int, list[Pod]]:
    """Map each node index of the launched workload to its pods, oldest first.

    `pods` contains a list of states for each observed pod. Each list starts with the oldest state.
    """
    own = [states for states in pods if _belongs(launch, states)]
    if launch.attached:
        own = [with_earlier(states, launch.container) for states in own]
    index = _index(launch, own)
    by_index: dict[int, list[tuple[tuple[int, str, int], Pod]]] = {}
    for states in own:
        at = index(states)
        if at is None:
            continue
        pod = Pod(at, tuple(states))
        created = str(mapping(states[-1].object, "metadata").get("creationTimestamp", ""))
        # Pods created in the same second are sorted by resource version.
        by_index.setdefault(at, []).append(((pod.attempt, created, states[0].version), pod))
    ordered = {at: sorted(by_index[at], key=lambda entry: entry[0]) for at in sorted(by_index)}
    return {at: [pod for _, pod in entries] for at, entries in ordered.items()}


def _index(launch: Launch, own: list[States]) -> Callable[[States], int | None]:
    """Return the function that determines a pod's node index for this kind of workload."""
    if launch.kind == "DaemonSet":
        return _by_address(own)
    return (lambda states: _by_group(launch.pods, states)) if launch.attached else _by_label


def group_index(groups: Iterable[PodGroup], pod: dict[str, Any]) -> int | None:
    """Return the node index of an attached job's pod, or None if the pod does not run ranks."""
    metadata = mapping(pod, "metadata")
    labels = mapping(metadata, "labels")
    values = {**labels, **mapping(metadata, "annotations")}
    owners = {str(owner.get("uid")) for owner in items(metadata, "ownerReferences")}
    for group in groups:
        if not group.labels.items() <= labels.items() or (group.owner and group.owner not in owners):
            continue
        if group.names:
            return group.names.get(str(metadata.get("name")))
        texts = {name: str(values.get(name, "")) for name in group.strides}
        if all(text.isdecimal() for text in texts.values()):
            return group.first + sum(int(texts[name]) * stride for name, stride in group.strides.items())
    return None


def _by_group(groups: list[PodGroup], states: States) -> int | None:
    """Return a pod's node index, read from its latest state that matches one of the pod groups."""
    indexes = (group_index(groups, state.object) for state in reversed(states))
    return next((index for index in indexes if index is not None), None)


def _belongs(launch: Launch, states: States) -> bool:
    """Return whether a pod belongs to the launch.

    A konduktor pod is owned by a Job rather than by the JobSet, so it is recognised by its JobSet label.
    Other pods are recognised by their owner reference. One recorded state of the pod with this label or
    reference is enough. An attached job's bundle contains only pods of that job.
    """
    if launch.attached:
        return launch.kind == "DaemonSet" or _by_group(launch.pods, states) is not None
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
    """Return a function that numbers a DaemonSet's pods in the order of their IP addresses, as
    manifests/daemonset.yaml does. A pod that replaces another pod on the same node gets the number of the
    replaced pod.
    """
    addresses: dict[str, tuple[int, str]] = {}
    for states in sorted(pods, key=lambda states: states[0].version):
        node, address = _node(states), _address(states)
        if node and address is not None:
            addresses.setdefault(node, (address, node))
    order = {node: at for at, (_, node) in enumerate(sorted(addresses.values()))}
    return lambda states: order.get(_node(states))


def _node(states: States) -> str:
    node_names = [mapping(state.object, "spec").get("nodeName") for state in states]
    return next((str(node) for node in reversed(node_names) if node), "")


def _address(states: States) -> int | None:
    for state in reversed(states):
        text = mapping(state.object, "status").get("podIP")
        if text:
            try:
                return int(ipaddress.ip_address(str(text)))
            except ValueError:
                return None
    return None
