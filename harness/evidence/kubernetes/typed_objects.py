"""Check field types in recorded Kubernetes objects, and remove and report values with the wrong type.

The judge reads fields in several hundred places and relies on their types. Without this check, it would raise
an error if, for example, a damaged bundle contained a list instead of a string. A field's expected type
depends only on its name, as used by Kubernetes, JobSet, Kueue and the torchrun controller. If a name has
several types in these APIs, all of them are accepted. Fields with other names are not checked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

_TEXT, _NUMBER, _FLAG, _LIST, _MAPPING = (str,), (int,), (bool,), (list,), (dict,)
_SCALAR = (str, int, float, bool)
_FIELDS: Final[dict[tuple[type, ...], str]] = {
    _TEXT: """
        apiVersion bootID clusterQueue completionTime component containerID creationTimestamp
        deletionTimestamp dnsPolicy effect eventTime fieldPath finishedAt firstTimestamp generateName hostIP
        hostname image imageID imagePullPolicy ip key kind kubeletVersion lastObservedTime lastTimestamp
        lastTransitionTime manager message name namespace nodeName operation operator phase podIP reason
        renewTime reportingComponent reportingInstance resourceVersion restartPolicy schedulerName secretName
        serviceAccountName startTime startedAt stopPolicy subdomain subresource terminalState time type
    """,
    _NUMBER: """
        activeDeadlineSeconds availableReplicas backoffLimit completions count deletionGracePeriodSeconds
        desiredNumberScheduled exitCode maxRestarts maximumExecutionTimeSeconds minNodes numNodes numberReady
        observedGeneration parallelism pendingWorkloads readyReplicas replicas restartCount restarts signal
        terminationGracePeriodSeconds unavailableReplicas
    """,
    _FLAG: "hostIPC hostNetwork hostPID publishNotReadyAddresses started suspend unschedulable",
    _LIST: """
        containerStatuses containers env ephemeralContainerStatuses ephemeralContainers initContainerStatuses
        initContainers managedFields ownerReferences podIPs ports replicatedJobs replicatedJobsStatus
        schedulingGates subsets taints tolerations values
    """,
    _MAPPING: """
        affinity allocatable annotations capacity failurePolicy involvedObject labels lastState matchLabels
        metadata nodeInfo nodeSelector podAffinity requests spec targetRef template
        terminated valueFrom waiting
    """,
    (*_NUMBER, *_FLAG): "active ready suspended terminating",
    (*_NUMBER, *_LIST): "failed succeeded",
    (*_NUMBER, *_MAPPING): "running",
    (*_TEXT, *_NUMBER): "uid",
    (*_TEXT, *_MAPPING): "source state",
    (*_TEXT, *_LIST): "args command",
    (*_LIST, *_MAPPING): "conditions limits resources volumes",
    _SCALAR: "cpu memory port value",
}
_TYPES = {name: types for types, names in _FIELDS.items() for name in names.split()}
_OF_MAPPINGS = frozenset(name for name in _FIELDS[_LIST].split() if name != "values") | {
    "conditions",
    "volumes",
}
_OF_TEXTS = frozenset({"args", "command", "values"})
_USERS_NAMES: Final[dict[str, tuple[type, ...]]] = {
    **dict.fromkeys(("annotations", "labels", "matchLabels", "nodeSelector"), _TEXT),
    **dict.fromkeys(("allocatable", "capacity", "hard", "limits", "requests", "used"), (*_SCALAR, dict)),
    "selector": (str, dict, list),
}
"""The accepted types of the values in mappings whose keys users can choose, by the name of the field that
contains the mapping."""
_OPAQUE = frozenset({"fieldsV1", "properties", "data", "binaryData"})
_MAX_NUMBER = 2**63 - 1
_NAMES = {
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "a boolean",
    list: "a list",
    dict: "a mapping",
}


def typed(document: dict[str, Any]) -> Iterator[str]:
    """Remove all values with the wrong type from an object, in place, and yield a sentence about each.

    Nulls are removed without a sentence, because Kubernetes treats them like missing fields.
    """
    yield from _mapping(document, "", None)


def _mapping(mapping: dict[str, Any], path: str, of: tuple[type, ...] | None) -> Iterator[str]:
    """Check the values in one mapping.

    If users can choose the mapping's keys, `of` contains the accepted types of its values. Otherwise, `of` is
    None.
    """
    invalid: list[str] = []
    for name, value in mapping.items():
        types = of or _expected(name, path)
        if value is None:
            invalid.append(name)
        elif types is not None and not _fits(value, types):
            invalid.append(name)
            yield f"{_at(path, name)} is {_type_name(value)}, but must be {_expectation(types)}"
        elif isinstance(value, dict):
            if name not in _OPAQUE:
                inside = _USERS_NAMES.get(name) if of is None else None
                yield from _mapping(value, _at(path, name), inside)
        elif isinstance(value, list):
            yield from _list(value, name, _at(path, name))
    for name in invalid:
        del mapping[name]


def _list(values: list[Any], name: str, path: str) -> Iterator[str]:
    types: tuple[type, ...] | None = (
        _MAPPING if name in _OF_MAPPINGS else _TEXT if name in _OF_TEXTS else None
    )
    # The `values` in a Job's podFailurePolicy and in a container's restartPolicyRules are exit codes.
    if path.endswith((".onExitCodes.values", ".exitCodes.values")):
        types = _NUMBER
    invalid: list[int] = []
    for at, item in enumerate(values):
        if types is not None and not _fits(item, types):
            invalid.append(at)
            yield f"{path}[{at}] is {_type_name(item)}, but must be {_expectation(types)}"
        elif isinstance(item, dict):
            yield from _mapping(item, path, None)
        elif isinstance(item, list):
            yield from _list(item, "", path)
    for at in reversed(invalid):
        del values[at]


def _expected(name: str, path: str) -> tuple[type, ...] | None:
    if name == "status":
        return _TEXT if path else _MAPPING
    if name == "uid" and path.endswith(("metadata", "ownerReferences", "involvedObject", "targetRef")):
        return _TEXT
    return _TYPES.get(name)


def _fits(value: Any, types: tuple[type, ...]) -> bool:
    if type(value) not in types:
        return False
    if type(value) is int:
        return -_MAX_NUMBER <= value <= _MAX_NUMBER
    return type(value) is not float or math.isfinite(value)


def _at(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _type_name(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool) and not _fits(value, (int, float)):
        return "a number out of range"
    return _NAMES.get(type(value), "nothing")


def _expectation(types: tuple[type, ...]) -> str:
    return " or ".join(dict.fromkeys(_NAMES[each] for each in types))
