"""A failure that slowness explains as well accuses nobody, and a proved one is named on a busy node too."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from netcheck_facts import address, healthy

from harness.workers import netcheck
from harness.workers.netcheck.conclude import Conclusion, conclude
from harness.workers.netcheck.cpu_delay import Delay
from harness.workers.netcheck.probe import Cell
from harness.workers.netcheck.proof import withheld
from harness.workers.netcheck.report_collection import NOBODY_NEW, ReportCollection

PORT = 29501


def judged(
    outcome: str, *, late: float = 0.0, age: float = 60.0, dns: float = 0.0, **fields: Any
) -> Conclusion:
    """Return what netcheck concludes if rank 1 fails to reach rank 2.

    `late` is the delay of rank 2, `age` the time since its start, `dns` the slowest answer of rank 3.
    """
    reports = {rank: replace(report, port=PORT, age=60.0) for rank, report in healthy().items()}
    cell = Cell(outcome, "job-2", f"text of {outcome}", address(2), port=PORT, **fields)
    reports[1] = replace(reports[1], row={**reports[1].row, 2: cell})
    reports[2] = replace(reports[2], delay=Delay(late, 0.9), age=age)
    reports[3] = replace(reports[3], dns=dns)
    return conclude(withheld(list(reports.values())), 4)


@pytest.mark.parametrize(
    ("outcome", "given", "cause"),
    [
        ("dns.server_silent", {"waited": 1.0}, None),
        ("dns.server_silent", {"waited": 5.0}, "dns.server_silent"),
        ("dns.server_silent", {"waited": 5.0, "late": 2.0}, None),
        ("dns.server_silent", {"waited": 10.0, "late": 2.0}, "dns.server_silent"),
        ("dns.server_silent", {"waited": 5.0, "late": 2.0, "dns": 0.2}, "dns.server_silent"),
        ("dns.server_silent", {"waited": 5.0, "dns": 3.0}, None),
        ("dns.no_record", {"age": 3.0}, None),
        ("dns.no_record", {"late": 7.0}, None),
        ("dns.no_record", {}, "dns.no_record"),
        ("peer.silent", {"waited": 2.0}, "peer.silent"),
        ("peer.silent", {"waited": 2.0, "late": 3.0}, None),
        ("peer.silent", {"waited": 16.0, "late": 3.0}, "peer.silent"),
        ("mtu.black_hole", {"waited": 1.5, "late": 1.0}, None),
        ("mtu.black_hole", {"waited": 12.0, "late": 1.0}, "mtu.black_hole"),
        ("tcp.refused", {}, None),
        ("tcp.refused", {"listened": True, "late": 9.0}, "tcp.rejected"),
        ("tcp.reset", {}, None),
        ("tcp.reset", {"listened": True}, "tcp.reset"),
        ("tcp.filtered", {"age": 0.5}, None),
        ("tcp.filtered", {"late": 9.0}, "tcp.filtered"),
        ("tcp.rejected", {"age": 0.5, "late": 9.0, "sender": "10.9.9.9"}, "tcp.rejected"),
    ],
)
def test_failure_is_cause_only_without_slowness(
    outcome: str, given: dict[str, Any], cause: str | None
) -> None:
    found = judged(outcome, **given)
    assert (found.verdict, found.cause) == ("failed" if cause else "unknown", cause), found.findings
    if cause is None:
        text = next(f.text for f in found.findings if f.status == "unknown" and f.ranks)
        assert f"text of {outcome}; not proved" in text


def test_a_missing_record_is_awaited_until_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract: on a busy node, rank 0 alone does not conclude before its own missing record is proved."""
    alone = replace(healthy(1)[0], row={0: Cell("dns.no_record", "job-0")}, delay=Delay(2.0, 0.9))
    reports, began = ReportCollection(), time.monotonic()
    reports.add(replace(alone, age=NOBODY_NEW + 1))
    monkeypatch.setattr(time, "monotonic", lambda: began + NOBODY_NEW + 1)
    assert reports.settled(None, learning=False) is None
    reports.add(replace(alone, age=21.0))
    settled = reports.settled(None, learning=False)
    assert settled
    assert conclude(settled, 1, certain=False).cause == "dns.no_record"


def test_verdict_waits_for_right_rank_at_shared_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract: the response of another rank at the same address is not final at first."""
    reports, began, both = ReportCollection(), time.monotonic(), healthy(2)
    other = replace(both[1].row[0], rank=1, instance="i1")
    for report in (both[0], replace(both[1], row={**both[1].row, 0: other})):
        reports.add(report)
    assert reports.settled({0, 1}, learning=False) is None
    reports.add(replace(both[1], age=1.0))
    assert reports.settled({0, 1}, learning=False)
    reports.add(replace(both[1], age=2.0, row={**both[1].row, 0: other}))
    monkeypatch.setattr(time, "monotonic", lambda: began + 6)
    assert reports.settled({0, 1}, learning=False)


@pytest.mark.parametrize("outcome", ["dns.server_silent", "peer.silent", "mtu.black_hole", "dns.no_record"])
def test_an_unknown_result_names_the_measured_delay(outcome: str) -> None:
    texts = [finding.text for finding in judged(outcome, waited=6.0, late=9.3).findings]
    named = "woke up 9.3 s late, and processes on its node waited for a CPU 90% of the time"
    assert any(named in text for text in texts), texts


def test_late_dns_records_make_nobody_missing() -> None:
    """Contract: if a busy control plane publishes no record, another rank may have come all the same."""
    alone = replace(healthy()[0], age=8.0, delay=Delay(1.5))
    row = {other: Cell("dns.no_record", f"job-{other}", "no such name") for other in range(4)}
    found = conclude(withheld([replace(alone, row=row)]), 4)
    assert (found.verdict, found.cause) == ("unknown", None), found.findings


MEASURE = """import sys, threading
from netcheck.cpu_delay import CpuDelay
measured = CpuDelay(threading.Event()).start()
print("ready", flush=True)
for line in sys.stdin:
    print(measured.now().late, measured.since(float(line)), flush=True)"""


def test_process_that_gets_no_cpu_knows_how_long_afterwards() -> None:
    """Contract: SIGSTOP for 1 s is a delay of 1 s, for everything that the process did meanwhile."""
    env = {"PYTHONPATH": str(Path(netcheck.__file__).parents[1])}
    with subprocess.Popen(
        [sys.executable, "-c", MEASURE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=env,
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        began = time.monotonic()
        process.send_signal(signal.SIGSTOP)
        time.sleep(1.0)
        process.send_signal(signal.SIGCONT)
        print(began, file=process.stdin, flush=True)
        late, since = map(float, process.stdout.readline().split())
        process.stdin.close()
    assert late >= 0.9
    assert since >= 0.9


@pytest.mark.parametrize(
    ("late", "listened", "cause"), [(0.0, False, "tcp.refused"), (4.0, False, None), (0.0, True, None)]
)
def test_refusal_after_rank_0_ended_accuses_nobody(late: float, listened: bool, cause: str | None) -> None:
    """Contract: with 64 pods on two cores, rank 0 had ended when rank 1 got a CPU to connect to it."""
    own = replace(healthy()[1], port=PORT, age=60.0, delay=Delay(late))
    refused = Cell("tcp.refused", "job-0", "Connection refused", address(0), port=PORT, listened=listened)
    found = conclude(withheld([replace(own, row={**own.row, 0: refused})]), 4)
    assert found.cause == cause, found.findings
