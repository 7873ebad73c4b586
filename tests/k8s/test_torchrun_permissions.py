"""What the controller does for users who have the roles of its manifests alone.

Each test acts as an account that has the rights of its roles in one namespace, and no others.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic.exceptions import DynamicApiError
from test_torchrun_controller import MET
from torchrun_team import LISTED, Controller, Team, preempting

from harness.core.deadlines import Deadline
from harness.core.kubernetes import Object, condition
from harness.core.kubernetes_retries import pause
from harness.provision.controllers import queues
from harness.torchrun_controller.api import names

pytestmark = pytest.mark.controller
REFUSED = (ApiException, DynamicApiError)
SECRET = "not for users of jobs"
STEAL = "python -c 'import os; print(dict(os.environ), os.listdir(\"/\"))'"


@pytest.fixture(scope="module")
def member(team: Team, controller: Controller, tmp_path_factory: pytest.TempPathFactory) -> Team:
    """The namespace for an account that may create TorchrunJobs, and has no right on pods or Secrets."""
    data = {"key": base64.b64encode(SECRET.encode()).decode()}
    metadata = {"name": "keys", "namespace": team.namespace}
    team.kube.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})
    team.queue()
    team.until_queue_ready("cpu")
    folder = tmp_path_factory.mktemp("member")
    return replace(team, kube=team.user(folder, "member", "torchrun-job-user"))


@pytest.fixture(scope="module")
def author(team: Team, member: Team, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    """The namespace for an account that may create TorchrunQueues, and nothing that queues create."""
    role = f"{team.namespace}-queues"
    rule = {"apiGroups": [names.GROUP], "resources": ["torchrunqueues"], "verbs": ["get", "create", "patch"]}
    api = "rbac.authorization.k8s.io/v1"
    team.kube.apply({"apiVersion": api, "kind": "ClusterRole", "metadata": {"name": role}, "rules": [rule]})
    found = replace(team, kube=team.user(tmp_path_factory.mktemp("author"), "author", role))
    until_enforced(found)
    yield found
    team.kube.delete(api, "ClusterRole", role)


@pytest.fixture(scope="module")
def owner(team: Team, member: Team, tmp_path_factory: pytest.TempPathFactory) -> Team:
    folder = tmp_path_factory.mktemp("owner")
    return replace(team, kube=team.user(folder, "owner", "torchrun-queue-owner"))


def test_a_job_s_author_runs_what_the_queue_permits(team: Team, member: Team) -> None:
    """Contract: a job needs no other right than that on TorchrunJobs, and gives no other."""
    member.job("plain", env=[{"name": "STEPS", "value": "1"}])
    team.until("plain", "Succeeded")
    assert team.printed("plain") == MET
    assert {pod["metadata"]["name"] for pod in member.pods("plain")}
    pod = {"containers": [{"name": "a", "image": team.image}]}
    for document in (
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "own"}, "spec": pod},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "own"}},
        {
            "apiVersion": names.API,
            "kind": names.QUEUE_KIND,
            "metadata": {"name": "own"},
            "spec": {"image": "x"},
        },
    ):
        document["metadata"]["namespace"] = team.namespace  # type: ignore[index]
        with pytest.raises(REFUSED) as refused:
            member.kube.apply(document)
        assert refused.value.status == 403
    with pytest.raises(REFUSED):
        member.kube.get("v1", "Secret", "keys", team.namespace)


@pytest.mark.parametrize(
    ("name", "fields", "entry"),
    [
        (
            "host",
            {
                "volumes": {
                    "additionalVolumes": [{"name": "host", "hostPath": {"path": "/"}}],
                    "additionalMounts": [{"name": "host", "mountPath": "/host"}],
                }
            },
            "volumes: {hostPath: …}",
        ),
        (
            "secret",
            {"env": [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "key"}}}]},
            "secrets: keys",
        ),
        ("any-node", {"scheduling": {"tolerations": [{"operator": "Exists"}]}}, "tolerations: "),
        (
            "image",
            {
                "workspaceStorage": {
                    "source": "git",
                    "url": "https://example.com/x",
                    "image": "foreign:1",
                    "secretName": "keys",
                }
            },
            "images: foreign:1",
        ),
        ("labels", {"labels": {"app": "database"}}, "labels: app"),
        ("first", {"scheduling": {"priorityClassName": "system-node-critical"}}, "priorityClasses: "),
    ],
)
def test_job_gets_nothing_that_its_author_could_not_get(
    team: Team, member: Team, name: str, fields: dict[str, Any], entry: str
) -> None:
    """Contract: the reported inputs are Failed with the entry that would permit them; nothing is created."""
    member.job(name, command=STEAL, **{"volumes": None, **fields})
    ended = team.until(name, "Failed", 30)
    assert condition(ended, "Failed")["reason"] == "OverrideNotAllowed"
    assert f"({entry}" in ended["status"]["message"]
    assert name not in {found["metadata"]["name"] for found in team.jobsets()}


def test_queue_s_author_needs_rights_of_queue(team: Team, author: Team, owner: Team) -> None:
    """Contract: whoever may not create pods creates no queue and changes none; the owner's role is enough.
    Metadata alone may be changed, because the garbage collector removes finalizers.
    """
    for name in ("cpu", "own"):
        with pytest.raises(REFUSED, match="the right to create pods in its namespace") as refused:
            author.queue(name, serviceAccountName="default", env=[{"name": "A", "value": "b"}])
        assert refused.value.status == 403
    resource = author.kube.resource(names.API, names.QUEUE_KIND)
    merge = {"metadata": {"annotations": {"note": "x"}}}
    resource.patch(
        name="cpu", namespace=team.namespace, body=merge, content_type="application/merge-patch+json"
    )
    owner.queue("owned")
    team.until_queue_ready("owned")


def test_privileged_template_waits_for_word_of_its_owner(team: Team, owner: Team) -> None:
    """Contract: the API server would take the pod, and the queue is not Ready until privileges list it."""
    template = {"spec": {"hostPID": True, "volumes": [{"name": "host", "hostPath": {"path": "/proc"}}]}}
    owner.queue("node", podTemplate=template, privileges=["hostPID"])
    until_ready_says(team, "node", "PodTemplateInvalid", "add hostPath to the queue's privileges")
    owner.queue("node", podTemplate=template, privileges=["hostPID", "hostPath"])
    team.until_queue_ready("node")


def test_no_local_queue_on_a_cluster_queue_of_others(team: Team, owner: Team) -> None:
    """Contract: the controller opens a LocalQueue on a named ClusterQueue only if its administrator lists the
    namespace; the owner of a queue can neither list it nor create a LocalQueue.
    """
    name = f"{team.namespace}-theirs"
    document = preempting(name, "another-namespace", cpu="1", memory="1Gi")
    try:
        team.kube.apply(document)
        owner.queue("elsewhere", clusterQueue=name, overrides=LISTED)
        until_ready_says(team, "elsewhere", "ClusterQueueNotOpen", names.NAMESPACES_ANNOTATION)
        assert team.kube.get(queues.API, "LocalQueue", "elsewhere", team.namespace) is None
        document["metadata"]["annotations"] = {names.NAMESPACES_ANNOTATION: team.namespace}
        local = {"name": "elsewhere", "namespace": team.namespace}
        for forbidden in (
            document,
            {
                "apiVersion": queues.API,
                "kind": "LocalQueue",
                "metadata": local,
                "spec": {"clusterQueue": name},
            },
        ):
            with pytest.raises(REFUSED) as refused:
                owner.kube.apply(forbidden)
            assert refused.value.status == 403
        team.kube.apply(document)
        team.until_queue_ready("elsewhere")
    finally:
        team.kube.delete(names.API, names.QUEUE_KIND, "elsewhere", team.namespace)
        team.kube.delete(queues.API, "ClusterQueue", name)


def until_enforced(author: Team) -> None:
    """Wait until the API server applies the admission policy, which takes a moment after its creation."""
    metadata = {"name": "dry", "namespace": author.namespace}
    document = {
        "apiVersion": names.API,
        "kind": names.QUEUE_KIND,
        "metadata": metadata,
        "spec": {"image": "x"},
    }
    deadline = Deadline.after(60)
    while True:
        try:
            author.kube.apply(document, dry_run=True)
        except REFUSED:
            return
        assert not deadline.passed, "the admission policy is not applied"
        pause(deadline)


def until_ready_says(team: Team, name: str, reason: str, text: str) -> None:
    """Wait until a queue's condition Ready is False for this reason, with this text."""

    def done(found: dict[str, Object]) -> str | None:
        ready = condition(found.get(name, {}), "Ready")
        right = (ready.get("status"), ready.get("reason")) == ("False", reason)
        return None if right and text in str(ready.get("message")) else str(ready)

    team.kube.wait(f"queue {name}", names.API, names.QUEUE_KIND, done, seconds=60, namespace=team.namespace)
