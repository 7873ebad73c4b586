"""One cause out of what the ranks saw. What nobody saw is unknown, and never ok."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from netcheck_facts import address, healthy

from harness.workers.netcheck.conclude import conclude
from harness.workers.netcheck.diagnosis import Diagnosis
from harness.workers.netcheck.finding import CAUSES, FAILED, STEPS, failed, unknown
from harness.workers.netcheck.probe import PENDING, Cell
from harness.workers.netcheck.rank_report import Report

ADVERTISED = "dns.advertised"
CELLS = [
    cause
    for cause, step in CAUSES.items()
    if step in ("interface", "dns", "tcp", "greeting", "mtu") and cause != ADVERTISED
]
"""Causes that a cell may hold, except for the one that depends on the names of the ranks."""


def seeing(report: Report, other: int, outcome: str, **fields: Any) -> Report:
    cell = Cell(outcome, f"job-{other}", f"text of {outcome}", **{"address": address(other), **fields})
    return replace(report, row={**report.row, other: cell})


@pytest.mark.parametrize("seen", ["tcp.refused", "peer.silent", "peer.not_netcheck", "tcp.reset"])
def test_port_that_rank_itself_finds_taken_is_cause(seen: str) -> None:
    """Contract: seen on a busy cluster: the others were refused before the other program listened."""
    reports = healthy()
    reports[2] = replace(reports[2], findings=(*reports[2].findings, failed("port.taken", "port 29501")))
    for rank in (0, 1, 3):
        reports[rank] = seeing(reports[rank], 2, seen)
    found = conclude(list(reports.values()), 4)
    assert (found.cause, found.ranks) == ("port.taken", (2,))
    assert [finding.cause for finding in found.findings if finding.status == FAILED] == ["port.taken"]


def test_all_is_well() -> None:
    found = conclude(list(healthy().values()), 4)
    assert (found.verdict, found.cause, found.missing) == ("ok", None, ())
    assert [finding.step for finding in found.findings] == list(STEPS)


@given(st.data())
def test_what_lacks_is_never_ok(data: st.DataObject) -> None:
    """Contract: without a report, a cell, an own step, or with any cell that is not ok, there is no ok."""
    size = data.draw(st.integers(2, 5))
    reports = healthy(size)
    rank = data.draw(st.integers(0, size - 1))
    other = data.draw(st.integers(0, size - 1).filter(lambda r: r != rank))
    how = data.draw(st.sampled_from(["report", "cell", "pending", "own", "unknown", "unnamed", *CELLS]))
    report = reports[rank]
    if how == "report":
        del reports[rank]
    elif how == "cell":
        reports[rank] = replace(report, row={r: cell for r, cell in report.row.items() if r != other})
    elif how == "own":
        reports = {r: replace(each, findings=each.findings[:1]) for r, each in reports.items()}
    elif how == "unknown":
        reports[rank] = replace(report, findings=(*report.findings, unknown("interface", "not known")))
    elif how == "unnamed":
        reports[rank] = replace(report, named=False)
    else:
        reports[rank] = seeing(report, other, PENDING if how == "pending" else how)
    found = conclude(list(reports.values()), size)
    assert found.verdict == ("failed" if how in CELLS else "unknown")
    assert (found.cause is None) == (how not in CELLS)
    if how in CELLS:
        assert found.cause in (how, "dns.old_address")
        assert {rank, other} & set(found.ranks)


@given(st.lists(st.sampled_from(CELLS), min_size=1, max_size=6), st.data())
def test_the_first_step_that_fails_names_the_cause(causes: list[str], data: st.DataObject) -> None:
    reports = healthy(4)
    for cause in causes:
        rank, other = data.draw(st.permutations(range(4)))[:2]
        reports[rank] = seeing(reports[rank], other, cause)
    left = {cell.outcome for rank, r in reports.items() for to, cell in r.row.items() if to != rank} - {"ok"}
    found = conclude(list(reports.values()), 4)
    assert found.cause is not None
    first = min(STEPS.index(CAUSES[cause]) for cause in left)
    assert STEPS.index(CAUSES[found.cause]) == first
    assert {finding.cause for finding in found.findings if finding.status == FAILED} == left


@given(st.permutations(range(4)), st.sampled_from(CELLS))
def test_the_order_of_reports_does_not_matter(order: list[int], cause: str) -> None:
    reports = healthy()
    reports[1] = seeing(reports[1], 2, cause)
    there, again = (conclude([reports[rank] for rank in ranks], 4) for ranks in (range(4), order))
    assert (there.cause, there.ranks, there.missing) == (again.cause, again.ranks, again.missing)


def test_without_dns_records_no_peer_is_reported_absent() -> None:
    """Contract: a rank whose own name has no record knows nothing of the others by theirs."""
    alone = healthy()[0]
    for other in range(4):
        alone = seeing(alone, other, "dns.no_record", address="")
    found = conclude([alone], 4)
    assert (found.cause, found.ranks, found.missing) == ("dns.no_record", (0, 1, 2, 3), (1, 2, 3))
    assert "peer.never_came" not in {finding.cause for finding in found.findings}


def test_a_rank_without_a_record_excuses_nobody_else() -> None:
    """Contract: rank 2 is not selected, and rank 3 did not come: both are said."""
    reports = column(3, "dns.no_record")
    for rank in range(3):
        reports[rank] = seeing(reports[rank], 2, "dns.no_record", address="")
    found = conclude(list(reports.values()), 4)
    causes = {(finding.cause, finding.ranks) for finding in found.findings if finding.cause}
    assert {("peer.never_came", (3,)), ("dns.no_record", (2,))} <= causes


def column(rank: int, outcome: str, **fields: Any) -> dict[int, Report]:
    """What others report when this one is not heard."""
    return {r: seeing(report, rank, outcome, **fields) for r, report in healthy().items() if r != rank}


@pytest.mark.parametrize(
    ("outcome", "cause"),
    [
        ("dns.no_record", "peer.never_came"),
        ("tcp.no_route", "peer.never_came"),
        (PENDING, "peer.never_came"),
        ("tcp.refused", "tcp.refused"),
        ("tcp.filtered", "tcp.filtered"),
        ("tcp.denied", "tcp.denied"),
        ("peer.other_job", "peer.other_job"),
    ],
)
def test_a_rank_that_nobody_heard_of_is_missing(outcome: str, cause: str) -> None:
    found = conclude(list(column(3, outcome).values()), 4)
    assert (found.cause, found.ranks, found.missing) == (cause, (3,), (3,))


def test_a_rank_without_a_record_that_speaks_has_come() -> None:
    """The difference between a Service that selects nothing, and a pod that is Pending."""
    reports = {**column(3, "dns.no_record"), 3: healthy()[3]}
    found = conclude(list(reports.values()), 4)
    assert (found.cause, found.ranks, found.missing) == ("dns.no_record", (3,), ())


def test_one_row_accuses_nobody() -> None:
    """Contract: from one row it is not known whether the sender or all receivers are cut off."""
    report = healthy()[2]
    for other in (0, 1, 3):
        report = seeing(report, other, "tcp.filtered")
    found = conclude([report], 4)
    assert (found.cause, found.ranks, found.missing) == ("tcp.filtered", (), (0, 1, 3))


@pytest.mark.parametrize("known_by", ["report", "ear"])
def test_an_old_address(known_by: str) -> None:
    """Contract: nobody answers at the address, and the rank is known to be at another one."""
    reports = column(3, "tcp.filtered", address="10.0.0.99")
    if known_by == "report":
        reports[3] = healthy()[3]
    else:
        reports[1] = replace(reports[1], heard={3: address(3)})
    found = conclude(list(reports.values()), 4)
    assert (found.cause, found.ranks) == ("dns.old_address", (3,))


@pytest.mark.parametrize(
    ("outcome", "where", "found"),
    [
        ("ok", 0, ("ok", None, ())),
        (PENDING, 0, ("unknown", None, ())),
        ("dns.no_record", 0, ("failed", "dns.no_record", (0,))),
        ("dns.server_silent", 0, ("failed", "dns.server_silent", (1, 2))),
        ("peer.other_rank", 2, ("failed", "peer.other_rank", (0,))),
        ("tcp.refused", 0, ("failed", "tcp.refused", (0,))),
        ("tcp.refused", 98, ("unknown", None, ())),
    ],
)
def test_master_addr_is_another_name(outcome: str, where: int, found: tuple[object, ...]) -> None:
    """Contract: all pairs may be fine, and MASTER_ADDR lead nowhere. Then nothing is ok."""
    reports = healthy()
    for rank in reports:
        seen = outcome if rank in (1, 2) else "ok"
        reports[rank] = replace(reports[rank], master=Cell(seen, "master", address=address(where)))
    done = conclude(list(reports.values()), 4)
    assert (done.verdict, done.cause, done.ranks) == found


def publishing(names: dict[int, str], bad: tuple[int, ...]) -> dict[int, Report]:
    """Reports of ranks with host names that torchrun may publish, some of which no other rank resolves."""
    reports = healthy()
    for rank, report in reports.items():
        row = {
            other: replace(cell, outcome=ADVERTISED, text="no such name")
            if other in bad and other != rank
            else cell
            for other, cell in report.row.items()
        }
        facts = {**report.facts, "published": names[rank]} if rank in names else report.facts
        reports[rank] = replace(report, row=row, facts=facts, age=60.0)
    return reports


NAMES = {rank: f"job-{rank}.pods" for rank in range(4)}


@pytest.mark.parametrize(
    ("names", "bad", "verdict", "ranks"),
    [
        pytest.param(NAMES, (0,), "failed", (0,), id="first"),
        pytest.param(NAMES, (0, 1, 2, 3), "failed", (0,), id="all"),
        pytest.param(NAMES, (1, 3), "ok", (), id="others"),
        pytest.param({**NAMES, 2: "a-host"}, (2,), "failed", (2,), id="first in alphabetical order"),
        pytest.param({**NAMES, 2: "a-host"}, (0,), "ok", (), id="not the first"),
        pytest.param({0: "job-0.pods"}, (0,), "unknown", (), id="names unknown"),
    ],
)
def test_only_the_name_that_torchrun_publishes_matters(
    names: dict[int, str], bad: tuple[int, ...], verdict: str, ranks: tuple[int, ...]
) -> None:
    """pytorch/pytorch#150532. Contract: torchrun gives all workers the first name in alphabetical order."""
    found = conclude(list(publishing(names, bad).values()), 4)
    assert (found.verdict, found.ranks) == (verdict, ranks), found.findings
    assert found.cause == (ADVERTISED if ranks else None)


def comparing(**of_rank_0: Any) -> list[Report]:
    """Reports of ranks that reach rank 0 through the address of a Service, and know their own names."""
    reports = []
    for rank, report in healthy().items():
        facts = {
            **report.facts,
            "names": [f"job-{rank}"],
            "addresses": [address(rank)],
            "store_port_free": not rank,
        }
        master = replace(report.row[0], host="master", address="10.96.0.7")
        facts |= of_rank_0 if rank == 0 else {}
        reports.append(replace(report, master=master, facts=facts))
    return reports


def test_a_store_that_no_torchrun_opens_is_named() -> None:
    """pytorch/pytorch#80772: every torchrun waits for another one at the address of a Service."""
    found = conclude(comparing(), 4)
    assert (found.cause, found.ranks) == ("variables.torchrun", (0, 1, 2, 3))
    assert "its c10d store at master (10.96.0.7)" in found.findings[0].text


@pytest.mark.parametrize(
    "of_rank_0",
    [
        pytest.param({"names": ["job-0", "master"]}, id="name"),
        pytest.param({"addresses": ["10.96.0.7"]}, id="address"),
        pytest.param({"store_port_free": False}, id="another program listens"),
        pytest.param({"names": None}, id="unknown"),
    ],
)
def test_store_that_torchrun_or_another_program_opens_is_fine(of_rank_0: dict[str, Any]) -> None:
    found = conclude(comparing(**of_rank_0), 4)
    assert (found.verdict, found.cause) == ("ok", None), found.findings


def test_a_rank_twice() -> None:
    reports = healthy()
    reports[2] = replace(reports[2], rank=1)
    found = conclude(list(reports.values()), 4)
    assert (found.cause, found.ranks) == ("variables.node_rank_twice", (1,))


def test_ranks_in_another_order_than_the_peers() -> None:
    reports = healthy()
    reports[2], reports[3] = replace(reports[2], rank=3), replace(reports[3], rank=2)
    for rank, report in reports.items():
        row = {to: replace(cell, rank={2: 3, 3: 2}.get(to, to)) for to, cell in report.row.items()}
        reports[rank] = replace(report, row=row)
    found = conclude(list(reports.values()), 4)
    assert (found.cause, found.ranks) == ("variables.node_rank", (2,))


def test_the_same_finding_of_several_ranks_is_one() -> None:
    wrong = failed("variables.master_port", "MASTER_PORT='x'")
    reports = [replace(report, findings=(wrong, *report.findings[1:])) for report in healthy().values()]
    found = [finding for finding in conclude(reports, 4).findings if finding.cause]
    assert [(finding.cause, finding.ranks) for finding in found] == [("variables.master_port", (0, 1, 2, 3))]


@given(st.sampled_from(CELLS), st.integers(0, 3))
def test_everything_survives_json(cause: str, rank: int) -> None:
    report = seeing(healthy()[0], rank, cause)
    assert Report.of(json.loads(json.dumps(report.as_dict()))).as_dict() == report.as_dict()
    found = conclude([report], 4)
    result = Diagnosis(
        found.verdict,
        found.cause,
        found.ranks,
        found.missing,
        found.findings,
        {0: report.row},
        4,
        0,
        True,
        1.0,
    )
    assert Diagnosis.of(json.loads(json.dumps(result.as_dict()))).as_dict() == result.as_dict()


def rejecting(size: int, sender: str) -> dict[int, Report]:
    """Reports of ranks whose connections to rank 1 are rejected by the machine with this address."""
    reports = healthy(size)
    for rank in reports.keys() - {1}:
        reports[rank] = seeing(reports[rank], 1, "tcp.rejected", sender=sender)
    return reports


@pytest.mark.parametrize("size", [2, 16, 64])
@pytest.mark.parametrize("sender", ["", address(1)], ids=["on the way", "the rank's own machine"])
def test_firewall_accuses_healthy_rank_only_among_two(size: int, sender: str) -> None:
    found = conclude(list(rejecting(size, sender).values()), size)
    assert (found.cause, found.missing) == ("tcp.rejected", ())
    assert found.ranks == ((0, 1) if size == 2 and not sender else (1,))


def test_one_row_accuses_the_machine_that_rejects_its_connections() -> None:
    found = conclude([rejecting(4, address(1))[0]], 4)
    assert (found.cause, found.ranks) == ("tcp.rejected", (1,))


@pytest.mark.parametrize(
    ("outcome", "port", "fields", "cause"),
    [
        ("tcp.refused", 29501, {"port": 29501, "listened": True}, "tcp.rejected"),
        ("tcp.refused", 29501, {"port": 29501}, "tcp.refused"),
        ("tcp.refused", 29502, {"port": 29501, "listened": True}, "tcp.refused"),
        ("tcp.refused", 0, {"port": 29501}, "tcp.refused"),
        ("tcp.no_route", 0, {"sender": "10.9.9.9"}, "tcp.rejected"),
        ("tcp.no_route", 0, {"sender": address(0)}, "tcp.no_route"),
        ("tcp.no_route", 0, {}, "tcp.no_route"),
    ],
)
def test_what_the_other_rank_reports_shows_the_firewall(
    outcome: str, port: int, fields: dict[str, Any], cause: str
) -> None:
    """Contract: a rank that listens is not refused, and a direction with a route back has a route."""
    reports = healthy(2)
    reports[0] = seeing(reports[0], 1, outcome, **fields)
    reports[1] = replace(reports[1], port=port)
    assert conclude(list(reports.values()), 2).cause == cause


def test_silence_is_explained_by_the_direction_of_the_responses() -> None:
    """Contract: no response comes back to rank 1, because the responses have no route."""
    reports = healthy(2)
    reports[0] = seeing(reports[0], 1, "tcp.no_route", sender="10.9.9.9")
    reports[1] = seeing(reports[1], 0, "tcp.filtered")
    found = conclude(list(reports.values()), 2)
    assert (found.cause, found.ranks) == ("tcp.no_route", (0, 1))
    assert [finding.cause for finding in found.findings if finding.cause] == ["tcp.no_route"]


def test_a_rank_without_any_route_calls_nobody_missing() -> None:
    """Contract: its own kernel has no route, which shows nothing about the ranks that it tried to reach."""
    report = healthy()[2]
    for other in (0, 1, 3):
        report = seeing(report, other, "tcp.no_route", unrouted=True)
    found = conclude([report], 4)
    assert (found.cause, found.ranks) == ("tcp.no_route", ())
    assert "peer.never_came" not in {finding.cause for finding in found.findings}
