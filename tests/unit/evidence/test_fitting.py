"""Why a pod fits on no node: told only when no node could ever take it, and then with what each lacks."""

from decimal import Decimal
from typing import Any

import pytest

from harness.evidence.kubernetes.unschedulable import exclusions, never_fits, quantity, requests


def node(name: str, cpu: str = "2", memory: str = "8Gi", **spec: Any) -> dict[str, Any]:
    labels = spec.pop("labels", {})
    allocatable = {"cpu": cpu, "memory": memory, "pods": "110", **spec.pop("has", {})}
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": spec,
        "status": {"allocatable": allocatable},
    }


def pod(cpu: str = "1", memory: str = "2Gi", **spec: Any) -> dict[str, Any]:
    requests = {"cpu": cpu, "memory": memory, **spec.pop("asks", {})}
    return {"spec": {"containers": [{"resources": {"requests": requests}}], **spec}}


CONTROL = node("cp", taints=[{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}])
TAINT = {"key": "team", "value": "other", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("of", "nodes", "reason"),
    [
        (
            pod("2500m"),
            [CONTROL, node("a"), node("b")],
            "a pod requests 2.5 cpu; the most that a node has is 2",
        ),
        (pod(memory="29Gi"), [CONTROL, node("a")], "29Gi memory; the most that a node has is 8Gi"),
        (
            pod(asks={"hugepages-2Mi": "32Mi"}),
            [node("a")],
            "a pod requests 32Mi hugepages-2Mi; no node has any",
        ),
        (
            pod(memory="8589934593"),
            [node("a")],
            "requests 8589934593 memory; the most that a node has is 8589934592",
        ),
        (
            pod(overhead={"cpu": "1500m"}),
            [node("a")],
            "a pod requests 2.5 cpu; the most that a node has is 2",
        ),
        (pod(asks={"nvidia.com/gpu": 8}), [node("a")], "a pod requests 8 nvidia.com/gpu; no node has any"),
        (pod(nodeSelector={"gpu": "h100"}), [node("a", labels={"gpu": "a100"})], "the label gpu=h100"),
        (
            pod(),
            [CONTROL, node("a", unschedulable=True), node("b", unschedulable=True)],
            "cp has the taint node-role.kubernetes.io/control-plane:NoSchedule; a and b are cordoned",
        ),
        (pod(), [node("a", taints=[TAINT]), node("b", taints=[TAINT])], "a and b have the taint team=other"),
        (pod("3"), [node("a"), node("b", "4", unschedulable=True)], "a has 2 cpu; b is cordoned"),
    ],
)
def test_what_no_node_has(of: dict[str, Any], nodes: list[dict[str, Any]], reason: str) -> None:
    assert reason in (never_fits(of, nodes) or "")


@pytest.mark.parametrize(
    ("of", "nodes"),
    [
        (pod(), [CONTROL, node("a")]),
        (pod(), []),
        (pod(tolerations=[{"operator": "Exists"}]), [node("a", taints=[TAINT])]),
        (pod(tolerations=[{"key": "team", "value": "other"}]), [node("a", taints=[TAINT])]),
        (pod(), [node("a", taints=[{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}])]),
        (pod(), [node("a", taints=[{**TAINT, "effect": "PreferNoSchedule"}])]),
        (pod(nodeSelector={"gpu": "h100"}), [CONTROL, node("a", labels={"gpu": "h100"})]),
    ],
)
def test_a_node_that_may_take_it_later(of: dict[str, Any], nodes: list[dict[str, Any]]) -> None:
    """Full, not ready just now, or tolerated: the scheduler may still find a place."""
    assert never_fits(of, nodes) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("500m", "0.5"),
        ("2", "2"),
        ("1Ki", "1024"),
        ("1.5Gi", "1610612736"),
        ("1e3", "1000"),
        ("x", "0"),
        (8, "8"),
    ],
)
def test_kubernetes_quantities_become_decimal_numbers(text: object, value: str) -> None:
    assert quantity(text) == Decimal(value)


def required(*terms: dict[str, Any]) -> dict[str, Any]:
    wanted = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return pod(affinity={"nodeAffinity": wanted})


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, **({"values": list(values)} if values else {})}


@pytest.mark.parametrize(
    ("terms", "fits"),
    [
        ([{"matchExpressions": [expression("gpu", "In", "h100", "h200")]}], True),
        ([{"matchExpressions": [expression("gpu", "In", "a100")]}], False),
        ([{"matchExpressions": [expression("gpu", "NotIn", "a100")]}], True),
        ([{"matchExpressions": [expression("absent", "NotIn", "a100")]}], True),
        ([{"matchExpressions": [expression("gpu", "Exists")]}], True),
        ([{"matchExpressions": [expression("absent", "Exists")]}], False),
        ([{"matchExpressions": [expression("absent", "DoesNotExist")]}], True),
        ([{"matchExpressions": [expression("count", "Gt", "7")]}], True),
        ([{"matchExpressions": [expression("count", "Gt", "8")]}], False),
        ([{"matchExpressions": [expression("count", "Lt", "9")]}], True),
        ([{"matchExpressions": [expression("gpu", "Gt", "7")]}], False),
        ([{"matchExpressions": [expression("gpu", "Exists"), expression("absent", "Exists")]}], False),
        ([{"matchExpressions": [expression("absent", "Exists")]}, {"matchFields": [
            expression("metadata.name", "In", "a")]}], True),
        ([{"matchFields": [expression("metadata.name", "In", "b")]}], False),
        ([{}], False),
    ],
)  # fmt: skip
def test_node_affinity_by_the_rules_of_the_scheduler(terms: list[dict[str, Any]], fits: bool) -> None:
    """Contract: terms are alternatives, all requirements of one must hold, and an empty term meets no node.

    Source: "Assigning Pods to Nodes" of the Kubernetes documentation.
    """
    there = node("a", labels={"gpu": "h100", "count": "8"})
    assert (exclusions(required(*terms), there) == []) is fits
    assert (never_fits(required(*terms), [there]) is None) is fits


def test_preferred_affinity_keeps_no_pod_away() -> None:
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}]}
    assert exclusions(pod(affinity={"nodeAffinity": preferred}), node("a")) == []


@pytest.mark.parametrize(
    ("toleration", "suffix"),
    [
        (
            {"key": "team", "value": "mine", "effect": "NoSchedule"},
            " (the pod tolerates team=mine:NoSchedule)",
        ),
        ({"key": "team", "operator": "Exists", "effect": "NoExecute"}, " (the pod tolerates team:NoExecute)"),
        ({"key": "team", "value": "mine"}, " (the pod tolerates team=mine)"),
        ({"key": "another", "operator": "Exists"}, ""),
    ],
)
def test_a_toleration_with_the_same_key_is_mentioned(toleration: Any, suffix: str) -> None:
    """Contract: charts tolerate `nvidia.com/gpu=present`, and the nodes of others have `=true`."""
    taint = "has the taint team=other:NoSchedule"
    assert exclusions(pod(tolerations=[toleration]), node("a", taints=[TAINT])) == [f"{taint}{suffix}"]


def test_another_toleration_that_fits_counts() -> None:
    both = [{"key": "team", "value": "mine"}, {"key": "team", "value": "other"}]
    assert exclusions(pod(tolerations=both), node("a", taints=[TAINT])) == []


def test_requests_of_a_pod_include_its_sidecars() -> None:
    """Contract: a native sidecar runs beside the trainer; another init container before it."""

    def asks(cpu: str, **of: str) -> dict[str, object]:
        return {"resources": {"requests": {"cpu": cpu}}, **of}

    sidecar = asks("1", restartPolicy="Always")
    trainer = asks("2")
    assert requests({"spec": {"containers": [trainer], "initContainers": [asks("1"), sidecar]}}) == {"cpu": 3}
    assert requests({"spec": {"containers": [trainer], "initContainers": [sidecar, asks("4")]}}) == {"cpu": 5}
    assert requests({"spec": {"containers": [trainer], "initContainers": [asks("4"), sidecar]}}) == {"cpu": 4}
    assert requests({"spec": {"containers": [trainer]}}) == {"cpu": 2}
