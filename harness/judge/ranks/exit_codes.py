"""Judge each rank's exit code. Two sources must report it, and the run script must not hide it.

The first source is the pod's status, or the init process if the container is kept alive. The second source is
the rank itself or torchrun's agent. The second source writes to the container's stdout, even if a script
redirects the output of the rank.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace

from harness.core.causes import CauseId
from harness.core.clock import seconds
from harness.evidence.schema.columns import Columns
from harness.evidence.schema.ground_truth import TruthRow
from harness.evidence.worlds import PATH, PodProcesses, RankLife
from harness.judge.case import Case, names
from harness.judge.finding import Finding, counted, not_passed, passed, unknown
from harness.judge.logs import lost_peers
from harness.judge.ranks import exit_masking, retried_commands, timeout_command
from harness.workers.recorder import hooks

_NOT_MET = re.compile(r"[Cc]onnection (closed|reset|was)|Rendezvous\w*Error|DistStoreError|connectFullMesh")
"""Pattern for errors of a rank that lost a peer, in addition to those that lost_peers recognizes."""

_WHY_CODE_UNREADABLE = (
    "the rank raises SystemExit itself, whose code cannot be read before Python 3.12, and the script may hide"
    " this code: start the rank with torchrun, call sys.exit, or let the script end with the rank's command"
)


@dataclass(frozen=True)
class BadEnd:
    """A failure in a pod that nevertheless exited with 0."""

    cause: CauseId
    ranks: list[int]
    text: str
    """A description of the failure, such as "rank 1 ended with exit code 3 after step 7: RuntimeError: …"."""
    at: float
    code: int | None
    of_a_peer: bool
    ref: str
    why: str = ""


def bad_end(case: Case, index: int) -> BadEnd | None:
    """Return the first failure in a pod, according to its process records, or None."""
    of_pod = case.processes.get(index)
    if of_pod is None:
        return _never_began(case, index)
    repeated = {before.id for before, _ in retried_commands.retried(case, index)}
    ends = [*_of_ranks(case, index, repeated), *_of_agents(case, index, repeated)]
    ends += [*_before_any_rank(case, index, repeated), *_of_others(case, index, repeated)]
    if any(gap.startswith(f"{of_pod.pod}-") for gap in case.manifest.log_gaps):
        ends = [end for end in ends if end.cause != "rank.exited_early"]
    if not ends:
        return None
    first = min(ends, key=lambda end: (end.cause == "rank.exited_early", end.of_a_peer, end.at))
    if first.cause == "rank.exited_early":
        return first
    if first.of_a_peer:
        first = before_a_restart(of_pod) or first
    return replace(first, why=_way(case, of_pod, index, first))


def _of_a_peer(error: str) -> bool:
    return lost_peers.is_of_a_peer(error) or _NOT_MET.search(error) is not None


def _way(case: Case, of_pod: PodProcesses, index: int, end: BadEnd) -> str:
    """Return a sentence that explains how the run script or one of its programs hid an exit code, or ""."""
    text = exit_masking.script(case, index)
    process = next((process for process in of_pod.processes.values() if process.ref == end.ref), None)
    if process is None or not process.argv or not text or retried_commands.named(text, process):
        return exit_masking.way(text)
    return "the program that the script starts did not pass the exit code on: make it exit with that code"


def _never_began(case: Case, index: int) -> BadEnd | None:
    """Return the failure of a script that ended before any process of a rank was recorded, or None."""
    script = exit_masking.script(case, index)
    if not (case.launch.processes and case.launch.recorder):
        return None
    terminated = case.pods[index].container(case.launch.container, "terminated")
    times = [
        seconds(terminated[1].get(name)) if terminated is not None else None
        for name in ("startedAt", "finishedAt")
    ]
    duration = times[1] - times[0] if times[0] is not None and times[1] is not None else 0.0
    ranks = case.ranks_of(index)
    if exit_masking.leaves_behind(script):
        text = f"the script ended before a process of {names(ranks)} was recorded"
    elif limit := timeout_command.before_any(script, duration):
        text = f"{limit} in its script expired before a process of {names(ranks)} was recorded"
    else:
        return None
    return BadEnd("rank.exited_early", ranks, text, float("inf"), None, False, PATH, exit_masking.way(script))


def _of_ranks(case: Case, index: int, repeated: set[str]) -> Iterator[BadEnd]:
    for life in case.processes[index].lives:
        if repeated.intersection(one.id for one in [life.agent, *life.processes] if one is not None):
            continue
        subject, step = f"rank {life.rank}", last_step(case, life.rank)
        code, error, at = _code(life), _error(life), _at(life)
        if code != 0 and (limit := _limit(case, index, life, at)):
            text = f"{limit} in its script ended {subject}{step}"
            yield BadEnd("rank.exit_code_masked", [life.rank], text, at, code, False, life.ref)
        elif code == -9 and _out_of_memory(life):
            text = f"{subject} was killed{step}: out of memory"
            yield BadEnd("rank.oom_killed", [life.rank], text, at, code, False, life.ref)
        elif code:
            text = f"{subject} {_exit_text(code)}{step}{f': {error}' if error else ''}"
            peer = _of_a_peer(error) or code == -15
            yield BadEnd("rank.exit_code_masked", [life.rank], text, at, code, peer, life.ref)
        elif code is None:
            text = f"{subject} left with exit code 0{step}, before its work was done: its record has no end"
            yield BadEnd("rank.exited_early", [life.rank], text, at, None, False, life.ref)
        elif any(end.how == "os._exit" and end.open for end in life.ends):
            text = f"{subject} called os._exit(0){step}, before it had finished its Pluto run"
            yield BadEnd("rank.exited_early", [life.rank], text, at, None, False, life.ref)


def _of_agents(case: Case, index: int, repeated: set[str]) -> Iterator[BadEnd]:
    """Yield each torchrun agent that failed, unless one of its ranks is known to have failed."""
    of_pod = case.processes[index]
    for agent in of_pod.agents:
        result = agent.result
        if agent.id in repeated or result is None or result.state == "SUCCEEDED":
            continue
        if any(life.agent is agent and _code(life) for life in of_pod.lives):
            continue
        ranks = [rank for _, _, rank, _ in agent.rounds[-1].workers]
        text, peer = f"torchrun of {names(ranks)} failed: {result.error or result.state}", False
        if limit := timeout_command.reached(agent, result.time_ms / 1000):
            text = f"{limit} in its script ended torchrun of {names(ranks)}{last_step(case, ranks[0])}"
        else:
            peer = _of_a_peer(result.error)
        yield BadEnd("rank.exit_code_masked", ranks, text, result.time_ms / 1000, 1, peer, agent.ref)


def _before_any_rank(case: Case, index: int, repeated: set[str]) -> Iterator[BadEnd]:
    """Yield each torchrun agent or other launcher that ended before starting a rank."""
    ranks, before = case.ranks_of(index), "before it started a rank"
    for agent in case.processes[index].agents_without_ranks:
        if agent.id in repeated or not retried_commands.agent_failed(agent):
            continue
        errors = [event.error.splitlines()[0] for event in (agent.result, agent.end) if event and event.error]
        name = hooks.launcher(agent.argv) or "torchrun"
        code = (agent.end.code if agent.end is not None else None) or 1
        unseen = agent.result is None and agent.end is None
        at = _end_of_pod(case, index) if unseen else agent.last_ms / 1000
        cause: CauseId = "rank.exit_code_masked"
        if limit := timeout_command.reached(agent, at):
            text = f"{limit} in its script ended {name} {before}"
        elif unseen:
            cause, text = "rank.exited_early", f"{name} left {before}: its record has no end"
        else:
            text = f"{name} {_exit_text(code)} {before}{f': {errors[0]}' if errors else ''}"
        peer = bool(errors) and _of_a_peer(errors[0])
        yield BadEnd(cause, ranks, text, at, None if unseen else code, peer, agent.ref)


def before_a_restart(of_pod: PodProcesses) -> BadEnd | None:
    """Return the last failure that made torchrun restart ranks and was not caused by a peer, or None."""
    last = None
    for agent in of_pod.agents:
        rounds = {pid: one for one in agent.rounds[:-1] for pid, *_ in one.workers}
        for event in agent.failures:
            for pid, _, rank, code, message in event.failures:
                process = of_pod.last_with(pid)
                end = process.end if process is not None else None
                error = end.error.splitlines()[0] if end is not None and end.error else message
                if code == -15 or _of_a_peer(error) or pid not in rounds:
                    continue
                which = f"(restart {rounds[pid].restart} of at most {rounds[pid].max_restarts})"
                reason = "" if error.startswith("To enable traceback") else f": {error}"
                text = f"rank {rank} {_exit_text(code)} {which}{reason}"
                at, ref = event.time_ms / 1000, process.ref if process is not None else agent.ref
                last = BadEnd("rank.exit_code_masked", [rank], text, at, code, False, ref)
    return last


def _limit(case: Case, index: int, life: RankLife, at: float) -> str:
    """Return the `timeout N` command that terminated a rank, or ""."""
    # If the end of a process was not recorded, the process ended no later than its container.
    if at == float("inf"):
        at = _end_of_pod(case, index)
    agent = timeout_command.reached(life.agent, at)
    return agent or next(filter(None, (timeout_command.reached(one, at) for one in life.processes)), "")


def _end_of_pod(case: Case, index: int) -> float:
    """Return the end time of a rank's container, in seconds since the epoch, or 0.0 if it is unknown."""
    terminated = case.pods[index].container(case.launch.container, "terminated")
    return (seconds(terminated[1].get("finishedAt")) or 0.0) if terminated is not None else 0.0


def out_of_memory(case: Case, index: int, code: int | None = -9) -> list[int]:
    """Return a pod's ranks that ended with `code` after the OOM killer had killed a process in the pod.

    The torchrun agent records these kills. If `code` is -9, the killed process is the rank itself.
    """
    of_pod = case.processes.get(index)
    lives = of_pod.lives if of_pod else []
    return [life.rank for life in lives if _code(life) == code and _out_of_memory(life)]


def _out_of_memory(life: RankLife) -> bool:
    """Return whether torchrun recorded an OOM kill in the container together with the rank's failure."""
    failures = life.agent.failures if life.agent is not None else []
    return any(event.oom_kills and any(f[0] == life.pid for f in event.failures) for event in failures)


def _of_others(case: Case, index: int, repeated: set[str]) -> Iterator[BadEnd]:
    """Yield each failed program that used the Pluto client but is no rank, such as an evaluation script."""
    of_pod = case.processes[index]
    judged = repeated.union(process.id for life in of_pod.lives for process in life.processes)
    for process in of_pod.commands:
        end = process.end
        if process.id in judged or end is None or not end.code:
            continue
        error = f": {end.error.splitlines()[0]}" if end.error else ""
        text = f"process {process.pid} (`{shlex.join(process.argv)[:80]}`) {_exit_text(end.code)}{error}"
        at, ranks = end.time_ms / 1000, case.ranks_of(index)
        yield BadEnd("rank.exit_code_masked", ranks, text, at, end.code, False, process.ref)


def _code(life: RankLife) -> int | None:
    """Return the rank's exit code (negative for a signal), or None if it is not known."""
    if life.failure is not None:
        return life.failure[0]
    codes = [end.code for end in life.ends]
    if any(codes):
        return next(code for code in codes if code)
    agent = life.agent
    good = agent is not None and agent.result is not None and agent.result.state == "SUCCEEDED"
    return 0 if codes or good else None  # The `exits` check reports ranks whose exit code is unknown.


def _error(life: RankLife) -> str:
    errors = [end.error.splitlines()[0] for end in life.ends if end.error]
    if errors:
        return errors[0]
    message = life.failure[1] if life.failure else ""
    return "" if message.startswith("To enable traceback") else message


def _at(life: RankLife) -> float:
    """Return the time at which a rank ended, in seconds since the epoch.

    The time is from the rank's own record or, if there is none, from torchrun's report.
    """
    times = [end.time_ms for end in life.ends]
    agent = life.agent
    if not times and agent is not None:
        times = [event.time_ms for event in agent.failures if any(f[0] == life.pid for f in event.failures)]
    return max(times) / 1000 if times else float("inf")


def _exit_text(code: int) -> str:
    return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"


def last_step(case: Case, rank: int) -> str:
    """Return " after step N", where N is the last step recorded by the rank, or ""."""
    last = -1
    for _, line in case.bundle.truth_parts(rank):
        if isinstance(line, TruthRow):
            last = max(last, line.step)
        elif isinstance(line, Columns) and line.steps:
            last = max(last, *line.steps) if len(line.steps) > 1 else max(last, line.steps[0])
    return f" after step {last}" if last >= 0 else ""


def check(case: Case, before: list[Finding]) -> Finding:
    """Run the `exits` check: two sources report each rank's exit code, and both report 0."""
    for other in before:
        if other.name in {"rank-exit", "world"} and other.result != "PASS":
            return unknown("exits", f"see {other.name}")
    lives = {life.rank: (index, life) for index in sorted(case.lives) for life in case.lives[index]}
    # A worker that records its own points writes its end record last.
    own = set() if case.launch.recorder else set(filter(case.record_ended, case.ranks))
    unconfirmed = [
        rank
        for rank in case.ranks
        if rank not in lives or not (rank in own or _confirmed(case, *lives[rank]))
    ]
    if unconfirmed:
        text = f"the exit code of {names(unconfirmed)} is known only from the pod"
        without_code = [
            rank for rank in unconfirmed if rank in lives and any(e.code is None for e in lives[rank][1].ends)
        ]
        reasons = [_WHY_CODE_UNREADABLE] if without_code else []
        return not_passed(
            "exits", "run.evidence_missing", text, why=reasons, ranks=unconfirmed, evidence=[PATH]
        )
    refs = [life.ref for _, life in lives.values()][:8]
    return passed("exits", f"{counted(len(lives), 'exit code')}, each from two sources", refs)


def _confirmed(case: Case, index: int, life: RankLife) -> bool:
    """Return whether a second source confirms the rank's exit code.

    A script that always passes the exit code on makes the container's exit code a second source.
    """
    by_agent = life.agent is not None and life.agent.result is not None
    if by_agent or any(end.code is not None for end in life.ends):
        return True
    return bool(life.ends) and exit_masking.passes_on(exit_masking.script(case, index))
