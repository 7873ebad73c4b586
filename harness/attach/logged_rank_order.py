"""Determine which ranks each pod of a job has, if the rank order differs from the pod order.

The first available source is used: the rendezvous in torchrun's logs, the lines written by injected
recorders, the process group in the logs of gloo or NCCL, torchrun's report about a failed rank, or RANK in
the environment of pods without a launcher.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from harness.attach import pod_variables, rank_count
from harness.attach.recorder_lines import recorded_world
from harness.core.kubernetes import Object
from harness.evidence import process_group_logs
from harness.evidence.io.reader import Bundle
from harness.evidence.kubernetes.objects import mapping
from harness.evidence.schema.bundle import Expected
from harness.evidence.torchrun_logs import LoggedRanks


@dataclass(frozen=True)
class RankOrder:
    """The known positions of pods in the rank order. All other pods get the remaining positions."""

    known: dict[int, int] = field(default_factory=dict)
    """Maps the index of a pod to its position in the rank order."""
    text: str = ""
    """A clause that names the source of the order, or explains why the order is unknown. Empty if the rank
    order is the pod order."""
    contradiction: str = ""
    """A clause that names pods with the same rank, or a rank that is too high for the job's world size. Empty
    if the ranks do not contradict each other."""


def logged(
    bundle: Bundle, container: str, read: Callable[[Iterable[bytes]], LoggedRanks | None]
) -> dict[str, LoggedRanks]:
    """Return the ranks that `read` finds in each pod's log, keyed by pod index."""
    by_index = {str(index): read(bundle.log_lines(path)) for index, path in _logs(bundle, container).items()}
    return {index: each for index, each in by_index.items() if each is not None}


def _logs(bundle: Bundle, container: str) -> dict[int, str]:
    """Return the path of each pod's log in the bundle, keyed by pod index."""
    return {index: bundle.log(pod.name, container) for index, pod in bundle.pods().items()}


def recorded(bundle: Bundle, container: str, nonces: Iterable[str]) -> dict[str, LoggedRanks]:
    """Return the ranks whose injected recorders wrote to each pod's log, keyed by pod index.

    Returns {} unless all summaries in the logs contain the same world size.
    """
    ranks, worlds = dict[str, set[int]](), set[int | None]()
    for index, path in _logs(bundle, container).items():
        own_ranks, of_pod = recorded_world(bundle.log_lines(path), nonces)
        worlds |= of_pod
        ranks |= {str(index): own_ranks} if own_ranks else {}
    world = worlds.pop() if len(worlds) == 1 else None
    if world is None:
        return {}
    return {
        index: LoggedRanks(min(own) // len(own), tuple(sorted(own)), world) for index, own in ranks.items()
    }


def of_logs(logs: dict[str, LoggedRanks], nodes: int, source: str = "torchrun's log") -> RankOrder:
    """Return the rank order that `logs` show. `source` is a description of the logs."""
    return _of_logs({int(index): each.group_rank for index, each in logs.items()}, nodes, source)


def of_pods(bundle: Bundle, pods: Sequence[Object], container: str, expected: Expected) -> RankOrder:
    """Return the rank order of a job whose logs do not contain a torchrun rendezvous."""
    nodes, per_pod = expected.num_nodes, expected.ranks // expected.num_nodes
    in_group = logged(bundle, container, process_group_logs.logged)
    agreed = rank_count.agreed(in_group, nodes)
    if agreed is not None and agreed.per_pod == per_pod and expected.ranks_given:
        places = {int(index): each.group_rank for index, each in in_group.items()}
        return _of_logs(places, nodes, "the process group in the logs")
    if not any(rank_count.launched(pod, container) for pod in pods):
        return _of_variables(bundle, pods, container, expected)
    if not expected.ranks_given:
        return RankOrder()
    places = {
        index: place
        for index, path in _logs(bundle, container).items()
        if (place := rank_count.reported(bundle.log_lines(path), per_pod)) is not None
    }
    return _of_logs(places, nodes, "torchrun's log")


def _of_logs(positions: dict[int, int], nodes: int, source: str) -> RankOrder:
    if rank_count.whole_order(positions, nodes) is None:
        return RankOrder()
    text = f"the order of ranks is taken from {source}"
    text += "" if len(positions) >= nodes - 1 else f", which shows {len(positions)} of {nodes} pods"
    return RankOrder(positions, text)


def _of_variables(bundle: Bundle, pods: Sequence[Object], container: str, expected: Expected) -> RankOrder:
    """Return the rank order given by RANK in the pods. Without a launcher, RANK is the process's rank."""
    ranks = {str(mapping(pod, "metadata").get("name")): pod_variables.rank(pod, container) for pod in pods}
    by_index = {
        index: rank for index, pod in bundle.pods().items() if (rank := ranks.get(pod.name)) is not None
    }
    if not by_index:
        if any(pod_variables.has_rank(pod, container) for pod in pods):
            return RankOrder(
                text="the value of RANK is not in the pods' specs, so each pod's rank is assumed to be its "
                "index"
            )
        return RankOrder()
    nodes, per_pod = expected.num_nodes, expected.ranks // expected.num_nodes
    duplicates = [rank for rank, count in Counter(by_index.values()).items() if count > 1]
    if duplicates:
        names = sorted(
            pod.name for index, pod in bundle.pods().items() if by_index.get(index) == duplicates[0]
        )
        return RankOrder(
            contradiction=f"RANK is {duplicates[0]} in {len(names)} pods ({', '.join(names[:3])})"
        )
    if max(by_index.values()) >= expected.ranks:
        high = max(by_index.values())
        return RankOrder(contradiction=f"RANK is {high} in a pod, but WORLD_SIZE is {expected.ranks}")
    if max(by_index.values()) >= nodes:  # Here, RANK is the rank of the pod's first process.
        by_index = {index: rank // per_pod for index, rank in by_index.items()}
    text = "the pods are ordered by their RANK variable"
    return RankOrder(by_index, text if rank_count.whole_order(by_index, nodes) is not None else "")
