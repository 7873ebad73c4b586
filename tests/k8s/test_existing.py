"""A cluster of the user's own is used as it is and left as it was. Here a kind cluster stands for it."""

from __future__ import annotations

import pytest
import yaml
from kubernetes import client

from harness import run as running
from harness.context import RunContext
from harness.core.errors import UsageError
from harness.core.kubernetes import Kube
from harness.evidence.io.reader import Bundle
from harness.launch.konduktor.job_file import JobFile
from harness.launch.konduktor.workload import KonduktorWorkload
from harness.launch.namespaces import namespace_of
from harness.provision.cluster import Ready
from harness.provision.controllers import queues
from harness.provision.controllers.deployments import wait_available
from harness.provision.existing import ExistingCluster
from harness.provision.kind.cluster import KindCluster
from harness.settings import Settings

ACCOUNT = "looks-only"


def progress(text: str) -> None:
    print(f"  {text}", flush=True)


def test_a_launch_leaves_nothing_there(cluster: Ready, theirs: Settings, job: JobFile) -> None:
    """The job is a PASS, its namespace is deleted, and the user's kubeconfig and its folder are unchanged."""
    assert theirs.kubeconfig is not None
    before = theirs.kubeconfig.read_bytes()
    outcome = running.run(job, RunContext(settings=theirs, progress=progress))
    assert outcome.verdict.verdict == "PASS", outcome.verdict.explanation
    assert theirs.kubeconfig.read_bytes() == before
    assert [path.name for path in theirs.kubeconfig.parent.iterdir()] == ["kubeconfig"]
    manifest = Bundle.open(outcome.bundle).manifest
    assert manifest is not None
    mine = namespace_of(manifest.nonce)
    cluster.kube.wait(
        f"namespace {mine} to go",
        "v1",
        "Namespace",
        lambda there: "still there" if mine in there else None,
        seconds=90,
    )
    assert cluster.kind.exists()
    assert KindCluster(theirs).state() is not None, "it is not the harness's to remove"


def test_what_is_missing_is_named_and_nothing_is_made(theirs: Settings, job: JobFile) -> None:
    """A queue that does not exist and an image that was built here are both named."""
    changed = theirs.model_copy(update={"cluster_queue": "nowhere", "worker_image": None})
    _, found = ExistingCluster(changed).inspect(KonduktorWorkload(job))
    assert {need.what for need in found if need.problem} == {"queue", "image"}
    outcome = running.run(job, RunContext(settings=changed, progress=progress))
    assert (outcome.verdict.verdict, outcome.verdict.cause) == ("FAIL", "queue.cluster_queue_missing")
    assert "nowhere" in outcome.verdict.explanation


def test_credentials_that_may_only_look(cluster: Ready, theirs: Settings, job: JobFile) -> None:
    """Each missing permission is named, and the verdict's cause is cluster.forbidden."""
    assert theirs.kubeconfig is not None
    kube = cluster.kube
    account = {"name": ACCOUNT, "namespace": "default"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
    subject = {"kind": "ServiceAccount", **account}
    binding = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding"}
    kube.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
    kube.apply({**binding, "metadata": {"name": ACCOUNT}, "roleRef": role, "subjects": [subject]})
    try:
        core = client.CoreV1Api(kube.api)
        response = core.create_namespaced_service_account_token(ACCOUNT, "default", {"spec": {}})
        token = response.status.token
        document = yaml.safe_load(theirs.kubeconfig.read_text())
        document["users"][0]["user"] = {"token": token}
        theirs.kubeconfig.write_text(yaml.safe_dump(document))
        outcome = running.run(job, RunContext(settings=theirs, progress=progress))
        assert (outcome.verdict.verdict, outcome.verdict.cause) == ("FAIL", "cluster.forbidden")
        assert "create namespaces" in outcome.verdict.explanation
        assert not [p for p in outcome.bundle.rglob("*") if p.is_file() and token.encode() in p.read_bytes()]
    finally:
        kube.delete("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", ACCOUNT)
        kube.delete("v1", "ServiceAccount", ACCOUNT, "default")


def test_a_cluster_that_is_there_is_never_deleted(cluster: Ready, theirs: Settings) -> None:
    """Commands that remove or disturb a cluster work only on the harness's own."""
    with (
        running.cluster(RunContext(settings=theirs, progress=progress)) as ready,
        pytest.raises(UsageError, match="kind cluster that the harness created"),
    ):
        _ = ready.kind
    assert Kube(cluster.kind.kubeconfig, cluster.kind.context).silence() is None


# Kueue last: its webhook may refuse changes of a queue for a moment after it is back.
@pytest.mark.nightly
@pytest.mark.parametrize(("what", "namespace"), [("queue", None), ("kueue", "kueue-system")])
def test_install_changes_nothing_that_somebody_else_made(
    cluster: Ready, theirs: Settings, what: str, namespace: str | None
) -> None:
    """A Kueue that is scaled to 0, or a ClusterQueue that is held, stays so: its owner has to repair it."""
    kube = cluster.kube
    kind = ("apps/v1", "Deployment") if namespace else (queues.API, "ClusterQueue")
    name = "kueue-controller-manager" if namespace else queues.CLUSTER_QUEUE
    resource = kube.resource(*kind)
    merge = {"name": name, "namespace": namespace, "content_type": "application/merge-patch+json"}
    there = kube.get(*kind, name, namespace)
    assert there is not None
    fields = there["metadata"]["managedFields"]
    handed = [{**each, "manager": "somebody"} for each in fields]
    spec = {"replicas": 0} if namespace else {"stopPolicy": "Hold"}
    resource.patch(body={"metadata": {"managedFields": handed}, "spec": spec}, **merge)
    try:
        before = kube.get(*kind, name, namespace)
        with pytest.raises(UsageError, match=f"already exist on this cluster, but do not work: .*{name}"):
            ExistingCluster(theirs).install(RunContext(settings=theirs, progress=progress))
        after = kube.get(*kind, name, namespace)
        assert before is not None
        assert after is not None
        assert after["spec"] == before["spec"]
    finally:
        back = {"replicas": 1} if namespace else {"stopPolicy": "None"}
        resource.patch(body={"metadata": {"managedFields": fields}, "spec": back}, **merge)
        if namespace:
            wait_available(kube, namespace, 180, "controllers.kueue_not_ready")
