"""Why the ranks never met: what was seen inside their containers when their time for it was over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from harness.evidence import torchrun
from harness.evidence.schema import Inspection
from harness.evidence.torchrun import Agent
from harness.verdict.case import Case, Finding, found, names
from harness.verdict.ends import End
from workers import truth_frames


@dataclass(frozen=True)
class Node:
    """A node of the job as it was seen. No agent: no torchrun ran in its pod."""

    index: int
    ranks: list[int]
    place: str
    ref: str | None
    seen: Inspection | None
    agent: Agent | None

    @property
    def reached(self) -> bool:
        """Whether it had a connection to the port at which it was to meet the others."""
        if self.agent is None or self.seen is None:
            return False
        return any(other.endswith(f":{self.agent.port}") for other in self.seen.connected)


def _nodes(case: Case) -> list[Node]:
    seen = {one.pod: (line, one) for line, one in case.bundle.inspections()}
    nodes = []
    for index in range(case.expected.num_nodes):
        pod = case.pods.get(index)
        line, one = seen.get(pod.name if pod else "", (0, None))
        agents = torchrun.agents(one) if one else []
        ref = f"inspections.jsonl:{line}" if one else None
        place = case.place(index)
        nodes.append(Node(index, case.ranks_of(index), place, ref, one, agents[0] if agents else None))
    return nodes


def never_met(case: Case, ends: dict[int, End]) -> Finding | None:
    """Check `rendezvous`, when a torchrun was seen waiting; None when none was, or nobody looked."""
    nodes = _nodes(case)
    waiting = [node for node in nodes if node.agent and not node.agent.workers]
    if not waiting:
        return None
    refs = [node.ref for node in nodes if node.ref]
    for judge in (_nobody, _dns, _tcp, _id, _size):
        told = judge(case, nodes, waiting, ends)
        if told is not None:
            cause, guilty, text = told
            ranks = [rank for node in guilty for rank in node.ranks]
            return found("rendezvous", cause, text, ranks=ranks, evidence=refs)
    ranks = [rank for node in waiting for rank in node.ranks]
    text = f"{names(ranks)} did not meet at {_where(waiting[0])}, with no difference between them to be seen"
    return found("rendezvous", "rendezvous.timeout", text, ranks=ranks, evidence=refs)


Told = tuple[str, list[Node], str] | None
_Judge = Callable[[Case, list[Node], list[Node], dict[int, End]], Told]


def _where(node: Node) -> str:
    return f"{node.agent.host}:{node.agent.port}" if node.agent else "?"


def _who(nodes: Iterable[Node]) -> str:
    return names(rank for node in nodes for rank in node.ranks)


def _nobody(_case: Case, nodes: list[Node], waiting: list[Node], ends: dict[int, End]) -> Told:
    """Process: a pod in which no torchrun runs."""
    gone = [node for node in nodes if node.agent is None and (node.seen is None or not node.seen.error)]
    if not gone:
        return None
    parts = []
    for node in gone[:4]:
        if node.seen is None:
            state = ends[node.index].state if node.index in ends else "unknown"
            parts.append(f"{node.place}: its pod {'had ended' if state == 'succeeded' else f'is {state}'}")
            continue
        commands = [" ".join(process.command) for process in node.seen.processes]
        own = [command[:80] for command in commands if command and not command.startswith("bash -c")]
        parts.append(f"{node.place}: no torchrun runs there, only {', '.join(own[:3]) or 'a shell'}")
    text = f"{_who(gone)} never came to the rendezvous, {_who(waiting)} waited at {_where(waiting[0])}. "
    return "rendezvous.process_missing", gone, text + "; ".join(parts)


def _dns(_case: Case, _nodes: list[Node], waiting: list[Node], _ends: dict[int, End]) -> Told:
    """DNS: the host of the rendezvous has no address in a container."""
    blind = [n for n in waiting if n.seen and n.agent and n.seen.resolved.get(n.agent.host) == []]
    blind = [node for node in blind if not node.reached]
    if not blind:
        return None
    text = f"{_who(blind)} could not resolve {blind[0].agent.host if blind[0].agent else '?'} (DNS failed)"
    return "rendezvous.dns", blind, f"{text}: {'; '.join(node.place for node in blind[:4])}"


def _tcp(_case: Case, nodes: list[Node], waiting: list[Node], _ends: dict[int, End]) -> Told:
    """TCP: no connection to the port of the rendezvous."""
    apart = [node for node in waiting if node.seen and not node.seen.error and not node.reached]
    if not apart:
        return None
    first = apart[0]
    address = (first.seen.resolved.get(first.agent.host) or ["?"]) if first.seen and first.agent else ["?"]
    text = f"{_who(apart)} had no connection to {_where(first)} (address {address[0]}; TCP failed)"
    others = [node for node in nodes if node.agent and node not in apart]
    if others and _where(others[0]) != _where(first):
        text += f", while {_who(others)} used {_where(others[0])}"
    return "rendezvous.unreachable", apart, f"{text}: {'; '.join(node.place for node in apart[:4])}"


def _id(_case: Case, _nodes: list[Node], waiting: list[Node], _ends: dict[int, End]) -> Told:
    """Rendezvous id: they reach one place and look for others under different names."""
    ids = {node.index: node.agent.rendezvous_id for node in waiting if node.agent}
    common = _common(list(ids.values()))
    odd = [node for node in waiting if ids.get(node.index) != common]
    if not odd:
        return None
    text = f"{_who(odd)} came to {_where(odd[0])} with rendezvous id {ids[odd[0].index]}, "
    text += f"the others with {common}: {'; '.join(node.place for node in odd[:4])}"
    return "rendezvous.id_mismatch", odd, text


def _size(case: Case, _nodes: list[Node], waiting: list[Node], _ends: dict[int, End]) -> Told:
    """World size: torchrun expects other nodes than the job has."""
    nodes = case.expected.num_nodes
    odd = [node for node in waiting if node.agent and node.agent.nodes != str(nodes)]
    if not odd:
        return None
    text = (
        f"{_who(odd)} expected {odd[0].agent.nodes if odd[0].agent else '?'} nodes (--nnodes), the job has "
    )
    return "rendezvous.world_size", odd, f"{text}{nodes}: {'; '.join(node.place for node in odd[:4])}"


def _common(values: list[str]) -> str:
    """The most frequent one; of several, the one of the first node, which is the host."""
    return Counter(values).most_common(1)[0][0] if values else ""


def too_many(case: Case) -> Finding | None:
    """Check `rendezvous`, when ranks took part that the job does not have."""
    path = f"truth/{case.expected.ranks}.jsonl"
    if not case.bundle.has(path):
        return None
    text = f"More than the {case.expected.ranks} ranks of the job took part"
    for index, pod in case.pods.items():
        log = case.bundle.log(pod.name, case.launch.container)
        lines = (line.decode(errors="replace") for _, line in case.bundle.lines(log))
        ranks = {int(frame["r"]) for frame in truth_frames.decode(case.manifest.nonce, lines)}
        if len(ranks) > case.per_node:
            text += f": {names(ranks)} ran in one pod, {case.per_node} of them expected ({case.place(index)})"
            return found("rendezvous", "rendezvous.world_size", text, ranks=ranks, evidence=[log, path])
    return found("rendezvous", "rendezvous.world_size", text, ranks=[case.expected.ranks], evidence=[path])
