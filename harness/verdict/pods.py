"""From admission to the end of every rank: images, scheduling, exit codes, logs."""

from __future__ import annotations

from harness.evidence.objects import Seen, items, mapping
from harness.verdict.case import END, LATE, START, Case, Finding, found, names, passed, seconds, unknown
from harness.verdict.ends import End, first

_IMAGE = {
    "ErrImagePull": "image.pull_failed",
    "ImagePullBackOff": "image.pull_failed",
    "RegistryUnavailable": "image.pull_failed",
    "ImageInspectError": "image.pull_failed",
    "InvalidImageName": "image.not_found",
    "ErrImageNeverPull": "image.not_found",
    "CreateContainerConfigError": "image.config",
    "CreateContainerError": "image.config",
    "RunContainerError": "image.entrypoint",
    "StartError": "image.entrypoint",
    "ContainerCannotRun": "image.entrypoint",
}
_ABSENT = (
    "not found",
    "does not exist",
    "manifest unknown",
    "not present",
    "no such image",
    "couldn't parse",
)


def _blocked(case: Case, index: int) -> tuple[Seen, str, str, str] | None:
    """(where, reason, message, image) of a container that could not start, the reason with most to say."""
    pod = case.pods[index]
    best: tuple[Seen, str, str, str] | None = None
    for seen in pod.history:
        for status in items(seen.object, "status", "containerStatuses"):
            for state in ("waiting", "terminated"):
                what = mapping(status, "state", state)
                reason, message = str(what.get("reason", "")), str(what.get("message", ""))
                if status.get("name") != case.launch.container or reason not in _IMAGE:
                    continue
                if best is None or len(message) >= len(best[2]):
                    best = seen, reason, message, str(status.get("image", ""))
    return best


def image(case: Case) -> Finding:
    """Whether every rank's container could be started from its image."""
    for index in case.pods:
        blocked = None if case.started(index) else _blocked(case, index)
        if blocked is None:
            continue
        seen, reason, message, name = blocked
        cause = _IMAGE[reason]
        if cause == "image.pull_failed" and any(word in message.lower() for word in _ABSENT):
            cause = "image.not_found"
        return found(
            "image",
            cause,
            f"{case.place(index)} could not start image {name}: {reason}: {message or 'no message'}",
            ranks=case.ranks_of(index),
            evidence=[seen.ref],
            phase=START,
        )
    waiting = [i for i in range(case.expected.num_nodes) if not case.started(i)]
    if waiting:
        return unknown("image", f"no container of node {waiting[0]} was seen started")
    return passed("image", "every rank's container started", [pod.last.ref for pod in case.pods.values()])


def scheduling(case: Case) -> Finding:
    """Whether every pod got a node, and its kubelet took it."""
    for index, pod in case.pods.items():
        scheduled = pod.condition("PodScheduled")
        if pod.node is None and scheduled and scheduled[1].get("status") == "False":
            why = f"{scheduled[1].get('reason', '')}: {scheduled[1].get('message', 'no message')}"
            return found(
                "scheduling",
                "scheduling.unschedulable",
                f"{case.place(index)} could not be scheduled: {why}",
                ranks=case.ranks_of(index),
                evidence=[scheduled[0].ref],
            )
    for index, pod in case.pods.items():
        if pod.node and case.timed_out and not case.started(index) and _blocked(case, index) is None:
            return found(
                "scheduling",
                "scheduling.not_started",
                f"{case.place(index)} was bound to its node and its container never started",
                ranks=case.ranks_of(index),
                evidence=[pod.last.ref],
            )
    without = [index for index in range(case.expected.num_nodes) if index not in case.pods]
    without += [index for index, pod in case.pods.items() if pod.node is None]
    if without:
        return unknown("scheduling", f"no node was recorded for the pod of node {without[0]}")
    where = ", ".join(f"{names(case.ranks_of(i))} on {pod.node}" for i, pod in case.pods.items())
    return passed("scheduling", where, [pod.last.ref for pod in case.pods.values()])


def rank_pods(case: Case) -> Finding:
    """Whether every expected rank had a pod, of the last attempt of the job."""
    missing = [index for index in range(case.expected.num_nodes) if index not in case.pods]
    ranks = [rank for index in missing for rank in case.ranks_of(index)]
    restarts = mapping(case.jobset.object, "status").get("restarts", 0) if case.jobset else 0
    if not missing:
        old = [index for index, pod in case.pods.items() if pod.attempt != restarts]
        if old and case.terminal:
            text = f"the JobSet restarted {restarts} times, and the last pod of node {old[0]} is not here"
            return found("rank-pods", "run.evidence_missing", text, evidence=["objects/pod.jsonl"])
        return passed("rank-pods", f"{names(range(case.expected.ranks))} had a pod each")
    if case.terminal == "Completed" or case.broken("objects/pod.jsonl"):
        text = f"no pod of {names(ranks)} is in the evidence"
        return found("rank-pods", "run.evidence_missing", text, ranks=ranks, evidence=["objects/pod.jsonl"])
    refused = [seen for seen in case.bundle.history("event") if seen.object.get("reason") == "FailedCreate"]
    why = f": {refused[-1].object.get('message', '')}" if refused else ""
    return found(
        "rank-pods",
        "rank.missing",
        f"{names(ranks)} never had a pod{why}",
        ranks=ranks,
        evidence=[refused[-1].ref] if refused else ["objects/pod.jsonl"],
        phase=START,
    )


def rank_ends(case: Case, ends: dict[int, End]) -> list[Finding]:
    """Checks `rendezvous` and `rank-exit`: the first end that was not good, and what followed it."""
    bad = [end for end in ends.values() if end.state in {"failed", "deleted"}]
    unstarted = [end for end in bad if not case.started(end.index)]
    bad = [end for end in bad if end not in unstarted]
    if not bad:
        open_ = [end for end in ends.values() if end.state != "succeeded"]
        if not open_:
            codes = f"{names(range(case.expected.ranks))} exited with 0"
            refs = [ref for end in ends.values() for ref in end.evidence]
            return [passed("rendezvous", "every rank got past it"), passed("rank-exit", codes, refs)]
        ranks = [rank for end in open_ for rank in end.ranks]
        text = "; ".join(f"{case.place(end.index)}: {end.state}" for end in open_[:4])
        return [
            unknown("rendezvous", f"the end of {names(ranks)} was not seen", ranks=ranks),
            unknown("rank-exit", f"no exit code was seen of {text}", ranks=ranks),
        ]
    cause = first(bad)
    others = [end for end in bad if end is not cause]
    after = "".join(f". After it: {end.text}" for end in others[:3])
    id_ = cause.cause or "rank.crashed"
    if not id_.startswith("rendezvous."):
        result = found(
            "rank-exit", id_, cause.text + after, ranks=cause.ranks, evidence=cause.evidence, at=cause.at
        )
        return [unknown("rendezvous", "see rank-exit"), result]
    waiting = [end for end in bad if (end.cause or "").startswith("rendezvous.")]
    stayed = [rank for end in ends.values() if end not in waiting for rank in end.ranks]
    who = (
        f"{names(stayed)} never came" if stayed and id_ == "rendezvous.timeout" else "all ranks failed alike"
    )
    if id_ != "rendezvous.timeout":
        who, stayed = f"{names(cause.ranks)} could not reach the others", cause.ranks
    return [
        found(
            "rendezvous",
            id_,
            f"{who}. {cause.text}{after}",
            ranks=stayed or range(case.expected.ranks),
            evidence=cause.evidence,
            at=cause.at,
        ),
        unknown("rank-exit", "see rendezvous"),
    ]


def spread(case: Case) -> Finding:
    """Whether the ranks ran on as many nodes as the test asks for."""
    nodes = {pod.node for pod in case.pods.values() if pod.node}
    text = f"{len(nodes)} nodes used ({', '.join(sorted(map(str, nodes))) or 'none'})"
    if len(nodes) >= case.expected.min_nodes_used:
        return passed("spread", text)
    if len(case.pods) < case.expected.num_nodes or not all(pod.node for pod in case.pods.values()):
        return unknown("spread", "not every pod's node was recorded")
    text += f", at least {case.expected.min_nodes_used} expected"
    return found(
        "spread",
        "scheduling.not_spread",
        text,
        ranks=range(case.expected.ranks),
        evidence=[pod.last.ref for pod in case.pods.values()],
        phase=END,
    )


def logs(case: Case) -> Finding:
    """Whether each rank's log is there from its first line to its last."""
    for index in range(case.expected.num_nodes):
        pod = case.pods.get(index)
        if pod is None or not case.started(index):
            return unknown("logs", f"{case.place(index)} was not seen running")
        path = case.bundle.log(pod.name, case.launch.container)
        known = [gap for gap in case.manifest.log_gaps if gap.startswith(pod.name)]
        if known or not case.bundle.tail(path, 1):
            why = known[0] if known else f"{path} is missing or empty"
            return found(
                "logs",
                "run.log_incomplete",
                f"The log of {case.place(index)} is not whole: {why}",
                ranks=case.ranks_of(index),
                evidence=[path],
            )
    return passed("logs", "every rank's log is whole")


def stalled(case: Case, ends: dict[int, End]) -> tuple[list[int], str]:
    """The ranks still running at the end of the wait, the most silent one first, and its last line."""
    silent: list[tuple[float, str, End]] = []
    for end in ends.values():
        if end.state in {"running", "waiting"}:
            path = case.bundle.log(case.pods[end.index].name, case.launch.container)
            limit = case.stopped_at or LATE
            lines = [text.partition(" ") for _, text in case.bundle.tail(path)]
            before = [line for line in lines if (seconds(line[0]) or 0.0) <= limit]
            moment, _, text = before[-1] if before else ("", "", "none")
            silent.append((seconds(moment) or 0.0, text, end))
    if not silent:
        return [], ""
    _, text, end = min(silent, key=lambda entry: entry[0])
    still = [rank for entry in silent for rank in entry[2].ranks]
    return still, f"{case.place(end.index)} was silent longest; its last log line: {text}"
