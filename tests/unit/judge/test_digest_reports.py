"""Digests of blocks in the tracker: they identify the block with a loss, and a contradiction with the log is
never a PASS."""

from __future__ import annotations

import json
from array import array
from functools import cache
from typing import Any

import pytest
from admitted_process import RUN, UID, Row
from hypothesis import given
from hypothesis import strategies as st
from reporting_process import Reporting, packed

from harness.evidence.schema.columns import Part
from harness.evidence.schema.tracker import DigestReport
from harness.judge.finding import Finding
from harness.judge.points import digest_check, digest_records, digest_reports
from harness.workers.recorder import digest_lines, point_digests
from harness.workers.recorder.point_digests import Digests

LONG = 12_000
"""The number of steps in a training whose summary merges blocks."""


def parts(rows: list[Row]) -> list[Part]:
    columns: dict[str, Part] = {}
    for metric, step, value, time in rows:
        part = columns.setdefault(metric, (metric, array("q"), array("d"), array("q")))
        for column, item in zip(part[1:], (step, value, time), strict=True):
            column.append(item)
    return list(columns.values())


def judged(
    processes: list[Reporting],
    rows: list[Row],
    reports: list[DigestReport] | None = None,
    logs: list[list[str]] | None = None,
    ranks: int = 1,
    running: bool = False,
) -> dict[str, Finding]:
    """Return the findings. `reports` and `logs` default to those of the processes."""
    written = logs or [process.written for process in processes]
    pods = [digest_records.read(log, UID, pod=f"pod-{at}", running=running) for at, log in enumerate(written)]
    known = reports if reports is not None else [one for each in processes for one in each.in_tracker()]
    digest_reports.verify(pods, known, [int(RUN)])
    return {one.name: one for one in digest_check.judge(pods, ranks=range(ranks), parts=parts(rows), run=RUN)}


def results(findings: dict[str, Finding]) -> set[str]:
    return {finding.result for finding in findings.values()}


def text(findings: dict[str, Finding]) -> str:
    return " | ".join(one.check.explanation for one in findings.values() if one.result != "PASS")


@pytest.fixture(autouse=True)
def merged_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the summary merge the blocks of LONG steps into a few digests, like the summary of a week-long
    training."""
    monkeypatch.setattr(point_digests, "MAX_NODES", 4)


def trained(
    steps: int = LONG, metrics: tuple[str, ...] = ("loss", "lr"), every: int = 2500, **more: Any
) -> Reporting:
    process = Reporting(digests=Digests(3000), **more)
    for step in range(steps):
        for metric in metrics:
            process.log(metric, step, step / 7, 10 + step)
        if step % every == 0:
            process.minute(10 + step)
    return process


def without(rows: list[Row], metric: str, step: int) -> list[Row]:
    return [row for row in rows if row[:2] != (metric, step)]


@cache
def of_4000_steps() -> Reporting:
    return trained(4000, every=1000).end()


def test_lost_point_names_its_block_in_merged_summary() -> None:
    process = trained().end()
    assert results(judged([process], process.rows)) == {"PASS"}
    lost = without(process.rows, "loss", 3456)
    assert "rank 0: loss: 1 of 12000 points, in steps 3000–3999" in text(judged([process], lost))


def test_another_value_is_named_to_its_block() -> None:
    process = trained().end()
    rows = [(m, s, 9.5 if (m, s) == ("lr", 7007) else v, t) for m, s, v, t in process.rows]
    findings = judged([process], rows)
    assert (
        "rank 0: lr: 12000 points, as many as were logged, but not the same ones, in steps 7000–7999"
        in text(findings)
    )


def test_metrics_that_the_summary_groups_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest_lines, "GROUPS", 2)
    monkeypatch.setattr(digest_lines, "MAX_JSON", 100)
    process = trained(3000, tuple(f"loss/{at}" for at in range(6))).end()
    assert results(judged([process], process.rows)) == {"PASS"}
    findings = judged([process], without(process.rows, "loss/3", 1234))
    assert "rank 0: loss/3: 1 of 3000 points, in steps 1000–1999" in text(findings)


def test_without_all_blocks_verdict_is_that_of_summary() -> None:
    """Contract: without the reports, the verdict is the same but does not name the block."""
    process = trained()
    process.report(drop=True)
    process.end()
    assert process.dropped
    assert results(judged([process], process.rows)) == {"PASS"}
    lost = without(process.rows, "loss", 3456)
    assert "rank 0: loss: 1 of 12000 points, in steps 0–" in text(judged([process], lost))


def test_report_acknowledged_during_summary_is_no_contradiction() -> None:
    """Contract: the sending thread may receive its response after the last line and before the summary."""
    process = trained()
    sent = {"run": RUN, "reports": len(process.stored) + 1, "head": "", "why": ""}
    process.end(unsent=True, sent={**sent, "unsent": 0, "dropped": 0, "failures": 0})
    process.report(at_end=True)
    assert results(judged([process], process.rows)) == {"PASS"}


def test_tracker_without_route_costs_only_name_of_block() -> None:
    process = trained()
    pods = [digest_records.read(process.end().written, UID, pod="pod-0")]
    digest_reports.verify(pods, None, [int(RUN)])
    lost = parts(without(process.rows, "loss", 3456))
    findings = {one.name: one for one in digest_check.judge(pods, ranks=[0], parts=lost, run=RUN)}
    assert "rank 0: loss: 1 of 12000 points, in steps 0–3999" in text(findings)


def contradicted(findings: dict[str, Finding]) -> bool:
    complete = findings["ground-truth-complete"]
    return complete.cause == "unification.digests_contradict" and "PASS" not in {
        findings[name].result for name in ("ground-truth-complete", "no-lost-points", "values")
    }


@given(st.data())
def test_a_changed_report_is_never_a_pass(data: st.DataObject) -> None:
    """Property: the reports form a chain, so a change of any stored byte contradicts the log."""
    process = of_4000_steps()
    reports = list(process.stored)
    number = data.draw(st.integers(0, len(reports) - 1))
    report = reports[number]
    at = data.draw(st.integers(0, len(report) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda one: one != report[at]))
    reports[number] = report[:at] + bytes([byte]) + report[at + 1 :]
    findings = judged([process], process.rows, [packed(*one) for one in enumerate(reports)])
    assert contradicted(findings), text(findings)


@given(st.data())
def test_a_removed_or_reordered_report_is_never_a_pass(data: st.DataObject) -> None:
    process = of_4000_steps()
    assert len(process.stored) > 2
    order = data.draw(st.permutations(range(len(process.stored))))
    order = order[: data.draw(st.integers(0, len(order)))]
    reports = [packed(number, process.stored[at]) for number, at in enumerate(order)]
    findings = judged([process], process.rows, reports)
    assert contradicted(findings) == (order != [*range(len(process.stored))])


@given(st.integers(1, 5), st.integers(0, 3999))
def test_log_that_was_rewritten_as_whole_is_never_pass(line: int, step: int) -> None:
    """The nonce is not secret, so a forger can rewrite every line and the summary, but not the reports.

    The forger removes a point from the run and from the log.
    """
    process, forged = of_4000_steps(), Reporting(digests=Digests(3000))
    rows = without(process.rows, "loss", step)
    for row in rows:
        forged.log(*row)
        if row[0] == "lr" and row[1] % 2500 == 0:
            forged.minute(10 + row[1])
    for number in range(line):
        forged.minute(5000 + number)
    forged.end()
    assert results(judged([forged], rows)) == {"PASS"}
    findings = judged([forged], rows, process.in_tracker())
    assert results(findings) - {"PASS"}
    assert contradicted(findings), text(findings)


def test_a_forged_summary_contradicts_the_reports() -> None:
    """The forger removes a point from the run, and its claim from the summary, but not from the lines."""
    process = trained(4000)
    process.report(at_end=True)
    rows = without(process.rows, "loss", 17)
    claims = Digests(3000)
    for row in rows:
        claims.put(*row)
    process.digests = claims
    for dropped in (0, 1):
        other = trained(4000)
        other.report(at_end=True)
        other.digests, other.dropped = claims, dropped
        claims.take(at_end=True)
        other.end()
        assert contradicted(judged([other], rows)), text(judged([other], rows))


def test_log_whose_lines_were_changed_alone_is_never_pass() -> None:
    process = trained(4000).end()
    shorter = [line for line in process.written if not line.startswith("@rec2")]
    assert results(judged([process], process.rows, logs=[shorter])) - {"PASS"}


def test_blocks_of_a_killed_rank_are_judged() -> None:
    """Contract: the blocks covered by the last line are judged, and later points are unknown."""
    process = trained(6000)
    process.minute(7000)
    process.minute(7001)  # This line commits to the report after the line before it.
    for step in range(6000, 6500):
        process.log("loss", step, 1.0, 8000 + step)
    findings = judged([process], process.rows)
    assert results(findings) == {"PASS", "UNKNOWN"}
    assert "10 of 10 blocks of its points up to its recorder's last line are in the run" in text(findings)
    findings = judged([process], without(without(process.rows, "lr", 1001), "lr", 4004))
    assert findings["no-lost-points"].result == "FAIL"
    assert "rank 0: lr: 2 of 5000 points before its last line, in steps 1000–1999, 4000–4999" in text(
        findings
    )
    findings = judged([process], without(process.rows, "loss", 6400))  # These points are not in a block yet.
    assert findings["no-lost-points"].result == "UNKNOWN"


def test_unsent_points_of_running_rank_are_not_lost() -> None:
    """Contract: the client may send points later than the recorder reports their block."""
    process = trained(6000)
    process.minute(7000)
    process.minute(7001)
    rows = [(m, s, 9.5 if (m, s) == ("loss", 2002) else v, t) for m, s, v, t in process.rows]
    rows = without(rows, "lr", 1001)
    assert judged([process], rows)["no-lost-points"].result == "FAIL"
    findings = judged([process], rows, running=True)
    assert results(findings) == {"PASS", "UNKNOWN"}
    assert "rank 0: lr: 1 of 5000 points before its last line, in steps 1000–1999" in text(findings)
    assert "rank 0: loss: as many points as were logged, but not the same ones, in steps 2000–2999" in text(
        findings
    )
    assert "its client may still send them" in text(findings)


def test_restarted_rank_is_judged_by_its_own_points() -> None:
    """Contract: points that the next process logs for the same steps are not attributed to the first
    process."""
    first = trained(6000)
    first.minute(7000)
    first.minute(7001)
    second = Reporting(attempt="attempt1", digests=Digests(3000))
    for step in range(2500, 7000):
        second.log("loss", step, -1.0, 10_000 + step)
    second.end()
    log = [*first.written, *second.written]
    reports = [*first.in_tracker(), *second.in_tracker()]
    findings = judged([first], [*first.rows, *second.rows], reports, [log])
    assert results(findings) == {"PASS", "UNKNOWN"}
    assert "10 of 10 blocks" in text(findings)
    lost = [row for row in first.rows if row[:2] != ("loss", 3100)]
    findings = judged([first], [*lost, *second.rows], reports, [log])
    assert "rank 0: loss: 1 of 5000 points before its last line, in steps 3000–3999" in text(findings)


def test_block_with_later_points_is_reported_again() -> None:
    process = Reporting()
    for step in range(4000):
        process.log("loss", step, step / 7, 10 + step)
        if step % 1000 == 0:
            process.minute(10 + step)
    process.log("loss", 2001, 5.0, 9000)
    process.end()
    entries = [entry for report in process.stored for entry in json.loads(report)["entries"]]
    assert [entry[1] for entry in entries if entry[0] == "loss"].count(2) == 2
    assert results(judged([process], process.rows)) == {"PASS"}
    assert "in steps 2000–2999" in text(
        judged([process], [r for r in process.rows if r[:2] != ("loss", 2001)])
    )


def test_log_and_reports_without_their_ends_are_never_pass() -> None:
    """Contract: msaad00/agent-bom#3697. A chain without its end looks like the chain of a killed rank."""
    process = of_4000_steps()
    short = [line for line in process.written if not line.startswith("@sum1")][:-2]
    findings = judged([process], process.rows, process.in_tracker()[:-2], [short])
    assert findings["ground-truth-complete"].result == findings["no-lost-points"].result == "UNKNOWN"


def test_killed_rank_without_reports_contradicts_its_log() -> None:
    """Contract: flare19/payment-reconciliation-agent-platform#18. A deleted chain differs from an empty
    one."""
    process = trained(6000)
    process.minute(7000)
    findings = judged([process], process.rows, [])
    assert contradicted(findings)
    assert "none is in the runs that were read" in text(findings)


def test_a_report_with_an_invalid_digest_contradicts_its_log() -> None:
    """Contract: the tracker accepts any text as a digest, and the judge must not fail because of it."""
    process = Reporting()
    process.minute(10)
    body = {"process": "attempt0", "rank": 0, "number": 0, "line": process.count - 1}
    body |= {"chain": process.chain, "entries": [["loss", 0, 1, "A", 10, 10]]}
    process.store(json.dumps(body).encode())
    process.minute(20)
    process.end()
    findings = judged([process], process.rows)
    assert contradicted(findings)
    assert "report 0 of its digests in the tracker cannot be read" in text(findings)


LOGGED = st.lists(
    st.one_of(
        st.tuples(st.just("log"), st.integers(0, 3), st.integers(0, 9), st.sampled_from([0.5, 7.0])),
        st.sampled_from(["minute", "drop", "clock"]),
    ),
    min_size=5,
    max_size=60,
)


def replayed(actions: list[Any]) -> Reporting:
    """Return a process that logs steps in any order. Its clock goes back, and reports are dropped."""
    process = Reporting(digests=Digests(20))
    time = 1000
    for action in actions:
        time += 1
        if action == "minute":
            process.minute(time)
        elif action == "drop":
            process.report(drop=True)
        elif action == "clock":
            time -= 30  # statsd/statsd#575
        else:
            _, block, step, value = action
            process.log("loss", block * 1000 + step, value, time)
    process.minute(time)
    return process


@given(LOGGED, st.booleans())
def test_a_healthy_process_is_never_accused(actions: list[Any], finishes: bool) -> None:
    """Property: if all points arrived, there is neither a FAIL nor a contradiction, whatever the order of
    steps and times.

    gradio-app/trackio#125 and wandb/wandb#1040: a program logs earlier steps again.
    """
    process = replayed(actions)
    if finishes:
        process.end()
    findings = judged([process], process.rows)
    assert "FAIL" not in results(findings) or not process.rows, text(findings)
    assert not contradicted(findings), text(findings)


@given(LOGGED, st.booleans(), st.data())
def test_a_process_whose_last_point_was_lost_never_passes(
    actions: list[Any], finishes: bool, data: st.DataObject
) -> None:
    process = replayed([*actions, ("log", 3, 1, 2.5), "minute", ("log", 9, 0, 1.0), "minute", "minute"])
    if finishes:
        process.end()
    kept = {row[1]: row for row in sorted(process.rows, key=lambda row: row[3])}
    step = data.draw(st.sampled_from(sorted(kept)))
    rows = [row for row in process.rows if row[1] != step]
    findings = judged([process], rows)
    assert findings["no-lost-points"].result != "PASS", text(findings)


def test_reports_of_another_process_or_run_are_ignored() -> None:
    process, other = trained(4000).end(), trained(3000, attempt="attempt9").end()
    stranger = packed(0, other.stored[0]).model_copy(update={"run_id": 99})
    reports = [*process.in_tracker(), *other.in_tracker(), stranger]
    assert results(judged([process], process.rows, reports)) == {"PASS"}


def test_lines_have_at_most_100_bytes() -> None:
    line = digest_lines.Line(
        999_999, "zzzzzzzz", 36**4 - 1, 36**8 - 1, 36**9 - 1, "A" * 12, "B" * 12, 36**4 - 1, "C" * 12
    )
    text = digest_lines.encode_line(UID, line)
    assert len(text) + 1 <= digest_lines.MAX_LINE
    assert list(digest_lines.decode(UID, [text])) == [line]
    for at in range(len("@rec2 "), len(text)):
        other = text[:at] + ("0" if text[at] != "0" else "1") + text[at + 1 :]
        assert line not in list(digest_lines.decode(UID, [other]))
