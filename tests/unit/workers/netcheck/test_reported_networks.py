"""Networks of public reports: an overlay that the nodes drop, and a service mesh in front of every rank.

flannel#2388, calico#9433, pytorch#81704.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations

import pytest
from netcheck_facts import address, healthy

from harness.workers.netcheck.conclude import conclude
from harness.workers.netcheck.finding import FAILED, Finding
from harness.workers.netcheck.probe import Cell
from harness.workers.netcheck.rank_report import Report

OVERLAY = "pods on the same node reach each other"


def failing(
    outcome: str, machines: str, is_bad: Callable[[int, int], bool] = lambda *_: True
) -> list[Report]:
    """Return the reports of ranks on `machines`, one letter for each rank, whose bad pairs have `outcome`."""
    reports = healthy(len(machines))
    for rank, report in reports.items():
        row = dict(report.row)
        for other in row:
            if other != rank and is_bad(rank, other):
                row[other] = Cell(outcome, f"job-{other}", f"text of {outcome}", address=address(other))
        facts = {**report.facts, "machine": machines[rank]}
        reports[rank] = replace(report, row=row, facts=facts)
    return list(reports.values())


def failures(reports: list[Report]) -> list[Finding]:
    found = conclude(reports, len(reports)).findings
    return [finding for finding in found if finding.status == FAILED]


def test_an_overlay_whose_packets_are_dropped_between_the_nodes() -> None:
    reports = failing("tcp.filtered", "aabb", lambda sender, receiver: (sender < 2) != (receiver < 2))
    [finding] = failures(reports)
    assert (finding.cause, finding.ranks) == ("tcp.filtered", (0, 1, 2, 3))
    assert OVERLAY in finding.text
    assert "VXLAN" in finding.text


@pytest.mark.parametrize(
    ("machines", "bad"),
    [
        ("abcd", [*permutations(range(4), 2)]),  # Each node has one pod, so nothing shows that nodes matter.
        ("aabb", [(0, 1), (1, 0)]),
        ("aabb", [(0, 2), (2, 0)]),  # Other pods on these two nodes reach each other.
        ("aabb", [(0, 2), (0, 3), (1, 2), (1, 3)]),  # One way: a policy can do this.
    ],
)
def test_other_filters_are_not_called_a_dropped_overlay(machines: str, bad: list[tuple[int, int]]) -> None:
    found = failures(failing("tcp.filtered", machines, lambda *pair: pair in bad))
    assert {finding.cause for finding in found} == {"tcp.filtered"}
    assert not any(OVERLAY in finding.text for finding in found)


@pytest.mark.parametrize("outcome", ["peer.silent", "peer.not_netcheck"])
@pytest.mark.parametrize("machines", ["abcd", "ab"])
def test_proxy_before_every_rank_accuses_no_rank(outcome: str, machines: str) -> None:
    [finding] = failures(failing(outcome, machines))
    assert (finding.cause, finding.ranks) == (outcome, tuple(range(len(machines))))
    assert "service mesh" in finding.text
    assert f"text of {outcome}" in finding.text


def test_one_report_does_not_prove_proxy_everywhere() -> None:
    found = conclude(failing("peer.silent", "abcd")[:1], 4).findings
    assert not any("service mesh" in finding.text for finding in found)


def test_program_at_port_of_one_rank_accuses_that_rank() -> None:
    [finding] = failures(failing("peer.silent", "abcd", lambda _, receiver: receiver == 2))
    assert finding.ranks == (2,)
    assert "service mesh" not in finding.text
