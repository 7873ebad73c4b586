"""What a job needs and the cluster does not have: the job names it, and goes on when it is there.

One test for each row of "Missing objects" in docs/reference/torchrun-controller.md.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from torchrun_team import CODE, LISTED, Controller, Team

from harness.core.kubernetes import Object, condition
from harness.torchrun_controller.api import names

pytestmark = [pytest.mark.controller, pytest.mark.nightly]
SAID_SECONDS = 30.0
"""A job names what is missing within this time. A scheduler has 30 s to report on a pod."""
ABSENT = "registry.invalid/nosuch:1"
OVERRIDES: dict[str, list[str]] = {
    "images": [ABSENT],
    "secrets": ["late"],
    "configMaps": [*LISTED["configMaps"], "late"],
    "claims": ["late", "unbound"],
    "labels": ["team"],
    "fields": ["scheduling.scheduler", "storage.checkpoints"],
}
"""What the jobs of these tests set, and their queues permit."""


@pytest.fixture(autouse=True)
def queue(team: Team, controller: Controller) -> None:
    team.queue(overrides=OVERRIDES)
    team.until_queue_ready("cpu")


def until_said(team: Team, job: str, *texts: str, seconds: float = SAID_SECONDS) -> None:
    """Wait until the job's message has each text, one of which names what is missing."""

    def has_texts(found: Object) -> bool:
        message = str((found.get("status") or {}).get("message"))
        return all(text in message for text in texts)

    team.until_status(job, f"{texts} in the message", has_texts, seconds)
    team.change(job, cancel=True)


def placed(team: Team, api: str, kind: str, name: str, **parts: Any) -> Object:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, "namespace": team.namespace}, **parts}


@contextmanager
def quota(team: Team, **hard: str) -> Iterator[None]:
    """Have a ResourceQuota in the namespace, which counts before the block begins."""
    team.kube.apply(placed(team, "v1", "ResourceQuota", "small", spec={"hard": hard}))

    def counted(found: dict[str, Object]) -> str | None:
        return None if (found["small"].get("status") or {}).get("used") else "not counted"

    try:
        team.kube.wait("the quota", "v1", "ResourceQuota", counted, seconds=30, namespace=team.namespace)
        yield
    finally:
        team.kube.delete("v1", "ResourceQuota", "small", team.namespace)


def test_what_a_queue_names_is_missing(team: Team) -> None:
    """Contract: the queue is not Ready and says what is missing, its jobs repeat it, and nothing is created.
    When it is there, the queue is Ready and the job runs.
    """
    name = f"{team.namespace}-class"
    missing: dict[str, tuple[dict[str, Any], str]] = {
        "account": ({"serviceAccountName": "late"}, 'serviceaccount "late" not found'),
        "priority": (
            {"scheduling": {"priorityClassName": name}},
            f"no PriorityClass with name {name} was found",
        ),
        "runtime": ({"podTemplate": {"spec": {"runtimeClassName": "late"}}}, 'RuntimeClass "late" not found'),
        "storage": (
            {"storage": {"checkpoints": {"enabled": True, "size": "1Gi", "storageClass": "late"}}},
            "StorageClass late of spec.storage.checkpoints.storageClass does not exist",
        ),
    }
    for queue, (spec, text) in missing.items():
        team.queue(queue, **spec)
        team.job(queue, jobQueue=queue)
        until_queue_said(team, queue, text)
        team.until_status(
            queue, text, lambda job, text=text: text in str((job.get("status") or {}).get("message"))
        )
    assert {found["metadata"]["name"] for found in team.jobsets()}.isdisjoint(missing)
    team.kube.apply(placed(team, "v1", "ServiceAccount", "late"))
    team.until("account", "Succeeded")
    team.kube.apply(
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": 5,
        }
    )
    try:
        team.until("priority", "Succeeded")
    finally:
        team.kube.delete("scheduling.k8s.io/v1", "PriorityClass", name)


def until_queue_said(team: Team, name: str, text: str) -> None:
    def done(found: dict[str, Object]) -> str | None:
        ready = condition(found.get(name, {}), "Ready")
        return None if ready.get("status") == "False" and text in str(ready.get("message")) else str(ready)

    team.kube.wait(
        f"queue {name}", names.API, names.QUEUE_KIND, done, seconds=SAID_SECONDS, namespace=team.namespace
    )


def test_a_claim_without_its_class(team: Team) -> None:
    """Contract: a job's own storage of a class that is not there: the claim and the class are named."""
    storage = {"checkpoints": {"enabled": True, "size": "1Mi", "storageClass": "late"}}
    team.job("class", numNodes=1, storage=storage)
    until_said(team, "class", "PersistentVolumeClaim class-checkpoints", '"late" not found')


def test_a_local_queue_that_is_missing(team: Team) -> None:
    """Contract: the queue says so, and the job says it in Kueue's words."""
    team.queue("elsewhere", localQueue="late")
    until_queue_said(team, "elsewhere", "LocalQueue late does not exist")
    team.job("elsewhere", jobQueue="elsewhere")
    until_said(team, "elsewhere", "LocalQueue", "late")


def test_a_storage_quota_that_is_used_up(team: Team) -> None:
    """Contract: the quota is named, no JobSet is created, and the job runs when there is room."""
    with quota(team, **{"requests.storage": "1Mi"}):
        team.job("storage-quota", numNodes=1, storage={"checkpoints": {"enabled": True, "size": "5Mi"}})
        team.until_status(
            "storage-quota",
            "the quota",
            lambda job: "exceeded quota: small" in str((job.get("status") or {}).get("message")),
            SAID_SECONDS,
        )
        assert "storage-quota" not in {found["metadata"]["name"] for found in team.jobsets()}
    team.until("storage-quota", "Succeeded")


def test_a_pod_quota_for_one_of_two_pods(team: Team) -> None:
    """Contract: the message says how many pods cannot be created, and why; the job runs when they can."""
    with quota(team, pods="1"):
        team.job("pod-quota")
        team.until_status(
            "pod-quota",
            "the quota",
            lambda job: (
                "1 of 2 pods cannot be created" in str((job.get("status") or {}).get("message"))
                and "exceeded quota: small" in job["status"]["message"]
            ),
            SAID_SECONDS,
        )
    team.until("pod-quota", "Succeeded")


def test_a_policy_that_refuses_pods(team: Team) -> None:
    """Contract: the sentence of an admission policy is the job's message, and the job starts without it."""
    name = f"{team.namespace}-policy"
    api = "admissionregistration.k8s.io/v1"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    here = {"matchLabels": {"kubernetes.io/metadata.name": team.namespace}}
    policy = {
        "matchConstraints": {"resourceRules": [rule], "namespaceSelector": here},
        "validations": [
            {"expression": "'team' in object.metadata.labels", "message": "pods need a label team"}
        ],
    }
    binding = {"policyName": name, "validationActions": ["Deny"]}
    try:
        team.kube.apply(
            {
                "apiVersion": api,
                "kind": "ValidatingAdmissionPolicy",
                "metadata": {"name": name},
                "spec": policy,
            }
        )
        team.kube.apply(
            {
                "apiVersion": api,
                "kind": "ValidatingAdmissionPolicyBinding",
                "metadata": {"name": name},
                "spec": binding,
            }
        )
        time.sleep(3)  # the API server takes a new policy in with a delay, and nothing reports it
        team.job("policy")
        team.until_status(
            "policy",
            "the policy",
            lambda job: "pods need a label team" in str((job.get("status") or {}).get("message")),
            SAID_SECONDS,
        )
        team.job("labelled", labels={"team": "a"})
        team.until("labelled", "Succeeded")
    finally:
        team.kube.delete(api, "ValidatingAdmissionPolicyBinding", name)
        team.kube.delete(api, "ValidatingAdmissionPolicy", name)
    team.until("policy", "Succeeded")


def test_a_webhook_that_does_not_answer(team: Team) -> None:
    """Contract: the job says which webhook of its pods cannot be called, and starts without it
    (kubernetes-sigs/jobset#361).
    """
    name = f"{team.namespace}.example.com"
    webhook = {
        "name": name,
        "clientConfig": {"service": {"namespace": team.namespace, "name": "late"}},
        "rules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
        ],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": team.namespace}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    api, kind = "admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration"
    try:
        team.kube.apply({"apiVersion": api, "kind": kind, "metadata": {"name": name}, "webhooks": [webhook]})
        time.sleep(3)  # as above
        team.job("webhook")
        team.until_status(
            "webhook",
            "the webhook",
            lambda job: f'failed calling webhook "{name}"' in str((job.get("status") or {}).get("message")),
            SAID_SECONDS,
        )
    finally:
        team.kube.delete(api, kind, name)
    team.until("webhook", "Succeeded")


def test_a_scheduler_that_is_not_there(team: Team) -> None:
    """Contract: the job names the scheduler that has not processed the pods pods."""
    team.job("scheduler", scheduling={"scheduler": "late"})
    until_said(team, "scheduler", "scheduler late has not processed the pod", seconds=60)


def mounted(source: dict[str, Any]) -> dict[str, Any]:
    """Return the volumes of a job with one more. The kubelet looks for what a container mounts alone."""
    return {
        "additionalVolumes": [*CODE["additionalVolumes"], {"name": "b", **source}],
        "additionalMounts": [*CODE["additionalMounts"], {"name": "b", "mountPath": "/b"}],
    }


def test_missing_secrets_and_config_maps(team: Team) -> None:
    """Contract: of a variable, of a volume, of an image: the job names the object that is missing."""
    pulling = {"spec": {"imagePullSecrets": [{"name": "late-pull"}]}}
    team.queue("pulling", podTemplate=pulling, overrides=OVERRIDES)
    team.until_queue_ready("pulling")
    key: dict[str, Any] = {"name": "late", "key": "a"}
    jobs: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
        "secret-env": (
            {"env": [{"name": "A", "valueFrom": {"secretKeyRef": key}}]},
            ('secret "late" not found',),
        ),
        "config-env": (
            {"env": [{"name": "A", "valueFrom": {"configMapKeyRef": key}}]},
            ('configmap "late" not found',),
        ),
        "config-volume": (
            {"volumes": mounted({"configMap": {"name": "late"}})},
            ("FailedMount", 'configmap "late" not found'),
        ),
        "secret-volume": (
            {"volumes": mounted({"secret": {"secretName": "late"}})},
            ("FailedMount", 'secret "late" not found'),
        ),
        "pull-secret": (
            {"jobQueue": "pulling", "image": ABSENT},
            ("image pull secrets (late-pull)",),
        ),
    }
    for name, (spec, _) in jobs.items():
        team.job(name, numNodes=1, **spec)
    for name, (_, texts) in jobs.items():
        until_said(team, name, *texts, seconds=90 if name == "pull-secret" else SAID_SECONDS)


def test_missing_and_unbound_claims_are_named(team: Team) -> None:
    """Contract: a claim that is not there, and one for which there is no volume, are named."""
    access: dict[str, Any] = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}
    claim = placed(team, "v1", "PersistentVolumeClaim", "unbound", spec={**access, "storageClassName": ""})
    team.kube.apply(claim)
    team.job("no-claim", numNodes=1, storage={"checkpoints": {"claimName": "late"}})
    team.job("unbound", numNodes=1, storage={"checkpoints": {"claimName": "unbound"}})
    until_said(team, "no-claim", 'persistentvolumeclaim "late" not found')
    until_said(team, "unbound", "PersistentVolumeClaim unbound: FailedBinding")
