"""Read the reports of mpirun, horovodrun, srun and other launchers about a process that failed.

A script can hide a launcher's exit code (`mpirun … || true`, `srun … | tee log`), and older versions of
horovodrun exit with 0 (horovod#1376). The launcher's report is then the only sign of the failure.
torchrun_report.py and child_signals.py read the reports of torchrun and DeepSpeed.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass, field

from harness.core.clock import seconds
from harness.evidence.io.harness_log_lines import is_own, split_time
from harness.judge.logs import program_lines
from harness.workers.recorder import digest_lines

_WORDS = (
    *(b"noticed that process rank", b"has exited due to process", b"processes exited with non-zero status"),
    *(b"terminated normally, but", b"MPI_ABORT was invoked", b"BAD TERMINATION", b"exit with status code"),
    *(b"srun: error: ", b"crashed with exit code", b"] Child process with PID"),
    *(b"terminated with the following", b"ProcessExitedException: process ", b"global rank "),
    *(b"Global rank ",),
)
"""The first line of each report contains one of these strings. They are a fast filter for the lines of a
log."""
MAX_LINES = 100
"""Number of lines after a report that are read completely. In later lines, only the label with the process is
read."""
_MPI = r"(?P<launcher>mpirun|mpiexec|orterun|prterun)[\w.]*"
_REPORTS = tuple(
    (launcher, re.compile(pattern))
    for launcher, pattern in (
        (
            "",
            rf"{_MPI} noticed that process rank (?P<rank>\d{{1,6}}) with PID \d+ on node \S+ exited on "
            r"signal (?P<signal>\d{1,2})",
        ),
        ("", rf"{_MPI} has exited due to process rank (?P<rank>\d{{1,6}}) with PID"),
        ("", rf"{_MPI} detected that one or more processes exited with non-zero status"),
        ("mpirun", r"^Primary job +terminated normally, but \d+ process(es)? returned"),
        ("MPI", r"^MPI_ABORT was invoked on rank (?P<rank>\d{1,6}) in communicator"),
        ("mpiexec", r"^= +BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES"),
        ("horovodrun", r"^Process (?P<rank>\d{1,6}) exit with status code (?P<code>-?[1-9]\d{0,2})\."),
        ("horovodrun", r"Horovod detected that one or more processes exited with non-zero status"),
        (
            "srun",
            r"^srun: error: \S+: tasks? (?P<rank>\d{1,6})[\d,-]*: (Exited with exit code (?P<code>[1-9]\d*)"
            r"|(?P<name>Killed|Terminated|Aborted|Segmentation fault|Bus error|Illegal instruction"
            r"|Out Of Memory))",
        ),
        (
            "composer",
            r"composer\.cli\.launcher:Rank (?P<rank>\d{1,6}) crashed with exit code (?P<code>-?\d{1,3})",
        ),
        (
            "composer",
            r"\bGlobal rank (?P<rank>\d{1,6}) \(PID \d+\) exited with code (?P<code>-?[1-9]\d{0,2})",
        ),
        (
            "torch.multiprocessing.spawn",
            r"^-- Process (?P<rank>\d{1,6}) terminated with the following (error|exception)",
        ),
        (
            "torch.multiprocessing.spawn",
            r"ProcessExitedException: process (?P<rank>\d{1,6}) terminated with (signal (?P<name>SIG[A-Z]+)"
            r"|exit code (?P<code>[1-9]\d{0,2}))",
        ),
        (
            "Lightning",
            r"^\[rank: (?P<rank>\d{1,6})\] Child process with PID \d+ terminated with code (?P<code>-?\d+)",
        ),
    )
)
"""Pairs of (launcher, pattern for the first line of its report). The launcher is "" if the report names
it."""
_DETAIL = re.compile(
    r"^\s*Process name: (\[.*,)?(?P<rank>\d{1,6})\]?$|^\s*Exit code: +(?P<code>-?\d{1,3})$"
    r"|\berrorcode (?P<abort>-?\d{1,9})\b|^= +RANK (?P<mpich>\d{1,6}) PID|^= +EXIT CODE: (?P<exit>\d{1,3})$"
    r"|^= +KILLED BY SIGNAL: (?P<signal>\d{1,2})\b"
)
"""Pattern for a line that contains the rank or the exit code, below the first line of a report."""
_DETAIL_LINES = 8
_PART = re.compile(
    r"^[=\-*\s]*$|^= |^ +\S|^(srun|slurmstepd|slurmd|pdsh@\S+): |^Traceback |^NOTE: "
    r"|^[\w.]+(Error|Exception): |^a non-zero exit code\. Per user-direction|^with errorcode "
    r"|^(causing )?the job to be terminated\. |^(Terminating|Waiting up to|KVStoreServer|Run gloo job)\b"
    r"|^node \S+ exiting|^(Process name|Exit code): |^\[?\S+:\d+\] \d+ more processes? ha(s|ve) "
    r"|^You may or may not see|^exactly when Open MPI|^YOUR APPLICATION TERMINATED|^===== KONDUKTOR: "
)
"""Pattern for lines that belong to a report, or that a launcher or konduktor prints after it."""
RANK_FAILED = b"failed (exitcode: "
"""Part of torchrun's message about a failed rank. The lines before it belong to an earlier attempt."""
OF_PROCESS = re.compile(r"^\[(\d+,)?(?P<rank>\d{1,6})\]<std(out|err)>:")
"""Pattern for the label that mpirun and horovodrun add to each line of a process."""
_OF_DETERMINED = re.compile(r"^\[[\d\-T:. Z]{10,40}\] (\w+ )?\|\| ")
"""Pattern for the prefix that Determined adds to each line."""
_OUTPUT = re.compile(r"^-+(Begin|End) global rank \d+ STD(OUT|ERR)-+$")
"""Pattern for the lines around the output of a failed process that composer prints after its report."""
_SIGNALS = {
    "Killed": signal.SIGKILL,
    "Terminated": signal.SIGTERM,
    "Aborted": signal.SIGABRT,
    "Segmentation fault": signal.SIGSEGV,
    "Bus error": signal.SIGBUS,
    "Illegal instruction": signal.SIGILL,
    "Out Of Memory": signal.SIGKILL,
}


@dataclass
class Report:
    """A launcher's report about the process that failed first, and facts about the log after the report."""

    launcher: str
    number: int
    """The number of the report's first line in the log."""
    at: float | None
    """The time at which the report was logged, in seconds since the epoch."""
    rank: int | None = None
    """The launcher's number for the process, which is the rank among the launcher's processes."""
    code: int | None = None
    """The exit code, or the negative number of the signal that ended the process."""
    lines_after: int = 0
    """The number of later lines that belong neither to a report nor to a labelled process."""
    ranks_after: set[int] = field(default_factory=set)
    """The processes whose labels occur in later lines."""
    digests_after: bool = False
    """Whether a recorder wrote digests of points after the report."""

    @property
    def is_taken_down(self) -> bool:
        """Return whether the launcher itself may have ended the process after another process had failed."""
        return self.code in (-signal.SIGTERM, 128 + signal.SIGTERM)


def find(log: Iterable[bytes]) -> list[Report]:
    """Return the reports in a log. `log` yields the lines of the log.

    If there is no other output between reports, they are about the same failure. Of these, only one is
    returned: the first that has a rank which the launcher did not end itself.
    """
    reports: list[Report] = []
    details, in_output = 0, False
    for number, line in enumerate(log, 1):
        begins = any(word in line for word in _WORDS)
        if not begins and (not reports or (reports[-1].lines_after > MAX_LINES and b"@" not in line)):
            if reports and (label := OF_PROCESS.match(split_time(line.decode(errors="replace"))[1])):
                _label(reports, label)
            continue
        text = line.decode(errors="replace").rstrip("\n")
        if is_own(text):
            digests = digest_lines.LINE_MARK in text or digest_lines.SUMMARY_MARK in text
            for each in reports:
                each.digests_after = each.digests_after or digests
            continue
        for _, own in program_lines.plain([(number, text)]):
            plain = _OF_DETERMINED.sub("", own)
            if match := _OUTPUT.search(plain):
                in_output = match[1] == "Begin"
                continue
            report = _report(plain, number, text) if begins and not in_output else None
            if report is not None:
                details = _DETAIL_LINES
                _add(reports, report)
            elif reports:
                details -= 1
                if details >= 0:
                    _complete(reports[-1], plain)
                if not in_output:
                    _count(reports, text, plain)
    return reports


def _report(plain: str, number: int, text: str) -> Report | None:
    for launcher, pattern in _REPORTS:
        if match := pattern.search(plain):
            values = match.groupdict()
            report = Report(launcher or values["launcher"], number, seconds(split_time(text)[0]))
            if values.get("name"):
                report.code = -_SIGNALS.get(values["name"], getattr(signal, values["name"], 0))
            _set(report, values)
            return report
    return None


def _set(report: Report, values: dict[str, str | None]) -> None:
    """Set the report's rank and exit code from `values`, unless they are already set."""
    rank = values.get("rank") or values.get("mpich")
    code = values.get("code") or values.get("abort") or values.get("exit")
    if report.rank is None and rank:
        report.rank = int(rank)
    if report.code is None and values.get("signal"):
        report.code = -int(values["signal"] or 0)
    if report.code is None and code:
        report.code = int(code)


def _complete(report: Report, plain: str) -> None:
    if match := _DETAIL.search(plain):
        _set(report, match.groupdict())


def _add(reports: list[Report], report: Report) -> None:
    """Add a report, or merge it with the last one if both are about the same failure.

    Of two such reports, the new one is kept if the other one has no rank, or if only the other one's process
    may have been ended by the launcher.
    """
    last = reports[-1] if reports else None
    if last is None or last.lines_after or last.ranks_after:
        reports.append(report)
    elif last.rank is None or (last.is_taken_down and not report.is_taken_down):
        reports[-1] = report


def _count(reports: list[Report], text: str, plain: str) -> None:
    """Count a line as output after each report, unless it belongs to a report."""
    label = OF_PROCESS.match(split_time(text)[1])
    if label is None and (not plain.strip() or _PART.search(plain)):
        return
    if label is not None:
        _label(reports, label)
        return
    for each in reports:
        each.lines_after += 1


def _label(reports: list[Report], label: re.Match[str]) -> None:
    """Record for each report that the labelled process wrote a line after it."""
    for each in reports:
        each.ranks_after.add(int(label["rank"]))
