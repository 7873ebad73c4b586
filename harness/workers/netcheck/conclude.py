"""Determine from the ranks' reports why ranks cannot connect. All functions are pure.

A report contains one rank's findings and its row of the matrix, with a cell for each other rank. If the
reports contain no information about a step, its result is unknown, never ok.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from . import bandwidth, torchrun_names
from .cells import corrected, past
from .finding import (
    CAUSES,
    FAILED,
    OK,
    OUTSIDE,
    STEPS,
    Finding,
    failed,
    in_order,
    listed,
    ok,
    unknown,
    verdict,
)
from .matrix import Pattern, classify
from .probe import PENDING, Cell
from .proof import busy
from .rank_report import Report
from .reach import REJECTED
from .surroundings import compare

ASKER = ("dns.no_server", "dns.server_silent", "dns.server_refused", "dns.server_failed", "dns.search_path")
"""Causes for which the rank that looked up a name is to blame, not the rank with that name."""
PLACED = (
    "tcp.filtered",
    REJECTED,
    "tcp.no_route",
    "tcp.denied",
    "tcp.reset",
    "address.family",
    "mtu.black_hole",
)
"""For these causes, the pattern of failures in the matrix determines which ranks are to blame. For all other
causes, the probed rank is to blame, or the probing rank if the cause is in ASKER."""
BEHIND_A_PROXY = ("peer.silent", "peer.not_netcheck")
"""Outcomes of all probes between ranks if a proxy accepts the connections in place of the probed ranks."""
ABSENT = ("dns.no_record", "dns.negative_cached", "tcp.no_route", PENDING)
"""Outcomes that other ranks observe if a rank does not exist."""
TAKEN = "port.taken"
NOT_ITS_OWN = ("tcp.refused", "tcp.reset", "peer.silent", "peer.not_netcheck")
"""Outcomes of probing a rank that could not open its port because another process uses it."""
_ALONE = {
    "pods": "only the API server knows whether every pod exists and is running",
    "service": "only the API server knows whether the Service selects the pods",
    "bandwidth": "not requested (--bandwidth)",
    "all-reduce": "not requested (netcheck.self_test)",
}


@dataclass(frozen=True)
class Conclusion:
    """The verdict, the cause, the missing ranks, and all findings in step order."""

    verdict: str
    cause: str | None
    missing: tuple[int, ...]
    findings: tuple[Finding, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that are to blame for the cause."""
        return next((f.ranks for f in self.findings if f.status == FAILED), ())


def conclude(
    reports: Sequence[Report],
    nodes: int,
    processes: int = 1,
    certain: bool = True,
    measured: Mapping[bandwidth.Pair, bandwidth.Measured] | None = None,
) -> Conclusion:
    """Determine the cause from the reports of a job with `nodes` nodes and `processes` processes per node.

    If `certain` is false, the real number of nodes is unknown, and no rank counts as missing. `measured` is
    the bandwidth of each pair, or None if it was not requested.
    """
    at = {report.place: report for report in reports}
    cells = corrected(at, nodes)
    machines = {place: str(report.facts.get("machine", "")) for place, report in at.items()}
    greeted = {receiver for (_, receiver), cell in cells.items() if past(cell, "greeting")}
    tried = {receiver for _, receiver in cells} | (set(range(nodes)) if 0 in at else set())
    absent = tried - {*at, *greeted} - ({0} if _by_service(reports) else set())
    missing = tuple(sorted(absent)) if certain else ()
    found = [*_own(reports), *_run_ids(reports), *_families(reports), *_places(reports, cells)]
    found += torchrun_names.unhosted(reports, nodes) if certain else []
    slow = f"; {busy(at)}" if at and busy(at) else ""
    found += _bad(_without_taken(cells, reports), missing, machines, slow, alone=len(reports) == 1)
    found += [*_master(reports), *_withheld(cells)]
    if unrecorded := _unrecorded(reports, missing, certain):
        found.append(unrecorded)
    else:
        found += [
            failed("peer.never_came", text + slow, [rank])
            for rank in missing
            if (text := _absence_text(rank, cells))
        ]
    if at:
        offsets = {
            r: (cell.offset, cell.rtt / 2) for (s, r), cell in cells.items() if s == 0 and cell.instance
        }
        found += compare({place: report.facts for place, report in at.items()}, offsets, processes)
    if measured is not None:
        not_measured = [
            unknown("bandwidth", "not measured, because not all pairs of ranks passed the earlier steps", at)
        ]
        found += bandwidth.judge(measured, machines) or (not_measured if nodes > 1 else [])
    found += _proved(cells, reports, nodes if certain else max(nodes, 2), found, slow)
    findings = in_order(found)
    cause = next((finding.cause for finding in findings if finding.status == FAILED), None)
    return Conclusion(verdict(findings), cause, missing, tuple(findings))


def _own(reports: Sequence[Report]) -> list[Finding]:
    """Return each rank's findings about itself. Identical findings from several ranks are merged."""
    alike: dict[tuple[str, str, str | None, str], list[Report]] = defaultdict(list)
    for report in reports:
        for finding in report.findings:
            text = finding.text if finding.status != OK else ""
            alike[finding.step, finding.status, finding.cause, text].append(report)
    found = []
    for (step, status, cause, _), those in alike.items():
        first = next(f for f in those[0].findings if (f.step, f.status, f.cause) == (step, status, cause))
        ranks = () if status == OK else tuple(sorted(report.place for report in those))
        text = first.text if status != OK or len(those) == 1 else f"{len(those)} ranks; {first.text}"
        found.append(replace(first, text=text, ranks=ranks))
    return found


def _run_ids(reports: Sequence[Report]) -> list[Finding]:
    """Return a finding if the ranks' run ids differ. torchrun then waits in vain for the other ranks."""
    ids = {report.place: str(report.facts.get("rdzv_id") or "") for report in reports}
    ids = {place: run_id for place, run_id in sorted(ids.items()) if run_id}
    if len({*ids.values()}) < 2:
        return []
    differences = "; ".join(
        f"{run_id} on {listed(place for place, own in ids.items() if own == run_id)}"
        for run_id in dict.fromkeys(ids.values())
    )
    return [failed("variables.torchrun", f"the ranks have different values of --rdzv_id: {differences}", ids)]


def _families(reports: Sequence[Report]) -> list[Finding]:
    """Return a finding if gloo would listen on IPv4 on some ranks and on IPv6 on others.

    gloo requires the addresses of all ranks to have the same family (pytorch/pytorch#135355).
    """
    versions: dict[int, dict[int, str]] = {4: {}, 6: {}}
    for report in reports:
        if address := str(report.facts.get("gloo") or ""):
            versions[6 if ":" in address else 4][report.place] = address
    fewer, more = sorted(versions.items(), key=lambda each: len(each[1]))
    if not fewer[1]:
        return []
    (version, ranks), (other, others) = fewer, more
    text = f"gloo would listen on an IPv{version} address on {listed(ranks)} ({ranks[min(ranks)]}), but on "
    text += f"an IPv{other} address on {listed(others)} ({others[min(others)]}), and cannot connect the two. "
    text += "Set GLOO_SOCKET_IFNAME in every pod, or change what the pods' own names resolve to"
    accused = sorted(ranks) if len(ranks) < len(others) else sorted([*ranks, *others])
    return [failed("address.family", text, accused)]


def _places(reports: Sequence[Report], cells: Mapping[tuple[int, int], Cell]) -> list[Finding]:
    """Return a finding for each rank that exists more than once or is at the wrong index in the peer list."""
    claims: dict[int, dict[str, str]] = defaultdict(dict)
    place: dict[str, int] = {}
    for report in reports:
        claims[report.rank][report.instance] = f"{report.host} ({', '.join(report.addresses)})"
        place[report.instance] = report.place
    for (_, receiver), cell in cells.items():
        if past(cell, "greeting") and cell.rank is not None:
            claims[cell.rank].setdefault(cell.instance, f"{cell.host} ({cell.address})")
            place.setdefault(cell.instance, receiver)
    twice, other = [], []
    for rank, hosts in sorted(claims.items()):
        if len(hosts) > 1:
            who = " and ".join(sorted(hosts.values()))
            claim = "both claim" if len(hosts) == 2 else "all claim"
            twice.append(failed("variables.node_rank_twice", f"{who} {claim} to be rank {rank}", [rank]))
            continue
        for instance, host in hosts.items():
            if rank >= 0 and place[instance] != rank:
                text = f"{host} is rank {place[instance]} in the list of peers, but claims to be rank {rank}"
                other.append(failed("variables.node_rank", text, [place[instance]]))
    return twice + sorted(other, key=lambda finding: finding.ranks)


def _without_taken(
    cells: Mapping[tuple[int, int], Cell], reports: Sequence[Report]
) -> dict[tuple[int, int], Cell]:
    """Return the cells, without those that failed because the probed rank could not open its port."""
    taken = {report.place for report in reports if any(f.cause == TAKEN for f in report.findings)}
    return {
        pair: cell for pair, cell in cells.items() if pair[1] not in taken or cell.outcome not in NOT_ITS_OWN
    }


def _bad(
    cells: Mapping[tuple[int, int], Cell],
    missing: Iterable[int],
    machines: Mapping[int, str],
    slow: str,
    alone: bool,
) -> list[Finding]:
    """Return findings for the failed cells in the matrix.

    `alone` means that only one row of the matrix is known. `slow` is a clause about busy nodes. It is
    appended for missing ranks, because a busy node may be the reason.
    """
    absent, found = set(missing), []
    for cause in CAUSES:
        bad = {
            pair: cell
            for pair, cell in cells.items()
            if cell.outcome == cause and not (pair[1] in absent and _shows_absence(cell))
        }
        if not bad:
            continue
        if cause in PLACED:
            step = CAUSES[cause]
            good = (pair for pair, cell in cells.items() if past(cell, step))
            patterns = classify(bad, good, machines)
            hint = _overlay_hint(cells, bad, machines) if cause == "tcp.filtered" else ""
            found += [_pattern_finding(cause, pattern, bad, absent, alone, hint) for pattern in patterns]
            continue
        if cause in BEHIND_A_PROXY and bad.keys() == _between_ranks(cells) and _both_ways(bad):
            first = bad[min(bad)]
            text = "no rank reaches the process of another rank: check whether the proxy of a service mesh "
            text += f"accepts the connections instead; {first.host}: {first.text}"
            found.append(failed(cause, text, {rank for pair in bad for rank in pair}, seconds=first.at))
            continue
        side = 0 if cause in ASKER else 1
        for rank in sorted({pair[side] for pair in bad}):
            those = {pair: cell for pair, cell in bad.items() if pair[side] == rank}
            other = sorted({pair[1 - side] for pair in those})
            seen = f"rank {rank}: " if side == 0 else f"rank {rank}, as seen by {listed(other)}: "
            first = those[min(those)]
            more = slow if rank in absent else ""
            found.append(failed(cause, seen + first.text + more, [rank], seconds=first.at))
    return found


def _between_ranks(cells: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
    return {(sender, receiver) for sender, receiver in cells if sender != receiver}


def _both_ways(pairs: Collection[tuple[int, int]]) -> bool:
    """Return whether the set of senders in the pairs equals the set of receivers."""
    return {sender for sender, _ in pairs} == {receiver for _, receiver in pairs}


def _overlay_hint(
    cells: Mapping[tuple[int, int], Cell], bad: Collection[tuple[int, int]], machines: Mapping[int, str]
) -> str:
    """Return a clause about the overlay network, or "" if it is not a likely cause.

    It is a likely cause if exactly the connections between different nodes got no response, and some ranks
    share a node.
    """
    pairs = _between_ranks(cells)
    if not all(machines.get(rank) for pair in pairs for rank in pair):
        return ""
    apart = {pair for pair in pairs if machines[pair[0]] != machines[pair[1]]}
    if set(bad) != apart or pairs == apart:
        return ""
    return (
        "; pods on the same node reach each other, so the packets of the overlay may be dropped between the "
        "nodes (VXLAN: UDP port 4789 or 8472, Geneve: UDP port 6081, IP-in-IP: protocol 4)"
    )


def _master(reports: Sequence[Report]) -> list[Finding]:
    """Return findings about MASTER_ADDR. They blame rank 0, or the ranks that cannot query DNS.

    If no rank of the job has the address and nothing responds there, the result is unknown, because the
    address may belong to a Service that does not forward netcheck's ports.
    """
    known = {address for report in reports for address in report.addresses}
    found, seen = [], {report.place: report.master for report in reports if report.master}
    for seen_as in sorted({cell.outcome for cell in seen.values()} - {OK}):
        ranks = [place for place, cell in seen.items() if cell.outcome == seen_as]
        cell = seen[min(ranks)]
        listened = seen_as == "tcp.refused" and all(seen[place].listened for place in ranks)
        outcome = REJECTED if listened else seen_as
        text = f"MASTER_ADDR {cell.host}, as seen by {listed(ranks)}: {cell.text}"
        nobody = outcome.startswith("tcp.") or outcome in ("peer.silent", "peer.not_netcheck")
        if outcome == PENDING or (nobody and cell.address not in known):
            if nobody:
                text += "; if this is the address of a Service, the Service may not forward this port"
            found.append(unknown("tcp", text, ranks))
        else:
            found.append(failed(outcome, text, ranks if outcome in ASKER else [0], seconds=cell.at))
    return found


def _withheld(cells: Mapping[tuple[int, int], Cell]) -> list[Finding]:
    """Return an unknown finding for each cause and each rank to blame whose failures are not proved."""
    found = []
    for cause in CAUSES:
        side = 0 if cause in ASKER else 1
        doubtful = {pair: cell for pair, cell in cells.items() if cell.withheld == cause}
        for rank in sorted({pair[side] for pair in doubtful}):
            first = min(pair for pair in doubtful if pair[side] == rank)
            text = f"inconclusive: {doubtful[first].host}: {doubtful[first].text}"
            found.append(unknown(CAUSES[cause], text, [rank]))
    return found


def _pattern_finding(
    cause: str,
    pattern: Pattern,
    bad: Mapping[tuple[int, int], Cell],
    missing: Collection[int],
    alone: bool,
    hint: str,
) -> Finding:
    """Return a finding that blames the ranks in the pattern.

    If only one row of the matrix is known, no rank is blamed, unless the probed addresses themselves rejected
    the connections. `hint` is appended to the finding's text.
    """
    kind, accused = pattern.kind, pattern.accused
    there = {pair: cell for pair, cell in bad.items() if pair in pattern.cells()}
    if all(cell.sender and cell.sender == cell.address for cell in there.values()):
        # Each probed rank's own node rejected the connection, so no sender is to blame.
        accused = tuple(sorted({receiver for _, receiver in there}))
    elif alone:
        accused = ()
    if alone:
        kind = "row"
    elif kind == "ingress" and set(pattern.receivers) <= set(missing):
        kind = "unheard"
    one = len(accused) == 1
    who = f"{listed(accused)}{pattern.where}"
    words = {
        "row": f"{listed(pattern.senders)} → {listed(pattern.receivers)}; the other direction is unknown",
        "unheard": f"{who} {'answers' if one else 'answer'} no other rank, and no rank heard from {_it(one)}",
        "everywhere": "no rank can reach any other rank",
        "isolated": f"{who} {'reaches' if one else 'reach'} no other rank, and no rank reaches {_it(one)}",
        "egress": f"outgoing traffic from {who} reaches no rank (egress)",
        "ingress": f"incoming traffic does not reach {who} (ingress)",
        "boundary": f"a boundary: {pattern}",
        "pair": f"{pattern}" + (", one way" if pattern.one_way else ""),
    }
    cell = there[min(there)]
    return failed(cause, f"{words[kind]}; {cell.host}: {cell.text}{hint}", accused, kind, cell.at)


def _it(one: bool) -> str:
    return "it" if one else "them"


def _by_service(reports: Sequence[Report]) -> bool:
    """Return whether the only report is from a rank that knows only rank 0, possibly by a Service's name.

    A Service name does not resolve if rank 0 does not exist, or if the Service does not select rank 0's pod.
    """
    return len(reports) == 1 and reports[0].place != 0 and set(reports[0].row) == {0}


def _unrecorded(reports: Sequence[Report], missing: Sequence[int], certain: bool) -> Finding | None:
    """Return a finding if none of the job's ranks has a DNS record, not even the ranks that reported.

    In this case, a missing DNS record does not prove that another rank is missing.
    """
    own = [report.row.get(report.place) for report in reports]
    absent = "dns.no_record"
    if (certain and not missing) or not all(c and absent in (c.outcome, c.withheld) for c in own):
        return None
    there = [report.place for report in reports]
    if any(cell and cell.withheld for cell in own):
        return unknown("dns", "even the ranks that took part have no DNS record yet", there)
    text = f"none of the job's names has a DNS record, not even that of {listed(there)}, which sent the query"
    return failed("dns.no_record", f"{text}: {own[0].text}", [*there, *missing]) if own[0] else None


def _shows_absence(cell: Cell) -> bool:
    """Return whether a probe of a rank that does not exist would have this result.

    If the probing rank itself has no route, its result shows nothing about the probed rank.
    """
    return (cell.withheld or cell.outcome) in ABSENT and not cell.unrouted


def _absence_text(rank: int, cells: Mapping[tuple[int, int], Cell]) -> str:
    """Describe why a rank did not report, or return "" if probes of the rank show another problem."""
    probes = [cell for (_, receiver), cell in cells.items() if receiver == rank]
    if not all(_shows_absence(cell) for cell in probes):
        return ""
    detail = f" ({probes[0].text})" if probes and probes[0].text else ""
    return f"rank {rank} has contacted no other rank{detail}"


def _proved(
    cells: Mapping[tuple[int, int], Cell],
    reports: Sequence[Report],
    nodes: int,
    found: Sequence[Finding],
    slow: str,
) -> list[Finding]:
    """Return an ok finding for each step that all pairs passed.

    For each other step without findings, return an unknown finding.
    """
    there = {finding.step for finding in found}
    pairs = nodes * (nodes - 1)
    proved = []
    for step in STEPS:
        if step in OUTSIDE:
            if step not in there:
                proved.append(unknown(step, _ALONE[step]))
        elif step in ("dns", "tcp", "greeting", "matrix", "mtu"):
            passed = sum(past(cell, step) for cell in cells.values())
            if step == "greeting" and passed == pairs and not all(report.named for report in reports):
                proved.append(
                    unknown(
                        step,
                        "no run id is set, so ranks may belong to "
                        "another job: set NETCHECK_RUN_ID or RDZV_ID",
                    )
                )
            elif passed == pairs:
                proved.append(ok(step, _pass_text(step, cells, pairs)))
            elif step not in there:
                proved.append(unknown(step, f"{passed} of {pairs} pairs{slow}"))
        elif step not in there:
            proved.append(unknown(step, "no rank reported a result for this step"))
    return proved


def _pass_text(step: str, cells: Mapping[tuple[int, int], Cell], pairs: int) -> str:
    if step == "matrix" and cells:
        slowest = max(cells, key=lambda pair: cells[pair].rtt)
        took = f"{cells[slowest].rtt * 1000:.1f} ms"
        return f"{pairs} of {pairs} pairs; the slowest greeting, {slowest[0]} → {slowest[1]}, takes {took}"
    return f"{pairs} of {pairs} pairs"
