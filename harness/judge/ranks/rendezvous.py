"""Diagnose why the rendezvous failed, using container snapshots taken at the rendezvous deadline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from harness.core.causes import CauseId
from harness.core.proxies import is_loopback
from harness.evidence import torchrun_processes
from harness.evidence.kubernetes.objects import mapping
from harness.evidence.schema.bundle import ProbeResult, RendezvousSnapshot
from harness.evidence.torchrun_processes import Agent
from harness.judge import rank_words
from harness.judge.case import Case, names
from harness.judge.catalogue import CAUSES
from harness.judge.cluster import headless_service, pod_network, service_mesh
from harness.judge.cluster.headless_service import ServiceProblem
from harness.judge.finding import Finding, counted, listed, not_passed
from harness.judge.pod_end import End
from harness.judge.ranks import worlds
from harness.workers.ground_truth import truth_frames
from harness.workers.netcheck.torchrun_options import merged


@dataclass(frozen=True)
class Node:
    """One of the job's nodes at the time of the snapshot.

    `agent` is None if torchrun was not running in its pod.
    """

    index: int
    ranks: list[int]
    place: str
    ref: str | None
    snapshot: RendezvousSnapshot | None
    agent: Agent | None

    @property
    def host(self) -> str:
        return self.agent.host if self.agent else ""

    @property
    def where(self) -> str:
        """Return the rendezvous address used by torchrun on this node."""
        return f"{self.host}:{self.agent.port}" if self.agent else ""

    @property
    def addresses(self) -> list[str] | None:
        """Return the rendezvous host's addresses, [] if its name does not resolve, or None if unknown."""
        return self.snapshot.resolved.get(self.host) if self.snapshot else None

    @property
    def probe(self) -> ProbeResult | None:
        """Return netcheck's result for the rendezvous address in this container, or None."""
        return self.snapshot.asked.get(self.where) if self.snapshot else None

    def cause(self, families: tuple[str, ...], otherwise: CauseId) -> CauseId:
        """Return netcheck's cause if it starts with one of `families`, otherwise return `otherwise`."""
        outcome = self.probe.outcome if self.probe else ""
        return CAUSES[outcome].id if outcome in CAUSES and outcome.startswith(families) else otherwise

    @property
    def why(self) -> str:
        return f": {self.probe.text}" if self.probe and self.probe.outcome != "ok" else ""

    @property
    def reached(self) -> bool:
        """Return whether a process on the node had a connection to the rendezvous port."""
        if self.agent is None or self.snapshot is None:
            return False
        return any(other.endswith(f":{self.agent.port}") for other in self.snapshot.connected)


@dataclass(frozen=True)
class Scene:
    """All nodes of the job. `waiting` contains the nodes on which torchrun had not started a rank yet."""

    nodes: list[Node]
    waiting: list[Node]
    ends: dict[int, End]
    size: int
    """The job's number of nodes."""


_OF_CONNECTIONS = ("tcp.", "rendezvous.unreachable", "rendezvous.timeout")
"""Beginnings of the causes that the proxy of a service mesh can explain."""
Diagnosis = tuple[CauseId, list[Node], str] | None
"""A detected problem as (cause, affected nodes, sentence), or None if no problem was detected."""


def diagnose_rendezvous(case: Case, ends: dict[int, End]) -> Finding | None:
    """Return the `rendezvous` finding if a torchrun agent was waiting for the rendezvous.

    Returns None if no agent was waiting, or if there are no container snapshots.
    """
    nodes = _nodes(case)
    waiting = [node for node in nodes if node.agent and not node.agent.started]
    if not waiting:
        return None
    scene = Scene(nodes, waiting, ends, case.expected.num_nodes)
    diagnosis = (
        _options(scene)
        or _alone(case, scene)
        or _process(scene)
        or _dns(case, scene, headless_service.problem(case))
        or _unhosted(case, scene)
        or _tcp(scene)
        or _own_stores(case, scene)
        or _id(scene)
        or _size(scene)
    )
    address = waiting[0].where
    text = f"{_who(waiting)} waited at {address} but did not meet, and no difference between them was found"
    cause, culprits, text = diagnosis or ("rendezvous.timeout", waiting, text)
    ranks = [rank for node in culprits for rank in node.ranks]
    refs = [node.ref for node in nodes if node.ref]
    mesh = service_mesh.at_start(case) if cause.startswith(_OF_CONNECTIONS) else None
    reasons, advice = ([mesh.text], mesh.advice) if mesh else ([], "")
    return not_passed("rendezvous", cause, text, why=reasons, ranks=ranks, evidence=refs, advice=advice)


def _nodes(case: Case) -> list[Node]:
    snapshots = {one.pod: (line, one) for line, one in case.bundle.inspections() if not one.at_end}
    nodes = []
    for index in range(case.expected.num_nodes):
        pod = case.pods.get(index)
        line, one = snapshots.get(pod.name if pod else "", (0, None))
        agents = torchrun_processes.agents(one) if one else []
        ref = f"inspections.jsonl:{line}" if one else None
        place = case.place(index)
        nodes.append(Node(index, case.ranks_of(index), place, ref, one, agents[0] if agents else None))
    return nodes


def _who(nodes: Iterable[Node]) -> str:
    return names(rank for node in nodes for rank in node.ranks)


def _places(nodes: list[Node]) -> str:
    return " and ".join(node.place for node in nodes) if len(nodes) < 3 else _who(nodes)


def _options(scene: Scene) -> Diagnosis:
    """Detect options that torchrun reads as part of another option's value, because a space is missing."""
    values = {
        node.index: (name, value, other)
        for node in scene.waiting
        if node.agent
        for name, value in node.agent.options.items()
        if (other := merged(value))
    }
    if not values:
        return None
    deviating = [node for node in scene.waiting if node.index in values]
    name, value, other = values[deviating[0].index]
    text = f"torchrun reads --{name}={value} as one value: a space is missing before {other}"
    return "variables.torchrun", deviating, f"{_places(deviating)} waited at {deviating[0].where}: {text}"


def _alone(case: Case, scene: Scene) -> Diagnosis:
    """Detect nodes that trained alone, or whose torchrun is waiting in a single-node rendezvous."""
    alone = [node for node in scene.nodes if worlds.alone(case, node.index)]
    standalone = [node for node in scene.waiting if _standalone(node)]
    if scene.size < 2 or not (alone or standalone):
        return None
    lives = [life for node in alone for life in case.lives[node.index]]
    texts = [f"{node.place} trained alone: {worlds.why_alone(case.lives[node.index][0])}" for node in alone]
    for node in standalone:
        words = rank_words.of(node.ranks)
        text = f"{node.place} {words.add_s('wait')} in a rendezvous of {words.its} own"
        texts.append(f"{text}: {words.its} torchrun has --standalone")
    cause: CauseId = "rendezvous.world_size"
    if {life.world for life in lives} <= {1}:
        cause = "variables.world_of_one"
    return cause, [*alone, *standalone], "; ".join(texts)


def _standalone(node: Node) -> bool:
    commands = [process.command for process in node.snapshot.processes] if node.snapshot else []
    return any("standalone" in (torchrun_processes.options(command) or {}) for command in commands)


def _process(scene: Scene) -> Diagnosis:
    """Detect pods in which torchrun is not running."""
    without_agent = [
        node for node in scene.nodes if node.agent is None and not (node.snapshot and node.snapshot.error)
    ]
    if not without_agent:
        return None
    texts = listed(
        [f"{node.place} never joined the rendezvous: {_instead(scene, node)}" for node in without_agent]
    )
    text = f"{texts}, and {_who(scene.waiting)} waited at {scene.waiting[0].where}"
    return "rendezvous.agent_missing", without_agent, text


def _instead(scene: Scene, node: Node) -> str:
    """Return a clause that describes what is running in a pod instead of torchrun."""
    if node.snapshot is None:
        end = scene.ends.get(node.index)
        if end is not None and end.state == "succeeded":
            return "its pod had ended with exit code 0"
        return f"its pod was {end.state if end else 'unknown'}"
    commands = [" ".join(process.command) for process in node.snapshot.processes]
    own = [command[:80] for command in commands if command and not command.startswith("bash -c")]
    return f"no torchrun runs there, only {', '.join(own[:3]) or 'a shell'}"


def _dns(case: Case, scene: Scene, service: ServiceProblem | None) -> Diagnosis:
    """Detect containers that cannot resolve the rendezvous host's name."""
    failing = [node for node in scene.waiting if node.addresses == [] and not node.reached]
    if not failing:
        return None
    text = f"{_places(failing)} could not resolve MASTER_ADDR {failing[0].host} (DNS failed{failing[0].why})"
    cause = failing[0].cause(("dns.", "address."), "rendezvous.dns")
    if (policy := pod_network.dns_policy(case, [node.index for node in failing])) is not None:
        return "dns.policy", failing, f"{text}: {policy.text}"
    if cause in headless_service.NAMES and service and service.service in failing[0].host.split(".")[1:2]:
        return service.cause, failing, f"{text}: {service.text}"
    resolved = [n for n in scene.nodes if n.addresses and n.host == failing[0].host and _by_dns(case, n)]
    machines = {case.pods[node.index].node for node in failing}
    if cause == "dns.no_record" and resolved and not machines & {case.pods[n.index].node for n in resolved}:
        dns_text = f"the DNS server used on {listed(sorted(map(str, machines)))} is different or outdated"
        return (
            "dns.differs_by_node",
            failing,
            f"{text}. {_places(resolved)} resolved it, so {dns_text}",
        )
    return cause, failing, text


def _by_dns(case: Case, node: Node) -> bool:
    """Return whether a node resolved the rendezvous host through DNS rather than its own /etc/hosts file.

    The kubelet writes the host name and the fully qualified name of a pod to that file, but not
    `pod.subdomain`.
    """
    own = mapping(case.pods[node.index].last.object, "status").get("podIP")
    return own not in (node.addresses or []) or node.host.count(".") == 1


def _unhosted(case: Case, scene: Scene) -> Diagnosis:
    """Detect a c10d store that no torchrun opened, because no pod has the name in --rdzv_endpoint.

    Returns None if a pod has the address of this name, because the pod's torchrun may still be starting.
    """
    options = [node.agent.options for node in scene.waiting if node.agent]
    if not all(each.get("rdzv_backend") == "c10d" for each in options):
        return None
    if any("is_host" in each.get("rdzv_conf", "") for each in options):
        return None
    if len(scene.waiting) < scene.size or any(node.reached for node in scene.waiting):
        return None
    if any(node.probe is None or node.probe.outcome != "tcp.refused" for node in scene.waiting):
        return None
    if any(pod.addresses & set(node.addresses or []) for node in scene.waiting for pod in case.pods.values()):
        return None
    first = scene.waiting[0]
    text = (
        f"{_places(scene.waiting)} waited for {first.where} (address {', '.join(first.addresses or [])}), "
        "where nothing listens: no torchrun opened its c10d store, because no pod has this name or address; "
        "name the pod of rank 0 in --rdzv_endpoint, or pass --rdzv_conf=is_host=1 there and is_host=0 "
        "elsewhere"
    )
    return "variables.torchrun", scene.waiting, text


def _own_stores(case: Case, scene: Scene) -> Diagnosis:
    """Detect nodes that never meet because they wait in the stores of different pods."""
    at = {node.index: _pods_at(case, node) for node in scene.waiting}
    common, count = Counter(at.values()).most_common(1)[0]
    deviating = [node for node in scene.waiting if not at[node.index] & common]
    if not deviating or not all(at.values()):
        return None
    first = scene.waiting[0]
    if all(is_loopback(address) for node in scene.waiting for address in node.addresses or []):
        text = f"{_places(scene.waiting)} waited at {first.where}, which in each pod is the pod itself"
        return "variables.master_addr", scene.waiting, text
    places = listed([f"{node.place} waited at {node.where}" for node in scene.waiting])
    text = f"{places}, which are different stores: give every pod the same --rdzv_endpoint or --master_addr"
    return "variables.torchrun", deviating if count > 1 else scene.waiting, text


def _pods_at(case: Case, node: Node) -> frozenset[str]:
    """Return all addresses of the pods in whose stores a node waits.

    Returns an empty set if an address does not belong to a pod. A store can have several addresses: one per
    address family, a loopback address within its pod, and the address of a Service.
    """
    addresses = set[str]()
    for address in node.addresses or []:
        own = case.pods[node.index].addresses if is_loopback(address) else {address}
        pods = [pod.addresses for pod in case.pods.values() if pod.addresses & own]
        if not pods:
            return frozenset()
        addresses.update(*pods)
    return frozenset(addresses)


def _tcp(scene: Scene) -> Diagnosis:
    """Detect nodes that have no connection to the rendezvous port."""
    unconnected = [node for node in scene.waiting if not node.reached]
    if not unconnected:
        return None
    address = ", ".join(unconnected[0].addresses or ["not known"])
    detail = f"address {address}; TCP failed{unconnected[0].why}"
    text = f"{_places(unconnected)} had no connection to {unconnected[0].where} ({detail})"
    other_nodes = [node for node in scene.nodes if node.agent and node not in unconnected]
    if other_nodes and other_nodes[0].where != unconnected[0].where:
        text += f", {_who(other_nodes)} used {other_nodes[0].where}"
    return unconnected[0].cause(("tcp.",), "rendezvous.unreachable"), unconnected, text


def _id(scene: Scene) -> Diagnosis:
    """Detect nodes that reach the same address but use different rendezvous ids."""
    ids = {node.index: node.agent.rendezvous_id for node in scene.waiting if node.agent}
    # If several ids are equally common, use the id of the first node, which hosts the rendezvous.
    common = Counter(ids.values()).most_common(1)[0][0]
    deviating = [node for node in scene.waiting if ids[node.index] != common]
    if not deviating:
        return None
    text = (
        f"{_places(deviating)} connected to {deviating[0].where} with rendezvous id "
        f"{ids[deviating[0].index]}, "
    )
    return "rendezvous.id_mismatch", deviating, f"{text}but the others with {common}"


def _size(scene: Scene) -> Diagnosis:
    """Detect nodes whose torchrun expects a different number of nodes than the job has."""
    sizes = {node.index: node.agent.nodes for node in scene.waiting if node.agent}
    deviating = [node for node in scene.waiting if sizes[node.index] != str(scene.size)]
    if not deviating:
        return None
    size = sizes[deviating[0].index]
    text = f"{_places(deviating)} expected {size} nodes (--nnodes), but the job has {scene.size}"
    return "rendezvous.world_size", deviating, text


def _ranks_in(case: Case, log: str) -> Iterator[int]:
    """Yield the rank in each ground-truth frame of a log. Malformed frames are skipped."""
    for _, line in case.bundle.lines(log):
        with suppress(ValueError, KeyError, TypeError):
            text = [line.decode(errors="replace")]
            yield from [int(frame["r"]) for frame in truth_frames.decode(case.manifest.nonce, text)]


def too_many(case: Case) -> Finding | None:
    """Return the `rendezvous` finding if more ranks took part than the job has, or None."""
    rank_count = len(case.ranks_ever)
    path = f"truth/{rank_count}.jsonl"
    if not case.bundle.has(path):
        return None
    text = f"more ranks took part than the job has ({rank_count})"
    for index, pod in case.pods.items():
        log = case.bundle.log(pod.name, case.launch.container)
        ranks = set(_ranks_in(case, log))
        if len(ranks) > case.per_node:
            one_pod = (
                f"{names(ranks)} ran in one pod, which should run {counted(case.per_node, 'rank')} "
                f"({case.place(index)})"
            )
            refs = [log, path]
            return not_passed(
                "rendezvous", "rendezvous.world_size", text, details=[one_pod], ranks=ranks, evidence=refs
            )
    return not_passed("rendezvous", "rendezvous.world_size", text, ranks=[rank_count], evidence=[path])
