"""What rank 0 stores of the other ranks' reports, which arrive in responses and in requests."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from harness.workers.netcheck import member
from harness.workers.netcheck.member import Member
from harness.workers.netcheck.peers import Peer
from harness.workers.netcheck.rank_report import Report
from harness.workers.netcheck.variables import validate_environment

VARIABLES = {"NODE_RANK": "0", "NNODES": "2", "MASTER_ADDR": "127.0.0.1", "RDZV_ID": "run-1"}


@pytest.fixture
def rank_0(unused_tcp_port: int) -> Iterator[Member]:
    known = validate_environment(VARIABLES, nodes=2)
    listed = [Peer("127.0.0.1", unused_tcp_port), Peer("127.0.0.2", unused_tcp_port)]
    with Member(known, 2, listed, unused_tcp_port, VARIABLES) as member:
        yield member


def report_of_rank_1(member: Member, age: float = 1.0) -> dict[str, Any]:
    report = replace(member._report(), place=1, rank=1, instance="peer", age=age)
    data: dict[str, Any] = json.loads(json.dumps(report.as_dict()))
    return data


def test_only_rank_that_receives_response_has_verdict(
    rank_0: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract: rank 0 does not end before a rank has the verdict, even if it fetched a report."""
    data = report_of_rank_1(rank_0)
    monkeypatch.setattr(member, "exchange", lambda *_: data)
    rank_0._store(rank_0._report())
    rank_0._result, rank_0._verdict = rank_0._row_alone(), b"{}"
    rank_0._fetch(1, rank_0._probes[1])
    assert "peer" not in rank_0._informed
    assert rank_0._receive_report(data) == b"{}"
    assert "peer" in rank_0._informed


def test_rank_0_asks_again_after_invalid_response(rank_0: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member, "exchange", lambda *_: {"row": None})
    rank_0._fetching.add(1)
    with contextlib.suppress(Exception):
        rank_0._fetch(1, rank_0._probes[1])
    assert not rank_0._fetching


def test_verdict_comes_from_the_settled_reports(rank_0: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract: a failure that was proved stays proved if the machine becomes busy right afterwards."""
    settled = [rank_0._report()]
    monkeypatch.setattr(rank_0, "_settled", lambda: settled)
    monkeypatch.setattr(rank_0._reports, "proved", lambda: pytest.fail("the reports were read again"))
    assert set(rank_0.run(20.0).rows) == {0}


def test_a_fetched_report_does_not_replace_a_newer_one(rank_0: Member) -> None:
    for age in (2.0, 1.0):
        rank_0._store(Report.of(report_of_rank_1(rank_0, age)))
    assert [report.age for report in rank_0._reports.newest()] == [2.0]


def test_a_rank_that_restarted_has_one_report(rank_0: Member) -> None:
    """Contract: rank 0 waits neither for the pending probes of the earlier process, nor to inform it."""
    own = rank_0._report()
    addresses = ("10.0.0.7",)
    for instance in ("before", "after"):
        rank_0._store(replace(own, place=1, rank=1, instance=instance, addresses=addresses))
    assert [report.instance for report in rank_0._reports.newest()] == ["after"]


@pytest.mark.parametrize("change", [{"port": 1}, {"host": "job-2"}, {"addresses": ("10.0.0.8",)}])
def test_two_processes_that_claim_one_rank_both_count(rank_0: Member, change: dict[str, Any]) -> None:
    one = replace(rank_0._report(), place=1, rank=1, instance="one", addresses=("10.0.0.7",))
    for report in (one, replace(one, instance="two", **change)):
        rank_0._store(report)
    assert [report.instance for report in rank_0._reports.newest()] == ["one", "two"]


def test_a_rank_that_restarted_is_informed(rank_0: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract: rank 0 probed the earlier process, but the later one has the verdict."""
    data = report_of_rank_1(rank_0)
    monkeypatch.setattr(member, "exchange", lambda *_: data)
    rank_0._inform(rank_0._probes[1], b"{}")
    assert "peer" in rank_0._informed
