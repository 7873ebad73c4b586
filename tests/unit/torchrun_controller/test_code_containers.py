"""The init container that fetches a job's code: its user, its resources and its proxy."""

from __future__ import annotations

from typing import Any

import pytest
from pod_templates import violations
from torchrun_objects import job, queue

from harness.torchrun_controller.api import names
from harness.torchrun_controller.api.models import JobSpec, QueueSpec
from harness.torchrun_controller.objects.jobset import jobset
from harness.torchrun_controller.objects.pod_template import resolve

Object = dict[str, Any]
GPU_NODES = {"gpus": 8, "cpus": 96, "memory": "512Gi", "gpuType": "h100-80gb"}


def pod_of(one: Object, of: Object) -> Object:
    """Return the spec of the pods that the controller creates for a job in a queue."""
    spec, annotations = JobSpec.model_validate(one["spec"]), one["metadata"]["annotations"]
    resolved = resolve(one["metadata"]["name"], spec, annotations, QueueSpec.model_validate(of["spec"]))
    replicated = jobset(one, resolved, "cpu")["spec"]["replicatedJobs"][0]
    return dict(replicated["template"]["spec"]["template"]["spec"])


CODE_SOURCES: dict[str, Object] = {
    "upload": {"annotations": {names.WORKSPACE_ANNOTATION: "sha256:1", names.PARTS_ANNOTATION: "1"}},
    "git": {"workspaceStorage": {"source": "git", "url": "https://git.example/a.git"}},
}


@pytest.mark.parametrize("source", CODE_SOURCES)
def test_code_is_fetched_as_the_user_of_the_trainer(source: str) -> None:
    """dagster-io/dagster#8900, kserve/kserve#2096, vllm-project/production-stack#756: an init
    container without the main container's securityContext was rejected in a namespace of the level
    "restricted".

    Contract: otherwise, another user would also own the code and the control files.
    """
    context = {
        "runAsUser": 1000,
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    template = {"spec": {"containers": [{"name": "trainer", "securityContext": context}]}}
    spec = pod_of(job(**CODE_SOURCES[source]), queue(podTemplate=template))
    assert spec["initContainers"][0]["securityContext"] == context
    assert [*violations(spec)] == []


def test_privileges_of_the_trainer_are_not_for_its_code() -> None:
    """Contract: fetching code needs neither the node nor added capabilities. Without a securityContext of the
    trainer, there is none.
    """
    context = {"privileged": True, "capabilities": {"add": ["IPC_LOCK"]}, "runAsUser": 0}
    template = {"spec": {"containers": [{"name": "trainer", "securityContext": context}]}}
    of = queue(podTemplate=template, privileges=["privileged", "capabilities"])
    [fetch] = pod_of(job(**CODE_SOURCES["git"]), of)["initContainers"]
    assert fetch["securityContext"] == {"runAsUser": 0, "capabilities": {}}
    [fetch] = pod_of(job(**CODE_SOURCES["git"]), queue())["initContainers"]
    assert "securityContext" not in fetch


@pytest.mark.parametrize(
    ("user", "kept"), [({}, {}), ({"runAsUser": 1000}, {"runAsUser": 1000, "runAsNonRoot": True})]
)
def test_image_of_git_may_have_another_user(user: Object, kept: Object) -> None:
    """Contract: with runAsNonRoot, the kubelet refuses to start an image whose user is root, such as one of
    git. The trainer's image has a user of its own.
    """
    template = {
        "spec": {"containers": [{"name": "trainer", "securityContext": {"runAsNonRoot": True, **user}}]}
    }
    code = {"source": "git", "url": "https://git.example/a.git", "image": "alpine/git"}
    of = queue(
        podTemplate=template, overrides={"fields": ["workspaceStorage.image"], "images": ["alpine/git"]}
    )
    [fetch] = pod_of(job(workspaceStorage=code), of)["initContainers"]
    assert fetch.get("securityContext", {}) == kept


@pytest.mark.parametrize(("pod", "user"), [({}, None), ({"fsGroup": 2000}, 1000)])
def test_root_writes_to_a_claim_without_a_group(pod: Object, user: int | None) -> None:
    """Contract: such a claim may belong to root, and the trainer only reads the code there."""
    containers = [
        {"name": "trainer", "securityContext": {"runAsUser": 1000, "allowPrivilegeEscalation": False}}
    ]
    template = {"spec": {"containers": containers, "securityContext": pod}}
    code = {"source": "git", "url": "https://git.example/a.git", "accessMode": "ReadWriteMany"}
    of = queue(podTemplate=template, overrides={"fields": ["workspaceStorage.accessMode"]})
    [fetch] = pod_of(job(workspaceStorage=code), of)["initContainers"]
    assert fetch["securityContext"].get("runAsUser") == user
    assert fetch["securityContext"]["allowPrivilegeEscalation"] is False


@pytest.mark.parametrize("source", CODE_SOURCES)
def test_container_that_fetches_code_fits_a_quota(source: str) -> None:
    """apache/uniffle#521, SeldonIO/seldon-core#776, apache/solr-operator#448: an init container without
    resources was rejected by a ResourceQuota.

    Contract: it has the trainer's CPU and memory, but no GPU. Without amounts in the queue, it has none.
    """
    of = queue(nodeResources=GPU_NODES)
    [fetch] = pod_of(job(numNodes=None, numGPUs=8, **CODE_SOURCES[source]), of)["initContainers"]
    amounts = {"cpu": "96000m", "memory": str(512 << 30)}
    assert fetch["resources"] == {"requests": amounts, "limits": amounts}
    [fetch] = pod_of(job(**CODE_SOURCES[source]), queue(nodeResources={}))["initContainers"]
    assert "resources" not in fetch


def test_git_is_fetched_through_the_proxy_of_the_trainer() -> None:
    """kserve/kserve#825 and #1348, eclipse-che/che#15263: the container that fetched files did not know the
    proxy.

    Contract: other variables, such as passwords, are not for it. An upload comes from the cluster itself.
    """
    proxies = [{"name": "HTTPS_PROXY", "value": "http://p:3128"}, {"name": "no_proxy", "value": ".svc"}]
    of = queue(env=[*proxies, {"name": "TOKEN", "value": "x"}])
    [fetch] = pod_of(job(**CODE_SOURCES["git"]), of)["initContainers"]
    assert [each for each in fetch["env"] if each["name"] not in ("URL", "REF", "SHARED")] == proxies
    [waiting] = pod_of(job(**CODE_SOURCES["upload"]), of)["initContainers"]
    assert waiting["env"] == []
