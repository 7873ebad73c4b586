"""Judge whether the ranks formed one world, as the `world` check requires.

Exit codes of 0 do not prove this. If torchrun is configured for a single node in each pod, every pod trains
alone and has its own rank 0.
"""

from __future__ import annotations

from harness.core.input_limits import MAX_RANKS
from harness.evidence import process_group_logs, torchrun_processes
from harness.evidence.torchrun_logs import LoggedRanks, logged
from harness.evidence.worlds import PATH, ProcessRecord, RankLife, is_each
from harness.judge.case import Case, names
from harness.judge.finding import Finding, counted, listed, not_passed, passed, unknown


def check(case: Case, before: list[Finding]) -> Finding:
    """Run the `world` check: the ranks form one world of the job's size.

    Each rank must be in exactly one pod, and each pod must have ranks.
    """
    nodes = range(case.expected.num_nodes)
    if case.world is not None:
        if case.world.size == case.expected.ranks:
            return passed("world", met(case), _refs(case))
        text = f"{counted(case.world.size, 'rank')} met, but the job file asks for {case.expected.ranks}"
        ranks = sorted(case.world.nodes)
        return not_passed("world", "rendezvous.world_size", text, ranks=ranks, evidence=_refs(case))
    unrecorded_nodes = [index for index in nodes if not case.lives.get(index)]
    ended_badly = [other for other in before if other.name == "rank-exit" and other.result != "PASS"]
    if unrecorded_nodes and ended_badly:
        return unknown("world", "see rank-exit")
    if unrecorded_nodes:
        text = f"no process of {_places(case, unrecorded_nodes)} recorded which world it belongs to"
        reasons = ["Python runs there without the recorder, or no rank got that far"]
        return not_passed(
            "world",
            "run.evidence_missing",
            text,
            why=reasons,
            ranks=case.ranks_of(*unrecorded_nodes),
            evidence=[PATH],
        )
    alone_nodes = [index for index in nodes if alone(case, index)]
    if alone_nodes and case.expected.num_nodes > 1:
        return _apart(case, alone_nodes)
    result = _not_one(case)
    return unknown("world", "see rank-exit") if result.result != "FAIL" and ended_badly else result


def met(case: Case) -> str:
    """Return a sentence that describes the world that the recorded processes prove."""
    assert case.world is not None
    size, pods = case.world.size, case.expected.num_nodes
    if pods == 1:
        return f"all ranks met: {counted(size, 'rank')} in 1 pod"
    return f"all ranks met: {counted(size, 'rank')} in one world, in {pods} pods"


def _refs(case: Case) -> list[str]:
    return [life.ref for index in sorted(case.lives) for life in case.lives[index]][:8]


def alone(case: Case, index: int) -> bool:
    """Return whether a node's ranks formed a complete world of their own, without the other nodes' ranks."""
    pairs = {(life.rank, life.world) for life in case.lives.get(index, ())}
    sizes = {world for _, world in pairs}
    return any(is_each(size, {rank for rank, world in pairs if world == size}) for size in sizes)


def _apart(case: Case, alone: list[int]) -> Finding:
    """Return the finding for nodes whose ranks trained without the other nodes' ranks."""
    sizes = {life.world for index in alone for life in case.lives[index]}
    cause = "variables.world_of_one" if sizes == {1} else "rendezvous.world_size"
    subject = "each pod" if len(alone) == case.expected.num_nodes else _pods(case, alone)
    text = f"{subject} trained alone, although the job has {case.expected.num_nodes} nodes"
    details = [f"pod {_pod(case, index)} ran {_ranks(case.lives[index])}" for index in alone]
    reasons = dict.fromkeys(why_alone(life) for index in alone for life in case.lives[index][:1])
    return not_passed(
        "world",
        cause,  # type: ignore[arg-type]
        text,
        details=details,
        why=list(reasons),
        ranks=case.ranks_of(*alone),
        evidence=[life.ref for index in alone for life in case.lives[index][:1]],
    )


def why_alone(life: RankLife) -> str:
    """Return the reason why a process's world does not contain ranks on other nodes."""
    process = life.processes[0] if life.processes else None
    if life.agent is None:
        if life.by == "group":
            size = process.env("WORLD_SIZE") if process else None
            source = f"WORLD_SIZE={size} in its environment" if size is not None else "its own arguments"
            return f"no torchrun started it, and torch.distributed was initialised by {source}"
        return "no torchrun started it, and it never initialised torch.distributed"
    met_nodes = life.agent.rounds[-1].nodes
    if life.by == "group" and met_nodes > 1:
        return (
            f"the rendezvous of torchrun had {met_nodes} nodes, but the script initialised torch.distributed "
            f"with world size {life.world}"
        )
    return _one_node_reason(life.agent)


def _one_node_reason(agent: ProcessRecord) -> str:
    options = torchrun_processes.options(agent.argv)
    if options is None:
        return "the program that started its ranks was configured for one node"
    if "standalone" in options:
        return "its torchrun has --standalone, which is a rendezvous of one node"
    if "nnodes" in options:
        return f"its torchrun has --nnodes={options['nnodes']}"
    start = agent.start
    if start is not None and (nodes := start.env.get("PET_NNODES")):
        return f"PET_NNODES={nodes} in the environment of its torchrun"
    return "its torchrun has no --nnodes, and the default is one node"


def _not_one(case: Case) -> Finding:
    """Return the finding for ranks that formed neither one common world nor one world per node."""
    lives = [life for index in sorted(case.lives) for life in case.lives[index]]
    sizes = sorted({life.world for life in lives})
    recorded_ranks = {life.rank for life in lives if life.world == sizes[-1]}
    unrecorded = sorted(set(range(min(sizes[-1], MAX_RANKS))) - recorded_ranks)
    duplicates = sorted(
        rank
        for rank in recorded_ranks
        if len({life.pod for life in lives if life.rank == rank and life.world == sizes[-1]}) > 1
    )
    details = [f"pod {_pod(case, index)} ran {_ranks(case.lives[index])}" for index in sorted(case.lives)]
    ranks = sorted({life.rank for life in lives})
    if len(sizes) == 1 and not duplicates:
        text = f"nothing was recorded for {names(unrecorded)} of a world of {sizes[0]}"
        return not_passed(
            "world", "run.evidence_missing", text, details=details, ranks=unrecorded, evidence=[PATH]
        )
    text = "the ranks do not form one world"
    if duplicates:
        text = f"{names(duplicates)} ran in several pods"
    return not_passed(
        "world",
        "rendezvous.world_size",
        text,
        details=details,
        ranks=duplicates or ranks,
        evidence=_refs(case),
    )


def _ranks(lives: list[RankLife]) -> str:
    """Describe a node's ranks and their world sizes, such as "rank 0 of a world of 1"."""
    sizes = sorted({life.world for life in lives})
    return listed(
        [f"{names(life.rank for life in lives if life.world == size)} of a world of {size}" for size in sizes]
    )


def _pod(case: Case, index: int) -> str:
    return case.pods[index].name


def _pods(case: Case, indexes: list[int]) -> str:
    return (
        "pods " + " and ".join(_pod(case, index) for index in indexes)
        if len(indexes) > 1
        else (f"pod {_pod(case, indexes[0])}")
    )


def _places(case: Case, indexes: list[int]) -> str:
    return listed([case.place(index) for index in indexes])


def rendezvous(case: Case, recorded: tuple[bool | None, str] | None = None) -> Finding:
    """Return the `rendezvous` finding for a job whose pods all succeeded.

    `recorded` is (formed, sentence) from injected recorders, where `formed` is whether the ranks formed one
    world. If the recorders do not show this, `formed` is None, and the logs are used. Without injected
    recorders, the recorded processes must prove one world.
    """
    if recorded is not None:
        formed, text = recorded
        finding = of_groups(case) if formed is None else None
        return finding or (passed("rendezvous", text) if formed else unknown("rendezvous", text))
    if not case.launch.processes and case.launch.attached:
        return of_logs(case) or of_groups(case) or unknown("rendezvous", _NOTHING, details=[_WHAT_SHOWS_IT])
    if not case.launch.processes:
        return passed("rendezvous", "all ranks met")
    if case.met:
        return passed("rendezvous", met(case), _refs(case))
    return unknown("rendezvous", "see world")


_NOTHING = "nothing recorded whether the ranks met in one world"
_WHAT_SHOWS_IT = (
    "the log of each rank shows it if torchrun runs with LOGLEVEL=INFO, or NCCL with NCCL_DEBUG=INFO"
)


def of_groups(case: Case) -> Finding | None:
    """Return an attached job's `rendezvous` finding from gloo or NCCL logs, or None.

    The logs prove one world if each expected rank is in exactly one pod and logged a process group of all
    ranks.
    """
    if not case.launch.attached or not case.expected.ranks_given:
        return None
    refs, ranks = list[str](), list[int]()
    for index in range(case.expected.num_nodes):
        pod = case.pods.get(index)
        path = case.bundle.log(pod.name, case.launch.container) if pod else ""
        group = process_group_logs.logged(case.bundle.log_lines(path)) if path else None
        if group is None or group.world != case.expected.ranks:
            return None
        refs.append(path)
        ranks += group.ranks
    if sorted(ranks) != list(case.ranks):
        return None
    extent = f"{counted(len(ranks), 'rank')} in {counted(len(refs), 'pod')}"
    return passed("rendezvous", f"the logs show one process group of all {extent}", refs[:8])


def of_logs(case: Case) -> Finding | None:
    """Return an attached job's `rendezvous` finding from torchrun's logs, or None.

    Only the last rendezvous in each pod's log counts. Returns None if a log is missing, or if the logs show
    neither one common world nor one world per pod.
    """
    if not case.launch.attached or case.launch.processes:
        return None
    logs = dict[int, tuple[str, LoggedRanks]]()
    for index in range(case.expected.num_nodes):
        pod = case.pods.get(index)
        path = case.bundle.log(pod.name, case.launch.container) if pod else ""
        logged_ranks = logged(case.bundle.log_lines(path)) if path else None
        if logged_ranks is None:
            return None
        logs[index] = (path, logged_ranks)
    refs = [path for path, _ in logs.values()]
    worlds = {logged_ranks.world for _, logged_ranks in logs.values()}
    ranks = sorted(rank for _, logged_ranks in logs.values() for rank in logged_ranks.ranks)
    if len(worlds) == 1 and ranks == list(range(max(worlds))):
        text = f"torchrun logged one world of {counted(len(ranks), 'rank')} in {counted(len(logs), 'pod')}"
        return passed("rendezvous", text, refs[:8])
    alone = [
        i
        for i, (_, logged_ranks) in logs.items()
        if sorted(logged_ranks.ranks) == list(range(logged_ranks.world))
    ]
    if len(alone) < len(logs) or len(logs) == 1:
        return None
    details = [
        f"pod {_pod(case, index)} ran {names(logs[index][1].ranks)} of a world of {logs[index][1].world}"
        for index in alone
    ]
    return not_passed(
        "rendezvous",
        "variables.world_of_one" if worlds == {1} else "rendezvous.world_size",
        f"each pod trained alone, although the job has {case.expected.num_nodes} nodes",
        details=details,
        why=["torchrun logged this at the end of its rendezvous"],
        ranks=case.ranks_of(*alone),
        evidence=refs[:8],
    )
