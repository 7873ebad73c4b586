"""Judge whether the nodes could provide the GPUs that a launch's pods request, and if not, why.

Possible reasons on a node are unhealthy GPUs, a device plugin that is not running, GPUs that are split or
shared, and GPUs under another resource name. pod_start.py handles GPUs that other pods use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from harness.core.causes import CauseId
from harness.evidence.kubernetes import gpu_nodes
from harness.evidence.kubernetes.objects import ObjectState, items, mapping
from harness.evidence.kubernetes.unschedulable import accepts, by_reason, requests
from harness.judge.case import Case
from harness.judge.cluster import kubelet_rejections


@dataclass(frozen=True)
class Supply:
    """The reasons why pods cannot get GPUs. `nodes` maps the name of each affected node to the reason."""

    cause: CauseId
    nodes: dict[str, gpu_nodes.Shortage]

    @property
    def text(self) -> str:
        """Return one sentence with the reasons and the nodes that they apply to."""
        return by_reason((name, [one.text]) for name, one in sorted(self.nodes.items()))

    @property
    def advice(self) -> str:
        """Return advice on the first node with the supply's cause, or "" if the cause's action suffices."""
        own = (one.advice for _, one in sorted(self.nodes.items()) if one.cause == self.cause)
        return next(own, "")


def of_pods(case: Case, pods: Iterable[ObjectState]) -> Supply | None:
    """Return the reasons why no eligible node can ever provide the GPUs that a pod requests, or None."""
    nodes = [states[-1] for states in case.bundle.objects("node").values()]
    by_node: dict[str, gpu_nodes.Shortage] = {}
    for pod in pods:
        requested = gpu_nodes.requested_gpus(requests(pod.object))
        eligible = [node for node in nodes if accepts(pod.object, node.object)]
        shortages = {
            node.name: shortage
            for node in eligible
            for resource, amount in requested.items()
            if (shortage := gpu_nodes.shortage(node.object, resource, amount)) is not None
        }
        # A node that merely has no GPUs, or too few, is not reported as a reason.
        reasons = {name: shortage for name, shortage in shortages.items() if not shortage.small}
        if len(shortages) == len(eligible):
            by_node.update(reasons)
    return _supply(by_node)


@dataclass(frozen=True)
class Rejection:
    """A pod rejected by its node's kubelet. `index` is the node index, or None if the index is unknown."""

    state: ObjectState
    why: gpu_nodes.Shortage
    index: int | None


def rejections(case: Case) -> dict[str, Rejection]:
    """Map each node to the last pod that was rejected by the node's kubelet and never started.

    The DaemonSet controller replaces such a pod, and the kubelet rejects the replacement too.
    """
    by_node: dict[str, Rejection] = {}
    for index, states in _never_started(case):
        for state in states:
            if (rejection := gpu_nodes.rejection(state.object)) is not None:
                by_node[_node(state)] = Rejection(state, rejection, index)
    return by_node


def rejected(case: Case) -> Supply | None:
    """Return the nodes whose kubelets rejected the launch's pods, or None if there are none."""
    return _supply({node: one.why for node, one in rejections(case).items()})


def advice_on(case: Case, supply: Supply) -> str:
    """Return advice on the nodes in `supply`, or on a pod that a kubelet rejected, or ""."""
    if supply.cause != "scheduling.not_started":
        return supply.advice
    pods = (one.state.object for one in rejections(case).values() if one.why.cause == supply.cause)
    return next(map(kubelet_rejections.advice, pods), "")


def of_nodes(case: Case, names: Collection[str]) -> Supply | None:
    """Return the reasons why the named nodes cannot provide GPUs to the launch's pods, or None."""
    pods = [states[-1].object for _, states in _never_started(case)]
    requested = gpu_nodes.requested_gpus(requests(pods[0])) if pods else {}
    states = {states[-1].name: states[-1] for states in case.bundle.objects("node").values()}
    by_node = {
        name: shortage
        for name in names
        for resource, amount in requested.items()
        if name in states
        and (shortage := gpu_nodes.shortage(states[name].object, resource, amount)) is not None
    }
    return _supply(by_node | {node: one.why for node, one in rejections(case).items() if node in names})


def _never_started(case: Case) -> list[tuple[int | None, Sequence[ObjectState]]]:
    """Return (node index, states) for each pod that never started.

    The index is None for a DaemonSet's pods, because such a pod has no index until it has an IP address.
    """
    if case.launch.kind != "DaemonSet":
        return [
            (index, pod.history)
            for index, pods in case.pod_attempts.items()
            if not case.started(index)
            for pod in pods
        ]
    started_nodes = {pod.node for index, pod in case.pods.items() if case.started(index)}
    own = [
        states
        for states in case.bundle.objects("pod").values()
        if any(
            one.get("uid") == case.launch.uid
            for one in items(states[-1].object, "metadata", "ownerReferences")
        )
    ]
    return [(None, states) for states in own if _node(states[-1]) not in started_nodes]


def _node(pod: ObjectState) -> str:
    return str(mapping(pod.object, "spec").get("nodeName") or assigned_node(pod) or "")


def parts(case: Case) -> dict[str, gpu_nodes.Parts]:
    """Map each node with shared or split GPUs to a description. Return {} if no pod requests GPUs."""
    if not any(gpu_nodes.requested_gpus(requests(pod.last.object)) for pod in case.pods.values()):
        return {}
    states = [states[-1] for states in case.bundle.objects("node").values()]
    return {state.name: one for state in states if (one := gpu_nodes.parts(state.object)) is not None}


def assigned_node(pod: ObjectState) -> str | None:
    """Return the node that the DaemonSet controller chose for a pod, even before the pod is scheduled."""
    affinity = mapping(pod.object, "spec", "affinity", "nodeAffinity").get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    for term in mapping(affinity).get("nodeSelectorTerms") or []:
        for field in mapping(term).get("matchFields") or []:
            values = mapping(field).get("values") or []
            if mapping(field).get("key") == "metadata.name" and len(values) == 1:
                return str(values[0])
    return None


def _supply(by_node: dict[str, gpu_nodes.Shortage]) -> Supply | None:
    if not by_node:
        return None
    causes = Counter(one.cause for one in by_node.values())
    return Supply(causes.most_common(1)[0][0], by_node)
