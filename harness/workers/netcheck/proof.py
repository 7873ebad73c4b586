"""Withhold failures that may be due to slowness instead of a fault. All functions are pure.

A busy DNS server or rank responds late, and a rank that starts late refuses connections until it listens.
Such failures count only if they are proved:

- A missing response counts if the wait was at least FACTOR times as long as any delay measured at the same
  time.
- A refused connection counts as rejected by a firewall only if the rank is known to have listened both before
  and after the attempt (member.py).
- A missing DNS record counts if the rank has existed long enough for the control plane to publish it.

A failure that is not proved becomes pending. The cell's text then contains the reason, and `withheld` the
cause.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from .cpu_delay import Delay
from .finding import OK
from .probe import ADVERTISED, PENDING, Cell
from .rank_report import Report

FACTOR = 4.0
"""A missing response counts only if the wait was at least this many times as long as the longest measured
delay."""
STEPS_TO_A_RECORD = 10.0
"""How long the publication of a DNS record may take, as a multiple of the measured delay. The kubelet, the
API server, the EndpointSlice controller and the DNS server act one after another."""
SILENT = {"dns.server_silent": 5.0, "peer.silent": 2.0, "mtu.black_hole": 1.5}
"""Maps each cause to the minimum number of seconds that a wait for a response must last to prove the cause.
For the DNS server, this is 5 s, because glibc's resolver waits that long."""
RECORD = 5.0
"""A missing DNS record counts as a failure only if the rank started at least this many seconds ago."""
YOUNG = 1.6
"""A TCP failure does not count if one of the two ranks started less than this many seconds ago."""
BUSY = 0.5
"""If a process wakes up at least this many seconds late, its node counts as busy."""


def busiest(at: Mapping[int, Report]) -> tuple[int, Delay]:
    """Return the rank with the longest delay, and the delay."""
    rank = max(at, key=lambda rank: (at[rank].delay.late, -rank))
    return rank, at[rank].delay


def busy(at: Mapping[int, Report]) -> str:
    """Return a clause about the busiest rank, or "" if it is not busy.

    If the rank is busy, a missing response does not prove a failure.
    """
    rank, delay = busiest(at)
    return (
        f"too busy for a reliable result: netcheck on rank {rank} {delay.text}" if delay.late >= BUSY else ""
    )


def withheld(reports: Sequence[Report]) -> list[Report]:
    """Return the reports, with unproved failures changed to pending."""
    at = {report.place: report for report in reports}
    job = _Job(*busiest(at), max(report.dns for report in reports), len(reports) == 1)

    def row(report: Report) -> dict[int, Cell]:
        return {place: _proved(cell, report, at.get(place), job) for place, cell in report.row.items()}

    return [
        replace(
            report,
            row=row(report),
            master=report.master and _proved(report.master, report, at.get(0), job),
        )
        for report in reports
    ]


@dataclass(frozen=True)
class _Job:
    """The rank with the longest delay, that delay, and the duration of the slowest DNS answer in seconds.

    `alone` means that only one rank's report is known.
    """

    rank: int
    delay: Delay
    dns: float
    alone: bool


def _proved(cell: Cell, sender: Report, receiver: Report | None, job: _Job) -> Cell:
    """Return the cell, or a pending cell if the failure is not proved."""
    doubt = _doubt(cell, sender, receiver, job) if cell.outcome not in (OK, PENDING) else ""
    if not doubt:
        return cell
    return replace(cell, outcome=PENDING, withheld=cell.outcome, text=f"{cell.text}; not proved: {doubt}")


def _doubt(  # noqa: PLR0911 - one return per reason
    cell: Cell, sender: Report, receiver: Report | None, job: _Job
) -> str:
    """Return the reason why a failure is not proved, or "" if it is proved."""
    reports = [sender] if receiver is None else [sender, receiver]
    if cell.outcome in SILENT:
        return _silence(cell, reports, job)
    if cell.outcome in ("dns.no_record", ADVERTISED):
        min_age, age = max(RECORD, STEPS_TO_A_RECORD * job.delay.late), min(report.age for report in reports)
        if age >= min_age:
            return ""
        return f"the rank started only {age:.1f} s ago, and on rank {job.rank} netcheck {job.delay.text}"
    if (
        cell.outcome in ("tcp.refused", "tcp.reset")
        and receiver is not None
        and _was_listening(cell, receiver)
    ):
        return "" if cell.listened else f"rank {receiver.place} was not proved to be listening at that time"
    if cell.outcome == "tcp.refused" and job.alone and cell.listened:
        return "the other rank listened there earlier, so it may have ended at its own deadline"
    if cell.outcome == "tcp.refused" and job.alone and job.delay.late >= BUSY:
        return f"the other rank may have ended already, because netcheck {job.delay.text}"
    if cell.outcome.startswith("tcp.") and not cell.sender and min(report.age for report in reports) < YOUNG:
        return "a rank has just started"
    return ""


def _silence(cell: Cell, reports: list[Report], job: _Job) -> str:
    """Return the reason why a missing response does not prove a failure, or "" if it does."""
    minimum = SILENT[cell.outcome]
    if cell.outcome == "dns.server_silent":
        # If the server answers at least one rank, the duration of these answers shows its delay. Otherwise,
        # the server may be on the busiest node.
        rank, delay, slowest = job.rank, job.delay, job.dns or job.delay.late
        explanation = f"the DNS server took up to {slowest:.1f} s to answer" if job.dns else ""
    else:
        rank, delay = busiest({report.place: report for report in reports})
        slowest, explanation = delay.late, ""
    if cell.waited >= max(minimum, FACTOR * slowest):
        return ""
    explanation = explanation or f"the node of rank {rank} was too busy: netcheck {delay.text}"
    return f"waiting {cell.waited:.1f} s for an answer was too short, because {explanation}"


def _was_listening(cell: Cell, receiver: Report) -> bool:
    """Return whether the rank reported that it listens on the probed address and port."""
    return bool(receiver.port) and cell.port == receiver.port and cell.address in receiver.addresses
