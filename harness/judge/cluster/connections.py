"""Find the ranks and the node that are responsible for failed connections.

Inside the pods, only rank 0 compares results from several ranks. If the other pods cannot reach rank 0, each
pod reports only its own results. The judge has the results from all pods, and the API objects show which node
has a given IP address.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from harness.core.causes import CauseId
from harness.evidence.kubernetes.objects import Pod, items, mapping
from harness.evidence.schema.netcheck import NetcheckCell, NetcheckDiagnosis
from harness.judge.case import Case
from harness.workers.netcheck.conclude import PLACED
from harness.workers.netcheck.finding import CAUSES, STEPS
from harness.workers.netcheck.matrix import classify

CAUSES_OF_SENDERS: dict[str, CauseId] = {"tcp.denied": "tcp.denied", "tcp.no_route": "tcp.no_route"}
"""Connection errors that a pod's own kernel can return before a packet leaves the pod, with their causes."""
Pair = tuple[int, int]
"""The node indexes of the connecting pod and the target pod."""


@dataclass(frozen=True)
class Culprit:
    """The pods that caused connections to fail. `nodes` contains their node indexes.

    `text` describes what all failures have in common, or is "". `instead` is the cause to report for
    connections that received no response. If a node rejected other connections, `instead` is tcp.rejected,
    because kernels rate-limit the ICMP messages that reject a connection. If the pods' own kernels refuse to
    send packets, `instead` is the cause of that error, because these pods cannot send responses either.
    """

    nodes: list[int]
    text: str
    instead: CauseId | None = None


def culprit(case: Case, cause: str, diagnoses: Mapping[int, NetcheckDiagnosis]) -> Culprit | None:
    """Return the pods that caused the failures, or None if the diagnoses are equally precise.

    `diagnoses` maps each node index to the diagnosis from its pod.
    """
    if cause not in PLACED:
        return None
    cells = _cells(diagnoses)
    step = STEPS.index(CAUSES[cause])
    same_step = {c for c in PLACED if CAUSES[c] == CAUSES[cause]}
    failed_cells = {pair: cell for pair, cell in cells.items() if cell.outcome in same_step}
    passed_cells = {pair for pair, cell in cells.items() if _past(cell, step)}
    nodes = {index: str(pod.node or "") for index, pod in case.pods.items()}
    patterns = classify(failed_cells, passed_cells, nodes)
    accused = {rank for pattern in patterns for rank in pattern.accused}
    rejecting = {_node_of(case, cell.sender) for cell in failed_cells.values() if cell.sender}
    if len(rejecting) == 1 and (node := next(iter(rejecting))):
        # A healthy pod on that node can also have failed connections, but it is not in `accused`.
        on_node = {index for index in accused if nodes.get(index) == node}
        senders = ", ".join(sorted({cell.sender for cell in failed_cells.values() if cell.sender}))
        if on_node:
            text = f"the node {node} has the address that rejects the connections ({senders})"
            return Culprit(sorted(on_node), text, "tcp.rejected")
    if (own := _own_error(accused, cells)) is not None:
        text = f"packets fail in the sender's own pod: {own.text}".removesuffix(": ")
        return Culprit(sorted(accused), text, CAUSES_OF_SENDERS[own.outcome])
    if not accused or all(one.whole and len(one.rows) == one.nodes for one in diagnoses.values()):
        return None
    machines = {pattern.machine for pattern in patterns}
    shared = next(iter(machines)) if len(machines) == 1 else ""
    return Culprit(sorted(accused), f"all failing pairs share the node {shared}" if shared else "")


def _own_error(accused: Collection[int], cells: Mapping[Pair, NetcheckCell]) -> NetcheckCell | None:
    """Return the error with which the accused pods' own kernels refused all their connections, or None."""
    own_cells = [cell for (sender, _), cell in cells.items() if sender in accused]
    senders = {sender for sender, _ in cells}
    outcomes = {cell.outcome for cell in own_cells}
    if (
        not own_cells
        or not senders.issuperset(accused)
        or len(outcomes) > 1
        or any(cell.sender for cell in own_cells)
    ):
        return None
    return own_cells[0] if outcomes <= CAUSES_OF_SENDERS.keys() else None


def _cells(diagnoses: Mapping[int, NetcheckDiagnosis]) -> dict[Pair, NetcheckCell]:
    """Map each pair of pods to the result of its connection, preferably as reported by the connecting pod."""
    cells: dict[Pair, NetcheckCell] = {}
    for one in diagnoses.values():
        cells.update({(s, r): cell for s, row in one.rows.items() for r, cell in row.items() if s != r})
    for index, one in diagnoses.items():
        cells.update({(index, r): cell for r, cell in one.rows.get(index, {}).items() if r != index})
    return cells


def _past(cell: NetcheckCell, step: int) -> bool:
    if cell.outcome not in CAUSES:
        return cell.outcome == "ok"
    return STEPS.index(CAUSES[cell.outcome]) > step


def _node_of(case: Case, address: str) -> str:
    """Return the node that has the IP address, or whose pod network contains it, or "" if unknown."""
    for pod in case.pods.values():
        if pod.node and address in _host_addresses(pod) | pod.addresses:
            return pod.node
    for states in case.bundle.objects("node").values():
        node = states[-1]
        own = {str(each.get("address")) for each in items(node.object, "status", "addresses")}
        spec = mapping(node.object, "spec")
        ranges = [*(spec.get("podCIDRs") or []), spec.get("podCIDR")]
        if address in own or any(_within(address, str(range_)) for range_ in ranges if range_):
            return node.name
    return ""


def _host_addresses(pod: Pod) -> set[str]:
    status = mapping(pod.last.object, "status")
    return {str(status.get("hostIP"))} | {str(each.get("ip")) for each in items(status, "hostIPs")}


def _within(address: str, network: str) -> bool:
    try:
        return ipaddress.ip_address(address) in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False
