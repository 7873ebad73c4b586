"""What becomes of a queue: its LocalQueue or kai-scheduler Queue, and the objects that come with it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from torchrun_objects import queue

from harness.torchrun_controller.api import names
from harness.torchrun_controller.decide.decisions import Create, Delete, Finalizers, QueueDecision, SeenQueue
from harness.torchrun_controller.decide.queue import desired

Object = dict[str, Any]
NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
ACTIVE = {"status": {"conditions": [{"type": "Active", "status": "True"}]}}
CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "juicefs-datasets"},
    "spec": {"accessModes": ["ReadWriteMany"]},
}
KAI = {"metadata": {"name": "gpu", "uid": "kai-uid", "labels": {names.QUEUE_LABEL: "cpu"}}}


def look(one: Object, *, kai: bool = False, **seen: Any) -> QueueDecision:
    return desired(one, SeenQueue(**{"template": "", **seen}), NOW, "cluster-queue", kai=kai)


def made(decision: QueueDecision) -> list[Object]:
    return [action.document for action in decision.actions if isinstance(action, Create)]


def why(decision: QueueDecision) -> tuple[str, str]:
    [ready] = [found for found in decision.status.conditions if found.type == "Ready"]
    return ready.status, ready.reason


def test_local_queue_is_made_and_owned() -> None:
    """Contract: a queue is ready when Kueue's LocalQueue is, which goes with it."""
    decision = look(queue())
    [document] = made(decision)
    assert (document["kind"], document["spec"]) == ("LocalQueue", {"clusterQueue": "cluster-queue"})
    assert document["metadata"]["ownerReferences"][0]["uid"] == "queue-uid"
    assert why(decision) == ("False", "LocalQueueNotReady")
    ready = look(queue(), local_queue=ACTIVE)
    assert (why(ready), ready.actions, ready.status.phase) == (("True", "Ready"), [], "Active")


def test_local_queue_of_somebody_else() -> None:
    """Contract: a LocalQueue that is named is used, and never made."""
    decision = look(queue(localQueue="theirs"))
    assert (decision.actions, why(decision)) == ([], ("False", "LocalQueueNotFound"))
    assert look(queue(localQueue="theirs"), local_queue=ACTIVE).status.local_queue == "theirs"


def test_cluster_queue_of_its_own() -> None:
    """Contract: clusterQueue says which quota it shares."""
    [document] = made(look(queue(clusterQueue="gpus")))
    assert document["spec"] == {"clusterQueue": "gpus"}


def test_claims_of_a_queue_have_no_owner() -> None:
    """Contract: data outlives the queue; `prefix` puts the queue's name before it."""
    one = queue(
        resources=[
            {"name": "datasets", "template": CLAIM},
            {"name": "own", "nameMode": "prefix", "template": CLAIM},
        ]
    )
    decision = look(one, local_queue=ACTIVE)
    found = [document["metadata"] for document in made(decision)]
    assert [metadata["name"] for metadata in found] == ["juicefs-datasets", "cpu-juicefs-datasets"]
    assert not any("ownerReferences" in metadata for metadata in found)
    assert why(decision) == ("False", "ResourcesNotReady")
    there = {("PersistentVolumeClaim", name): CLAIM for name in ("datasets", "own")}
    ready = look(one, local_queue=ACTIVE, resources=there)
    assert (why(ready), ready.actions, ready.status.resources_ready) == (("True", "Ready"), [], True)


def test_kind_that_the_role_does_not_permit() -> None:
    """Contract: it is not tried, and the queue says which kinds there are."""
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}
    decision = look(queue(resources=[{"name": "s", "template": secret}]), local_queue=ACTIVE)
    assert decision.actions == []
    assert why(decision) == ("False", "SpecInvalid") or "PersistentVolumeClaim, ConfigMap" in str(
        decision.status
    )


def test_kai_queue_has_a_finalizer_and_no_owner() -> None:
    """Contract: first the finalizer, then the Queue: without it a queue that goes would leave it behind."""
    one = queue(kaiQueue="gpu", parentKaiQueue="default")
    assert look(one, kai=True).actions == [Finalizers([names.FINALIZER])]
    one["metadata"]["finalizers"] = [names.FINALIZER]
    [document] = made(look(one, kai=True))
    assert document["metadata"]["name"] == "gpu"
    assert {"namespace", "ownerReferences"}.isdisjoint(document["metadata"])
    assert document["spec"]["parentQueue"] == "default"
    assert document["spec"]["resources"]["gpu"] == {"quota": -1, "limit": -1, "overQuotaWeight": 1}


def test_kai_queue_goes_before_its_queue() -> None:
    """Contract: the finalizer is removed when the Queue is gone, and another's Queue is left alone."""
    one = queue(kaiQueue="gpu")
    one["metadata"].update(finalizers=[names.FINALIZER], deletionTimestamp="2026-11-23T11:00:00Z")
    assert look(one, kai=True, kai_queue=KAI).actions == [Delete(names.KAI_API, "Queue", "gpu", "kai-uid")]
    assert look(one, kai=True).actions == [Finalizers([])]
    other = {"metadata": {"name": "gpu", "uid": "x", "labels": {}}}
    assert look(one, kai=True, kai_queue=other).actions == [Finalizers([])]


def test_second_look_changes_nothing() -> None:
    """Contract: a status is written once for one state."""
    first = look(queue(), local_queue=ACTIVE)
    one = {**queue(), "status": first.status.model_dump(by_alias=True, exclude_none=True)}
    assert look(one, local_queue=ACTIVE).status == first.status
