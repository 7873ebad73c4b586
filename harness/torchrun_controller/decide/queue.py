"""Derive a TorchrunQueue's status and actions: its LocalQueue or kai-scheduler Queue, and other objects.

A queue's claims and ConfigMaps have no owner, so they are kept when the queue is deleted. A kai-scheduler
Queue is cluster-scoped and cannot have a namespaced owner, because the garbage collector would delete it. The
controller deletes that Queue before it removes the TorchrunQueue's finalizer.
"""

from __future__ import annotations

from datetime import datetime

from pydantic import ValidationError

from harness.core.kubernetes import Object, condition
from harness.torchrun_controller.api import names
from harness.torchrun_controller.api.condition_type import Condition, found, stamp, with_condition
from harness.torchrun_controller.api.models import QueueSpec, QueueStatus, ResourceStatus, ResourceTemplate
from harness.torchrun_controller.api.names import PERMITTED
from harness.torchrun_controller.decide.decisions import (
    Action,
    Create,
    Delete,
    Finalizers,
    QueueDecision,
    QueueSnapshot,
    ending,
)
from harness.torchrun_controller.decide.reconcile_state import read_status, spec_error
from harness.torchrun_controller.objects.jobset import owner
from harness.torchrun_controller.objects.pod_template import kai_queue


def desired(
    queue: Object, snapshot: QueueSnapshot, now: datetime, cluster_queue: str, *, kai: bool = False
) -> QueueDecision:
    """Return the decision for a TorchrunQueue: its status and the actions.

    `cluster_queue` is the ClusterQueue for LocalQueues if the spec does not name a ClusterQueue.
    """
    old = read_status(QueueStatus, queue.get("status") or {})
    status = old.model_copy(update={"observed_generation": queue["metadata"].get("generation")})
    if found(old.conditions, "Reconciled"):
        recovered = Condition(type="Reconciled", status="True", reason="Reconciled")
        status.conditions = with_condition(old.conditions, recovered, now)
    finalizers = list(queue["metadata"].get("finalizers") or [])
    if ending(queue):
        return _end(queue, snapshot, status, finalizers, now)
    try:
        spec = QueueSpec.model_validate(queue["spec"])
    except ValidationError as error:
        return _decision(queue, status, now, "SpecInvalid", spec_error(error), [])
    if snapshot.template is not None:
        status.conditions = with_condition(status.conditions, _template(queue, snapshot.template), now)
    if kai and names.FINALIZER not in finalizers:
        return QueueDecision(status, [Finalizers([*finalizers, names.FINALIZER])])
    return _open(queue, spec, snapshot, status, now, cluster_queue, kai=kai)


def _open(
    queue: Object,
    spec: QueueSpec,
    snapshot: QueueSnapshot,
    status: QueueStatus,
    now: datetime,
    cluster_queue: str,
    *,
    kai: bool,
) -> QueueDecision:
    """Return the status of a queue whose spec is valid, and the actions that create its missing objects."""
    actions: list[Action] = []
    reason, message = "Ready", ""
    if kai:
        closed = _closed_kai_queue(queue, spec, snapshot)
        if closed is not None:
            reason, message = KAI_QUEUE_NOT_OPEN, _not_open(queue, f"Queue {closed}", "another Queue")
        elif snapshot.kai_queue is None:
            actions.append(Create(kai_document(queue, spec)))
    else:
        status.local_queue = spec.local_queue or queue["metadata"]["name"]
        reason, message = _local(spec, snapshot.local_queue)
        if snapshot.local_queue is None and spec.local_queue is None:
            target = spec.cluster_queue or cluster_queue
            if target == cluster_queue or _is_open(snapshot.cluster_queue, queue["metadata"]["namespace"]):
                actions.append(Create(_local_document(queue, target)))
            else:
                reason = "ClusterQueueNotOpen"
                message = _not_open(queue, f"ClusterQueue {target}", "an existing LocalQueue in localQueue")
    status.resource_statuses = [_resource(template, snapshot) for template in spec.resources]
    status.resources_ready = all(resource.ready for resource in status.resource_statuses)
    for template, resource in zip(spec.resources, status.resource_statuses, strict=True):
        if resource.message == MISSING:
            actions.append(Create(_resource_document(queue, template)))
    not_ready = next((r for r in status.resource_statuses if not r.ready), None)
    if reason == "Ready" and not_ready is not None:
        reason, message = "ResourcesNotReady", f"{not_ready.kind} {not_ready.name}: {not_ready.message}"
    if snapshot.rejected is not None:
        reason, message = (
            "Rejected",
            f"{snapshot.rejected}; change the queue, or the API server's rule that rejects it",
        )
        actions = []
    elif actions and (before := found(status.conditions, "Ready")) and before.reason == "Rejected":
        # The status keeps its message until the objects are created.
        reason, message = before.reason, before.message
    return _decision(queue, status, now, *_of_template(queue, status, reason, message), actions)


def _is_open(cluster_scoped: Object | None, namespace: str) -> bool:
    """Return whether an administrator has annotated a ClusterQueue or a kai-scheduler Queue with this
    namespace.

    The annotation permits TorchrunQueues in the namespace to use the object. Without this check, the author
    of a TorchrunQueue could use rights that only the controller has.
    """
    annotations = (cluster_scoped or {"metadata": {}})["metadata"].get("annotations") or {}
    namespaces = [name.strip() for name in str(annotations.get(names.NAMESPACES_ANNOTATION) or "").split(",")]
    return namespace in namespaces or "*" in namespaces


def _closed_kai_queue(queue: Object, spec: QueueSpec, snapshot: QueueSnapshot) -> str | None:
    """Return the name of the kai-scheduler Queue that the TorchrunQueue may not use, or None.

    kai-scheduler lets the pods of any namespace use any Queue. A TorchrunQueue may use an existing Queue only
    if the Queue was created for it or is open to its namespace. A new Queue may be created only under the
    parent `default`, or under a parent that is open to the namespace.
    """
    namespace = queue["metadata"]["namespace"]
    if snapshot.kai_queue is not None:
        is_own = _created_for(snapshot.kai_queue) == _own_labels(queue)
        return None if is_own or _is_open(snapshot.kai_queue, namespace) else _kai_name(queue, spec)
    parent = kai_parent(spec)
    return None if parent == DEFAULT_PARENT or _is_open(snapshot.kai_parent, namespace) else parent


def jobs_may_use_kai(queue: Object) -> bool:
    """Return whether jobs of a TorchrunQueue may use its kai-scheduler Queue.

    Returns False until the TorchrunQueue's current generation has been reconciled.
    """
    ready = found(read_status(QueueStatus, queue.get("status") or {}).conditions, "Ready")
    current = ready is not None and ready.observed_generation == queue["metadata"].get("generation")
    return ready is not None and current and ready.reason != KAI_QUEUE_NOT_OPEN


def _not_open(queue: Object, closed: str, another: str) -> str:
    """Return the message about a queue that is not open to this namespace.

    The message does not reveal whether that queue exists.
    """
    namespace = queue["metadata"]["namespace"]
    return (
        f"{closed} is not open to TorchrunQueues of namespace {namespace}: ask its administrator to annotate "
        f"it with {names.NAMESPACES_ANNOTATION}={namespace}, or name {another}"
    )


def _of_template(queue: Object, status: QueueStatus, reason: str, message: str) -> tuple[str, str]:
    """Return the reason and message for the Ready condition.

    An invalid pod template takes precedence over other reasons.
    """
    checked = _current(status, queue)
    if checked is None:
        return ("PodTemplateUnknown", UNCHECKED) if reason == "Ready" else (reason, message)
    return (reason, message) if checked.status == "True" else ("PodTemplateInvalid", checked.message)


def kai_parent(spec: QueueSpec) -> str:
    """Return the name of the parent Queue for a TorchrunQueue's kai-scheduler Queue."""
    return spec.parent_kai_queue or (spec.queue.parent_queue if spec.queue else DEFAULT_PARENT)


def _kai_name(queue: Object, spec: QueueSpec) -> str:
    return kai_queue(spec) or str(queue["metadata"]["name"])


def _own_labels(queue: Object) -> tuple[str, str]:
    return queue["metadata"]["namespace"], names.queue_label(queue["metadata"]["name"])


def _created_for(kai: Object) -> tuple[str | None, str | None]:
    """Return the namespace and the name of the TorchrunQueue for which a kai-scheduler Queue was created."""
    labels = kai["metadata"].get("labels") or {}
    return labels.get(names.NAMESPACE_LABEL), labels.get(names.QUEUE_LABEL)


def kai_document(queue: Object, spec: QueueSpec) -> Object:
    """Return the kai-scheduler Queue to create for a TorchrunQueue.

    If the spec contains no shares, the Queue is unlimited.
    """
    options = spec.queue
    shares = options.resources.model_dump(by_alias=True) if options else {}
    return {
        "apiVersion": names.KAI_API,
        "kind": "Queue",
        "metadata": {
            "name": _kai_name(queue, spec),
            "labels": {
                names.NAMESPACE_LABEL: queue["metadata"]["namespace"],
                names.QUEUE_LABEL: names.queue_label(queue["metadata"]["name"]),
            },
        },
        "spec": {
            "parentQueue": kai_parent(spec),
            "resources": shares or {kind: dict(UNLIMITED) for kind in ("cpu", "gpu", "memory")},
        },
    }


KAI_QUEUE_NOT_OPEN = "KaiQueueNotOpen"
KAI_QUEUE_REMAINS = (
    "this controller runs with --gang kueue and has no permission to delete the kai-scheduler Queue that it "
    "created with --gang kai: run it with --gang kai until the TorchrunQueue is deleted, or delete the Queue "
    f"and the finalizer {names.FINALIZER} yourself"
)
DEFAULT_PARENT = "default"
"""The kai-scheduler Queue that every TorchrunQueue may use as the parent of its own Queue."""
TEMPLATE = "PodTemplateValid"
"""The type of the condition that contains the result of the dry run for a queue's pod. The result is valid
for one generation of the queue."""
UNCHECKED = "its pod template is being checked"


def template_condition(queue: Object) -> Condition | None:
    """Return the PodTemplateValid condition for the queue's current generation, or None if this generation
    was not checked."""
    return _current(read_status(QueueStatus, queue.get("status") or {}), queue)


def _current(status: QueueStatus, queue: Object) -> Condition | None:
    checked = found(status.conditions, TEMPLATE)
    return checked if checked and checked.observed_generation == queue["metadata"].get("generation") else None


def needs_check(queue: Object) -> bool:
    """Return whether the queue's pod must be checked in a dry run. This is the case if the queue is new, has
    changed, or was rejected."""
    checked = template_condition(queue)
    return not ending(queue) and (checked is None or checked.status != "True")


def _template(queue: Object, refusal: str) -> Condition:
    return Condition(
        type=TEMPLATE,
        status="False" if refusal else "True",
        reason="Rejected" if refusal else "Accepted",
        message=refusal,
        observed_generation=queue["metadata"].get("generation"),
    )


UNLIMITED = {"quota": -1, "limit": -1, "overQuotaWeight": 1}
MISSING = "is being created"


def _end(
    queue: Object, snapshot: QueueSnapshot, status: QueueStatus, finalizers: list[str], now: datetime
) -> QueueDecision:
    status.phase = "Terminating"
    if names.FINALIZER not in finalizers:
        return QueueDecision(status)
    if snapshot.kai_forbidden:
        not_ready = Condition(
            type="Ready",
            status="False",
            reason="KaiQueueRemains",
            message=KAI_QUEUE_REMAINS,
            observed_generation=queue["metadata"].get("generation"),
        )
        status.conditions = with_condition(status.conditions, not_ready, now)
        return QueueDecision(status)
    if snapshot.kai_queue is not None and not ending(snapshot.kai_queue):
        kai = snapshot.kai_queue["metadata"]
        if _created_for(snapshot.kai_queue) == _own_labels(queue):
            return QueueDecision(status, [Delete(names.KAI_API, "Queue", kai["name"], kai["uid"])])
    return QueueDecision(status, [Finalizers([name for name in finalizers if name != names.FINALIZER])])


def _local(spec: QueueSpec, local_queue: Object | None) -> tuple[str, str]:
    if local_queue is None:
        if spec.local_queue is None:
            return "LocalQueueNotReady", "its LocalQueue is being created"
        return (
            "LocalQueueNotFound",
            f"LocalQueue {spec.local_queue} does not exist: create it, or omit localQueue",
        )
    cluster_queue = (local_queue.get("spec") or {}).get("clusterQueue")
    if spec.local_queue is None and cluster_queue and spec.cluster_queue not in (None, cluster_queue):
        return (
            "LocalQueueNotReady",
            f"its LocalQueue belongs to ClusterQueue {cluster_queue}, and Kueue does not allow a change to "
            f"{spec.cluster_queue}: delete the LocalQueue, and the controller will create it again",
        )
    active = condition(local_queue, "Active")
    if active.get("status") == "True":
        return "Ready", ""
    if not active.get("message"):
        return "LocalQueueNotReady", "Kueue has not seen its LocalQueue yet"
    return "LocalQueueNotReady", f"ClusterQueue {cluster_queue}: {active.get('reason')}: {active['message']}"


def _local_document(queue: Object, cluster_queue: str) -> Object:
    return {
        "apiVersion": names.KUEUE_API,
        "kind": "LocalQueue",
        "metadata": {
            "name": queue["metadata"]["name"],
            "namespace": queue["metadata"]["namespace"],
            "ownerReferences": [owner(queue)],
        },
        "spec": {"clusterQueue": cluster_queue},
    }


def resource_name(queue: str, template: ResourceTemplate) -> str:
    """Return the name of a resource template's object.

    With nameMode prefix, it starts with the queue's name.
    """
    name = str((template.template.get("metadata") or {}).get("name") or template.name)
    return f"{queue}-{name}" if template.name_mode == "prefix" else name


def _resource_document(queue: Object, template: ResourceTemplate) -> Object:
    metadata = queue["metadata"]
    template_metadata: Object = dict(template.template.get("metadata") or {})
    labels = {
        **(template_metadata.get("labels") or {}),
        names.QUEUE_LABEL: names.queue_label(metadata["name"]),
    }
    name = resource_name(metadata["name"], template)
    placed = {**template_metadata, "labels": labels, "name": name, "namespace": metadata["namespace"]}
    return {**template.template, "metadata": placed}


def _resource(template: ResourceTemplate, snapshot: QueueSnapshot) -> ResourceStatus:
    kind = str(template.template.get("kind", "?"))
    version = template.template.get("apiVersion")
    existing = next(
        (item for (of, key), item in snapshot.resources.items() if (of, key) == (kind, template.name)), None
    )
    if PERMITTED.get(kind) != version:
        allowed = ", ".join(PERMITTED)
        return ResourceStatus(
            name=template.name,
            kind=kind,
            ready=False,
            message=(f"expected one of these kinds in version v1: {allowed}"),
        )
    return ResourceStatus(
        name=template.name,
        kind=kind,
        ready=existing is not None,
        message="" if existing is not None else MISSING,
    )


def _decision(
    queue: Object, status: QueueStatus, now: datetime, reason: str, message: str, actions: list[Action]
) -> QueueDecision:
    ready = reason == "Ready"
    status.phase = "Active" if ready else "Updating"
    new = Condition(
        type="Ready",
        status="True" if ready else "False",
        reason=reason,
        message=message,
        observed_generation=queue["metadata"].get("generation"),
    )
    status.conditions = with_condition(status.conditions, new, now)
    before = queue.get("status") or {}
    after = status.model_dump(by_alias=True, exclude_none=True, mode="json")
    if {**after, "lastUpdateTime": None} != {**before, "lastUpdateTime": None}:
        status.last_update_time = stamp(now)
    return QueueDecision(status, actions)
