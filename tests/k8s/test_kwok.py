"""Kubernetes places 64 nodes × 8 GPUs as the acceptance tests ask for them. Nodes are simulated (KWOK).

What runs in the pods is not tested here: simulated pods run nothing, and have no logs.
"""

from __future__ import annotations

import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from simulated_nodes import MARK, TOLERATION, simulated

from harness.context import RunContext
from harness.core.kubernetes import Kube
from harness.fixtures.plugin import progress
from harness.provision.cluster import Ready
from harness.provision.source.kwok import kwok
from harness.settings import Settings

pytestmark = [pytest.mark.acceptance, pytest.mark.nightly, pytest.mark.timeout(1800)]

NODES, GPUS = 64, 8
SECONDS = 180.0
"""In which 64 pods must be placed and run. Seen: 3 to 4 s, on 2 cores that others used as well."""
REQUESTS = (2, 15)
"""API requests for each pod, beyond those of an idle cluster. Seen: about 4. Fewer: they were not counted."""
NAMES = [f"simulated-{number:02}" for number in range(NODES)]


@pytest.fixture(scope="module")
def kube(
    cluster: Ready, harness_settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Kube]:
    """Return the cluster, with 64 simulated nodes of 8 GPUs."""
    program = kwok(RunContext(settings=harness_settings, progress=progress))
    log = tmp_path_factory.mktemp("kwok") / "kwok.log"
    with simulated(cluster.kube, program, log, NAMES, GPUS):
        yield cluster.kube
    assert cluster.kube.objects("v1", "Node", selector=MARK) == []


@pytest.fixture
def namespace(kube: Kube) -> Iterator[str]:
    """Return an empty namespace, which is gone at the end with all that was in it."""
    name = f"kwok-{secrets.token_hex(3)}"
    kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    kube.delete("v1", "Namespace", name)
    kube.wait(
        f"the end of namespace {name}",
        "v1",
        "Namespace",
        lambda seen: f"{name} is there" if name in seen else None,
        seconds=SECONDS,
    )
    assert kube.objects("v1", "Pod", name) == []


def pod(gpus: int) -> dict[str, Any]:
    """Return the pod of an acceptance test, for simulated nodes alone."""
    return {
        "metadata": {"labels": {"app": "gpu-accept"}},
        "spec": {
            "nodeSelector": {MARK: "fake"},
            "tolerations": [TOLERATION],
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "accept",
                    "image": "simulated",
                    "resources": {"limits": {"nvidia.com/gpu": str(gpus)}},
                }
            ],
        },
    }


def workload(kind: str, namespace: str, **spec: Any) -> dict[str, Any]:
    """Return a StatefulSet or a DaemonSet of such pods."""
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": "gpu-accept", "namespace": namespace},
        "spec": {"selector": {"matchLabels": {"app": "gpu-accept"}}, **spec},
    }


def all_running(count: int) -> Callable[[dict[str, Any]], str | None]:
    """Return what waits for so many running pods."""

    def done(seen: dict[str, Any]) -> str | None:
        running = sum(item.get("status", {}).get("phase") == "Running" for item in seen.values())
        return None if running == count else f"{running} of {count} pods run"

    return done


def requests(kube: Kube) -> float:
    """Return how many requests the API server has answered since its start."""
    text = kube.fetch("/metrics", seconds=30).data.decode()
    return sum(float(value) for value in re.findall(r"^apiserver_request_total\{.*\} (\S+)$", text, re.M))


@pytest.mark.parametrize(
    ("kind", "gpus", "spec"),
    [
        (
            "StatefulSet",
            8,
            {"replicas": NODES, "podManagementPolicy": "Parallel", "serviceName": "gpu-accept"},
        ),
        ("DaemonSet", 1, {}),
    ],
)
def test_one_pod_runs_on_each_node(
    kube: Kube,
    namespace: str,
    kind: str,
    gpus: int,
    spec: dict[str, Any],
    record_property: Callable[[str, object], None],
) -> None:
    """All are placed, none twice on a node, in the time and with the requests that were set."""
    idle_from, idle = time.monotonic(), requests(kube)
    time.sleep(10)
    before, began = requests(kube), time.monotonic()
    rate = (before - idle) / (began - idle_from)
    kube.apply(workload(kind, namespace, template=pod(gpus), **spec))
    pods = kube.wait("its pods", "v1", "Pod", all_running(NODES), seconds=SECONDS, namespace=namespace)
    took = time.monotonic() - began
    count = requests(kube) - before - rate * took
    places = Counter(item["spec"]["nodeName"] for item in pods.values())
    assert places == Counter(NAMES)
    record_property("seconds", round(took, 1))
    record_property("requests", round(count))
    print(f"{kind}: {NODES} pods run after {took:.1f} s, {count:.0f} API requests, {count / NODES:.1f} a pod")
    assert REQUESTS[0] * NODES < count < REQUESTS[1] * NODES


def test_a_65th_pod_waits(kube: Kube, namespace: str) -> None:
    """With 8 GPUs on each of 64 nodes there is no room for one more: the scheduler counts GPUs."""
    spec = {"replicas": NODES + 1, "podManagementPolicy": "Parallel", "serviceName": "gpu-accept"}
    kube.apply(workload("StatefulSet", namespace, template=pod(GPUS), **spec))
    kube.wait("64 pods", "v1", "Pod", all_running(NODES), seconds=SECONDS, namespace=namespace)

    def refused(seen: dict[str, Any]) -> str | None:
        waiting = [item for item in seen.values() if item["status"].get("phase") == "Pending"]
        reasons = [one.get("message", "") for item in waiting for one in item["status"].get("conditions", [])]
        insufficient = any("Insufficient nvidia.com/gpu" in reason for reason in reasons)
        return None if len(waiting) == 1 and insufficient else f"{len(waiting)} wait: {reasons}"

    kube.wait("one pod without room", "v1", "Pod", refused, seconds=SECONDS, namespace=namespace)


def test_pods_of_others_stay_away(kube: Kube, namespace: str) -> None:
    """A pod without the toleration is not placed on a simulated node, although it asks for one."""
    alone = {"apiVersion": "v1", "kind": "Pod", **pod(1)}
    alone["metadata"] = {"name": "stranger", "namespace": namespace}
    alone["spec"] = {key: value for key, value in alone["spec"].items() if key != "tolerations"}
    kube.apply(alone)

    def refused(seen: dict[str, Any]) -> str | None:
        conditions = seen.get("stranger", {}).get("status", {}).get("conditions", [])
        messages = [one.get("message", "") for one in conditions if one.get("reason") == "Unschedulable"]
        return None if any("taint" in text for text in messages) else f"it says {messages}"

    kube.wait("the refusal", "v1", "Pod", refused, seconds=60, namespace=namespace)
    assert "nodeName" not in kube.objects("v1", "Pod", namespace)[0]["spec"]
