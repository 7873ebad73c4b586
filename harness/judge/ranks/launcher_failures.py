"""Find failed ranks that only a launcher such as mpirun, horovodrun or srun reports.

The script that starts the launcher can hide the launcher's exit code, so that the pod exits with 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harness.evidence.kubernetes.objects import items, mapping
from harness.judge.case import Case, names
from harness.judge.logs import child_signals, launcher_reports
from harness.judge.logs.error_patterns import Clues
from harness.judge.logs.launcher_reports import Report
from harness.judge.ranks.exit_signals import signal_name

DEEPSPEED_LINES = 10
"""Number of lines at the end of a log that are searched for DeepSpeed's report."""
MAX_LINES_AFTER = 5
"""Maximum number of other lines after a launcher's last report. After a failure, a script can print a few
lines before it ends, but a restarted launcher prints more."""
_SURVIVED = ("horovodrun", "srun")
"""Launchers that can let the other processes continue to their end after one process has failed."""
_SLACK_SECONDS = 1.0
LAUNCHER_LABELS = ("training.kubeflow.org/job-role", "training.kubeflow.org/replica-type")
"""Labels that mark a launcher pod. The MPI operator sets the first, and the training operator the second."""


@dataclass(frozen=True)
class Failure:
    """A failure that a launcher reports. `text` is a clause such as "srun reports that rank 1 failed …"."""

    ranks: list[int]
    text: str
    code: int | None
    evidence: tuple[str, ...]


def of_pod(case: Case, index: int, clues: Clues, ranks: list[int]) -> Failure | None:
    """Return the failure that a launcher reports in the log of a node's pod, or None.

    A report counts only if no processes were recorded, because their records are more exact. `clues` are the
    clues in the last lines of the log. `ranks` contains the rank that they name, or else all ranks of the
    pod.
    """
    if case.launch.processes:
        return None
    log = case.bundle.log(case.pods[index].name, case.launch.container)
    of_deepspeed = child_signals.of_deepspeed(case.bundle.tail(log, DEEPSPEED_LINES))
    if code := clues.exit_code if clues.report_is_last else of_deepspeed:
        launcher = "torchrun" if clues.report_is_last else "DeepSpeed"
        text = f"{launcher} reports that {names(ranks)} failed with exit code {code}"
        return Failure(ranks, text, code, tuple(clues.refs))
    return _of_log(case, log, case.ranks_of(index), index)


def of_launcher_pods(case: Case) -> Iterator[tuple[str, Failure]]:
    """Yield the names of an MPIJob's launcher pods whose log reports a failure, each with the failure."""
    for name, container in launcher_containers(case):
        failure = _of_log(case, case.bundle.log(name, container), list(case.ranks), 0)
        if failure is not None:
            yield name, failure


def launcher_containers(case: Case) -> Iterator[tuple[str, str]]:
    """Yield (pod, container) for each container of the job's launcher pods, which run mpirun."""
    for state in case.bundle.last("pod").values():
        labels = mapping(state.object, "metadata", "labels")
        if "launcher" in (labels.get(name) for name in LAUNCHER_LABELS):
            for container in items(state.object, "spec", "containers"):
                yield state.name, str(container.get("name"))


def _of_log(case: Case, log: str, of_pod: list[int], index: int) -> Failure | None:
    """Return the failure in the last report in a log, unless the failed rank was started again."""
    reports = launcher_reports.find(case.bundle.log_lines(log))
    report = next((each for each in reversed(reports) if _counts(case, each, of_pod, index)), None)
    if report is None:
        return None
    ranks = _ranks(case, report, of_pod, index)
    subject = names(ranks) if report.rank is not None else "a process"
    text = f"{report.launcher} reports that {subject} {_outcome(report)}"
    return Failure(ranks, text, report.code, (f"{log}:{report.number}",))


def _outcome(report: Report) -> str:
    if report.code is None or report.code == 0:
        return "failed"
    by_signal = f"was ended by {signal_name(-report.code)}"
    return by_signal if report.code < 0 else f"failed with exit code {report.code}"


def _counts(case: Case, report: Report, of_pod: list[int], index: int) -> bool:
    """Return whether neither the rest of the log nor the points show a restart of the reported process."""
    if report.digests_after or report.rank in report.ranks_after:
        return False
    logged_at = [case.last_logged(rank) for rank in _ranks(case, report, of_pod, index)]
    is_later = report.at is not None and max(logged_at, default=0.0) > report.at + _SLACK_SECONDS
    if is_later:
        return False
    if report.lines_after <= MAX_LINES_AFTER and not report.ranks_after:
        return True
    # The other ranks continued. If the failed rank had been started again, it would have logged points again.
    return (
        report.launcher in _SURVIVED and report.rank is not None and report.at is not None and any(logged_at)
    )


def _ranks(case: Case, report: Report, of_pod: list[int], index: int) -> list[int]:
    """Return the rank that a launcher reports, or all ranks of its pod if the report does not name any.

    A launcher in the first pod can start the processes of all pods. Other launchers start only those of their
    own pod.
    """
    if report.rank is None:
        return of_pod
    if report.rank in of_pod:
        return [report.rank]
    if index and report.rank < len(of_pod):
        return [of_pod[report.rank]]
    return [report.rank] if report.rank in case.ranks else of_pod
