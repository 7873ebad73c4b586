"""Objects of public bug reports on a real cluster, each with its right answer.

Helpers beside ranks, a Service that forwards one port, TorchrunQueues with host network, helpers and init
containers, and a policy that rejects pods. Equivalent tests of single parts are not repeated: the messages of
the controller (test_torchrun_pods.py), a policy and `harness accept` (the fault acceptance-pods-refused), and
a Service in a simulated network (integration/test_netcheck_ports.py).
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.client.exceptions import ApiException

from harness.core.errors import UsageError
from harness.core.kubernetes import Kube
from harness.evidence.io.reader import Bundle
from harness.fixtures.plugin import Launch
from harness.launch.labels import LOCAL_IMAGE
from harness.launch.workload_file import load
from harness.launch.workloads import acceptance, netcheck_job, training
from harness.launch.workloads.acceptance import AcceptanceSpec
from harness.launch.workloads.base import Workload
from harness.launch.workloads.loader import of_manifest
from harness.launch.workloads.training_spec import TrainingSpec
from harness.provision.cluster import Ready
from harness.report.finalize import Outcome

pytestmark = pytest.mark.nightly
WAIT_SECONDS = 300.0
POLICY = "reported-team"
Object = dict[str, Any]


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all(Path(f"manifests/{name}.yaml").read_text()))


def summary(outcome: Outcome) -> str:
    seen = outcome.verdict
    return f"{seen.verdict} {seen.cause} {seen.ranks}: {seen.explanation} [{outcome.bundle}]"


def ended_by_itself(outcome: Outcome) -> bool:
    """Return whether the launch ended before its deadline."""
    manifest = Bundle.open(outcome.bundle).manifest
    return manifest is not None and manifest.interrupted is None


def fails(outcome: Outcome, causes: tuple[str, ...], says: str, early: bool = True) -> None:
    """Assert that a launch FAILed for one of the causes, with this in its explanation."""
    assert outcome.verdict.verdict == "FAIL", summary(outcome)
    assert outcome.verdict.cause in causes, summary(outcome)
    assert re.search(says, outcome.verdict.explanation, re.DOTALL), summary(outcome)
    assert not early or ended_by_itself(outcome), summary(outcome)


@pytest.mark.parametrize("place", ["behind", "before", "native"])
def test_a_helper_in_an_indexed_job(launch: Launch, cluster: Ready, place: str) -> None:
    """Contract: a native sidecar passes, one that never ends is named, one before the ranks is refused."""
    helper = {"name": "proxy", "image": cluster.worker.tag, "command": ["sleep", "infinity"]}
    found = documents("indexed-job")
    pod = found[1]["spec"]["template"]["spec"]
    if place == "before":
        pod["containers"].insert(0, helper)
        with pytest.raises(UsageError, match="proxy"):
            launch(of_manifest(found, "x"), wait_seconds=WAIT_SECONDS)
        return
    if place == "behind":
        pod["containers"].append(helper)
    else:
        pod["initContainers"] = [{**helper, "restartPolicy": "Always"}]
    outcome = launch(of_manifest(found, "x"), wait_seconds=WAIT_SECONDS)
    if place == "native":
        assert outcome.verdict.verdict == "PASS", summary(outcome)
    else:
        fails(outcome, ("rank.helper_unended",), "proxy")


@pytest.mark.parametrize("checked", [False, True], ids=["without netcheck", "with netcheck"])
def test_a_master_service_that_forwards_one_port(launch: Launch, checked: bool) -> None:
    """Contract: a job that trains is not stopped by its network check."""
    found = documents("networking")
    del found[1]["spec"]["clusterIP"]
    container = found[2]["spec"]["template"]["spec"]["containers"][0]
    if not checked:
        lines = container["args"][0].splitlines(keepends=True)
        container["args"] = ["".join(line for line in lines if "netcheck" not in line)]
    outcome = launch(of_manifest(found, "x"), wait_seconds=WAIT_SECONDS)
    assert outcome.verdict.verdict == "PASS", summary(outcome)


def torchrun(pod: Object, privileges: tuple[str, ...] = (), restarts: int = 0) -> Workload:
    """Return a TorchrunJob of two nodes whose queue has this pod template."""
    queue, job = documents("torchrun-job")
    queue["spec"]["nodeResources"]["cpus"] = "250m"  # Both pods must fit on one node of two cores.
    queue["spec"] |= {
        "podTemplate": {"spec": {"containers": [{"name": "trainer"}], **pod}},
        "privileges": list(privileges),
    }
    job["spec"]["reliability"] = {"maxRestarts": restarts}
    return of_manifest([queue, job], "x")


IMAGE = ("image.not_found", "image.pull_failed")
HOST: Object = {"hostNetwork": True, "hostIPC": True}


@pytest.mark.controller
def test_a_torchrun_job_in_the_host_network_passes(launch: Launch) -> None:
    """Contract: the controller gives its pods a DNS policy with which ranks find each other."""
    outcome = launch(torchrun(HOST, ("hostNetwork", "hostIPC")), wait_seconds=WAIT_SECONDS)
    assert outcome.verdict.verdict == "PASS", summary(outcome)


@pytest.mark.controller
def test_queue_without_privileges_of_its_template_is_refused() -> None:
    """Contract: before the launch, with what to add. The original controller's queues have no privileges."""
    with pytest.raises(UsageError, match="add hostNetwork, hostIPC to the queue's privileges"):
        torchrun(HOST)


@pytest.mark.controller
def test_two_torchrun_pods_in_network_of_one_node_pass(launch: Launch, cluster: Ready) -> None:
    """Contract: only node 0 listens on the port of the rendezvous, so its neighbour takes no port."""
    nodes = [node["metadata"]["name"] for node in cluster.kube.objects("v1", "Node")]
    worker = next(name for name in nodes if "control-plane" not in name)
    pod = {**HOST, "nodeSelector": {"kubernetes.io/hostname": worker}}
    outcome = launch(torchrun(pod, ("hostNetwork", "hostIPC")), wait_seconds=WAIT_SECONDS)
    assert outcome.verdict.verdict == "PASS", summary(outcome)
    bundle = Bundle.open(outcome.bundle)
    assert [bundle.ranks()[rank].node for rank in (0, 1)] == [worker, worker]


@pytest.mark.controller
def test_helper_does_not_keep_torchrun_job_from_its_end(launch: Launch, cluster: Ready) -> None:
    helper = {"name": "exporter", "image": cluster.worker.tag, "command": ["sleep", "infinity"]}
    outcome = launch(torchrun({"containers": [{"name": "trainer"}, helper]}), wait_seconds=WAIT_SECONDS)
    assert outcome.verdict.verdict == "PASS", summary(outcome)


@pytest.mark.controller
@pytest.mark.parametrize(
    ("command", "image", "causes", "says", "restarts", "wait"),
    [
        (
            "echo cache server says 403 >&2; exit 3",
            "",
            ("rank.init_container_failed",),
            "warm-cache.*exit code 3.*cache server says 403",
            1,
            WAIT_SECONDS,
        ),
        ("sleep infinity", "", ("rank.init_container_unended",), "warm-cache.* has run for", 0, 90.0),
        (
            "true",
            "registry.invalid/no-image:1",
            IMAGE,
            "warm-cache",
            0,
            150.0,
        ),
    ],
    ids=["fails", "hangs", "no-image"],
)
def test_an_init_container_of_a_torchrun_queue_is_named(
    launch: Launch,
    cluster: Ready,
    command: str,
    image: str,
    causes: tuple[str, ...],
    says: str,
    restarts: int,
    wait: float,
) -> None:
    """Contract: name, exit code and last line are in the verdict, and not only in the job's message."""
    named = {"name": "warm-cache", "image": image or cluster.worker.tag, "command": ["sh", "-c", command]}
    outcome = launch(torchrun({"initContainers": [named]}, restarts=restarts), wait_seconds=wait)
    fails(outcome, causes, says, early=command != "sleep infinity")


@pytest.fixture(scope="module")
def policy(cluster: Ready) -> Iterator[str]:
    """A policy that rejects pods of launches without a label, as the one of a company. Yield its sentence."""
    says, api = "company rule 12: label the pod with its team", "admissionregistration.k8s.io/v1"
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]
    labelled = "has(object.metadata.labels) && 'team' in object.metadata.labels"
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": rules},
        "matchConditions": [{"name": "launches", "expression": "request.namespace.startsWith('e2e-')"}],
        "validations": [{"expression": labelled, "message": says}],
    }
    binding = {"policyName": POLICY, "validationActions": ["Deny"]}
    kinds = {"ValidatingAdmissionPolicy": spec, "ValidatingAdmissionPolicyBinding": binding}
    kube = cluster.kube
    for kind, content in kinds.items():
        kube.apply({"apiVersion": api, "kind": kind, "metadata": {"name": POLICY}, "spec": content})
    try:
        until_enforced(kube, says)
        yield says
    finally:
        for kind in reversed(kinds):
            kube.delete(api, kind, POLICY)


def until_enforced(kube: Kube, says: str) -> None:
    """Wait until the API server rejects a pod with this sentence."""
    name = f"e2e-{POLICY}"
    kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod", "namespace": name}}
    pod["spec"] = {"containers": [{"name": "a", "image": "a"}], "serviceAccountName": "default"}

    def refused(_: object) -> str | None:
        try:
            kube.apply(copy.deepcopy(pod), dry_run=True)
        except ApiException as error:
            return None if says in str(error.body) else str(error.body)
        return "admitted"

    try:
        kube.wait("the policy", "v1", "Namespace", refused, seconds=60)
    finally:
        kube.delete("v1", "Namespace", name)


REFUSED: dict[str, Callable[[str], Workload]] = {
    "accept-nodes": lambda image: acceptance.nodes(AcceptanceSpec(device="cpu", image=image)),
    "accept-ddp": lambda image: acceptance.ddp(AcceptanceSpec(device="cpu", image=image, gpus=1), 2),
    "netcheck": lambda image: netcheck_job.job(2),
    "train": lambda image: training.workload(TrainingSpec(replicas=2)),
    "konduktor": lambda image: load(Path("jobs/multinode.yaml")),
    "indexed-job": lambda image: load(Path("manifests/indexed-job.yaml")),
    "statefulset": lambda image: load(Path("manifests/statefulset.yaml")),
    "torchrun-job": lambda image: load(Path("manifests/torchrun-job.yaml")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_policy_that_rejects_pods_is_the_verdict(launch: Launch, policy: str, name: str) -> None:
    """Contract: with the policy's sentence and before the deadline, whatever creates the pods."""
    outcome = launch(REFUSED[name](LOCAL_IMAGE), wait_seconds=WAIT_SECONDS)
    fails(outcome, ("launch.pods_refused", "launch.rejected", "rank.missing"), re.escape(policy))
