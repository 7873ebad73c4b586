"""Build the `completed` finding for an attached job, which the harness observes but did not launch.

The job has not ended, has failed, or consists of pods without a controller.
"""

from __future__ import annotations

from harness.core.clock import seconds, timestamp
from harness.evidence.kubernetes.objects import ObjectState, items, mapping
from harness.judge import rank_words
from harness.judge.case import Case, names
from harness.judge.catalogue import RUNNING
from harness.judge.finding import Finding, counted, not_passed, passed
from harness.judge.logs import error_patterns
from harness.judge.pod_end import End
from harness.judge.ranks import launcher_failures, terminating

LAST_LINES = 400
MAX_SILENT = 3
"""Maximum number of ranks, pods or failures about which a finding contains sentences."""
YOUNGER_SECONDS = 60.0
"""A pod created more than this many seconds after another rank started may have replaced an earlier pod."""
_ENDLESS = ("StatefulSet", "DaemonSet")


def not_ended(case: Case, launched: ObjectState, ends: dict[int, End]) -> Finding:
    """Return the `completed` finding for a workload that had not ended when its object was read."""
    workload = f"{case.launch.kind} {launched.name}"
    reasons = (
        [f"a {case.launch.kind} never reports that it has ended"] if case.launch.kind in _ENDLESS else []
    )
    if mapping(launched.object, "spec").get("suspend") is True:
        reasons.append("it is suspended")
    reasons += [*_launcher(case), *terminating.overdue(case)]
    return _open(case, f"{workload} has not ended", ends, reasons, [launched.ref])


def completed_early(case: Case, launched: ObjectState, ends: dict[int, End]) -> Finding | None:
    """Return the `completed` finding for an object that reports success before every rank has ended, or None.

    A PyTorchJob succeeds as soon as its master succeeds, and a success policy can ignore pods. The workers of
    an MPIJob never end, so only the log of its launcher counts.
    """
    if case.launch.attached and case.launch.kind == "MPIJob":
        return _launcher_failed(case, launched)
    unended = [end for end in ends.values() if end.state in ("running", "waiting")]
    if not case.launch.attached or not unended:
        return None
    text = f"{case.launch.kind} {launched.name} is Completed, but not every rank has ended"
    return _open(case, text, ends, [], [launched.ref])


def _launcher_failed(case: Case, launched: ObjectState) -> Finding | None:
    """Return the finding for a completed MPIJob whose launcher reports that a process failed, or None."""
    name, failure = next(launcher_failures.of_launcher_pods(case), ("", None))
    if failure is None:
        return None
    text = f"MPIJob {launched.name} is Completed, though in the log of its launcher {name}, {failure.text}"
    refs = [*failure.evidence, launched.ref]
    return not_passed(
        "completed", "rank.exit_code_masked", text, ranks=failure.ranks, evidence=refs, phase=RUNNING
    )


def failed(case: Case, launched: ObjectState, text: str) -> Finding:
    """Return the `completed` finding for an object that reports a failure."""
    reasons = [*_launcher(case), *_deleted_by_its_controller(case, launched)]
    return not_passed("completed", "run.not_completed", text, why=reasons, evidence=[launched.ref])


def _launcher(case: Case) -> list[str]:
    """Return sentences about an MPIJob's launcher pod: exit codes, restarts and the last line of its log.

    The launcher runs mpirun and exits with mpirun's exit code.
    """
    sentences = []
    for state in case.bundle.last("pod").values():
        labels = mapping(state.object, "metadata", "labels")
        if "launcher" not in (labels.get(name) for name in launcher_failures.LAUNCHER_LABELS):
            continue
        for status in items(state.object, "status", "containerStatuses"):
            if (code := mapping(status, "state", "terminated").get("exitCode")) is not None:
                sentences.append(f"its launcher {state.name} ended with exit code {code}")
            waiting, last_state = (
                mapping(status, "state", "waiting"),
                mapping(status, "lastState", "terminated"),
            )
            if waiting and last_state:
                text = f"its launcher {state.name} is waiting ({waiting.get('reason')}) after "
                text += counted(int(status.get("restartCount") or 0), "restart")
                sentences.append(f"{text}, and last ended with exit code {last_state.get('exitCode')}")
        for container in items(state.object, "spec", "containers"):
            text = error_patterns.last_line(
                case.bundle.tail(case.bundle.log(state.name, str(container.get("name"))))
            )[0]
            sentences += [f"the last log line of its launcher {state.name}: {text}"] if text else []
    return sentences


def _deleted_by_its_controller(case: Case, launched: ObjectState) -> list[str]:
    """Return [sentence] if the Job controller deleted the pods of a failed Job, otherwise [].

    With restartPolicy OnFailure, the controller deletes the failed pod when the Job fails, so the pod's log
    is lost.
    """
    template = mapping(launched.object, "spec", "template", "spec")
    if case.launch.kind != "Job" or case.pods or template.get("restartPolicy") != "OnFailure":
        return []
    text = "with restartPolicy OnFailure, the Job controller deletes a failed pod together with its log"
    return [f"{text}; with restartPolicy Never, it keeps the pod"]


def of_bare_pods(case: Case, ends: dict[int, End]) -> Finding:
    """Run the `completed` check for pods without a controller. Only the pods have a status."""
    refs = [pod.last.ref for pod in case.pods.values()]
    missing = [index for index in range(case.expected.num_nodes) if index not in case.pods]
    if case.terminal == "Completed" and not missing:
        return passed("completed", f"all {len(case.pods)} pods Succeeded", refs)
    if case.terminal == "Failed":
        failed = [
            p.name for p in case.pods.values() if mapping(p.last.object, "status").get("phase") == "Failed"
        ]
        text = f"{', '.join(failed[:3])} Failed"
        return not_passed("completed", "run.not_completed", text, evidence=refs)
    return _open(case, "not all pods have ended", ends, [], refs)


def _open(case: Case, text: str, ends: dict[int, End], reasons: list[str], refs: list[str]) -> Finding:
    """Return the run.not_ended finding, with the last log lines of the ranks that were silent the longest."""
    states = [
        f"{names(end.ranks)} {rank_words.of(end.ranks).present} {end.state}"
        for end in ends.values()
        if end.ranks
    ][:8]
    unended_ranks = [
        rank for end in ends.values() if end.state in ("running", "waiting") for rank in end.ranks
    ]
    return not_passed(
        "completed",
        "run.not_ended",
        text,
        details=states,
        why=[*reasons, *_ended_before(case), *_younger(case), *_silent(case, ends)],
        ranks=unended_ranks,
        evidence=refs,
    )


def _ended_before(case: Case) -> list[str]:
    """Return a sentence for each of the first MAX_SILENT failures after which a container was restarted.

    If ranks hang after restarts, the earliest of these failures is the reason.
    """
    sentences: list[tuple[float, str]] = []
    for index, pod in case.pods.items():
        for status in items(pod.last.object, "status", "containerStatuses"):
            last_state = mapping(status, "lastState", "terminated")
            at = seconds(last_state.get("finishedAt"))
            if status.get("name") == case.launch.container and last_state.get("exitCode") and at is not None:
                text = f"the container of {case.place(index)} had ended earlier with exit code "
                text += f"{last_state['exitCode']}{_reason(last_state)} at {timestamp(at)}, and was restarted"
                sentences.append((at, text))
    return [text for _, text in sorted(sentences)[:MAX_SILENT]]


def _reason(terminated: dict[str, object]) -> str:
    """Return " (out of memory)" if the OOM killer terminated the container, otherwise ""."""
    return " (out of memory)" if terminated.get("reason") == "OOMKilled" else ""


def _younger(case: Case) -> list[str]:
    """Return a sentence for each of the first MAX_SILENT pods that may have replaced another pod.

    The peers of a replacement pod may not wait for it, for example if the rendezvous is static.
    """
    policy = mapping(case.jobset.object, "spec").get("podManagementPolicy") if case.jobset else None
    if case.launch.kind == "StatefulSet" and policy != "Parallel":
        return []  # The StatefulSet controller creates its pods one after another.
    start_times = [at for index in case.pods if (at := case.container_started(index)) is not None]
    sentences = []
    for index, pod in case.pods.items():
        created = seconds(mapping(pod.last.object, "metadata").get("creationTimestamp"))
        if created is None or not start_times or created - min(start_times) <= YOUNGER_SECONDS:
            continue
        text = f"the pod of {case.place(index)} was created {created - min(start_times):.0f} s after another"
        sentences.append(f"{text} rank had started, so it may have replaced an earlier pod")
    return sentences[:MAX_SILENT]


def _silent(case: Case, ends: dict[int, End]) -> list[str]:
    """Return a sentence for each of the running ranks with the oldest last log lines, at most MAX_SILENT."""
    read_at = seconds(case.manifest.attached_at)
    last_lines: list[tuple[float, str]] = []
    for end in ends.values():
        if end.state != "running":
            continue
        path = case.bundle.log(case.pods[end.index].name, case.launch.container)
        lines = case.bundle.tail(path, LAST_LINES)
        at = seconds(lines[-1][1].partition(" ")[0]) if lines else None
        until = case.waited_until or read_at
        if at is None or until is None:
            continue
        text = error_patterns.last_line(lines)[0] or lines[-1][1].partition(" ")[2]
        its = rank_words.of_node(case, end.index).its
        last_lines.append(
            (
                at,
                f"{case.place(end.index)} wrote {its} last log line {max(0, until - at):.0f} s before the "
                f"harness stopped watching: {text}",
            )
        )
    return [text for _, text in sorted(last_lines)[:MAX_SILENT]]
