"""Find out why no node could run a pod even if there were no other pods.

The reasons are resources, labels, affinity, taints and cordons. The recorded pod is compared with the
recorded nodes according to the rules of the scheduler's filter plugins. Pod affinities, topology spread
constraints and other pods' requests are ignored, because other pods can end.

Two functions recognize messages that report only that a pod is waiting. The reason is then in another
message.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from decimal import Decimal
from typing import Any

from harness.evidence.kubernetes.objects import items, mapping

_UNITS = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_QUANTITY = re.compile(r"([+-]?\d*\.?\d+(?:[eE][+-]?\d+)?)([A-Za-z]*)")
_PASSING = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_CORDON = "node.kubernetes.io/unschedulable"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_OF_THE_GROUP = re.compile(
    r"pod ?group is not ready|tasks in gang|gang unschedulable|minAvailable|minMember|at plugin Coscheduling"
    r"|optimistic rejection in PostFilter",
    re.IGNORECASE,
)
"""Pattern for messages in which Volcano or the coscheduling plugin reports that a pod is waiting for its
group."""
_DEFAULT = "default-scheduler"
_OF_HAMI = re.compile(r"^nvidia\.com/(gpumem|gpumem-percentage|gpucores|priority)$")
"""Pattern for resources that describe a share of a GPU. Nodes do not list these resources, because HAMi's
scheduler keeps account of them itself."""
_VOLUMES = ("Unable to attach or mount volumes", "Unable to mount volumes for pod")
_ONLY_LATE = ("timed out waiting for the condition", "context deadline exceeded")
"""Beginnings and endings of the kubelet's messages that a volume is not mounted yet."""
MAX_NAMES = 6
"""The maximum number of names listed in one sentence. Further names are only counted."""


def never_fits(pod: dict[str, Any], nodes: Iterable[dict[str, Any]]) -> str | None:
    """Return why no node could run the pod even if there were no other pods.

    Returns None if a node can run the pod, or if no nodes are known.
    """
    nodes = list(nodes)
    if not nodes or not all(_obstacles(pod, node) for node in nodes):
        return None
    reasons = [*_too_much(pod, nodes), *_no_label(pod, nodes)]
    if reasons:
        return "; ".join(reasons)
    return by_reason((str(mapping(node, "metadata").get("name")), _obstacles(pod, node)) for node in nodes)


def waits_for_group(message: str) -> bool:
    """Return whether a scheduler reports only that a pod is waiting for other pods of its group."""
    return _OF_THE_GROUP.search(message) is not None


def waits_for_volumes(message: str) -> bool:
    """Return whether the kubelet reports only that it is waiting for a volume. Other Events contain the
    reason."""
    return message.startswith(_VOLUMES) and message.rstrip(". ").endswith(_ONLY_LATE)


def accepts(pod: dict[str, Any], node: dict[str, Any]) -> bool:
    """Return whether a DaemonSet's pod may run on a node according to the node's labels and taints.

    Resources are ignored.
    """
    return not exclusions(pod, node)


def by_reason(obstacles: Iterable[tuple[str, list[str]]]) -> str:
    """Return one sentence about what prevents each node from running a pod, such as "a and b have the taint
    …; c is cordoned". If more than MAX_NAMES nodes have the same obstacle, only the first of them are named.
    """
    nodes: dict[str, list[str]] = {}
    for name, reasons in obstacles:
        for reason in reasons:
            nodes.setdefault(reason, []).append(name)
    return "; ".join(f"{in_words(names)} {_verb(names, reason)}" for reason, names in nodes.items())


def requests(pod: dict[str, Any]) -> dict[str, Decimal]:
    """Map each resource to the amount that the pod requests, as a number of cores, bytes or devices.

    Native sidecars run alongside the containers, so their requests are added to those of the containers. Any
    other init container runs only alongside the sidecars that precede it, so its requests are added to those
    of these sidecars. The largest of these sums counts. The overhead of the RuntimeClass is added.
    """
    sidecars: dict[str, Decimal] = {}
    largest: dict[str, Decimal] = {}
    for container in items(pod, "spec", "initContainers"):
        if container.get("restartPolicy") == "Always":
            _add(sidecars, container)
            continue
        alone = dict(sidecars)
        _add(alone, container)
        largest = _maximum(largest, alone)
    total = dict(sidecars)
    for container in items(pod, "spec", "containers"):
        _add(total, container)
    total = _maximum(total, largest)
    for name, amount in mapping(pod, "spec", "overhead").items():
        total[name] = total.get(name, Decimal(0)) + quantity(amount)
    return total


def _maximum(one: dict[str, Decimal], other: dict[str, Decimal]) -> dict[str, Decimal]:
    return {**one, **{name: max(amount, one.get(name, amount)) for name, amount in other.items()}}


def _add(total: dict[str, Decimal], container: dict[str, Any]) -> None:
    resources = mapping(container, "resources")
    for name, amount in {**mapping(resources, "limits"), **mapping(resources, "requests")}.items():
        total[name] = total.get(name, Decimal(0)) + quantity(amount)


def quantity(text: object) -> Decimal:
    """Return a Kubernetes quantity as a number.

    "500m" is 0.5 and "1Ki" is 1024. An invalid quantity counts as 0.
    """
    match = _QUANTITY.fullmatch(str(text))
    if not match or match[2] not in _UNITS | _BINARY:
        return Decimal(0)
    binary = match[2] in _BINARY
    factor = Decimal(2) ** _BINARY[match[2]] if binary else Decimal(10) ** _UNITS[match[2]]
    return Decimal(match[1]) * factor


def _of_nodes(pod: dict[str, Any]) -> dict[str, Decimal]:
    """Return the pod's requests that nodes must meet.

    Unless the default scheduler places the pod, these exclude HAMi's resources, which nodes do not list.
    """
    scheduler = mapping(pod, "spec").get("schedulerName") or _DEFAULT
    requested = requests(pod)
    if scheduler == _DEFAULT:
        return requested
    return {name: amount for name, amount in requested.items() if not _OF_HAMI.search(name)}


def _obstacles(pod: dict[str, Any], node: dict[str, Any]) -> list[str]:
    """Return why a node cannot run the pod, as predicates whose subject is the node, such as "is
    cordoned"."""
    allocatable = mapping(node, "status", "allocatable")
    no_room = [
        f"has {_amount(name, quantity(allocatable.get(name, 0)))}"
        for name, requested in _of_nodes(pod).items()
        if requested > quantity(allocatable.get(name, 0))
    ]
    cordoned = ["is cordoned"] if mapping(node, "spec").get("unschedulable") else []
    return no_room + cordoned + exclusions(pod, node)


def exclusions(pod: dict[str, Any], node: dict[str, Any]) -> list[str]:
    """Return why the node's labels and taints exclude the pod, as predicates such as "has no label a=b"."""
    labels = mapping(node, "metadata", "labels")
    selector = mapping(pod, "spec", "nodeSelector")
    reasons = [f"has no label {key}={value}" for key, value in selector.items() if labels.get(key) != value]
    required = mapping(pod, "spec", "affinity", "nodeAffinity").get(_REQUIRED)
    if isinstance(required, dict) and not any(_term(t, node) for t in items(required, "nodeSelectorTerms")):
        reasons.append("does not match the pod's nodeAffinity")
    tolerations = items(pod, "spec", "tolerations")
    for taint in items(node, "spec", "taints"):
        if taint.get("effect") == "PreferNoSchedule" or taint.get("key") in (*_PASSING, _CORDON):
            continue
        if not any(_tolerates(toleration, taint) for toleration in tolerations):
            similar = next((each for each in tolerations if each.get("key") == taint.get("key")), None)
            toleration_text = f" (the pod tolerates {_taint(similar)})" if similar else ""
            reasons.append(f"has the taint {_taint(taint)}{toleration_text}")
    return reasons


def _taint(taint: dict[str, Any]) -> str:
    """Format a taint or toleration in kubectl notation: key=value:effect."""
    value, effect = taint.get("value"), taint.get("effect")
    return f"{taint.get('key')}{f'={value}' if value else ''}{f':{effect}' if effect else ''}"


def _term(term: dict[str, Any], node: dict[str, Any]) -> bool:
    """Return whether a node matches one term of a nodeAffinity.

    A term without requirements does not match any node.
    """
    labels = mapping(node, "metadata", "labels")
    fields = {"metadata.name": mapping(node, "metadata").get("name")}
    requirements = [(one, labels) for one in items(term, "matchExpressions")]
    requirements += [(one, fields) for one in items(term, "matchFields")]
    return bool(requirements) and all(_meets(one, attributes) for one, attributes in requirements)


def _meets(requirement: dict[str, Any], attributes: dict[str, Any]) -> bool:
    value = attributes.get(str(requirement.get("key")))
    values = [str(each) for each in requirement.get("values") or []]
    match requirement.get("operator"):
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            with suppress(ValueError, IndexError):
                number, limit = int(str(value)), int(values[0])
                return number > limit if operator == "Gt" else number < limit
    return False


def _tolerates(toleration: dict[str, Any], taint: dict[str, Any]) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint.get("key"))
    same_key = toleration.get("key") == taint.get("key")
    return same_key and (toleration.get("value") or "") == (taint.get("value") or "")


def _too_much(pod: dict[str, Any], nodes: list[dict[str, Any]]) -> Iterable[str]:
    for name, requested in _of_nodes(pod).items():
        highest = max(quantity(mapping(node, "status", "allocatable").get(name, 0)) for node in nodes)
        if requested > highest:
            amount, largest = _amount(name, requested), _amount(name, highest, unit=False)
            if amount.startswith(f"{largest} "):  # Because of rounding, the two amounts look equal.
                amount, largest = f"{requested.normalize():f} {name}", f"{highest.normalize():f}"
            limit_text = f"the most that a node has is {largest}" if highest else "no node has any"
            yield f"a pod requests {amount}; {limit_text}"


def _no_label(pod: dict[str, Any], nodes: list[dict[str, Any]]) -> Iterable[str]:
    for key, value in mapping(pod, "spec", "nodeSelector").items():
        if not any(mapping(node, "metadata", "labels").get(key) == value for node in nodes):
            yield f"no node has the label {key}={value}"


def _amount(name: str, amount: Decimal, *, unit: bool = True) -> str:
    """Format an amount with its resource, such as "2.5 cpu", "29Gi memory" or "8 nvidia.com/gpu"."""
    text = f"{amount.normalize():f}"
    if name in ("memory", "ephemeral-storage") or name.startswith("hugepages-"):
        size, unit_name = (2**30, "Gi") if amount >= 2**30 // 2 else (2**20, "Mi")
        text = f"{(amount / size).quantize(Decimal('0.1')).normalize():f}{unit_name}" if amount else "0"
    return f"{text} {name}" if unit else text


def in_words(names: list[str], noun: str = "nodes") -> str:
    """Join names into a phrase, such as "a, b and c".

    If there are more than MAX_NAMES names, the phrase ends with the number of the remaining names: "…, e and
    3 more nodes".
    """
    if len(names) > MAX_NAMES:
        return f"{', '.join(names[: MAX_NAMES - 1])} and {len(names) - MAX_NAMES + 1} more {noun}"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _verb(names: list[str], reason: str) -> str:
    verb, _, predicate = reason.partition(" ")
    return reason if len(names) == 1 else f"{ {'is': 'are', 'has': 'have', 'does': 'do'}[verb] } {predicate}"
