"""The judge of recorders in admitted pods: only matching digests lead to a PASS."""

from __future__ import annotations

import random
from array import array
from typing import Any

from admitted_process import OTHER, RUN, UID, Process, Row
from hypothesis import given
from hypothesis import strategies as st

from harness.evidence.schema.columns import Part
from harness.judge.finding import Finding
from harness.judge.points import digest_check, digest_records
from harness.workers.recorder import digest_lines as lines
from harness.workers.recorder.point_digests import MASK, Digests


def parts(*processes: Process) -> list[Part]:
    return parts_of([row for process in processes for row in process.rows])


def parts_of(rows: list[Row]) -> list[Part]:
    return [
        (metric, array("q", [step]), array("d", [value]), array("q", [time]))
        for metric, step, value, time in rows
    ]


def judged(
    logs: list[list[str]], rows: list[Part], ranks: int = 1, *, whole: bool = True
) -> dict[str, Finding]:
    pods = [digest_records.read(log, UID, pod=f"pod-{at}", whole=whole) for at, log in enumerate(logs)]
    return {one.name: one for one in digest_check.judge(pods, ranks=range(ranks), parts=rows, run=RUN)}


def results(findings: dict[str, Finding]) -> set[str]:
    return {finding.result for finding in findings.values()}


def text(findings: dict[str, Finding]) -> str:
    return " | ".join(one.check.explanation for one in findings.values() if one.result != "PASS")


def of_steps(rank: int, steps: range, began: int = 1, **more: Any) -> Process:
    process = Process(rank, **more)
    for step in steps:
        process.log("loss", step, step / 7 + rank, began + step)
    return process


STEPS = st.integers(0, 2500)
LOGGED = st.lists(
    st.tuples(st.sampled_from(["a", "b", "loss/0"]), STEPS, st.sampled_from([0.0, 1.5, float("nan")])),
    min_size=1,
    max_size=25,
)


@given(LOGGED, st.sampled_from([3, 50_000]), st.randoms(use_true_random=False))
def test_what_arrived_passes_and_what_did_not_never_does(
    logged: list[tuple[str, int, float]], max_rows: int, chance: random.Random
) -> None:
    """The order of arrival and repeated uploads do not matter, but a missing point or a different value
    does."""
    process = Process(digests=Digests(max_rows))
    for time, (metric, step, value) in enumerate(logged, 1):
        process.log(metric, step, value, time)
    process.end()
    exact = not any(metric.unknown for metric in process.digests.metrics.values())
    rows = [*process.rows, chance.choice(process.rows)]
    chance.shuffle(rows)
    assert results(judged([process.written], parts_of(rows))) == ({"PASS"} if exact else {"PASS", "UNKNOWN"})
    latest = {(metric, step): (value, time) for metric, step, value, time in process.rows}
    kept = [(metric, step, *rest) for (metric, step), rest in latest.items()]
    lost = list(kept)
    metric, step, value, time = lost.pop(chance.randrange(len(lost)))
    assert results(judged([process.written], parts_of(lost))) - {"PASS"}
    other = [*lost, (metric, step, 9.5, time)]
    assert results(judged([process.written], parts_of(other))) - {"PASS"}
    more = [*kept, (metric, 5000, value, time)]
    assert results(judged([process.written], parts_of(more))) - {"PASS"}


@given(st.integers(0, 4), st.integers(1, 3))
def test_a_log_without_some_of_its_lines_never_passes(first: int, count: int) -> None:
    process = of_steps(0, range(5))
    process.minute(50)
    process.minute(51)
    process.end()
    assert len(process.written) == 5
    torn = process.written[:first] + process.written[first + count :]
    assert "FAIL" not in results(judged([torn], parts(process)))
    assert results(judged([torn], parts(process))) - {"PASS"}


@given(st.data())
def test_a_log_with_a_changed_character_never_passes(data: st.DataObject) -> None:
    process = of_steps(0, range(5)).end()
    at = data.draw(st.integers(0, len(process.written) - 1))
    line = process.written[at]
    place = data.draw(st.integers(0, len(line) - 1))
    changed = line[:place] + ("x" if line[place] != "x" else "y") + line[place + 1 :]
    found = judged([[*process.written[:at], changed, *process.written[at + 1 :]]], parts(process))
    assert "FAIL" not in results(found)
    assert results(found) - {"PASS"}


def test_lines_read_twice_pass() -> None:
    process = of_steps(0, range(5)).end()
    assert results(judged([process.written * 2], parts(process))) == {"PASS"}


def test_a_rank_without_a_summary_is_unknown() -> None:
    process = of_steps(0, range(5))
    process.minute(1_700_000_000_000)
    found = judged([process.written], parts(process))
    assert results(found) == {"PASS", "UNKNOWN"}
    assert "Its last line is from 2023-11-14 22:13:20 UTC, after 5 points" in text(found)
    assert "the 5 points up to its recorder's last line are in the run" in text(found)
    fewer = judged([process.written], parts(process)[:3])
    assert "the run has 3 points in all, fewer than its recorder's last line reports" in text(fewer)


def test_rank_without_line_is_unknown_also_beside_complete_one() -> None:
    process = of_steps(0, range(5)).end()
    found = judged([process.written], parts(process), ranks=2)
    assert "rank 1: no recorder wrote a line" in text(found)
    assert found["no-lost-points"].result == found["ranks-logged"].result == "UNKNOWN"


def test_lines_of_another_job_in_a_log_are_unknown() -> None:
    process, other = of_steps(0, range(5)).end(), of_steps(0, range(5), nonce=OTHER).end()
    found = judged([process.written + other.written], parts(process))
    assert "its log contains 3 lines with another owner's UID" in text(found)


def test_two_jobs_with_one_rank_are_unknown() -> None:
    process, other = of_steps(0, range(5)).end(), of_steps(0, range(5), nonce=OTHER).end()
    pods = [
        digest_records.read(process.written, UID, pod="job-a-0"),
        digest_records.read(other.written, OTHER, pod="job-b-0"),
    ]
    found = {one.name: one for one in digest_check.judge(pods, ranks=[0], parts=parts(process), run=RUN)}
    assert "two jobs have this rank (job-a-0, job-b-0)" in text(found)


def test_a_forged_line_that_contradicts_another_is_unknown() -> None:
    process = of_steps(0, range(5)).end()
    forged = lines.encode_line(UID, lines.Line(0, "attempt0", 1, 9, 99, "A" * 16, "B" * 16))
    assert "one of them is forged" in text(judged([[*process.written, forged]], parts(process)))


def test_a_rotated_log_is_unknown_unless_torchrun_never_restarted() -> None:
    process = of_steps(0, range(5)).end()
    assert "rotated away" in text(judged([process.written[1:]], parts(process), whole=False))
    first = of_steps(0, range(5)).end(restart=0)
    assert results(judged([first.written[1:]], parts(first), whole=False)) == {"PASS"}


def test_restarted_ranks_overwrite_their_own_points() -> None:
    one = of_steps(0, range(1500)).end()
    two = of_steps(0, range(1200, 2000), 10_000, attempt="attempt1").end()
    for step in (1200, 1300):
        two.log("other", step, 1.0, 20_000)
    again = Process(0, "attempt2", digests=two.digests, rows=two.rows).end()
    log = one.written + again.written
    assert results(judged([log], parts(one, again))) == {"PASS"}
    missing = [row for row in parts(one, again) if (row[0], row[1][0], row[3][0]) != ("loss", 1, 2)]
    found = judged([log], missing)
    assert found["no-lost-points"].result == "FAIL"
    assert "rank 0: loss: 1 of 1500 points, in steps 0–999" in text(found)


def test_tracker_with_latest_points_accuses_no_restarted_rank() -> None:
    one = of_steps(0, range(900)).end()
    two = of_steps(0, range(500, 1500), 10_000, attempt="attempt1").end()
    latest = {row[1][0]: row for row in parts(one, two)}
    found = judged([one.written + two.written], list(latest.values()))
    assert results(found) == {"PASS", "UNKNOWN"}
    assert "a later process logged the same steps" in text(found)


def test_ranks_with_same_values_pass_and_with_others_collide() -> None:
    one, same = of_steps(0, range(20)).end(), Process(1)
    for row in one.rows:
        same.log(*row)
    same.end()
    assert results(judged([one.written, same.written], parts(one, same), 2)) == {"PASS"}
    for began in (1, 5000):  # at the same time, and one after the other
        other = of_steps(1, range(20), began).end()
        found = judged([one.written, other.written], parts(one, other), 2)
        assert found["collisions"].result == "FAIL"
        assert found["collisions"].ranks == {0, 1}
        assert "loss at step 0: one process logged 0.0, another 1.0" in text(found)


def test_metric_of_inseparable_ranks_is_unknown() -> None:
    one, other = of_steps(0, range(0, 40, 2)).end(), of_steps(1, range(1, 40, 2)).end()
    found = judged([one.written, other.written], parts(one, other), 2)
    assert results(found) == {"PASS", "UNKNOWN"}
    assert "other processes may also have logged points for this metric" in text(found)


def test_points_to_another_run_are_unknown() -> None:
    process = of_steps(0, range(5))
    process.end(
        runs=[{"run": "18", "uploads": True, "merged": [], "uncounted": 5, "metrics": [], "groups": []}]
    )
    assert "it logged to 18 and not to this run" in text(judged([process.written], []))


def test_dropped_and_merged_values_are_reported() -> None:
    process = of_steps(0, range(5))
    omitted = [
        ["flag", "bool", "the client leaves out booleans", 1, "3", "3"],
        ["x", "NoneType", "", 1, "1", "1"],
    ]
    process.end(handed=7, logged=5, left=2, omitted=omitted)
    found = judged([process.written], parts(process))
    assert found["client-kept"].result == "FAIL"
    assert text(found).count("(1 value)") == 1


def test_rank_with_disabled_client_is_not_accused() -> None:
    one, silent = of_steps(0, range(5)).end(), Process(1)
    omitted = [["loss", "float", "the mode of the run is noop, so the client sends nothing", 5, "0", "4"]]
    silent.end(handed=5, logged=0, left=5, omitted=omitted)
    assert results(judged([one.written, silent.written], parts(one), 2)) == {"PASS"}
    also = of_steps(0, range(5))
    also.end(handed=10, logged=5, left=5, omitted=omitted)
    assert judged([also.written], parts(also))["client-kept"].result == "FAIL"


def test_a_key_that_is_none_only_sometimes_is_reported() -> None:
    process = of_steps(0, range(5))
    process.end(handed=6, logged=5, left=1, omitted=[["loss", "NoneType", "not int or float", 1, "7", "7"]])
    assert judged([process.written], parts(process))["client-kept"].result == "FAIL"


def test_metrics_in_groups_are_compared() -> None:
    process = Process()
    for number in range(2000):
        process.log(f"metric/{number}", number, 1.0, 5)
    process.end()
    assert results(judged([process.written], parts(process))) == {"PASS"}
    found = judged([process.written], parts(process)[:-1])
    assert found["no-lost-points"].result == "FAIL"
    assert "a group of" in text(found)
    assert sum(map(len, process.written)) < lines.MAX_SUMMARY


def test_a_week_of_points_is_short(monkeypatch: Any) -> None:
    """Even with the maximum number of points, the summary and each line are within their size limits."""
    process = Process(123456)
    for metric in range(10):
        nodes = process.digests
        nodes.put(f"m{metric}", 1, 1.0, 1_700_000_000_000)
        found = nodes.metrics[f"m{metric}"]
        found.nodes = {node: random.Random(node).getrandbits(128) for node in range(2048)}
        found.count = 6_000_000 // 10
    process.count = 36**4 - 2
    process.minute(1_900_000_000_000)
    process.end()
    assert sum(len(line) + 1 for line in process.written) < lines.MAX_SUMMARY
    assert max(len(line) + 1 for line in process.written if line.startswith("@rec1")) <= lines.MAX_LINE
    assert MASK
