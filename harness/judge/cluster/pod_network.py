"""Find network settings in the pod specs that explain why ranks cannot reach each other.

A pod cannot read its own spec. Inside the pods, the only symptoms are that a name does not exist, or that a
pod is missing because it was not scheduled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from harness.evidence.kubernetes.objects import Pod, items, mapping
from harness.judge.case import Case, names


@dataclass(frozen=True)
class DnsPolicy:
    """Pods that do not use the cluster's DNS.

    `nodes` contains their node indexes, and `text` describes their DNS settings.
    """

    nodes: list[int]
    text: str
    evidence: list[str]


def dns_policy(case: Case, indexes: Collection[int]) -> DnsPolicy | None:
    """Return the DNS settings that explain why the pods in `indexes` could not resolve a name, or None.

    Returns None if one of these pods uses the cluster's DNS, because its failure needs another explanation.
    """
    pods = {index: case.pods[index] for index in sorted(indexes) if index in case.pods}
    reasons = {index: _reason(pod) for index, pod in pods.items()}
    if not reasons or not all(reasons.values()):
        return None
    first = min(reasons)
    text = f"the pod of {names(case.ranks_of(*reasons))} {reasons[first]}"
    if len(reasons) > 1:
        text = f"the pods of {names(case.ranks_of(*reasons))} each have {reasons[first].removeprefix('has ')}"
    return DnsPolicy(list(reasons), text, [pod.last.ref for pod in pods.values()])


def _reason(pod: Pod) -> str:
    """Return a clause that describes the setting that keeps the pod from using the cluster's DNS, or ""."""
    spec = mapping(pod.last.object, "spec")
    policy, config = str(spec.get("dnsPolicy") or "ClusterFirst"), mapping(spec, "dnsConfig")
    node = "so the node's DNS servers are used, which cannot resolve the names of pods"
    if policy == "ClusterFirst" and spec.get("hostNetwork") is True:
        return f"has hostNetwork: true but not dnsPolicy: ClusterFirstWithHostNet, {node}"
    if policy == "Default":
        return f"has dnsPolicy: Default, {node}"
    if policy == "None":
        servers, searches = (
            ", ".join(map(str, config.get(key) or [])) for key in ("nameservers", "searches")
        )
        return f"has dnsPolicy: None, with nameservers {servers or 'none'} and searches {searches or 'none'}"
    return ""


def host_ports(case: Case, waiting: Collection[int]) -> str:
    """Return a sentence about a host port that a pod in `waiting` shares with another pod, or ""."""
    users: dict[int, list[int]] = defaultdict(list)
    for index, pod in case.pods.items():
        for port in sorted(_host_ports(pod.last.object)):
            users[port].append(index)
    for port, indexes in sorted(users.items()):
        unplaced = [index for index in indexes if index in waiting]
        placed = [index for index in indexes if case.pods[index].node and index not in waiting]
        if unplaced and len(indexes) > 1:
            locations = ", ".join(f"{case.pods[i].name} on {case.pods[i].node}" for i in placed[:3])
            return (
                f"{len(indexes)} pods of the job need host port {port}, which only one pod on a node can use"
                + (f"; it is already used by {locations}" if locations else "")
                + ". Use at least as many nodes as pods, or remove hostPort (with hostNetwork, also "
                "containerPort) from the pod template"
            )
    return ""


def _host_ports(pod: dict[str, Any]) -> set[int]:
    """Return the host ports that a pod uses. With hostNetwork, each containerPort is a host port."""
    own_network = mapping(pod, "spec").get("hostNetwork") is not True
    return {
        int(number)
        for part in ("containers", "initContainers")
        for container in items(pod, "spec", part)
        for port in items(container, "ports")
        if (number := port.get("hostPort") or (None if own_network else port.get("containerPort")))
    }
