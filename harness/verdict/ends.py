"""How each node's pod came to its end, and which end was the first."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from harness.evidence.objects import Pod, Seen, mapping, termination
from harness.evidence.schema import TruthRow
from harness.verdict import log_clues
from harness.verdict.case import LATE, Case, seconds

SAME_MOMENT = 5.0
"""Kubernetes' times are whole seconds, and ranks that lose a peer end within moments of it."""

State = Literal["succeeded", "failed", "deleted", "running", "waiting", "unknown"]


@dataclass(frozen=True)
class End:
    """The end of one pod. `follows` marks an end that another rank's end or a deletion brings about."""

    index: int
    state: State
    ranks: list[int]
    at: float = LATE
    cause: str | None = None
    text: str = ""
    exit_code: int | None = None
    follows: bool = False
    evidence: tuple[str, ...] = ()


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def _removed(pod: Pod) -> Seen | None:
    """The first state in which the pod was being deleted."""
    for seen in pod.history:
        if mapping(seen.object, "metadata").get("deletionTimestamp") or seen.type == "DELETED":
            return seen
    return None


def _logged(case: Case, ranks: Iterable[int]) -> bool:
    """Whether a rank of these got as far as recording a row: then it was past the rendezvous."""
    return any(isinstance(line, TruthRow) for rank in ranks for _, line in case.bundle.truth(rank))


def end_of(case: Case, index: int) -> End:
    """The end of a node's pod, as far as the evidence tells."""
    ranks = case.ranks_of(index)
    pod = case.pods.get(index)
    if pod is None:
        return End(index, "unknown", ranks)
    ended = pod.container(case.launch.container, "terminated")
    if ended is not None:
        return _terminated(case, pod, *ended)
    removed = _removed(pod)
    evicted = mapping(pod.last.object, "status").get("reason")
    disruption = pod.condition("DisruptionTarget")
    if removed is not None or evicted == "Evicted":
        seen = removed or pod.last
        moment = mapping(seen.object, "metadata").get("deletionTimestamp") or seen.received_at
        why = disruption[1].get("message") or disruption[1].get("reason") if disruption else None
        if why or evicted:
            why = why or mapping(pod.last.object, "status").get("message") or evicted
            text = f"{case.place(index)} was evicted: {why}"
            return End(
                index, "deleted", ranks, seconds(moment) or LATE, "rank.evicted", text, evidence=(seen.ref,)
            )
        text = f"{case.place(index)} was deleted while it ran"
        return End(
            index,
            "deleted",
            ranks,
            seconds(moment) or LATE,
            "rank.pod_deleted",
            text,
            follows=True,
            evidence=(seen.ref,),
        )
    if pod.container(case.launch.container, "running") is not None:
        return End(index, "running", ranks, evidence=(pod.last.ref,))
    return End(index, "waiting", ranks, evidence=(pod.last.ref,))


def _terminated(case: Case, pod: Pod, seen: Seen, terminated: dict[str, object]) -> End:
    ranks, index = case.ranks_of(pod.index), pod.index
    at = seconds(terminated.get("finishedAt")) or seconds(seen.received_at) or LATE
    own, _ = termination(terminated)
    code = terminated.get("exitCode")
    code = code if isinstance(code, int) else None
    if code is None and own is None:
        return End(index, "unknown", ranks, at, evidence=(seen.ref,))
    if not code and not own:
        return End(index, "succeeded", ranks, at, exit_code=0, evidence=(seen.ref,))

    log = case.bundle.log(pod.name, case.launch.container)
    clues = log_clues.read(case.bundle.tail(log))
    exit_code = clues.exit_code or code or own or 1
    if clues.rank in ranks:
        ranks = [clues.rank]
    place = case.place(index)
    evidence = [seen.ref] + ([f"{log}:{clues.last_number}"] if clues.last_number else [])
    number = -exit_code if exit_code < 0 else exit_code - 128 if 128 < exit_code <= 192 else 0
    last = f"; last log line: {clues.last}" if clues.last else "; it logged nothing"
    removed = _removed(pod)
    taken_down = number in {signal.SIGTERM, signal.SIGKILL} and removed is not None
    cause, text = "rank.crashed", f"{place} exited with code {exit_code}"
    if terminated.get("reason") == "OOMKilled":
        cause, text = "rank.oom_killed", f"{place} was killed: out of memory (exit code {code})"
    elif pod.condition("DisruptionTarget") is not None and taken_down:
        condition = pod.condition("DisruptionTarget") or (seen, {})
        cause, text = "rank.evicted", f"{place} was evicted: {condition[1].get('message', 'no reason given')}"
        taken_down = False
    elif number:
        cause, text = "rank.killed", f"{place} was ended by {_signal_name(number)}"
    elif clues.cause and not _logged(case, case.ranks_of(index)):
        cause = clues.cause
        text += f": {clues.line}"
        evidence.append(f"{log}:{clues.line_number}")
        last = ""
    elif not code:
        text = (
            f"{place}: the container exited with 0, its command with {own} (konduktor's termination message)"
        )
    if clues.exit_code and code not in (None, 0, clues.exit_code) and not number:
        text += f" (torchrun then ended with {code})"
    return End(
        index,
        "failed",
        ranks,
        at,
        cause,
        text + last,
        exit_code,
        follows=taken_down or number == signal.SIGTERM or (clues.of_a_peer and cause == "rank.crashed"),
        evidence=tuple(evidence),
    )


def ends(case: Case) -> dict[int, End]:
    """Node index → its end, for every node that is expected."""
    return {index: end_of(case, index) for index in range(case.expected.num_nodes)}


def first(bad: list[End]) -> End:
    """The end that explains the others: among the earliest, one that follows from no other."""
    earliest = min(end.at for end in bad)
    near = [end for end in bad if end.at <= earliest + SAME_MOMENT] or bad

    def order(end: End) -> tuple[bool, bool, float, int]:
        waited = bool(end.cause and end.cause.startswith("rendezvous."))
        return end.follows, waited, end.at, end.index

    return min(near, key=order)
