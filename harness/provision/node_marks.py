"""Mark a cluster's nodes with their acceptance verdicts, and remove the marks.

    label       pluto-e2e-harness/accepted=PASS | WARN | FAIL | UNKNOWN
    taint       pluto-e2e-harness/not-accepted=FAIL:NoSchedule, if requested, on nodes proven to be faulty
    annotation  pluto-e2e-harness/before-acceptance: the label's and taint's values before the first mark

Other fields of a node are not changed. Each change includes the node's resourceVersion, so that the API
server rejects the change after a concurrent write. The harness then reads the node again and repeats the
change.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kubernetes.dynamic.exceptions import ConflictError, NotFoundError
from tenacity import RetryError, Retrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from harness.core.errors import HarnessError
from harness.core.kubernetes import Kube, Object
from harness.evidence.kubernetes.objects import items, mapping
from harness.evidence.schema.acceptance import Verdict

LABEL = "pluto-e2e-harness/accepted"
TAINT = "pluto-e2e-harness/not-accepted"
BEFORE = "pluto-e2e-harness/before-acceptance"
PATIENCE_SECONDS = 60
"""The maximum number of seconds for which a change is retried after conflicts. Every concurrent write by
another client causes a conflict. Kubelets often write the status of their nodes, and another client might
write labels in a loop.
"""

PatchOf = Callable[[Object], Object | None]
"""A function that returns the merge patch for a node, or None if the node does not need to be changed."""


@dataclass
class Marked:
    """The result of a change: the names of the changed nodes, the unchanged nodes, and the nodes that do not
    exist in the cluster."""

    changed: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)


def mark(
    kube: Kube, verdicts: Mapping[str, Verdict], *, taint: bool = False, doubtful: Collection[str] = ()
) -> Marked:
    """Label nodes with their verdicts. If `taint` is true, also taint the nodes that failed.

    The taints of nodes in `doubtful` are not changed, because these nodes are not proven to have caused the
    failure. A node that was already marked gets the new verdict, and its annotation keeps the state from
    before the first mark. Raises HarnessError if a node cannot be changed.
    """
    marked = Marked()
    for name, verdict in verdicts.items():
        node_taint = None if name in doubtful else taint
        _change(kube, name, partial(marking, verdict=verdict, taint=node_taint), marked)
    return marked


def undo(kube: Kube) -> Marked:
    """Remove the marks from all marked nodes and restore their earlier labels and taints.

    Raises HarnessError if a node cannot be changed.
    """
    marked = Marked()
    for node in kube.objects("v1", "Node"):
        if BEFORE in mapping(node, "metadata", "annotations"):
            _change(kube, str(node["metadata"]["name"]), restoring, marked)
    return marked


def marking(node: Object, verdict: Verdict, *, taint: bool | None) -> Object | None:
    """Return the merge patch that marks a node, or None if the node already has this mark.

    If `taint` is None, the node's taints are not changed.
    """
    annotations = mapping(node, "metadata", "annotations")
    taints = items(node, "spec", "taints")
    if taint is not None:
        taints = _with_taint(taints, _taint(verdict) if taint else None)
    labelled = mapping(node, "metadata", "labels").get(LABEL) == verdict
    if BEFORE in annotations and labelled and taints == items(node, "spec", "taints"):
        return None
    before = annotations.get(BEFORE) or json.dumps(
        {"label": mapping(node, "metadata", "labels").get(LABEL), "taints": _own_taints(node)}, sort_keys=True
    )
    return _patch(node, verdict, before, taints)


def restoring(node: Object) -> Object | None:
    """Return the merge patch that restores a node, or None if it was not marked.

    Raises HarnessError if the annotation is not in the harness's format.
    """
    text = mapping(node, "metadata", "annotations").get(BEFORE)
    if text is None:
        return None
    try:
        before = json.loads(text)
        label, taints = before["label"], before["taints"]
    except (ValueError, KeyError, TypeError) as error:
        name = mapping(node, "metadata").get("name")
        raise HarnessError(
            f"annotation {BEFORE} of node {name} cannot be read: {text!r}",
            hint=f"remove the label {LABEL}, the taint {TAINT} and this annotation yourself",
        ) from error
    other_taints = [one for one in items(node, "spec", "taints") if one.get("key") != TAINT]
    return _patch(node, label, None, [*other_taints, *taints])


def _own_taints(node: Object) -> list[dict[str, Any]]:
    return [one for one in items(node, "spec", "taints") if one.get("key") == TAINT]


def _taint(verdict: Verdict) -> dict[str, str] | None:
    return {"key": TAINT, "value": verdict, "effect": "NoSchedule"} if verdict == "FAIL" else None


def _with_taint(taints: list[dict[str, Any]], new_taint: dict[str, str] | None) -> list[dict[str, Any]]:
    """Return a node's taints with the harness's own taint replaced by `new_taint`, or removed if `new_taint`
    is None.

    Other taints keep their order.
    """
    return [one for one in taints if one.get("key") != TAINT] + ([new_taint] if new_taint else [])


def _patch(node: Object, label: str | None, before: str | None, taints: list[dict[str, Any]]) -> Object:
    """Return a merge patch with the label, annotation and taints of a node. A value of None removes the
    field."""
    return {
        "metadata": {
            "resourceVersion": mapping(node, "metadata").get("resourceVersion"),
            "labels": {LABEL: label},
            "annotations": {BEFORE: before},
        },
        "spec": {"taints": taints or None},
    }


def _change(kube: Kube, name: str, patch_of: PatchOf, marked: Marked) -> None:
    retryer = Retrying(
        retry=retry_if_exception_type(ConflictError),
        wait=wait_random_exponential(multiplier=0.05, max=2),
        stop=stop_after_delay(PATIENCE_SECONDS),
    )
    try:
        retryer(_change_once, kube, name, patch_of, marked)
    except RetryError as error:
        raise HarnessError(
            f"node {name} could not be marked, because other clients kept changing the node for "
            f"{PATIENCE_SECONDS} s"
        ) from error


def _change_once(kube: Kube, name: str, patch_of: PatchOf, marked: Marked) -> None:
    """Read the node, and send its patch.

    Raises ConflictError if another client has changed the node in the meantime.
    """
    node = kube.get("v1", "Node", name)
    if node is None:
        marked.absent.append(name)
        return
    patch = patch_of(node)
    if patch is None:
        marked.unchanged.append(name)
        return
    try:
        merge = "application/merge-patch+json"
        kube.resource("v1", "Node").patch(body=patch, name=name, content_type=merge)
    except NotFoundError:
        marked.absent.append(name)
    else:
        marked.changed.append(name)
