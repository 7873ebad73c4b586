"""Pods that test their nodes are over when each has ended, or never will. One alone ends nothing."""

from __future__ import annotations

from typing import Any

import pytest

from harness.core.kubernetes import Object
from harness.evidence.schema.bundle import Observation
from harness.observe import completion
from harness.observe.per_node_completion import IndependentPods


@pytest.fixture
def end(monkeypatch: pytest.MonkeyPatch) -> IndependentPods:
    """Three pods are expected; every state counts at once, but idleness."""
    monkeypatch.setattr(completion, "GRACE", dict.fromkeys(completion.GRACE, 0.0) | {"idle": 1e6})
    made = IndependentPods(launched="daemonset", kind="DaemonSet", keep_alive=True, members=3)
    tell(made, "daemonset", "gpu-accept")
    for name in ("a", "b", "c"):
        pod(made, name)
    return made


def tell(end: IndependentPods, kind: str, name: str, change: Any = "MODIFIED", **item: Any) -> None:
    made: Object = {"metadata": {"name": name, "uid": f"{kind}/{name}"}, "spec": {}, "status": {}, **item}
    end.observe(kind, Observation(received_at="2026-01-01T00:00:00Z", type=change, object=made))


def pod(end: IndependentPods, name: str, change: Any = "MODIFIED", **status: Any) -> None:
    tell(end, "pod", name, change, spec={"nodeName": f"node-{name}"}, status={"phase": "Running", **status})


def waiting(reason: str) -> dict[str, Any]:
    return {"containerStatuses": [{"state": {"waiting": {"reason": reason, "message": "why"}}}]}


STUCK = [
    waiting("ErrImagePull"),
    {"phase": "Failed"},
    {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "m"}]},
]


def test_every_pod_is_waited_for(end: IndependentPods) -> None:
    """Contract: it is over when the last command has ended, whatever the exit codes were."""
    for name in ("a", "b"):
        end.exited(name, 1)
        assert end.reason() is None
    end.exited("c", 0)
    assert end.reason() == "3 of 3 commands have ended"


@pytest.mark.parametrize("status", STUCK, ids=["image", "failed", "unschedulable"])
def test_a_pod_that_never_ends_stops_nobody(end: IndependentPods, status: dict[str, Any]) -> None:
    """Contract: the others are waited for, and then the reason names the one that is stuck."""
    pod(end, "c", **status)
    assert end.reason() is None
    end.exited("a", 0)
    end.exited("b", 0)
    reason = end.reason() or ""
    assert reason.startswith("2 of 3 commands have ended; c: ")


def test_pod_of_lost_node_is_not_waited_for(end: IndependentPods) -> None:
    """Contract: what its kubelet cannot tell will not come."""
    unreachable = [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]
    tell(end, "node", "node-c", status={"conditions": unreachable})
    end.exited("a", 0)
    end.exited("b", 0)
    assert end.reason() == "2 of 3 commands have ended; c: its node is not Ready"


def test_a_pod_that_is_made_again_must_end_again(end: IndependentPods) -> None:
    """Contract: the end of a deleted pod is not that of its successor."""
    for name in ("a", "b", "c"):
        end.exited(name, 0)
    pod(end, "c", "DELETED")
    assert end.reason() is None
    again = {"name": "c2", "uid": "pod/c2"}
    tell(end, "pod", "c2", metadata=again, status={"phase": "Running"})
    assert end.reason() is None
    end.exited("c2", 0)
    assert end.reason() is not None


def test_pod_that_is_not_there_yet_is_waited_for(end: IndependentPods) -> None:
    """Contract: two ends of two pods are not three, also when the third has not come."""
    pod(end, "c", "DELETED")
    end.exited("a", 0)
    end.exited("b", 0)
    assert end.reason() is None


def test_a_deleted_daemonset_is_the_end(end: IndependentPods) -> None:
    tell(end, "daemonset", "gpu-accept", "DELETED")
    assert end.reason() == "the DaemonSet was deleted"


def test_pods_that_are_refused_are_not_waited_for(end: IndependentPods) -> None:
    """Contract: the pods that were let in still end their command."""
    tell(end, "pod", "c", "DELETED")
    about = {"kind": "DaemonSet", "name": "gpu-accept"}
    event = {"type": "Warning", "reason": "FailedCreate", "involvedObject": about, "message": "no root here"}
    tell(end, "event", "e", **event, lastTimestamp="2026-01-01T00:00:05Z")
    end.exited("a", 0)
    assert end.reason() is None
    end.exited("b", 0)
    assert "no root here" in (end.reason() or "")


def test_node_rejecting_each_pod_is_not_awaited(end: IndependentPods) -> None:
    """Contract: the controller replaces rejected pods for ever (k8s-device-plugin #231)."""
    message = (
        "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices nvidia.com/gpu"
    )
    end.exited("a", 0)
    end.exited("b", 0)
    for number in (1, 2):
        metadata = {"name": f"c{number}", "uid": f"pod/c{number}"}
        status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": message}
        pod(end, "c", "DELETED")
        tell(end, "pod", "c", metadata=metadata, spec={"nodeName": "node-c"}, status=status)
        tell(end, "pod", "c", "DELETED", metadata=metadata, spec={"nodeName": "node-c"}, status=status)
        assert (end.reason() is None) == (number == 1)
    assert message in (end.reason() or "")
    tell(end, "pod", "c3", metadata={"name": "c3", "uid": "pod/c3"}, spec={"nodeName": "node-c"}, status={})
    assert message in (end.reason() or "")
