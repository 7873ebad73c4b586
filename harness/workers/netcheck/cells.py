"""Correct the results of individual probes using the reports of all ranks. All functions are pure.

The probing rank knows only the errno and the ICMP message. The reports of both ranks together show whether
the probed rank is listening, which addresses it has, and whether the opposite direction works.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace

from .finding import CAUSES, OK, STEPS
from .probe import ADVERTISED, PENDING, Cell
from .rank_report import Report
from .reach import REJECTED
from .torchrun_names import published_by

Pair = tuple[int, int]
"""A pair of ranks as (probing rank, probed rank)."""


def corrected(at: Mapping[int, Report], nodes: int) -> dict[Pair, Cell]:
    """Return the cell for each pair of ranks, with an outcome that is based on the reports of all ranks."""
    addresses = {rank: _addresses(rank, at) for rank in range(nodes)}
    cells = {
        (sender, receiver): _aged(cell, receiver, addresses[receiver])
        for sender, report in at.items()
        for receiver, cell in report.row.items()
        if receiver != sender and receiver < nodes
    }
    cells = {pair: _rejected(pair, cell, cells, at, addresses[pair[1]]) for pair, cell in cells.items()}
    cells = {pair: _unanswered(cell, cells.get((pair[1], pair[0]))) for pair, cell in cells.items()}
    first = published_by(at, nodes)
    return {pair: _advertised(cell, pair[1], first) for pair, cell in cells.items()}


def past(cell: Cell, step: str) -> bool:
    """Return whether the pair passed this step: its outcome is ok, or the failure is at a later step."""
    if cell.outcome in (OK, PENDING):
        return cell.outcome == OK
    return STEPS.index(CAUSES[cell.outcome]) > STEPS.index(step)


def _advertised(cell: Cell, receiver: int, first: int | None) -> Cell:
    """Return a pair's cell, ignoring failures for a name that torchrun would not publish.

    `first` is the rank whose name torchrun would publish, or None if that is unknown.
    """
    if ADVERTISED not in (cell.outcome, cell.withheld) or receiver == first:
        return cell
    if first is not None:
        return replace(cell, outcome=OK, text="", withheld="")
    return replace(cell, outcome=PENDING, withheld=ADVERTISED)


def _aged(cell: Cell, receiver: int, addresses: Set[str]) -> Cell:
    """Return a pair's cell, or a dns.old_address cell if DNS returned an address of another host.

    `addresses` contains the receiver's addresses.
    """
    without_response = cell.outcome.startswith("tcp.") or cell.outcome == "peer.silent"
    if not without_response or not addresses or cell.address in addresses or not cell.address:
        return cell
    text = f"{cell.host} resolves to {cell.address}, but rank {receiver} is at {', '.join(sorted(addresses))}"
    return replace(cell, outcome="dns.old_address", text=f"{text} ({cell.text})")


def _rejected(
    pair: Pair, cell: Cell, cells: Mapping[Pair, Cell], at: Mapping[int, Report], addresses: Set[str]
) -> Cell:
    """Return a pair's cell, or a tcp.rejected cell if a firewall caused the failure.

    To the probing rank, a reset looks as if nothing were listening, and "host unreachable" as if there were
    no route. But the probed rank's own report shows that it was listening all the time, and a connection in
    the opposite direction shows that there is a route.
    """
    sender, receiver = pair
    if receiver not in at or cell.address not in addresses:
        return cell
    if cell.outcome == "tcp.refused" and cell.listened and cell.port == at[receiver].port:
        text = f"{cell.text}, but rank {receiver} listens there: a firewall resets the connection"
        return replace(cell, outcome=REJECTED, text=text)
    opposite = cells.get((receiver, sender))
    has_sender = bool(cell.sender) and cell.sender not in at[sender].addresses
    if cell.outcome == "tcp.no_route" and has_sender and opposite is not None and past(opposite, "tcp"):
        text = f"{cell.text}; but rank {receiver} connects to rank {sender}, so there is a route: a firewall"
        return replace(cell, outcome=REJECTED, text=f"{text} at {cell.sender} rejects the connection")
    return cell


def _unanswered(cell: Cell, opposite: Cell | None) -> Cell:
    """Return a pair's cell, with the opposite direction's outcome if that explains the missing response.

    A connection gets no response if the responding rank's packets are rejected or have no route.
    """
    is_cause = opposite is not None and opposite.sender and opposite.outcome in (REJECTED, "tcp.no_route")
    if cell.outcome != "tcp.filtered" or opposite is None or not is_cause:
        return cell
    return replace(cell, outcome=opposite.outcome, text=f"{cell.text}; on the way back, {opposite.text}")


def _addresses(rank: int, at: Mapping[int, Report]) -> set[str]:
    """Return the addresses that a rank reported, and those from which it connected to other ranks."""
    addresses = set(at[rank].addresses) if rank in at else set()
    return addresses | {report.heard[rank] for report in at.values() if rank in report.heard}
