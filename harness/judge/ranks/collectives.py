"""Determine from the ranks' stacks and timeouts which rank did not take part in a collective operation.

If one rank does not take part, all others time out, often within the same second, so the first timeout does
not show which rank is to blame. The stacks show a rank that was not in a collective operation when it was
stopped. PyTorch logs for which operation of the process group each rank waited, and which operation it had
called last (ProcessGroupNCCL.cpp). These numbers show whether a rank is behind, whether the ranks called
different operations, or whether all ranks called the same operation and it did not complete.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from harness.core.clock import seconds
from harness.judge import rank_words
from harness.judge.case import Case, names
from harness.judge.cluster.pod_deletion import WHOLE_SECONDS
from harness.judge.logs import error_patterns as log_clues
from harness.judge.logs import (
    lost_peers,
    ranks_outside_collectives,
    survived_errors,
)
from harness.judge.pod_end import SAME_MOMENT, End, explained
from harness.judge.rank_words import RankWords
from harness.judge.ranks import exit_codes, lost_connections
from harness.judge.ranks.pod_ends import TEARDOWN_ADVICE, without_tracker

TAIL_LINES = 2000
"""Number of lines at the end of a log that are searched for errors. A log can contain a C++ stack for each
rank."""
SAME_SIZE = ("ALLREDUCE", "BROADCAST", "REDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE")
"""Operations for which the tensors of all ranks must have the same size."""
BETWEEN_TWO = ("SEND", "RECV", "COALESCED", "UNKNOWN")
"""Operations in which not all ranks of the group take part, so their sequence numbers are not comparable."""
_LABEL = re.compile(r"^\[rank(\d{1,9})\]:")
_IN_GROUP = re.compile(r"\[Rank (\d{1,9})\]|\[PG [^\[\]]*? ?Rank (\d{1,9})\]")
_GROUP = re.compile(r"\[PG (?:ID \d+ PG GUID )?(\S+?) ?(?:\([\w .-]*\) ?)?Rank \d+\]")
_TIMEOUT = re.compile(
    r"Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(?P<number>\d{1,18}), "
    r"OpType=(?P<operation>\w+)(?:, NumelIn=(?P<sent>\d+), NumelOut=(?P<received>\d+))?, "
    r"Timeout\(ms\)=(?P<limit>\d{1,18})\)"
)
_PROGRESS = re.compile(
    r"(?:detected by watchdog at work: (?P<number>\d{1,18}), |dump the debug info\. )"
    r"[Ll]ast enqueued NCCL work: (?P<started>-?\d{1,18})"
)
_FINGERPRINT = re.compile(
    r"Rank (\d{1,9}) is running collective: (CollectiveFingerPrint\(.*?\))(?=, but Rank|\.|$)"
)
_MISMATCH = "Detected mismatch between collectives on ranks"
_BARRIER = re.compile(r"Ranks? ([\d, ]+) failed to pass monitoredBarrier in \d+ ms")
_PEER = re.compile(r"(?:by peer \[|peer )([0-9A-Fa-f.:]+)(?:\]:|<)\d")
"""Pattern for the peer's address in a gloo or NCCL message about a closed connection."""
_DIFFERENT_ADVICE = (
    "find in the program what depends on the rank at this step: a condition, the number of batches, the size "
    "of a tensor, or the order in which process groups are created; if nothing does, compare the NCCL "
    "versions and the NCCL_* variables of the pods, because NCCL must choose the same protocol in every rank"
)


@dataclass(frozen=True)
class Timeout:
    """A rank's timeout in a collective operation of one process group.

    `number` is the operation's sequence number in the process group. It is None for a rank that did not time
    out itself but was terminated because another rank did. `started` is the number of the last operation that
    the rank had called. `sizes` contains the numbers of elements that the rank sends and receives. `limit` is
    the timeout in seconds.
    """

    rank: int
    ref: str
    number: int | None = None
    operation: str = ""
    sizes: tuple[str, ...] = ()
    limit: float = 0.0
    group: str = ""
    started: int = 0

    @property
    def last(self) -> int:
        """The number of the last operation that the rank is known to have called."""
        return max(self.started, self.number or 0)

    @property
    def call(self) -> tuple[str, ...]:
        """The properties that must be the same for all ranks: the operation and, for some operations, its
        size."""
        return (self.operation, *(self.sizes if self.operation in SAME_SIZE else ()))

    @property
    def text(self) -> str:
        """The operation and its size, such as "ALLREDUCE of 4096 elements"."""
        sizes = f" of {' and '.join(dict.fromkeys(self.sizes))} elements" if self.sizes else ""
        return f"{self.operation.strip('_') or 'unknown'}{sizes}"


def absent(case: Case, cause: End, all_: Collection[End]) -> End | None:
    """Return the `End` for the rank whose absence explains why a peer (`cause`) failed, or None.

    This rank exited with 0 before its ground truth was complete, or it was outside a collective operation
    when it was stopped. Returns None if `cause.follows` is not set.
    """
    if not cause.follows:
        return None
    # A stack outside a collective operation is evidence only if a peer timed out.
    waited = any(end.peer_absent for end in all_)
    for end in all_:
        place = case.place(end.index)
        exited_early = case.recorded and end.state == "succeeded" and end.at <= cause.at + SAME_MOMENT
        if exited_early and not all(case.record_ended(rank) for rank in end.ranks):
            its = rank_words.of_node(case, end.index).its
            reason = f"{its} ground truth has no end record"
            text = f"{place} left with exit code 0 before {its} work was done: {reason}"
            return replace(end, cause="rank.exited_early", text=text, log_quote="")
        if waited and not end.peer_absent and end.stack is not None and not end.stack.in_collective:
            log = case.bundle.log(case.pods[end.index].name, case.launch.container)
            words = rank_words.of_node(case, end.index)
            return _without_part(end, place, words, f"{log}:{end.stack.number}")
    stalled = ranks_outside_collectives.silent(case) if waited else None
    if stalled is None:
        return None
    own = next(end for end in all_ if end.index == stalled.index)
    end = replace(own, ranks=[stalled.rank], stack=stalled.stack)
    place = f"{case.place_of(stalled.rank)}{exit_codes.last_step(case, stalled.rank)}"
    end = _without_part(end, place, rank_words.of(end.ranks), stalled.ref)
    return replace(end, at=cause.at, follows=False)


def diagnose(case: Case, cause: End, ends: Collection[End]) -> End | None:
    """Return the `End` for the ranks to blame for a failed collective operation, or None.

    `cause` is the first failure, which another rank may have caused. `ends` contains all failures.
    """
    if cause.cause not in ("rank.crashed", "rank.killed", "rank.exit_code_masked"):
        return None
    logs = {end.index: list(_lines(case, end.index)) for end in ends}
    named = (
        _barrier(case, cause, logs)
        or _fingerprints(case, cause, logs)
        or _compared(case, cause, logs)
        or _different(case, cause, logs)
    )
    if named is not None:
        return named
    if case.expected.num_nodes < 2 or {end.index for end in ends} != set(range(case.expected.num_nodes)):
        return None
    return lost_connections.without_peers(case, cause, ends, logs)


def of_peers(case: Case, cause: End, all_: Iterable[End]) -> list[str]:
    """Return sentences about other pods that may have caused a failure if the responsible peer is unknown.

    A peer that had already finished, or one that was still running, may be the reason. This is not proved, so
    `cause` remains the first failure.
    """
    texts = []
    outside = ranks_outside_collectives.outside_collectives(case)
    for end in all_:
        place = case.place(end.index)
        if end.index == cause.index:
            continue
        if end.state == "succeeded" and end.at <= cause.at + SAME_MOMENT:
            step = exit_codes.last_step(case, end.ranks[0])
            texts.append(
                f"{place} had ended with exit code 0{step} by then: all ranks must take part in every "
                "collective operation, so give them the same number of batches"
            )
        elif cause.peer_absent and not end.peer_absent and end.stack is None and end.at >= cause.at:
            words = rank_words.of_node(case, end.index)
            hung = f"{'it' if words.it == 'it' else 'one of them'} may be the rank that hung"
            text = f"{place} {words.was} still running and had reported no timeout, so {hung}"
            own = [stalled for stalled in outside if stalled.index == end.index]
            places = [
                f"rank {stalled.rank} was in {stalled.stack.place} when it was ended" for stalled in own[:3]
            ]
            texts.append("; ".join([text, *(places or _last_before(case, end, cause.at))]))
    return texts[:3]


def _last_before(case: Case, end: End, at: float) -> list[str]:
    """Return [clause] with a pod's last log line before `at`, the time at which another rank failed.

    Returns [] if this line is an error, because the error may be a consequence of that failure.
    """
    log = case.bundle.log(case.pods[end.index].name, case.launch.container)
    lines = case.bundle.tail(log, TAIL_LINES)
    earlier = [line for line in lines if (seconds(line[1].partition(" ")[0]) or at) < at - WHOLE_SECONDS]
    text, _ = log_clues.last_line(earlier)
    if not text or log_clues.is_error(text) or lost_peers.is_of_a_peer(text):
        return []
    return [f"its last log line before that was: {text[:200]}"]


def lost_peer(case: Case, cause: End) -> str:
    """Return a sentence about the peer whose address is in the last log line of a failed rank, or ""."""
    match = _PEER.search(cause.log_quote)
    if match is None or not all(pod.addresses for pod in case.pods.values()):
        return ""
    address = match[1].removeprefix("::ffff:")
    indexes = [index for index, pod in case.pods.items() if address in pod.addresses]
    if indexes:
        return f"the lost peer, {address}, is {' or '.join(case.place(index) for index in indexes)}"
    if address.startswith("127.") or address == "::1":
        return ""
    # The pod may be gone, or gloo may use a network whose addresses are not in the pods' status.
    return f"the lost peer had the address {address}, which no existing pod has in its status"


def _without_part(end: End, place: str, words: RankWords, ref: str) -> End:
    """Return the `End` for a rank that kept its peers waiting in a collective operation.

    `words` agree with the ranks in `place`, and `ref` refers to the rank's stack in the bundle.
    """
    assert end.stack is not None
    if end.stack.in_client:
        return without_tracker(end, ref, f"{place} did not take part in the collective operation")
    when = f"when {words.it} {words.was} ended, {words.it} {words.was} in {end.stack.place}"
    text = f"{place} did not take part in the collective operation: {when}"
    advice = TEARDOWN_ADVICE if end.stack.in_teardown else ""
    refs = (ref, end.evidence[0])
    return replace(end, cause="rank.hung", text=text, log_quote="", advice=advice, evidence=refs)


def _lines(case: Case, index: int) -> Iterator[tuple[str, str]]:
    """Yield the lines of the last attempt in a pod's log, each with its reference in the bundle."""
    log = case.bundle.log(case.pods[index].name, case.launch.container)
    lines = log_clues.of_last_attempt(case.bundle.tail(log, TAIL_LINES))
    return ((text, f"{log}:{number}") for number, text in lines)


def _barrier(case: Case, cause: End, logs: Mapping[int, list[tuple[str, str]]]) -> End | None:
    """Return the `End` for the ranks that, according to rank 0, missed a monitored barrier, or None."""
    for text, ref in (line for lines in logs.values() for line in lines):
        if match := _BARRIER.search(text):
            ranks = [rank for rank in case.ranks if str(rank) in re.findall(r"\d+", match[1])]
            if not ranks:
                continue
            reason = f"{_places(case, ranks)} did not take part: {match[0]}"
            return explained(cause, "rank.hung", ranks, reason, (ref,))
    return None


def _fingerprints(case: Case, cause: End, logs: Mapping[int, list[tuple[str, str]]]) -> End | None:
    """Return the `End` for the ranks that called different operations, or None.

    PyTorch logs the differences if TORCH_DISTRIBUTED_DEBUG=DETAIL is set.
    """
    calls: dict[int, tuple[str, ...]] = {}
    refs = []
    for text, ref in (line for lines in logs.values() for line in lines):
        if _MISMATCH in text:
            calls.update({int(rank): (fingerprint,) for rank, fingerprint in _FINGERPRINT.findall(text)})
            refs.append(ref)
    calls = {rank: call for rank, call in calls.items() if rank in case.ranks}
    ranks = _outvoted(calls)
    if not ranks:
        return None
    texts = [f"rank {rank} called {call[0]}" for rank, call in _examples(calls)]
    text = f"the ranks called different collective operations: {' and '.join(texts)}"
    return explained(cause, "collective.mismatch", ranks, text, tuple(refs[:2]))


def _compared(case: Case, cause: End, logs: Mapping[int, list[tuple[str, str]]]) -> End | None:
    """Return the `End` that a comparison of the ranks' timeouts proves, or None.

    The comparison can prove that ranks called fewer operations than the others, or different ones. If all
    ranks called the same operation, which did not complete, the `End` has no ranks.
    """
    timeouts = _of_one_group(_timeouts(case, logs))
    waiting = [each for each in timeouts if each.number is not None]
    if len(timeouts) < 2 or not waiting or any(each.operation in BETWEEN_TWO for each in waiting):
        return None
    number = max(each.number or 0 for each in waiting)
    latest = [each for each in waiting if each.number == number]
    behind = [each for each in timeouts if each.last < number]
    refs = tuple(each.ref for each in (*behind[:1], *latest[:1]))
    awaited = f"operation {number} ({latest[0].text})"
    if missing := [each.rank for each in behind if each.number is None]:
        text = (
            f"{_places(case, missing)} did not call collective {awaited}, for which {_ranks(latest)} waited"
        )
        return explained(cause, "rank.hung", missing, text, refs)
    if behind:
        ranks = _outvoted({each.rank: (str(each.number == number),) for each in waiting})
        text = f"the ranks called different numbers of collective operations: {_ranks(latest)} waited in "
        text += f"{awaited}, and {_ranks(behind)} in operation {behind[0].number} ({behind[0].text})"
        return explained(cause, "collective.mismatch", ranks, text, refs)
    calls = {each.rank: each.call for each in latest}
    if ranks := _outvoted(calls):
        of_rank = {each.rank: each for each in latest}
        texts = [f"rank {rank} called {of_rank[rank].text}" for rank, _ in _examples(calls)]
        text = (
            f"the ranks called different collective operations as operation number {number}: "
            f"{' and '.join(texts)}"
        )
        return explained(cause, "collective.mismatch", ranks, text, refs)
    if {each.rank for each in timeouts} != set(case.ranks):
        return None
    limit = f" within {latest[0].limit:.0f} s" if latest[0].limit else ""
    text = f"all ranks called collective {awaited}, and it did not complete{limit}"
    return explained(cause, "collective.hung", [], text, refs, lost_connections.NETWORK_ADVICE)


def _different(case: Case, cause: End, logs: Mapping[int, list[tuple[str, str]]]) -> End | None:
    """Return the `End` for a rank that received less or more data from a peer than it expected, or None.

    The `End` has no ranks, because the error does not show which of the two ranks called something different.
    """
    for index, lines in logs.items():
        for at, (text, ref) in enumerate(lines):
            below = (line for line, _ in lines[at + 1 :])
            if (match := lost_peers.DIFFERENT.search(text)) and not survived_errors.was_survived(
                below, log_clues.is_ordinary, log_clues.is_error, log_clues.is_report
            ):
                what = "a collective operation with different sizes, or different operations"
                what = "new_group for different ranks" if match["group"] else what
                explanation = f"the ranks called {what}: {match[0]} in the log of {case.place(index)}"
                advice = _DIFFERENT_ADVICE if match["nccl"] else ""
                return explained(cause, "collective.mismatch", [], explanation, (ref,), advice)
    return None


def _timeouts(case: Case, logs: Mapping[int, list[tuple[str, str]]]) -> list[Timeout]:
    """Return the timeouts in the logs. Each is assembled from all lines that its rank logged about it."""
    timeouts: dict[tuple[int, int | None], Timeout] = {}
    for index, lines in logs.items():
        of_pod = case.ranks_of(index)
        for text, ref in lines:
            match = _TIMEOUT.search(text) or _PROGRESS.search(text)
            rank = _rank(text, of_pod)
            if match is None or rank is None or rank not in case.ranks:
                continue
            values = match.groupdict()
            number = int(values["number"]) if values["number"] else None
            group = _GROUP.search(text)
            timeout = timeouts.get((rank, number), Timeout(rank, ref, number))
            if group and not timeout.group:
                timeout = replace(timeout, group=group[1])
            if "operation" in values and not timeout.operation:
                sizes = tuple(filter(None, (values["sent"], values["received"])))
                limit = int(values["limit"]) / 1000
                timeout = replace(timeout, operation=values["operation"], sizes=sizes, limit=limit)
            if values.get("started"):
                timeout = replace(timeout, started=max(timeout.started, int(values["started"])))
            timeouts[rank, number] = timeout
    return list(timeouts.values())


def _rank(text: str, of_pod: list[int]) -> int | None:
    """Return the rank that logged a line, or None if the rank is unknown.

    If the line has a label, the label identifies the rank. Otherwise, it is the pod's only rank, or the rank
    that the line itself mentions.
    """
    if label := _LABEL.match(text):
        return int(label[1])
    if len(of_pod) == 1:
        return of_pod[0]
    match = _IN_GROUP.search(text)
    rank = int(match[1] or match[2]) if match else None
    return rank if rank in of_pod else None


def _of_one_group(timeouts: Iterable[Timeout]) -> list[Timeout]:
    """Return each rank's timeout in the process group in which most ranks timed out."""
    timeouts = list(timeouts)
    groups = Counter(each.group for each in timeouts if each.number is not None)
    if not groups:
        return []
    [(group, _)] = groups.most_common(1)
    chosen: dict[int, Timeout] = {}
    for each in timeouts:
        if each.group == group:
            known = chosen.get(each.rank)
            if known is None or known.number is None:
                chosen[each.rank] = each
    return [chosen[rank] for rank in sorted(chosen)]


def _outvoted(calls: Mapping[int, tuple[str, ...]]) -> list[int]:
    """Return the ranks whose calls differ from those of most ranks. Without a majority, return all ranks."""
    votes = Counter(calls.values()).most_common()
    if len(votes) < 2:
        return []
    majority = votes[0][0] if votes[0][1] > len(calls) / 2 else None
    return sorted(rank for rank, call in calls.items() if call != majority)


def _examples(calls: Mapping[int, tuple[str, ...]]) -> list[tuple[int, tuple[str, ...]]]:
    """Return the two most common calls, each with the lowest rank that made it."""
    first = {call: rank for rank, call in sorted(calls.items(), reverse=True)}
    common = [call for call, _ in Counter(calls.values()).most_common(2)]
    return sorted((first[call], call) for call in common)


def _ranks(timeouts: Iterable[Timeout]) -> str:
    return names(each.rank for each in timeouts)


def _places(case: Case, ranks: list[int]) -> str:
    return case.place_of(ranks[0]) if len(ranks) == 1 and ranks[0] in case.ranks else names(ranks)
