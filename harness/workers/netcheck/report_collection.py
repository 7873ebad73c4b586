"""Collect the ranks' reports on rank 0, and determine when no further report can change the verdict."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence, Set
from dataclasses import replace

from .finding import OK
from .greeting import Hello
from .probe import PENDING, Cell
from .proof import withheld
from .rank_report import Report

SETTLE = {
    "dns.no_record": 5.0,
    "dns.advertised": 5.0,
    "dns.server_refused": 5.0,
    "dns.server_failed": 5.0,
    "dns.negative_cached": 1e9,
    PENDING: 1e9,
}
"""Maps each of these failures to the number of seconds after which it is final. They are counted from the
first report of the rank that reported last. DNS records may appear late, a DNS server may be starting, and
cached negative answers expire."""
SETTLED = 1.6
"""The number of seconds after which any other failure is final. A retry takes less time than this."""
SILENT_AFTER = 2.0
"""A rank that has not reported for this many seconds has ended, or its process does not get a CPU."""
NOBODY_NEW = 10.0
"""If the number of ranks is unknown, rank 0 stops waiting after this many seconds without a new rank."""


class ReportCollection:
    """The newest report of each rank. All methods can be called from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reports: dict[str, tuple[Report, float, float]] = {}
        """Maps each instance to its newest report and two monotonic times: when its first report arrived, and
        when its newest report arrived."""
        self._refused: dict[tuple[str, int, float], float] = {}
        """The arrival time of the first report that contains a given refused connection. The key is
        (connecting instance, peer's place, time of the attempt)."""

    def add(self, report: Report) -> Report:
        """Store a report. Return the newest report of the same rank."""
        at = time.monotonic()
        with self._lock:
            newest, first, _ = self._reports.get(report.instance, (report, at, at))
            if newest.age > report.age:
                report = newest  # The rank sent a newer report while rank 0 was fetching this one.
            for instance in [i for i, (other, _, _) in self._reports.items() if _replaces(report, other)]:
                del self._reports[instance]
            self._reports[report.instance] = report, first, at
            for place, cell in report.row.items():
                if cell.listened:
                    self._refused.setdefault((report.instance, place, cell.at), at)
        return report

    def newest(self) -> list[Report]:
        """Return the newest report of each rank, as it was sent."""
        with self._lock:
            return [report for report, _, _ in self._reports.values()]

    def arrived_at(self, instance: str) -> float | None:
        """Return the monotonic arrival time of an instance's newest report, or None if there is none."""
        with self._lock:
            return self._reports[instance][2] if instance in self._reports else None

    def proved(self) -> list[Report]:
        """Return all reports, supplemented with the information that rank 0 has.

        Failures that are not proved are pending. If the peer reported after refusing a connection, it was
        listening the whole time, so the failure is proved. If a rank has stopped reporting, the time since
        its last report counts as its delay.
        """
        now = time.monotonic()
        with self._lock:
            known = [(report, newest) for report, _, newest in self._reports.values()]
            refused = dict(self._refused)
        last_report_at = {report.place: newest for report, newest in known}

        def later(report: Report, place: int, cell: Cell) -> Cell:
            if not cell.listened:
                return cell
            refused_at = refused.get((report.instance, place, cell.at), now)
            return replace(cell, listened=last_report_at.get(place, 0.0) > refused_at)

        found = []
        for report, newest in known:
            row = {place: later(report, place, cell) for place, cell in report.row.items()}
            silent = now - newest if now - newest > SILENT_AFTER else 0.0
            delay = replace(report.delay, late=round(max(report.delay.late, silent), 3))
            found.append(replace(report, row=row, delay=delay))
        return withheld(found)

    def addresses(self, greetings: Sequence[tuple[Hello, str]]) -> dict[str, str]:
        """Return an address for each rank that has reported, preferably its greeting's source address."""
        spoke = {hello.instance: address for hello, address in greetings}
        reports = [report for report in self.newest() if report.addresses]
        return {
            str(report.place): spoke[report.instance]
            if spoke.get(report.instance) in report.addresses
            else report.addresses[0]
            for report in reports
        }

    def settled(self, expected: Set[int] | None, learning: bool) -> list[Report] | None:
        """Return the proved reports if all ranks have reported and all failures are final, otherwise None.

        The verdict must come from these reports, because the same failures may not be proved a moment later,
        if the machine has become busy.

        `expected` contains the places of the ranks that have to report. It is None if the number of ranks is
        unknown. With `learning`, the ranks get each other's addresses from rank 0.
        """
        with self._lock:
            known = [report for report, _, _ in self._reports.values()]
            since = max(first for _, first, _ in self._reports.values())
        waited = time.monotonic() - since
        if any(map(is_incomplete, known)) or (expected is None and waited < NOBODY_NEW):
            return None
        reports = self.proved()
        if expected is not None and not expected <= {report.place for report in reports}:
            return None
        cells = [cell for report in reports for other, cell in report.row.items() if other != report.place]
        cells += [report.master for report in reports if report.master]
        if expected is None:  # In this case, conclude.py also uses a rank's own missing DNS record.
            own = [report.row.get(report.place) for report in reports]
            cells += [cell for cell in own if cell and cell.withheld == "dns.no_record"]
        partial = learning and any(len({*each.row, each.place}) < len(reports) for each in reports)
        if (partial or _reached_another_rank(reports)) and waited < SETTLE["dns.no_record"]:
            return None
        final = all(c.outcome == OK or waited >= SETTLE.get(c.outcome, SETTLED) for c in cells)
        return reports if final else None


def is_incomplete(report: Report) -> bool:
    """Return whether a rank has an unfinished probe of another rank."""
    return any(cell.outcome == PENDING for place, cell in report.row.items() if place != report.place)


def _reached_another_rank(reports: Sequence[Report]) -> bool:
    """Return whether a rank that has reported has not been reached itself, but another rank at its address.

    With hostNetwork, several ranks have the same address, and a probe may find the right port later.
    """
    instances = {report.place: report.instance for report in reports}
    return any(
        cell.outcome == OK and cell.instance and cell.instance != instances.get(place, cell.instance)
        for report in reports
        for place, cell in report.row.items()
    )


def _replaces(report: Report, other: Report) -> bool:
    """Return whether `report` comes from the same rank as `other` after a restart.

    The address and port are the same, and two processes cannot listen on the same port.
    """
    listens = (report.host, report.addresses, report.port) == (other.host, other.addresses, other.port)
    return report.instance != other.instance and bool(report.addresses and report.port) and listens
