"""Run the check on one rank: probe the other ranks, respond to their probes, and exchange the results.

Rank 0 collects each rank's row of the matrix and determines the cause. If a rank cannot send its row, rank 0
fetches it, so it is sufficient if TCP works in one direction. Every rank gets the verdict from rank 0. A rank
that does not get it determines its own verdict from its row.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from . import bandwidth, first_round, interfaces
from .conclude import Conclusion, conclude
from .cpu_delay import WINDOW, CpuDelay
from .diagnosis import Diagnosis
from .finding import OK, Finding, unknown
from .greeting import PATIENCE, Hello, Server, cannot_listen, exchange
from .name_resolution import AGREE, AGREE_IN_MANY, MANY, Configuration, Names
from .own_name import OwnName
from .peers import Peer
from .pool import Pool
from .probe import PENDING, RESPONDED, Cell, FirstProbe, MasterProbe, Probe, alternatives
from .proof import withheld
from .rank_report import Report
from .report_collection import ReportCollection, is_incomplete
from .surroundings import facts
from .variables import Environment

GRACE, NO_GRACE = 10.0, 0.5
"""Seconds for which a rank waits for rank 0's verdict after the deadline: GRACE if it can connect to rank 0,
otherwise NO_GRACE."""
FINAL = ("dns.no_server", "dns.search_path")
"""Failures that later attempts cannot change, because /etc/resolv.conf does not change while a pod runs."""
INFORM, INFORM_EACH = 5.0, 0.1
"""Rank 0 waits up to INFORM seconds plus INFORM_EACH seconds per rank until all ranks that reported have the
verdict. A rank that rank 0 cannot reach gets it in response to its next report."""
RESEND, PARTIAL = 0.5, 0.016
"""A rank whose row has not changed waits at least RESEND seconds before it reports again. As long as cells
are pending, it waits at least PARTIAL seconds per rank of the job, because rank 0 reads the reports of all
ranks."""
FETCH = 1.2
"""Rank 0 fetches the report of a rank that has not sent one for FETCH seconds plus twice PARTIAL per rank of
the job."""


class Member:
    """One rank that takes part in the check.

    If the number of ranks is unknown, `nodes` is None. Rank 0 then accepts the reports of all ranks, and the
    verdict is at best unknown. If `listed` contains only rank 0, the ranks learn each other's addresses from
    rank 0.
    """

    def __init__(
        self,
        known: Environment,
        nodes: int | None,
        listed: Sequence[Peer],
        port: int,
        variables: Mapping[str, str],
        measure: bool = False,
    ) -> None:
        self._measure = measure
        self._began = time.monotonic()
        self._known, self._certain = known, nodes is not None
        self._nodes = nodes or (known.node_rank or 0) + 1
        self._learning = len(listed) == 1 and nodes != 1
        self._port = port
        rank = -1 if known.node_rank is None else known.node_rank
        instance = os.urandom(8).hex()
        own = OwnName.read(known, variables, alone=nodes == 1)
        self._hello = Hello(
            known.run_id,
            rank,
            nodes or 0,
            socket.gethostname(),
            instance,
            bound=own.bound,
            why=own.why,
            published=own.published,
        )
        self._own = [*known.findings, *own.findings]
        self._facts = {**facts(), "rdzv_id": known.rdzv_id, **own.facts}
        self._stop = threading.Event()
        self._news = threading.Event()
        """An event that is set when this rank may have something to send, or rank 0 may have a verdict."""
        self._delay = CpuDelay(self._stop).start()
        self._pool = Pool(self._stop, self._delay.since)
        self._lock = threading.Lock()
        self._listening_at: dict[int, tuple[str, int]] = {}
        """The instance and port of each rank that is known to be listening. The keys are the ranks' places:
        their indices in the list of peers."""
        self._no_verdict = b"null"
        """Rank 0's response to a report as long as there is no verdict: `_listening_at` as JSON."""
        self._reports = ReportCollection()
        """On rank 0, the reports of all ranks."""
        self._sent: tuple[Any, float] = ((), 0.0)
        """The row in this rank's newest report to rank 0, and the time when it was sent."""
        self._result: Diagnosis | None = None
        self._verdict = b"null"
        """Rank 0's verdict as JSON, or null before there is a verdict."""
        self._informed: set[str] = set()
        self._fetching: set[int] = set()
        """The ranks whose reports rank 0 is fetching, as indices in the list of peers."""
        self._server = self._listening()
        master = known.master_addr if known.master_addr != listed[0].host else ""
        self._first_too = self._at_master_port() if self._learning or master else None
        """On rank 0, a second server on MASTER_PORT, because a Service may forward only that port."""
        configuration = Configuration.read()
        self._probes = self._peer_probes(listed, configuration)
        if self._hello.nodes >= MANY and not self._learning:
            threading.Thread(target=self._first_round, daemon=True).start()
        else:
            for probe in self._probes.values():
                self._started(probe)
        self._master: Probe | None = (
            self._master_probe(Peer(master, listed[0].port), configuration) if master else None
        )
        """The probe of MASTER_ADDR, if it differs from the first peer's name."""

    def _master_probe(self, peer: Peer, configuration: Configuration) -> Probe:
        names = Names(configuration)
        return self._started(MasterProbe(peer, self._port, self._hello, names, self._stop, also=self._also()))

    def _first_round(self) -> None:
        first_round.run(list(self._probes.values()), self._stop, self._started)
        self._news.set()

    def _also(self) -> int:
        """Return the additional port on which rank 0 may respond, or 0 if there is none."""
        return self._known.master_port if self._known.master_port != self._port else 0

    def _peer_probes(self, listed: Sequence[Peer], configuration: Configuration) -> dict[int, Probe]:
        """Return a probe for each peer, keyed by the peer's index in the list of peers."""
        kind, also = (FirstProbe, self._also()) if self._learning else (Probe, 0)
        probes: dict[int, Probe] = {}
        start = max(self._hello.rank, 0) + 1
        # Every rank starts with rank 0 and continues with its own successor. Otherwise, all ranks would probe
        # the same rank at the same time.
        for place in sorted(range(len(listed)), key=lambda p: p and 1 + (p - start) % len(listed)):
            names = _names(listed[place], self._hello, configuration)
            index = None if self._learning else place
            probes[place] = kind(listed[place], self._port, self._hello, names, self._stop, index, also)
        return probes

    def _started(self, probe: Probe) -> Probe:
        probe.delayed = self._delay.since
        self._pool.add(probe.attempt)
        return probe

    def _listening(self) -> Server | None:
        """Return this rank's server on the first free port, or None if it cannot listen on any port."""
        for port in (self._port, *alternatives(self._port)):
            try:
                return self._serve(port)
            except OSError as error:
                reason = error
                if error.errno != errno.EADDRINUSE:
                    break
        self._own.append(cannot_listen(reason, self._port, self._known.master_port))
        return None

    def _serve(self, port: int) -> Server:
        return Server(
            port,
            self._hello,
            on_report=self._receive_report,
            report=self._report_data,
            on_verdict=self._receive_verdict,
            handlers={
                b"PEER": lambda *_: self._addresses(),
                b"FLOW": bandwidth.take,
                b"MEAS": lambda _, body: bandwidth.measure(**json.loads(body)).as_dict(),
            },
        )

    def _at_master_port(self) -> Server | None:
        """Return rank 0's second server on MASTER_PORT, or None if it is not needed or the port is in use."""
        if self._hello.rank != 0 or self._server is None or self._known.master_port == self._server.port:
            return None
        try:
            second = self._serve(self._known.master_port)
        except OSError as error:
            if error.errno == errno.EACCES:
                self._own.append(cannot_listen(error, self._known.master_port, self._known.master_port))
            return None
        second.greetings = self._server.greetings
        self._facts["store_port_free"] = True
        return second

    def _leave_master_port(self) -> None:
        """Close MASTER_PORT before any rank gets the verdict, because the training opens it afterwards."""
        if self._first_too:
            self._first_too.close()
            self._first_too = None

    def __enter__(self) -> Member:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.close()
        self._leave_master_port()
        if self._server:
            self._server.close()

    def run(self, deadline: float) -> Diagnosis:
        """Take part in the check until there is a verdict or the deadline has passed.

        Return the diagnosis.
        """
        pause = 0.02
        while True:
            place, left = self._place(), self._began + deadline - time.monotonic()
            if place == 0:
                self._collect()
                reports = self._settled()
                if reports is not None or left <= 0:
                    self._leave_master_port()
                    return self._finish(reports, self._measured() if self._measure else {})
            else:
                self._send()
                if self._result is not None:
                    return self._result
                more = 2 * bandwidth.BUDGET if self._measure else 0.0
                if left <= -(GRACE + more if self._connected() else NO_GRACE):
                    return self._row_alone()
            if self._news.wait(pause):
                self._news.clear()
            pause = min(0.25, pause * 1.3)

    def _place(self) -> int:
        """Return this process's index in the list of peers. If it is not known yet, return its rank.

        With hostNetwork, several peers may have the same address. Until all of them have started, this
        process may respond in place of the others.
        """
        own = [p for p, probe in list(self._probes.items()) if probe.cell.instance == self._hello.instance]
        return self._hello.rank if self._hello.rank in own or not own else own[0]

    def _report(self) -> Report:
        row = {place: probe.cell for place, probe in list(self._probes.items())}
        place = self._place()
        greetings = self._server.greetings if self._server else {}
        since = time.monotonic() - WINDOW
        return Report(
            place,
            self._hello.rank,
            self._hello.host,
            self._hello.instance,
            tuple(sorted(interfaces.reachable(interfaces.recent_addresses()))),
            row,
            (*self._own, self._interface(row, place)),
            self._facts,
            {hello.rank: address for hello, address in list(greetings.values()) if self._mine(hello)},
            bool(self._hello.run),
            self._master.cell if self._master else None,
            self._server.port if self._server else 0,
            round(time.monotonic() - self._began, 3),
            self._delay.now(),
            round(max(probe.names.slowest(since) for probe in list(self._probes.values())), 3),
        )

    def _mine(self, hello: Hello) -> bool:
        return hello.run == self._hello.run and hello.instance != self._hello.instance

    def _interface(self, row: Mapping[int, Cell], place: int) -> Finding:
        """Check the route to rank 0.

        On rank 0, check the route to the first other rank with a known address.
        """
        there = [cell.address for other, cell in sorted(row.items()) if other != place and cell.address]
        if not there and self._nodes > 1:
            return unknown("interface", "no other rank has an address yet")
        try:
            return interfaces.check(there[0] if there else "127.0.0.1", alone=self._nodes == 1)
        except OSError as error:
            return unknown("interface", f"the interfaces cannot be read: {error}")

    # -- server callbacks

    def _report_data(self) -> dict[str, Any]:
        return self._report().as_dict()

    def _receive_report(self, data: dict[str, Any]) -> bytes:
        """Store a rank's report.

        Return the verdict, or the ranks that are known to be listening if there is no verdict yet.
        """
        report = Report.of(data)
        self._store(report)
        with self._lock:
            if self._result is None:
                return self._no_verdict
            self._informed.add(report.instance)
            return self._verdict

    def _store(self, report: Report) -> None:
        report = self._reports.add(report)
        if not is_incomplete(report):
            self._news.set()
        with self._lock:
            if report.port and self._listening_at.get(report.place) != (report.instance, report.port):
                self._listening_at[report.place] = report.instance, report.port
                self._no_verdict = json.dumps({"listening": self._listening_at}).encode()
                self._apply_listening()

    def _receive_verdict(self, data: dict[str, Any]) -> None:
        """Store the data that rank 0 sent: the verdict, or the ranks that are known to be listening."""
        if "listening" in data:
            self._listening_at = {int(place): (i, port) for place, (i, port) in data["listening"].items()}
            self._apply_listening()
        else:
            self._result = self._result or Diagnosis.of(data)

    def _apply_listening(self) -> None:
        """Set the port on which each probe's peer listens.

        Without this port, later attempts cannot prove that a firewall rejects their connections.
        """
        for place, (_, port) in list(self._listening_at.items()):
            if (probe := self._probes.get(place)) is not None:
                probe.listens = port
        if self._master and 0 in self._listening_at:
            self._master.listens = self._listening_at[0][1]

    # -- rank 0

    def _collect(self) -> None:
        """Add this rank's report, and fetch reports from ranks that do not send them."""
        if self._learning:
            self._learn(self._addresses())
        self._store(self._report())
        overdue = FETCH + 2 * PARTIAL * self._nodes
        for place, probe in list(self._probes.items()):
            cell = probe.cell
            waited = time.monotonic() - (self._reports.arrived_at(cell.instance) or self._began)
            if cell.outcome in RESPONDED and waited > overdue and place not in self._fetching:
                self._fetching.add(place)
                self._pool.add(functools.partial(self._fetch, place, probe))

    def _fetch(self, place: int, probe: Probe) -> None:
        """Fetch and store a rank's report."""
        try:
            data = exchange(*probe.socket_address, b"TELL", self._no_verdict)
            if data:
                self._store(Report.of(data))
        finally:
            self._fetching.discard(place)

    def _settled(self) -> list[Report] | None:
        """Return the reports if no further report can change the verdict, otherwise None."""
        hopeless = {place for place, probe in list(self._probes.items()) if probe.cell.outcome in FINAL}
        expected = set(range(self._nodes)) - hopeless if self._certain else None
        return self._reports.settled(expected, self._learning)

    def _measured(self) -> dict[tuple[int, int], bandwidth.Measured]:
        """Measure the bandwidth of all pairs. Return {} unless all ranks have reported and all pairs work."""
        reports = {report.place: report for report in self._reports.newest()}
        there = {place: probe.cell.address for place, probe in list(self._probes.items())}
        ranks = sorted(reports)
        fine = all(cell.outcome == OK for report in reports.values() for cell in report.row.values())
        if ranks != list(range(self._nodes)) or not set(ranks) <= {*there} or not fine:
            return {}

        def ask(pair: tuple[int, int], seconds: float) -> bandwidth.Measured:
            sender, receiver = pair
            port = self._probes[receiver].port
            asked = {"address": there[receiver], "port": port, "seconds": seconds}
            patience = 2 * seconds + 8 * PATIENCE
            said = exchange(*self._probes[sender].socket_address, b"MEAS", asked, patience)
            return bandwidth.Measured.of(said)

        machines = {place: str(report.facts.get("machine", "")) for place, report in reports.items()}
        return bandwidth.all_pairs(ranks, machines, ask)

    def _finish(
        self, settled: list[Report] | None, measured: Mapping[tuple[int, int], bandwidth.Measured]
    ) -> Diagnosis:
        """Determine the cause, send the diagnosis to all reachable ranks, and return the diagnosis."""
        reports = [report.with_rates(measured) for report in settled or self._reports.proved()]
        if not self._certain:
            self._nodes = max(self._nodes, 1 + max(report.place for report in reports))
        concluded = conclude(
            reports,
            self._nodes,
            self._known.per_node or 1,
            self._certain,
            measured if self._measure else None,
        )
        result = self._diagnosis(concluded, reports, whole=True)
        # The verdict is encoded only once, because it is large for 64 ranks.
        verdict = json.dumps(result.as_message()).encode()
        with self._lock:
            self._result, self._verdict, self._informed = result, verdict, {self._hello.instance}
        threads = [
            threading.Thread(target=self._inform, args=(probe, verdict), daemon=True)
            for probe in list(self._probes.values())
            if probe.cell.outcome in RESPONDED and probe.cell.instance != self._hello.instance
        ]
        for thread in threads:
            thread.start()
        ends = time.monotonic() + INFORM + INFORM_EACH * len(reports)
        while time.monotonic() < ends and {r.instance for r in reports} - self._informed:
            time.sleep(0.02)
        return result

    def _inform(self, probe: Probe, verdict: bytes) -> None:
        instance = probe.cell.instance
        report = exchange(*probe.socket_address, b"TELL", verdict)
        if isinstance(report, dict):  # The rank may have restarted since it was probed.
            self._informed.update((instance, str(report.get("instance"))))

    # -- other ranks

    def _send(self) -> None:
        """Send this rank's report to rank 0 if it is reachable.

        Store the verdict if the response contains it.
        """
        first = self._probes[0]
        own = [p for p in list(self._probes.values()) if p.cell.outcome == PENDING]
        early = time.monotonic() - self._began < 0.5 + 2 * PARTIAL * self._nodes
        if first.cell.outcome not in RESPONDED or (own and early):
            return
        if self._learning:
            self._learn(exchange(*first.socket_address, b"PEER", None) or {})
        row = tuple(
            (place, cell.outcome, cell.at, cell.instance)
            for place, probe in list(self._probes.items())
            for cell in [probe.cell]
        )
        now = time.monotonic()
        partial = any(cell[1] == PENDING for cell in row)
        each = PARTIAL * self._nodes
        least = max(RESEND, each) if row == self._sent[0] else each if partial else 0.0
        if now - self._sent[1] < least:
            return
        self._sent = row, now
        data = exchange(*first.socket_address, b"REPT", self._report_data())
        if data:
            self._receive_verdict(data)

    def _learn(self, addresses: Mapping[str, str]) -> None:
        """Start probing the ranks whose addresses have become known."""
        for place, address in ((int(rank), address) for rank, address in addresses.items()):
            first = self._probes.get(place)
            by_service = isinstance(first, FirstProbe) and first.port == self._known.master_port
            if place == self._place() or (first is not None and not by_service):
                continue
            if by_service:  # The Service forwards only MASTER_PORT. The ranks themselves use their own ports.
                self._master = first
            names = Names(Configuration.read())
            self._probes[place] = self._started(
                Probe(Peer(address), self._port, self._hello, names, self._stop, place)
            )
        self._apply_listening()

    def _addresses(self) -> dict[str, str]:
        return self._reports.addresses(list(self._server.greetings.values()) if self._server else [])

    def _connected(self) -> bool:
        """Return whether this rank can reach rank 0 or has been reached by it."""
        greetings = self._server.greetings.values() if self._server else ()
        first = self._probes[0].cell.outcome in RESPONDED
        return first or any(hello.rank == 0 and self._mine(hello) for hello, _ in list(greetings))

    def _row_alone(self) -> Diagnosis:
        """Return a diagnosis based only on this rank's row, for a rank without a verdict from rank 0."""
        report = withheld([self._report()])[0]
        concluded = conclude([report], self._nodes, self._known.per_node or 1, self._certain)
        return self._diagnosis(concluded, [report], whole=False)

    def _diagnosis(self, concluded: Conclusion, reports: Sequence[Report], whole: bool) -> Diagnosis:
        return Diagnosis(
            concluded.verdict,
            concluded.cause,
            concluded.ranks,
            concluded.missing,
            concluded.findings,
            {report.place: report.row for report in sorted(reports, key=lambda report: report.place)},
            self._nodes,
            self._hello.rank,
            whole,
            round(time.monotonic() - self._began, 3),
        )


def _names(peer: Peer, own: Hello, configuration: Configuration) -> Names:
    """Return a resolver for a peer. For this pod's own name, it ignores /etc/hosts and queries DNS."""
    written = peer.host.partition(".")[0] != own.host
    return Names(configuration, written=written, agree=AGREE_IN_MANY if own.nodes >= MANY else AGREE)
