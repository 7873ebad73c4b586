"""The pods of the harness where a namespace enforces the Pod Security Standard "restricted"."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException
from pod_templates import SPECS, TRAININGS, hardened, violations

from harness import run as running
from harness.context import RunContext
from harness.core import processes
from harness.core.errors import UsageError
from harness.core.kubernetes import Kube
from harness.core.pod_security import ENFORCE
from harness.evidence.io.reader import Bundle
from harness.fixtures.plugin import Launch
from harness.launch import namespaces
from harness.launch.konduktor.job_file import JobFile
from harness.launch.workloads import training
from harness.launch.workloads.netcheck_job import job as netcheck_job
from harness.provision.cluster import Ready
from harness.provision.controllers import tracker
from harness.settings import Settings

NAMES = ("restricted", "baseline")
POLICY = "test-not-as-root"
"""A policy of a company, which also rejects pods in the namespaces of launches that run as root."""
NOT_ROOT = (
    "object.spec.containers.all(c, has(c.securityContext) && has(c.securityContext.runAsNonRoot) && "
    "c.securityContext.runAsNonRoot)"
)


@pytest.fixture(scope="module")
def standards(cluster: Ready) -> Iterator[dict[str, str]]:
    """A namespace for each standard, by the name of the standard."""
    namespaces = {name: f"{name}-{secrets.token_hex(3)}" for name in NAMES}
    for name, namespace in namespaces.items():
        metadata = {"name": namespace, "labels": {ENFORCE: name}}
        cluster.kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})

    def without_account(found: dict[str, Any]) -> str | None:
        return None if "default" in found else "no service account"

    for namespace in namespaces.values():
        what = ("the service account", "v1", "ServiceAccount", without_account)
        cluster.kube.wait(*what, seconds=60, namespace=namespace)
    yield namespaces
    for namespace in namespaces.values():
        cluster.kube.delete("v1", "Namespace", namespace)


def refusal(kube: Kube, namespace: str, spec: Any) -> str:
    """Return why the API server refuses a pod in a dry run, or ""."""
    own = {key: value for key, value in spec.items() if key != "serviceAccountName"}
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod", "namespace": namespace}}
    try:
        kube.apply({**document, "spec": own}, dry_run=True)
    except ApiException as error:
        return str(error.body)
    return ""


def test_the_api_server_admits_every_pod_of_the_harness(cluster: Ready, standards: dict[str, str]) -> None:
    """Contract: and its verdict is that of the checker of the unit tests."""
    for name, spec in SPECS.items():
        assert refusal(cluster.kube, standards["restricted"], spec) == "", name
    for name in ("kept folder", "claims", "class", "image"):
        spec = hardened(training.workload(TRAININGS[name]))
        assert refusal(cluster.kube, standards["baseline"], spec) == ""
        assert "violates PodSecurity" in refusal(cluster.kube, standards["restricted"], spec)
        assert list(violations(spec))


def test_the_tracker_writes_only_to_its_volumes(cluster: Ready, harness_settings: Settings) -> None:
    """Contract: as a user without a name or rights. A NetworkPolicy lets it open no connection."""
    pods = cluster.kube.objects("v1", "Pod", tracker.NAMESPACE, selector="app.kubernetes.io/name=tracker")
    assert refusal(cluster.kube, tracker.NAMESPACE, {"containers": [{"name": "a", "image": "a"}]})
    assert not list(violations(pods[0]["spec"]))
    words = [harness_settings.kubectl_bin, "--kubeconfig", str(cluster.cluster.kubeconfig)]
    words += ["exec", "-n", tracker.NAMESPACE, pods[0]["metadata"]["name"], "--"]
    status = "id -u; grep -E 'CapBnd|NoNewPrivs|Seccomp:' /proc/self/status"
    script = f"{status}; touch /tmp/x && touch /data/x && rm /data/x && touch /app/x"
    done = processes.run([*words, "sh", "-c", script], timeout=60, check=False)
    user, *lines = done.stdout.split("\n")
    assert user == "65532"
    assert [line.split()[-1].strip("0") for line in lines if line] == ["", "1", "2"], done.stdout
    assert "/app/x" in done.stderr
    assert "Read-only file system" in done.stderr
    policy = cluster.kube.get("networking.k8s.io/v1", "NetworkPolicy", tracker.NAME, tracker.NAMESPACE)
    assert policy
    assert not policy["spec"].get("egress")


@pytest.mark.nightly
def test_a_launch_of_the_harness_is_labelled_and_passes(launch: Launch, cluster: Ready) -> None:
    outcome = launch(netcheck_job(2))
    assert outcome.verdict.verdict == "PASS", outcome.verdict.explanation
    manifest = Bundle.open(outcome.bundle).manifest
    assert manifest is not None
    assert manifest.launch is not None
    namespace = cluster.kube.get("v1", "Namespace", manifest.launch.namespace)
    assert namespace is not None
    assert namespace["metadata"]["labels"][ENFORCE] == "restricted"


def test_a_konduktor_job_is_refused_before_anything_is_created(
    cluster: Ready, theirs: Settings, job: JobFile
) -> None:
    """Contract: a namespace with this label would reject each of its pods, one after the other."""
    before = [item["metadata"]["name"] for item in namespaces.of_launches(cluster.kube)]
    context = RunContext(settings=theirs.model_copy(update={"pod_security": "restricted"}), progress=print)
    with pytest.raises(UsageError, match="enforces the Pod Security Standard restricted rejects"):
        running.run(job, context)
    assert [item["metadata"]["name"] for item in namespaces.of_launches(cluster.kube)] == before


@pytest.mark.nightly
def test_a_cluster_that_rejects_root_by_default(cluster: Ready, theirs: Settings, job: JobFile) -> None:
    """Contract: konduktor is not started, and netcheck passes. A policy stands for the API server's default,
    which a running cluster cannot change.
    """
    kube, api = cluster.kube, "admissionregistration.k8s.io/v1"
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": rules},
        "matchConditions": [{"name": "launches", "expression": "request.namespace.startsWith('e2e-')"}],
        "validations": [{"expression": NOT_ROOT, "message": "pods run as a user other than root"}],
    }
    binding = {"policyName": POLICY, "validationActions": ["Deny"]}
    kinds = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    for kind, content in zip(kinds, (spec, binding), strict=True):
        kube.apply({"apiVersion": api, "kind": kind, "metadata": {"name": POLICY}, "spec": content})
    context = RunContext(settings=theirs, progress=print)
    namespace = f"e2e-{secrets.token_hex(4)}"
    kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    as_root = {"containers": [{"name": "a", "image": "a"}]}
    try:
        kube.wait(
            "the policy to be enforced",
            "v1",
            "Namespace",
            lambda _: None if "other than root" in refusal(kube, namespace, as_root) else "not yet",
            seconds=60,
        )
        refused = running.run(job, context).verdict
        assert (refused.verdict, refused.cause) == ("FAIL", "launch.pods_refused")
        assert "the pods that konduktor creates" in refused.explanation
        passed = running.run(netcheck_job(2), context).verdict
        assert passed.verdict == "PASS", passed.explanation
    finally:
        kube.delete("v1", "Namespace", namespace)
        for kind in reversed(kinds):
            kube.delete(api, kind, POLICY)
