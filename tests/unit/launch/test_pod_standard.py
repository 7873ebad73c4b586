"""The Pod Security label of a launch's namespace, and pods that the namespace rejects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException

from harness.core.errors import HarnessError, UsageError
from harness.core.pod_security import ENFORCE
from harness.launch import pod_standard, workload_file
from harness.launch.konduktor.job_file import JobFile
from harness.launch.konduktor.workload import KonduktorWorkload
from harness.launch.workloads import acceptance, netcheck_job, training
from harness.launch.workloads.base import Workload
from harness.launch.workloads.training_spec import TrainingSpec
from harness.settings import load

JOBS = Path(__file__).parents[3] / "jobs"
MANIFESTS = JOBS.parent / "manifests"
KONDUKTOR = KonduktorWorkload(JobFile.load(JOBS / "multinode.yaml"))
NETCHECK = netcheck_job.job(2)
CLAIMS = training.workload(TrainingSpec(claims_namespace="team"))
SECURITY = 'pods "preflight" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true'
ACCESS = 'pods is forbidden: User "eve" cannot create resource "pods" in API group ""'
QUOTA = 'pods "preflight" is forbidden: failed quota: small: must specify cpu for: rank'


class Namespace:
    """An API server that rejects the pods of a namespace by a rule. It counts the dry runs."""

    def __init__(self, message: str, *, only_root: bool = False) -> None:
        self.message, self.only_root, self.asked = message, only_root, 0

    def apply(self, document: Any, *, dry_run: bool) -> Any:
        assert dry_run
        self.asked += 1
        (container,) = document["spec"]["containers"]
        if self.only_root and (container.get("securityContext") or {}).get("runAsNonRoot"):
            return document
        if self.message:
            error = ApiException(status=403)
            error.body = json.dumps({"message": self.message})
            raise error
        return document


def rejects(
    workload: Workload, kube: Namespace, enforced: str | None = None, *, dry_run: bool = True
) -> bool:
    labels = {ENFORCE: enforced} if enforced else {}
    namespace = {"metadata": {"name": "e2e-1", "labels": labels}}
    return pod_standard.rejects_root(kube, workload, namespace, "i", dry_run=dry_run)  # type: ignore[arg-type]


@pytest.mark.parametrize("level", ["baseline", "restricted"])
def test_konduktor_job_is_refused_before_anything_is_created(level: Any) -> None:
    """Contract: by the setting alone, and with the label that would allow it."""
    with pytest.raises(UsageError) as error:
        pod_standard.check(KONDUKTOR, load(pod_security=level))
    assert error.value.message == (
        f"a namespace that enforces the Pod Security Standard {level} rejects the pods of a konduktor job, "
        "because konduktor adds the capability IPC_LOCK and its script must run as root"
    )
    assert "HARNESS_POD_SECURITY=privileged" in error.value.hint
    assert "pod-security.kubernetes.io/enforce=privileged" in error.value.hint
    for passing in (NETCHECK, CLAIMS, workload_file.load(MANIFESTS / "indexed-job.yaml")):
        pod_standard.check(passing, load(pod_security=level))
    pod_standard.check(KONDUKTOR, load())
    pod_standard.check(KONDUKTOR, load(pod_security="privileged"))


def test_only_pods_that_pass_it_get_label_by_themselves(tmp_path: Path) -> None:
    """Contract: a weaker label would override the default of the cluster, so it needs the setting."""
    restricted = {ENFORCE: "restricted"}
    assert pod_standard.labels(NETCHECK, load()) == restricted
    assert (
        pod_standard.labels(acceptance.nodes(acceptance.AcceptanceSpec(device="cpu")), load()) == restricted
    )
    assert pod_standard.labels(training.workload(TrainingSpec()), load()) == restricted
    for other in (CLAIMS, KONDUKTOR, workload_file.load(MANIFESTS / "indexed-job.yaml")):
        assert pod_standard.labels(other, load()) == {}
        assert pod_standard.labels(other, load(pod_security="privileged")) == {ENFORCE: "privileged"}
    assert pod_standard.labels(NETCHECK, load(pod=tmp_path / "pod.yaml")) == {}, "it can need a device"


@pytest.mark.parametrize("level", ["baseline", "restricted"])
def test_label_that_somebody_else_sets_refuses_konduktor_job(level: str) -> None:
    """Contract: for example a webhook of the cluster. No dry run is needed."""
    with pytest.raises(HarnessError, match=f"Standard {level} rejects") as error:
        rejects(KONDUKTOR, Namespace(""), level, dry_run=False)
    assert error.value.cause == "launch.pods_refused"


def test_the_default_of_a_cluster_refuses_a_konduktor_job() -> None:
    """Contract: only a dry run finds it, because the configuration of the API server cannot be read."""
    with pytest.raises(HarnessError, match=r"rejects the pods that konduktor creates: .*violates") as error:
        rejects(KONDUKTOR, Namespace(SECURITY))
    assert "pod-security.kubernetes.io/enforce=privileged" in error.value.hint
    assert not rejects(KONDUKTOR, Namespace(""))
    assert not rejects(KONDUKTOR, Namespace(SECURITY), dry_run=False), "a cluster of the harness has none"


def test_missing_rights_are_no_rule() -> None:
    """Contract: a controller creates the pods, so the user needs no right to create them."""
    assert not rejects(KONDUKTOR, Namespace(ACCESS))
    assert not rejects(CLAIMS, Namespace(ACCESS))


def test_claims_change_user_only_where_root_is_rejected() -> None:
    assert rejects(CLAIMS, Namespace(SECURITY, only_root=True))
    assert rejects(CLAIMS, Namespace(""), "restricted")
    assert not rejects(CLAIMS, Namespace(""))
    assert not rejects(CLAIMS, Namespace(QUOTA)), "it rejects every pod"
    kube = Namespace(SECURITY)
    assert not rejects(CLAIMS, kube, "baseline")
    assert not rejects(NETCHECK, kube)
    assert kube.asked == 0, "pods that pass every standard need no dry run"
