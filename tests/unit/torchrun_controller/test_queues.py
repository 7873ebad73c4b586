"""What becomes of a queue: its LocalQueue or kai-scheduler Queue, and the objects that come with it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic.exceptions import ForbiddenError
from torchrun_objects import CHECKED, job, queue

from harness.torchrun_controller.api import names
from harness.torchrun_controller.decide.decisions import (
    Create,
    Delete,
    Finalizers,
    QueueDecision,
    QueueSnapshot,
    Snapshot,
)
from harness.torchrun_controller.decide.job import desired as job_desired
from harness.torchrun_controller.decide.queue import desired
from harness.torchrun_controller.runtime.snapshot import queue_snapshot

Object = dict[str, Any]
NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
ACTIVE = {"status": {"conditions": [{"type": "Active", "status": "True"}]}}
CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "juicefs-datasets"},
    "spec": {"accessModes": ["ReadWriteMany"]},
}
KAI_LABELS = {names.NAMESPACE_LABEL: "team", names.QUEUE_LABEL: "cpu"}
KAI = {"metadata": {"name": "gpu", "uid": "kai-uid", "labels": KAI_LABELS}}


def look(one: Object, *, kai: bool = False, **seen: Any) -> QueueDecision:
    return desired(one, QueueSnapshot(**{"template": "", **seen}), NOW, "cluster-queue", kai=kai)


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


def open_to(namespaces: str) -> Object:
    return {"metadata": {"name": "gpus", "annotations": {names.NAMESPACES_ANNOTATION: namespaces}}}


@pytest.mark.parametrize("namespaces", ["team", "other, team", "*"])
def test_a_cluster_queue_that_is_open_to_the_namespace(namespaces: str) -> None:
    """Contract: clusterQueue names the quota that a queue shares, where its administrator permits that."""
    [document] = made(look(queue(clusterQueue="gpus"), cluster_queue=open_to(namespaces)))
    assert document["spec"] == {"clusterQueue": "gpus"}


@pytest.mark.parametrize(
    "found",
    [None, {"metadata": {"name": "gpus"}}, *map(open_to, ("", "other", "teams,my-team", "team*"))],
)
def test_no_local_queue_opens_on_foreign_cluster_queue(found: Object | None) -> None:
    """Contract: an author without a right on LocalQueues gets none by naming a ClusterQueue, and does not
    learn which ones exist. The default ClusterQueue and a LocalQueue that exists are used.
    """
    decision = look(queue(clusterQueue="gpus"), cluster_queue=found)
    assert (decision.actions, why(decision)) == ([], ("False", "ClusterQueueNotOpen"))
    assert decision.status.conditions == look(queue(clusterQueue="gpus")).status.conditions
    [document] = made(look(queue(clusterQueue="cluster-queue")))
    assert document["spec"] == {"clusterQueue": "cluster-queue"}
    assert why(look(queue(clusterQueue="gpus"), local_queue=ACTIVE)) == ("True", "Ready")


def test_another_cluster_queue_needs_another_local_queue() -> None:
    """Contract: an edit of clusterQueue has no effect on the LocalQueue that is there, and the queue says so.

    Kueue does not move a LocalQueue: until it is deleted, jobs would use the quota of the old ClusterQueue.
    """
    there = {**ACTIVE, "spec": {"clusterQueue": "gpus"}}
    decision = look(queue(clusterQueue="more-gpus"), local_queue=there)
    assert (decision.actions, why(decision)) == ([], ("False", "LocalQueueNotReady"))
    [ready] = [found for found in decision.status.conditions if found.type == "Ready"]
    assert "belongs to ClusterQueue gpus" in ready.message
    assert "delete the LocalQueue" in ready.message
    for spec in ({"clusterQueue": "gpus"}, {}, {"localQueue": "theirs", "clusterQueue": "more-gpus"}):
        assert why(look(queue(**spec), local_queue=there)) == ("True", "Ready")


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


@pytest.mark.parametrize(
    "template",
    [
        {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token"},
        {"apiVersion": "v1", "kind": "ServiceAccount"},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding"},
        {"apiVersion": "v2", "kind": "ConfigMap"},
    ],
)
def test_no_template_gives_its_author_rights_of_controller(template: Object) -> None:
    """Reports in public: golang/vulndb#5377 (an operator creates a Secret that Kubernetes fills with the
    token of any service account) and #4125 (one creates a role binding).
    """
    one = queue(resources=[{"name": "x", "template": {**template, "metadata": {"name": "x"}}}])
    decision = look(one, local_queue=ACTIVE)
    assert made(decision) == []
    assert why(decision) == ("False", "ResourcesNotReady")


def test_a_template_cannot_name_another_namespace() -> None:
    """Reports in public: openshift/deadmanssnitch-operator#341 and golang/vulndb#5283 (an operator uses the
    namespace that a custom resource names).
    """
    metadata = {"name": "x", "namespace": "kube-system"}
    for kind in ("ConfigMap", "PersistentVolumeClaim"):
        template = {"apiVersion": "v1", "kind": kind, "metadata": metadata}
        decision = look(queue(resources=[{"name": "x", "template": template}]), local_queue=ACTIVE)
        assert [document["metadata"]["namespace"] for document in made(decision)] == ["team"]


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


SHARE = {"quota": (int, float), "limit": (int, float), "overQuotaWeight": (int, float)}
KAI_SCHEMA: dict[str, Any] = {
    "displayName": str,
    "parentQueue": str,
    "priority": int,
    "preemptMinRuntime": str,
    "reclaimMinRuntime": str,
    "resources": {"cpu": SHARE, "gpu": SHARE, "memory": SHARE},
}
"""The fields of spec and their types in kai-scheduler's CRD queues.scheduling.run.ai, version v2."""


def outside(value: Any, schema: Any, path: str = "spec") -> list[str]:
    """Return the paths of the fields that the schema does not have, or has with another type."""
    if not isinstance(schema, dict):
        return [] if isinstance(value, schema) and not isinstance(value, bool) else [path]
    unknown = [f"{path}.{name}" for name in value.keys() - schema.keys()]
    known = [outside(value[name], schema[name], f"{path}.{name}") for name in value.keys() & schema.keys()]
    return [*unknown, *(each for found in known for each in found)]


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"kaiQueue": "gpu", "parentKaiQueue": "team"},
        {"queue": {"name": "gpu", "parentQueue": "team"}},
        {"queue": {"name": "g", "resources": {"gpu": {"quota": 8, "limit": -1, "overQuotaWeight": 2}}}},
    ],
)
def test_a_kai_queue_fits_kai_scheduler_s_schema(given: dict[str, Any]) -> None:
    """Contract: every field is one that its API server keeps; each Queue has a parent, as kai-scheduler does
    not schedule the pods of a Queue without one.
    """
    one = queue(**given)
    one["metadata"]["finalizers"] = [names.FINALIZER]
    [document] = made(look(one, kai=True, kai_parent=kai_queue("*")))
    assert (document["apiVersion"], document["kind"]) == ("scheduling.run.ai/v2", "Queue")
    assert outside(document["spec"], KAI_SCHEMA) == []
    assert document["spec"]["parentQueue"]
    assert outside({"resources": {"tpu": {}}, "priority": "high"}, KAI_SCHEMA) != []


def kai_queue(namespaces: str | None = None, labels: Object | None = None) -> Object:
    annotations = {} if namespaces is None else {names.NAMESPACES_ANNOTATION: namespaces}
    return {"metadata": {"name": "gpu", "uid": "x", "labels": labels or {}, "annotations": annotations}}


def with_finalizer(**spec: Any) -> Object:
    one = queue(**spec)
    one["metadata"]["finalizers"] = [names.FINALIZER]
    return one


@pytest.mark.parametrize("spec", [{"kaiQueue": "gpu"}, {"queue": {"name": "gpu"}}, {}])
@pytest.mark.parametrize(
    ("found", "state"),
    [
        (kai_queue(), ("False", "KaiQueueNotOpen")),
        (kai_queue("other,teams"), ("False", "KaiQueueNotOpen")),
        (kai_queue(labels={**KAI_LABELS, names.NAMESPACE_LABEL: "other"}), ("False", "KaiQueueNotOpen")),
        (kai_queue(labels={**KAI_LABELS, names.QUEUE_LABEL: "another"}), ("False", "KaiQueueNotOpen")),
        (kai_queue("other, team"), ("True", "Ready")),
        (kai_queue("*"), ("True", "Ready")),
        (KAI, ("True", "Ready")),
    ],
)
def test_a_kai_queue_of_others_is_not_used(spec: Object, found: Object, state: tuple[str, str]) -> None:
    """Contract: a queue uses the Queue that was created for it, or one that is open to its namespace. Its
    jobs wait for that, because kai-scheduler itself lets pods of any namespace use any Queue.
    """
    one = with_finalizer(**spec)
    decision = look(one, kai=True, kai_queue=found)
    assert (decision.actions, why(decision)) == ([], state)
    queue = {**one, "status": decision.status.model_dump(by_alias=True, exclude_none=True, mode="json")}
    queue["status"]["conditions"].append(CHECKED)
    begun = job_desired(job(), Snapshot(queue=queue), NOW, kai=True)
    assert any(isinstance(action, Create) for action in begun.actions) == (state[0] == "True")
    changed = {**queue, "metadata": {**queue["metadata"], "generation": 2}}
    checked = {**CHECKED, "observedGeneration": 2}
    changed["status"] = {"conditions": [checked, *queue["status"]["conditions"][:-1]]}
    assert not job_desired(job(), Snapshot(queue=changed), NOW, kai=True).actions


@pytest.mark.parametrize("field", ["parentKaiQueue", "queue"])
def test_kai_queue_gets_no_share_of_closed_parent(field: str) -> None:
    """Contract: only somebody who may create cluster-scoped Queues can open a parent's share. The parent
    `default` is open. The message does not show whether the parent exists.
    """
    given = (
        {"parentKaiQueue": "prod"} if field != "queue" else {"queue": {"name": "g", "parentQueue": "prod"}}
    )
    one = with_finalizer(**given)
    refused = look(one, kai=True)
    assert (refused.actions, why(refused)) == ([], ("False", "KaiQueueNotOpen"))
    assert refused.status.conditions == look(one, kai=True, kai_parent=kai_queue("other")).status.conditions
    [document] = made(look(one, kai=True, kai_parent=kai_queue("team")))
    assert document["spec"]["parentQueue"] == "prod"
    [document] = made(look(with_finalizer(), kai=True))
    assert document["spec"]["parentQueue"] == "default"


def test_kai_queue_goes_before_its_queue() -> None:
    """Contract: the finalizer is removed when the Queue is gone, and another's Queue is left alone."""
    one = queue(kaiQueue="gpu")
    one["metadata"].update(finalizers=[names.FINALIZER], deletionTimestamp="2026-11-23T11:00:00Z")
    assert look(one, kai=True, kai_queue=KAI).actions == [Delete(names.KAI_API, "Queue", "gpu", "kai-uid")]
    assert look(one, kai=True).actions == [Finalizers([])]
    for labels in ({}, {**KAI_LABELS, names.NAMESPACE_LABEL: "other"}):
        other = {"metadata": {"name": "gpu", "uid": "x", "labels": labels}}
        assert look(one, kai=True, kai_queue=other).actions == [Finalizers([])]


class KaiKube:
    """The API server as far as a queue that ends needs it."""

    def __init__(self, allowed: bool, name: str = "gpu") -> None:
        self.allowed, self.name = allowed, name

    def get(self, api: str, kind: str, name: str, namespace: str | None = None) -> Object | None:
        del namespace
        assert (api, kind) == (names.KAI_API, "Queue")
        if not self.allowed:
            raise ForbiddenError(ApiException(status=403, reason="Forbidden"))
        return KAI if name == self.name else None


@pytest.mark.parametrize(
    "spec", [{"kaiQueue": "gpu"}, {"queue": {"name": "gpu"}}, {"kaiQueue": "gpu", "new": 1}]
)
@pytest.mark.parametrize("kai", [True, False])
def test_kai_queue_does_not_remain_after_switch_to_kueue(spec: Object, kai: bool) -> None:
    """Contract: also if a newer CRD has fields that this version cannot read."""
    one = queue(**spec)
    one["metadata"].update(finalizers=[names.FINALIZER], deletionTimestamp="2026-11-23T11:00:00Z")
    kube: Any = KaiKube(allowed=True)
    found = queue_snapshot(None, kube, one, kai=kai)  # type: ignore[arg-type] # no cache is read
    decision = desired(one, found, NOW, "cluster-queue", kai=kai)
    assert decision.actions == [Delete(names.KAI_API, "Queue", "gpu", "kai-uid")]


def test_kai_queue_that_controller_may_not_delete_is_reported() -> None:
    """Contract: the finalizer stays, and the condition names both ways out."""
    one = queue(kaiQueue="gpu")
    one["metadata"].update(finalizers=[names.FINALIZER], deletionTimestamp="2026-11-23T11:00:00Z")
    kube: Any = KaiKube(allowed=False)
    decision = desired(one, queue_snapshot(None, kube, one, kai=False), NOW, "cluster-queue")  # type: ignore[arg-type]
    assert (decision.actions, why(decision)) == ([], ("False", "KaiQueueRemains"))
    message = decision.status.conditions[-1].message
    assert "run it with --gang kai" in message
    assert names.FINALIZER in message
    with pytest.raises(ForbiddenError):  # With --gang kai, it is an error of the role.
        queue_snapshot(None, kube, one, kai=True)  # type: ignore[arg-type]


def test_second_look_changes_nothing() -> None:
    """Contract: a status is written once for one state."""
    first = look(queue(), local_queue=ACTIVE)
    one = {**queue(), "status": first.status.model_dump(by_alias=True, exclude_none=True)}
    assert look(one, local_queue=ACTIVE).status == first.status
