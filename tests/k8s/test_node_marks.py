"""Nodes of a real cluster are marked with the verdict of their acceptance, and restored."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from harness.core.kubernetes import Kube, condition
from harness.provision.cluster import Ready
from harness.provision.node_marks import LABEL, TAINT, mark, undo

pytestmark = pytest.mark.acceptance
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "kept-off", "namespace": "default"},
    "spec": {"containers": [{"name": "none", "image": "registry.invalid/none"}]},
}


def own(node: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Return all of a node that people and the harness write."""
    metadata = node["metadata"]
    return metadata.get("labels"), metadata.get("annotations"), node["spec"]


def nodes(kube: Kube) -> dict[str, dict[str, Any]]:
    return {node["metadata"]["name"]: node for node in kube.objects("v1", "Node")}


@pytest.fixture
def kube(cluster: Ready) -> Iterator[Kube]:
    yield cluster.kube
    undo(cluster.kube)


def test_marks_are_seen_and_taken_back(kube: Kube) -> None:
    """Contract: after undo every node is what it was, to the last label, annotation and taint."""
    before = {name: own(node) for name, node in nodes(kube).items()}
    names = sorted(before)
    verdicts: Any = dict(zip(names, ["FAIL", "PASS", "WARN"], strict=False))
    done = mark(kube, verdicts | {"no-such-node": "FAIL"}, taint=True)
    assert done.changed == list(verdicts)
    assert done.absent == ["no-such-node"]
    now = nodes(kube)
    assert {name: now[name]["metadata"]["labels"][LABEL] for name in verdicts} == verdicts
    taints = [one for one in now[names[0]]["spec"]["taints"] if one["key"] == TAINT]
    assert taints == [{"key": TAINT, "value": "FAIL", "effect": "NoSchedule"}]
    assert mark(kube, verdicts, taint=True).unchanged == list(verdicts)
    assert mark(kube, {names[0]: "PASS"}, taint=True).changed == [names[0]]
    assert undo(kube).changed == names[: len(verdicts)]
    assert {name: own(node) for name, node in nodes(kube).items()} == before
    assert undo(kube).changed == []


def test_new_pods_are_kept_off_a_node_that_failed(kube: Kube) -> None:
    """Contract: with all nodes failed the scheduler refuses because of taints; after undo it places."""
    mark(kube, dict.fromkeys(nodes(kube), "FAIL"), taint=True)
    try:
        kube.apply(POD)

        def refused(pods: dict[str, dict[str, Any]]) -> str | None:
            message = condition(pods.get("kept-off", {}), "PodScheduled").get("message", "")
            return None if "untolerated taint" in message else f"scheduler: {message!r}"

        def placed(pods: dict[str, dict[str, Any]]) -> str | None:
            return None if pods.get("kept-off", {}).get("spec", {}).get("nodeName") else "no node yet"

        kube.wait("the scheduler to refuse", "v1", "Pod", refused, seconds=60, namespace="default")
        undo(kube)
        kube.wait("the pod to get a node", "v1", "Pod", placed, seconds=60, namespace="default")
    finally:
        kube.delete("v1", "Pod", "kept-off", "default")


def test_others_that_write_at_the_same_time_lose_nothing(kube: Kube) -> None:
    """Contract: a label that somebody sets again and again is there with its last value, and so are ours."""
    name = sorted(nodes(kube))[-1]
    resource, written = kube.resource("v1", "Node"), 40

    def write() -> None:
        for number in range(written):
            body = {"metadata": {"labels": {"theirs": str(number)}}}
            resource.patch(body=body, name=name, content_type="application/merge-patch+json")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for verdict in ("FAIL", "PASS", "UNKNOWN", "FAIL"):
            mark(kube, {name: verdict}, taint=True)  # type: ignore[dict-item]
    finally:
        writer.join()
    labels = nodes(kube)[name]["metadata"]["labels"]
    assert (labels["theirs"], labels[LABEL]) == (str(written - 1), "FAIL")
    undo(kube)
    assert LABEL not in nodes(kube)[name]["metadata"]["labels"]
    resource.patch(
        body={"metadata": {"labels": {"theirs": None}}},
        name=name,
        content_type="application/merge-patch+json",
    )
