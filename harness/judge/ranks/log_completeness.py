"""Judge whether the log of each rank is complete."""

from __future__ import annotations

import re

from harness.core.clock import seconds
from harness.evidence.kubernetes.objects import Pod
from harness.judge import rank_words
from harness.judge.case import Case
from harness.judge.catalogue import RUNNING
from harness.judge.finding import Finding, not_passed, passed, unknown
from harness.judge.logs import error_patterns
from harness.workers.ground_truth.truth_frames import EXIT_MARK

LAST_LINES = 400
"""Number of lines at the end of a log that are searched for the line with the exit code. Other processes may
log after this line."""
LATE_SECONDS = 60.0
"""A log begins late if its first line was written more than this many seconds after the start of the
container."""
MOMENT = 2.0
"""The last log line counts as simultaneous with the container's end if it is less than this many seconds
older."""
_KUBELET = re.compile(r"dial tcp \S+:10250: [\w/: -]*\w")
"""Pattern for the API server's error message when it cannot reach a kubelet."""


def logs(case: Case) -> Finding:
    """Run the `logs` check: each rank's log is complete from its first line to its last."""
    for index in range(case.expected.num_nodes):
        pod = case.pods.get(index)
        if pod is None or not case.started(index):
            verb = rank_words.of_node(case, index).present
            return unknown("logs", f"{case.place(index)} {verb} not recorded as running")
        for each in [*case.pod_attempts[index][:-1], pod]:
            path = case.bundle.log(each.name, case.launch.container)
            gaps = case.log_gaps(each.name)
            has_run = each is pod or each.container(case.launch.container, "running") is not None
            early = _stops_early(case, each, path) if has_run and not gaps else None
            if gaps and (unreached := _KUBELET.search(gaps[0])) is not None:
                return _kubelet(case, index, each, unreached[0])
            if gaps or early or (has_run and not case.bundle.tail(path, 1)):
                reason = gaps[0] if gaps else early or f"{path} is missing or empty"
                return not_passed(
                    "logs",
                    "run.log_incomplete",
                    f"the log of {case.place(index)} is incomplete: {reason}",
                    ranks=case.ranks_of(index),
                    evidence=[path],
                )
        if case.launch.attached and (rotation := _begins_late(case, index, pod)):
            return unknown("logs", rotation, ranks=case.ranks_of(index))
    return passed("logs", "every rank's log is complete")


def _begins_late(case: Case, index: int, pod: Pod) -> str:
    """Return the reason why the beginning of a log may be missing, or "".

    After a log rotation, the kubelet returns only the newest file.
    """
    path = case.bundle.log(pod.name, case.launch.container)
    moment = next(
        (line.partition(b" ")[0].decode(errors="replace") for _, line in case.bundle.lines(path)), ""
    )
    first_at, started_at = seconds(moment), case.container_started(index)
    if first_at is None or started_at is None or first_at - started_at <= LATE_SECONDS:
        return ""
    head = f"the log of {case.place(index)} begins {first_at - started_at:.0f} s after the container started"
    return f"{head}, so the kubelet may have rotated its beginning away"


def _kubelet(case: Case, index: int, pod: Pod, error: str) -> Finding:
    """Return the finding for a log that could not be read because the kubelet was unreachable."""
    text = (
        f"the log of {case.place(index)} could not be read: the API server could not reach the kubelet on "
        f"node {pod.node}, port 10250 ({error})"
    )
    reasons = ["the rank itself is not judged, because it is not known what it logged"]
    return not_passed(
        "logs",
        "cluster.kubelet_unreachable",
        text,
        why=reasons,
        ranks=case.ranks_of(index),
        evidence=["manifest.json"],
        phase=RUNNING,
    )


def _stops_early(case: Case, pod: Pod, path: str) -> str | None:
    """Return the reason why the end of a log is missing, or None if the log is complete.

    If a container exits on its own, the shell around its command writes the exit code as the last line. A log
    without this line is truncated.
    """
    terminated = pod.container(case.launch.container, "terminated")
    code = terminated[1].get("exitCode") if terminated else None
    lines = [line for _, line in case.bundle.tail(path, LAST_LINES)]
    # The line with the exit code is also missing after a signal, and in bundles from older versions of the
    # harness.
    if (
        not case.manifest.watched
        or terminated is None
        or not isinstance(code, int)
        or code >= 128
        or not lines
    ):
        return None
    marks = {"konduktor": error_patterns.SHELL_ENDED, "apply": EXIT_MARK}
    mark = marks.get(case.launch.launcher)
    if mark is None or any(mark in line for line in lines):
        return None
    at, finished = lines[-1].partition(" ")[0], terminated[1].get("finishedAt")
    silence = (seconds(finished) or 0.0) - (seconds(at) or 0.0)
    # If konduktor's shell fails before it starts the command, it does not write the exit code.
    if (
        mark is not EXIT_MARK
        and silence < MOMENT
        and not any(error_patterns.BEGINS in line for line in lines)
    ):
        return None
    return f"{path} ends at {at} without a line for the exit code, but its container ended at {finished}"
