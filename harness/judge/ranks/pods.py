"""Judge whether the pods of an admitted job exist, how they ended, and on which nodes they ran."""

from __future__ import annotations

import re
from dataclasses import replace

from harness.core.causes import CauseId
from harness.core.clock import seconds
from harness.evidence.kubernetes import refusals
from harness.evidence.kubernetes.objects import ObjectState, Pod, mapping
from harness.evidence.kubernetes.refusals import Refusal
from harness.judge import rank_words
from harness.judge.case import Case, ever_ready, names
from harness.judge.cluster import (
    controllers,
    netcheck,
    other_containers,
    scheduling_gates,
    service_mesh,
    start_events,
)
from harness.judge.finding import LATE, Finding, counted, not_passed, passed, unknown
from harness.judge.logs import error_patterns, lost_peers
from harness.judge.pod_end import End, first
from harness.judge.points import tracker_faults
from harness.judge.ranks import (
    attached_missing_pods,
    caught_errors,
    checkpoint_errors,
    collectives,
    exit_codes,
    gpu_conditions,
    master_addr,
    survived_gpu_errors,
    worlds,
)
from harness.judge.ranks.frozen import frozen
from harness.judge.ranks.rendezvous import diagnose_rendezvous, too_many

LAST_LINES = 400
"""Number of lines at the end of a log that are searched for the last line of a rank."""
STOPPED_LINES = 5000
"""Number of lines at the end of a log that are searched for the last line before the harness stopped waiting.

Ranks continue to log until the harness stops them, and a recorder writes one line per point.
"""
OF_ALL = (
    *("rank.tracker_unreachable", "tracker.key_rejected", "rank.no_cpu_frequency", "address.advertised"),
    *("variables.missing", "variables.master_addr", "variables.master_port", "variables.interface"),
    *("address.family", "variables.world_size"),
)
"""Causes that can affect several ranks at once. The finding names all affected ranks, not only the first."""
_CLOSED_ADVICE = (
    "torchrun closes a rendezvous for good when it ends on one node: let all nodes end together, and give "
    "each attempt of the job a new --rdzv_id, because etcd keeps the state of an earlier one "
    "(kubeflow/trainer#1638)"
)
_BEFORE_ERROR = re.compile(r"^its last log line: (\[rank\d+\]: ?)?")
_NUMBER = re.compile(r"\d+")
_WITHOUT_STATUS = ("rank.evicted", "rank.killed", "run.timed_out")
"""Causes for which a pod may lack a container status, because the kubelet removed it or never wrote it."""


def rank_pods(case: Case) -> Finding:
    """Run the `rank-pods` check: every expected rank had a pod in the job's last attempt."""
    missing = _missing(case)
    ranks = case.ranks_of(*missing)
    restarts = mapping(case.jobset.object, "status").get("restarts", 0) if case.jobset else 0
    if not missing:
        old = [index for index, pod in case.pods.items() if pod.attempt != restarts]
        if old and case.terminal:
            text = (
                f"the JobSet restarted {counted(restarts, 'time')}, but the last pod of node {old[0]} is "
                "not recorded"
            )
            advice = attached_missing_pods.LATER if case.launch.attached else ""
            refs = ["objects/pod.jsonl"]
            return not_passed("rank-pods", "run.evidence_missing", text, evidence=refs, advice=advice)
        return passed("rank-pods", f"{names(case.ranks)} had a pod")
    if case.launch.acceptance == "nodes":  # In acceptance tests, the `reports` check names the nodes.
        return unknown("rank-pods", f"{names(ranks)} never had a pod: see the reports check", ranks=ranks)
    if (finding := scheduling_gates.not_removed(case)) is not None:
        return finding
    return _never_had(case, missing, ranks)


def _missing(case: Case) -> list[int]:
    """Return the indexes of the job's nodes that have no pod."""
    return [index for index in range(case.expected.num_nodes) if index not in case.pods]


def _never_had(case: Case, missing: list[int], ranks: list[int]) -> Finding:
    """Return the finding for the nodes in `missing`, which never had a pod. `ranks` contains their ranks."""
    refusal, refs = _refusal(case)
    rejected = None if refusal else controllers.refused_request(case)
    blocking_pod = None if refusal or rejected else _unready_before(case, missing[0])
    if case.launch.attached and not (refusal or rejected or blocking_pod):
        return _without_pod(case, ranks)
    if case.terminal == "Completed" or (case.broken("objects/pod.jsonl") and not (refusal or rejected)):
        text = f"no pod of {names(ranks)} was recorded"
        return not_passed(
            "rank-pods", "run.evidence_missing", text, ranks=ranks, evidence=["objects/pod.jsonl"]
        )
    cause: CauseId = (rejected.cause if rejected else None) or "rank.missing"
    if refusal and refusal.webhook_down:
        cause = "controllers.webhook_not_serving"
    if refusal and refusal.namespace_terminating:
        cause = "run.namespace_deleted"
    lasting = refusal if refusal and controllers.waited(case) else None
    if lasting and (lasting.of_another_webhook or lasting.without_account):
        cause = "launch.pods_refused"
    suffix = f": {refusal.message}" if refusal else ""
    return not_passed(
        "rank-pods",
        cause,
        f"{names(ranks)} never had a pod{suffix}",
        why=[rejected.text]
        if rejected
        else [_IN_ORDER.format(pod=blocking_pod.name)]
        if blocking_pod
        else [],
        ranks=ranks,
        evidence=[rejected.ref]
        if rejected
        else [blocking_pod.last.ref]
        if blocking_pod
        else refs or ["objects/pod.jsonl"],
        advice=_PARALLEL if blocking_pod else lasting.advice if lasting else "",
    )


def _without_pod(case: Case, ranks: list[int]) -> Finding:
    """Return the finding for ranks in an attached job that currently have no pod."""
    if case.pods or case.terminal:
        text = f"no pod of {names(ranks)} exists now"
    else:
        text = f"no pod of {names(ranks)} exists"
    events, refs = attached_missing_pods.events(case)
    reasons = [attached_missing_pods.reason(case), *events]
    advice = attached_missing_pods.advice(case)
    return not_passed(
        "rank-pods",
        "run.evidence_missing",
        text,
        why=reasons,
        ranks=ranks,
        evidence=["objects/pod.jsonl", *refs],
        advice=advice,
    )


_IN_ORDER = (
    "the StatefulSet creates a pod only when all pods before it are Ready (podManagementPolicy "
    "OrderedReady), and {pod} was never Ready"
)
_PARALLEL = "set podManagementPolicy: Parallel, because the ranks wait for each other"


def _unready_before(case: Case, index: int) -> Pod | None:
    """Return an earlier pod of the StatefulSet that was never Ready and blocks this node's pod, or None."""
    policy = mapping(case.jobset.object, "spec").get("podManagementPolicy") if case.jobset else "Parallel"
    if case.launch.kind != "StatefulSet" or policy == "Parallel":
        return None
    earlier_pods = (pod for other, pod in sorted(case.pods.items()) if other < index)
    return next((pod for pod in earlier_pods if not ever_ready(pod)), None)


def refused(case: Case) -> Finding | None:
    """Return a finding if a policy, quota or webhook rejects the pods on every attempt, otherwise None."""
    missing = _missing(case)
    refusal, refs = _refusal(case)
    if not missing or case.terminal == "Completed" or refusal is None or not refusal.final:
        return None
    ranks = case.ranks_of(*missing)
    reasons = [f"the rule is {' '.join(filter(None, refusal.rule))}"] if refusal.rule else []
    text = f"the API server rejects the pods of {names(ranks)}: {refusal.message}"
    return not_passed(
        "rank-pods",
        "launch.pods_refused",
        text,
        why=reasons,
        ranks=ranks,
        evidence=refs,
        advice=refusal.advice,
    )


def _refusal(case: Case) -> tuple[Refusal | None, list[str]]:
    """Return the last rejection of a pod or Job since the newest pod was created, and a reference to it."""
    limit = case.waited_until or LATE  # After this time, the harness deletes the pods' owners.
    recorded = [each for each in case.bundle.history("event") if (seconds(each.received_at) or 0.0) <= limit]
    events = list({each.uid: each for each in recorded}.values())
    newest = refusals.created(pod.last.object for pod in case.pods.values())
    newest = max(newest, _created_by_events(case, events))
    last = refusals.last([recorded.object for recorded in events], newest)
    return last, [recorded.ref for recorded in events if last and refusals.refusal(recorded.object) == last][
        :1
    ]


def _created_by_events(case: Case, events: list[ObjectState]) -> float:
    """Return the creation time of the newest pod according to Events, in seconds since the epoch, or 0.

    Events also report pods that no longer exist. If they report as many pods as the job needs, every pod was
    eventually created. One second is then added, so that rejections in the same second do not count.
    """
    created = {
        str(event.object.get("message")): refusals.occurred(event.object)
        for event in events
        if str(event.object.get("message")).startswith("Created pod: ")
    }
    return max(created.values(), default=0.0) + (1 if len(created) >= case.expected.num_nodes else 0)


def rank_ends(
    case: Case, ends: dict[int, End], recorded: tuple[bool | None, str] | None = None
) -> list[Finding]:
    """Run the `rendezvous` and `rank-exit` checks: find the first failure and its consequences.

    `recorded` is the result of attached_digests.world, which describes the ranks' world according to injected
    recorders.
    """
    failures = [
        end
        for end in ends.values()
        if end.state in {"failed", "deleted"}
        and (case.started(end.index) or (case.launch.attached and end.cause in _WITHOUT_STATUS))
    ]
    if not failures:
        # If every node has recorded ranks, the rendezvous succeeded for every torchrun agent.
        have_met = case.launch.processes and all(map(case.lives.get, range(case.expected.num_nodes)))
        finding = (None if have_met else diagnose_rendezvous(case, ends)) or too_many(case)
        if finding is None and (logged := worlds.of_logs(case)) is not None and logged.result == "FAIL":
            finding = logged
        if finding is not None:
            return [finding, unknown("rank-exit", "see rendezvous")]
        return _no_bad_end(case, ends, recorded)
    if netcheck_ends := netcheck.ended_by_it(case):
        failures = [end for end in failures if end.index not in netcheck_ends and not end.follows]
        if not failures:
            return [unknown("rendezvous", "see netcheck"), unknown("rank-exit", "see netcheck")]
    cause = first(failures)
    if (culprit := checkpoint_errors.diagnose(case, cause, failures)) is not None:
        cause, failures = culprit, []  # The text of this `End` describes all failures.
    elif cause.follows:
        cause, failures = _culprit(case, ends, cause, failures)
    other_ends = [end for end in failures if end.index != cause.index]
    at_once = _in_the_same_second(case, cause, failures)
    time_texts = {end.index: "in the same second" for end in at_once}
    consequences = [
        text
        for end in other_ends[:3]
        for text in (f"{time_texts.get(end.index, 'after it')}: {end.text}", end.log_quote)
    ]
    id_ = cause.cause or "rank.crashed"
    if id_ == "run.deleted":
        return [unknown("rendezvous", "see completed"), unknown("rank-exit", cause.text)]
    if id_.startswith("rendezvous."):
        return [_never_met(case, ends, failures, cause, consequences), unknown("rank-exit", "see rendezvous")]
    common = _with_same_error(case, cause, failures)
    also_first = [rank for end in (*at_once, *common) for rank in end.ranks]
    ranks, absences = sorted({*cause.ranks, *also_first}), list[str]()
    if id_.startswith("image."):
        ranks = [rank for end in failures if end.cause == id_ for rank in end.ranks]
    if id_ in OF_ALL:
        ranks = [
            rank for end in failures if id_ in {end.cause, end.clue} for rank in end.ranks
        ] or cause.ranks
        absences = tracker_faults.absence_texts(case) if "tracker" in id_ else []
    peers = (
        collectives.of_peers(case, cause, ends.values()) if cause.follows and not cause.by_controller else []
    )
    earlier_end = (
        exit_codes.before_a_restart(case.processes[cause.index]) if cause.index in case.processes else None
    )
    restart_texts = (
        [f"torchrun had restarted it: {earlier_end.text}"] if earlier_end and id_ == "rank.crashed" else []
    )
    faults = gpu_conditions.of_failure(case, cause)
    reasons = [
        cause.log_quote,
        *(
            ["every pod of the job ended with this error, so it is not an error of one rank"]
            if common
            else []
        ),
        *restart_texts,
        *faults.texts,
        *peers,
        *other_containers.before(case, cause),
        *absences,
        *consequences,
    ]
    result = not_passed(
        "rank-exit",
        id_,
        cause.text,
        why=reasons,
        ranks=ranks,
        evidence=[*cause.evidence, *faults.evidence],
        at=cause.at,
        advice=faults.advice or cause.advice,
    )
    if case.launch.attached and cause.follows and id_ != "run.timed_out":
        origin, advice = ([], "") if cause.by_controller else _origin(case, cause)
        reasons = [*result.why, *origin]
        result = replace(result, result="UNKNOWN", why=reasons, advice=result.advice or advice)
    return [unknown("rendezvous", "see rank-exit"), result]


def _culprit(case: Case, ends: dict[int, End], cause: End, failures: list[End]) -> tuple[End, list[End]]:
    """Return the `End` that led to the first failure, or `cause` if no such `End` is known.

    Also return the failures that the finding should list.
    """
    if (culprit := frozen(case, ends) or collectives.absent(case, cause, ends.values())) is not None:
        return culprit, failures
    if (culprit := collectives.diagnose(case, cause, failures)) is not None:
        return culprit, []  # The text of this `End` describes all failures.
    return cause, failures


def _origin(case: Case, cause: End) -> tuple[list[str], str]:
    """Return (reasons, advice) if the original failure, which led to `cause`, was not recorded."""
    peer, text = (
        collectives.lost_peer(case, cause),
        "it is the consequence of another failure, which was not recorded",
    )
    missing = _missing(case)
    if not missing:
        return [text, peer], ""
    absence = f"{text}: no pod of {names(case.ranks_of(*missing))} exists now"
    reason = attached_missing_pods.reason(case)
    return [absence, peer, reason], attached_missing_pods.advice(case)


def _in_the_same_second(case: Case, cause: End, failures: list[End]) -> list[End]:
    """Return every other `End` with the same cause and time, if the harness attached only afterwards.

    Timestamps are truncated to whole seconds, so the evidence does not show which pod was deleted or evicted
    first.
    """
    is_ordered = not case.launch.attached or cause.cause not in (
        "rank.pod_deleted",
        "rank.evicted",
        "rank.killed",
    )
    if is_ordered or any(len(case.pods[end.index].history) > 1 for end in failures):
        return []
    signature = (cause.cause, cause.follows, cause.at // 1)
    return [end for end in failures if end != cause and (end.cause, end.follows, end.at // 1) == signature]


def _with_same_error(case: Case, cause: End, failures: list[End]) -> list[End]:
    """Return all failures if every pod of the job failed by itself with the same error, or [].

    The errors may differ in numbers, such as the rank in a file name. The order in which the pods ended is
    then irrelevant.
    """

    def error(end: End) -> str:
        is_own = end.cause == "rank.crashed" and not end.follows and not end.unexplained
        text = _BEFORE_ERROR.sub("", end.log_quote)
        return _NUMBER.sub("0", text) if is_own and error_patterns.is_error(text) else ""

    is_complete = len({end.index for end in failures}) == case.expected.num_nodes > 1
    is_same = is_complete and error(cause) and {error(end) for end in failures} == {error(cause)}
    return failures if is_same else []


def _no_bad_end(case: Case, ends: dict[int, End], recorded: tuple[bool | None, str] | None) -> list[Finding]:
    if (cause := frozen(case, ends)) is not None:
        result = not_passed(
            "rank-exit", "rank.hung", cause.text, ranks=cause.ranks, evidence=cause.evidence, at=cause.at
        )
        return [unknown("rendezvous", "see rank-exit"), result]
    unfinished = [end for end in ends.values() if end.state != "succeeded"]
    if not unfinished:
        codes = f"{names(case.ranks)} exited with 0"
        refs = [ref for end in ends.values() for ref in end.evidence]
        exits = (
            caught_errors.check(case) or survived_gpu_errors.check(case) or passed("rank-exit", codes, refs)
        )
        return [worlds.rendezvous(case, recorded), exits]
    ranks = [rank for end in unfinished for rank in end.ranks]
    details = [
        f"{case.place(end.index)} {rank_words.of_node(case, end.index).present} {end.state}"
        for end in unfinished
    ]
    text = f"the end of {names(ranks)} is not recorded"
    running = [rank for end in unfinished if end.state == "running" for rank in end.ranks]
    if running == ranks and case.terminal == "Completed":
        text = (
            f"the {case.launch.kind} completed, but {names(ranks)} still ran in the last recorded pod state: "
            "check whether the job's success policy waits for every rank"
        )
    return [
        unknown("rendezvous", text, ranks=ranks),
        unknown("rank-exit", f"no exit code of {names(ranks)} is recorded", details=details, ranks=ranks),
    ]


def _never_met(
    case: Case, ends: dict[int, End], failures: list[End], cause: End, consequences: list[str]
) -> Finding:
    """Return the finding for ranks that did not complete the rendezvous. `cause` is the first failure."""
    if cause.cause == "rendezvous.dns" and (name := master_addr.unresolved(case, cause)) is not None:
        return not_passed(
            "rendezvous",
            "dns.advertised",
            name.text,
            why=[cause.text, *consequences],
            ranks=name.ranks or cause.ranks,
            evidence=cause.evidence,
            at=cause.at,
        )
    if lost_peers.CLOSED in cause.text:
        return _closed(case, ends, failures, cause, consequences)
    waiting = [end for end in failures if (end.cause or "").startswith("rendezvous.")]
    ranks = [rank for end in ends.values() if end not in waiting for rank in end.ranks]
    text = f"{names(ranks)} never joined the rendezvous" if ranks else "all ranks failed in the same way"
    if cause.cause != "rendezvous.timeout":
        failure = "DNS failed" if cause.cause == "rendezvous.dns" else "TCP failed"
        if "Ping failed" in cause.text:
            failure = "the process that responded at MASTER_ADDR is not a rendezvous"
        ranks = [rank for end in waiting if end.cause == cause.cause for rank in end.ranks]
        text = f"{names(ranks)} could not reach the others: {failure}"
    not_started = start_events.unstarted(case, [case.node_of(rank) for rank in ranks])
    mesh = None if not_started or cause.cause == "rendezvous.dns" else service_mesh.at_start(case)
    mesh_texts = [mesh.text] if mesh else []
    return not_passed(
        "rendezvous",
        cause.cause or "rendezvous.timeout",
        text,
        why=[*not_started, *mesh_texts, cause.text, cause.log_quote, *consequences],
        ranks=ranks or case.ranks,
        evidence=cause.evidence,
        at=cause.at,
        advice=start_events.LATE_START if not_started else mesh.advice if mesh else cause.advice,
    )


def _closed(
    case: Case, ends: dict[int, End], failures: list[End], cause: End, consequences: list[str]
) -> Finding:
    """Return the finding for ranks whose torchrun joined a rendezvous that was closed."""
    ranks = [rank for end in failures if lost_peers.CLOSED in end.text for rank in end.ranks]
    earlier = [end for end in ends.values() if end.state == "succeeded"]
    text = f"{names(ranks)} found the rendezvous closed"
    reasons = [f"{case.place(end.index)} had ended with exit code 0" for end in earlier[:2]]
    return not_passed(
        "rendezvous",
        "rendezvous.timeout",
        text,
        why=[*reasons, cause.text, *consequences],
        ranks=ranks,
        evidence=cause.evidence,
        at=cause.at,
        advice=_CLOSED_ADVICE,
    )


def spread(case: Case) -> Finding:
    """Run the `node-spread` check: the ranks ran on at least the expected number of nodes."""
    nodes = {pod.node for pod in case.pods.values() if pod.node}
    head = f"the ranks ran on {counted(len(nodes), 'node')} ({', '.join(sorted(map(str, nodes))) or 'none'})"
    if len(nodes) >= case.expected.min_nodes_used:
        return passed("node-spread", head)
    if len(case.pods) < case.expected.num_nodes or not all(pod.node for pod in case.pods.values()):
        return unknown("node-spread", "the node of a pod was not recorded")
    text = f"{head}, but at least {case.expected.min_nodes_used} are expected"
    refs = [pod.last.ref for pod in case.pods.values()]
    return not_passed("node-spread", "scheduling.not_spread", text, ranks=case.ranks, evidence=refs)


def stalled(case: Case, ends: dict[int, End]) -> tuple[list[int], list[str]]:
    """Return the ranks that were still running when the harness stopped waiting, and sentences about one pod.

    Of the pods of these ranks, this is the pod that had been silent for the longest time.
    """
    silent_pods: list[tuple[float, str, End]] = []
    for end in ends.values():
        if end.state in {"running", "waiting"}:
            path = case.bundle.log(case.pods[end.index].name, case.launch.container)
            limit = case.stopped_at or LATE
            lines = case.bundle.tail(path, STOPPED_LINES)
            recent = [line for line in lines if (seconds(line[1].partition(" ")[0]) or 0.0) <= limit]
            recent = recent[-LAST_LINES:]
            moment = recent[-1][1].partition(" ")[0] if recent else ""
            last = recent[-1][1].partition(" ")[2] if recent else "none"
            silent_pods.append((seconds(moment) or 0.0, error_patterns.last_line(recent)[0] or last, end))
    if not silent_pods:
        return [], []
    _, text, end = min(silent_pods, key=lambda entry: entry[0])
    unended_ranks = [rank for entry in silent_pods for rank in entry[2].ranks]
    last = f"its last log line: {text}" if text else "its log is empty"
    was = rank_words.was(case, end.index)
    return unended_ranks, [f"{case.place(end.index)} {was} silent for the longest time", last]
