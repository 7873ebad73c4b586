"""What is to become of a TorchrunQueue: its LocalQueue or kai-scheduler Queue, and the objects beside it.

Claims and ConfigMaps of a queue have no owner: data outlives the queue. A kai-scheduler Queue has no
namespace, so it cannot be owned by an object in one (the garbage collector would delete it); a finalizer
deletes it.
"""

from __future__ import annotations

from datetime import datetime

from pydantic import ValidationError

from harness.core.kubernetes import Object, condition
from harness.torchrun_controller import names
from harness.torchrun_controller.conditions import Condition, stamp, with_condition
from harness.torchrun_controller.jobset import owner
from harness.torchrun_controller.models import QueueSpec, QueueStatus, ResourceStatus, ResourceTemplate
from harness.torchrun_controller.names import PERMITTED
from harness.torchrun_controller.observed import (
    Action,
    Create,
    Delete,
    Finalizers,
    QueueDecision,
    SeenQueue,
    ending,
)
from harness.torchrun_controller.template import kai_queue


def desired(
    queue: Object, seen: SeenQueue, now: datetime, cluster_queue: str, *, kai: bool = False
) -> QueueDecision:
    """Return the queue's status and what is to be done. `cluster_queue` is the one of LocalQueues that say
    nothing else.
    """
    old = QueueStatus.model_validate(queue.get("status") or {})
    status = old.model_copy(update={"observed_generation": queue["metadata"].get("generation")})
    finalizers = list(queue["metadata"].get("finalizers") or [])
    if ending(queue):
        return _end(queue, seen, status, finalizers)
    try:
        spec = QueueSpec.model_validate(queue["spec"])
    except ValidationError as error:
        return _say(queue, status, now, "SpecInvalid", str(error.errors()[0]["msg"]), [])
    actions: list[Action] = []
    if kai:
        if names.FINALIZER not in finalizers:
            return QueueDecision(status, [Finalizers([*finalizers, names.FINALIZER])])
        if seen.kai_queue is None:
            actions.append(Create(kai_document(queue, spec)))
        reason, message = "Ready", ""
    else:
        status.local_queue = spec.local_queue or queue["metadata"]["name"]
        reason, message = _local(spec, seen.local_queue)
        if seen.local_queue is None and spec.local_queue is None:
            actions.append(Create(_local_document(queue, spec.cluster_queue or cluster_queue)))
    status.resource_statuses = [_resource(template, seen) for template in spec.resources]
    status.resources_ready = all(resource.ready for resource in status.resource_statuses)
    for template, found in zip(spec.resources, status.resource_statuses, strict=True):
        if found.message == MISSING:
            actions.append(Create(_resource_document(queue, template)))
    late = next((r for r in status.resource_statuses if not r.ready), None)
    if reason == "Ready" and late is not None:
        reason, message = "ResourcesNotReady", f"{late.kind} {late.name}: {late.message}"
    return _say(queue, status, now, reason, message, actions)


def kai_document(queue: Object, spec: QueueSpec) -> Object:
    """Return the kai-scheduler Queue, with its parent. Its shares are its own scheduler's matter."""
    given = spec.queue
    shares = given.resources.model_dump(by_alias=True) if given else {}
    return {
        "apiVersion": names.KAI_API,
        "kind": "Queue",
        "metadata": {
            "name": kai_queue(spec) or queue["metadata"]["name"],
            "labels": {
                f"{names.GROUP}/queue-namespace": queue["metadata"]["namespace"],
                names.QUEUE_LABEL: queue["metadata"]["name"][:63],
            },
        },
        "spec": {
            "parentQueue": spec.parent_kai_queue or (given.parent_queue if given else "default"),
            "resources": shares or {kind: dict(UNLIMITED) for kind in ("cpu", "gpu", "memory")},
        },
    }


UNLIMITED = {"quota": -1, "limit": -1, "overQuotaWeight": 1}
MISSING = "is being made"


def _end(queue: Object, seen: SeenQueue, status: QueueStatus, finalizers: list[str]) -> QueueDecision:
    status.phase = "Terminating"
    if names.FINALIZER not in finalizers:
        return QueueDecision(status)
    if seen.kai_queue is not None and not ending(seen.kai_queue):
        found = seen.kai_queue["metadata"]
        labels = found.get("labels") or {}
        if labels.get(names.QUEUE_LABEL) == queue["metadata"]["name"][:63]:
            return QueueDecision(status, [Delete(names.KAI_API, "Queue", found["name"], found["uid"])])
    return QueueDecision(status, [Finalizers([name for name in finalizers if name != names.FINALIZER])])


def _local(spec: QueueSpec, local_queue: Object | None) -> tuple[str, str]:
    if local_queue is None:
        if spec.local_queue is None:
            return "LocalQueueNotReady", "its LocalQueue is being made"
        return "LocalQueueNotFound", f"LocalQueue {spec.local_queue} is not there"
    active = condition(local_queue, "Active")
    if active.get("status") == "True":
        return "Ready", ""
    return "LocalQueueNotReady", str(active.get("message") or "Kueue has not seen its LocalQueue yet")


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
    """Return the name of a queue's further object: as it is (`exact`), or with the queue's before it."""
    name = str((template.template.get("metadata") or {}).get("name") or template.name)
    return f"{queue}-{name}" if template.name_mode == "prefix" else name


def _resource_document(queue: Object, template: ResourceTemplate) -> Object:
    metadata = queue["metadata"]
    asked = template.template.get("metadata") or {}
    labels = {**(asked.get("labels") or {}), names.QUEUE_LABEL: metadata["name"][:63]}
    name = resource_name(metadata["name"], template)
    document = {**template.template, "metadata": {**asked, "labels": labels}}
    document["metadata"].update(name=name, namespace=metadata["namespace"])
    return document


def _resource(template: ResourceTemplate, seen: SeenQueue) -> ResourceStatus:
    kind = str(template.template.get("kind", "?"))
    version = template.template.get("apiVersion")
    made = next(
        (item for (of, key), item in seen.resources.items() if (of, key) == (kind, template.name)), None
    )
    if PERMITTED.get(kind) != version:
        allowed = ", ".join(PERMITTED)
        return ResourceStatus(
            name=template.name, kind=kind, ready=False, message=f"expected one of {allowed}, of version v1"
        )
    return ResourceStatus(
        name=template.name, kind=kind, ready=made is not None, message="" if made is not None else MISSING
    )


def _say(
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
    before = status.model_dump(exclude={"last_update_time"})
    status.conditions = with_condition(status.conditions, new, now)
    if status.model_dump(exclude={"last_update_time"}) != before or status.last_update_time is None:
        status.last_update_time = stamp(now)
    return QueueDecision(status, actions)
