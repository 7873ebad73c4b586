"""Properties of every bundle: truncated, lost or reordered evidence never leads to a PASS, and no judge
raises."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import bundles
import pytest
from hypothesis import given
from hypothesis import strategies as st
from odd_objects import spoil
from sample_jobs import JOBS, NIGHTLY, slow, written

from harness.evidence import Bundle
from harness.evidence.schema.bundle import Verdict
from harness.evidence.schema.ground_truth import TruthRow
from harness.judge import judge as judged


def judge(bundle: Bundle) -> Verdict:
    """Return the verdict. Fail the test if a judge raised an error, which the engine converts to a cause."""
    verdict = judged(bundle)
    failed = [check.explanation for check in verdict.checks if check.cause == "run.judge_error"]
    assert verdict.cause != "run.judge_error", verdict.explanation
    assert failed == []
    return verdict


@contextmanager
def copy(name: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(shutil.copytree(written(name), Path(folder) / "bundle"))


def files(name: str) -> list[str]:
    root = written(name)
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize("name", JOBS)
def test_the_plain_bundles(name):
    """Contract: the unchanged bundles have the verdict that their name states."""
    assert judge(Bundle.open(written(name))).verdict == {"healthy": "PASS", "cut off": "UNKNOWN"}.get(
        name, "FAIL"
    )


@given(st.data())
@slow
def test_cutting_a_file_makes_no_pass(data):
    """Property: truncating any file at any byte never raises an error, and never turns FAIL or UNKNOWN into
    PASS."""
    name = data.draw(st.sampled_from(list(JOBS)))
    path = data.draw(st.sampled_from(files(name)))
    with copy(name) as bundle:
        whole = (bundle / path).read_bytes()
        cut = data.draw(st.integers(0, len(whole)))
        (bundle / path).write_bytes(whole[:cut])
        verdict = judge(Bundle.open(bundle))
        if name != "healthy":
            assert verdict.verdict != "PASS"


@pytest.mark.parametrize("name", JOBS)
def test_cutting_a_file_between_its_lines_makes_no_pass(name):
    """Property: truncation at the end of a line, which leaves no trace, does not lead to a PASS either."""
    for path in files(name):
        lines = (written(name) / path).read_bytes().splitlines(keepends=True)
        for keep in range(0, len(lines), 1 if NIGHTLY else 4):
            with copy(name) as bundle:
                (bundle / path).write_bytes(b"".join(lines[:keep]))
                verdict = judge(Bundle.open(bundle))
                free = path.startswith("logs/") and keep  # Logs are only used in explanations.
                assert verdict.verdict != "PASS" or name == "healthy", (path, keep)
                decides = path not in {"events.jsonl"} and not free
                if decides and not path.startswith("objects/"):
                    assert verdict.verdict != "PASS", (path, keep)


@pytest.mark.parametrize("name", JOBS)
def test_removing_a_file_makes_no_pass(name):
    """Contract: a missing file is missing evidence, so there is no PASS, even for a healthy job."""
    for path in files(name):
        with copy(name) as bundle:
            (bundle / path).unlink()
            verdict = judge(Bundle.open(bundle))
            assert verdict.verdict != "PASS", path
            if name == "healthy":
                assert verdict.verdict == "UNKNOWN", (path, verdict)


@given(st.data())
@slow
def test_garbage_never_raises(data):
    """Property: whatever the files contain, there is a verdict, and it is not PASS."""
    name = data.draw(st.sampled_from(list(JOBS)))
    path = data.draw(st.sampled_from(files(name)))
    with copy(name) as bundle:
        lines = (bundle / path).read_bytes().splitlines(keepends=True)
        at = data.draw(st.integers(0, max(0, len(lines) - 1)))
        lines[at : at + 1] = [
            data.draw(
                st.sampled_from(
                    [
                        b"null\n",
                        b"[]\n",
                        b"{}\n",
                        b'{"received_at":"x","type":"ADDED","object":{"metadata":7}}\n',
                    ]
                )
                | st.binary(max_size=40)
            )
        ]
        (bundle / path).write_bytes(b"".join(lines))
        verdict = judge(Bundle.open(bundle))
        assert verdict.verdict in {"PASS", "FAIL", "UNKNOWN"}
        if not path.startswith("logs/"):
            assert verdict.verdict != "PASS" or name == "healthy"


@given(st.sampled_from(list(JOBS)), st.randoms(use_true_random=False), st.integers(1, 3))
@slow
def test_odd_objects_never_raise(name, random, fields):
    """Property: there is a verdict even if the fields of objects have unexpected types."""
    job = JOBS[name]()
    kinds = sorted({kind for kind, _ in job.objects})
    for _ in range(fields):
        kind = random.choice(kinds)
        spoil([seen.object for each, seen in job.objects if each == kind], random)
    with tempfile.TemporaryDirectory() as folder:
        judge(job.write(Path(folder)))


@given(st.data())
@slow
def test_the_order_of_watches_does_not_matter(data):
    """Property: if watch events are reordered within a second or repeated, the verdict and the cause are the
    same."""
    name = data.draw(st.sampled_from(list(JOBS)))
    job = JOBS[name]()
    before = judge(Bundle.open(written(name)))
    again = data.draw(st.lists(st.sampled_from(job.objects), max_size=8))
    moved = [(pair, data.draw(st.floats(0, 0.99))) for pair in [*job.objects, *again]]
    moved.sort(key=lambda entry: float(entry[0][1].received_at[17:26]) + entry[1])
    job.objects = [pair for pair, _ in moved]
    with tempfile.TemporaryDirectory() as folder:
        after = judge(job.write(Path(folder)))
    assert (after.verdict, after.cause, after.ranks) == (before.verdict, before.cause, before.ranks)


@given(st.data())
@slow
def test_any_lost_point_is_found(data):
    """Property: whichever points are dropped, the verdict names the rank, metric and step of at least one of
    them."""
    job = bundles.healthy(nodes=data.draw(st.integers(1, 3)), per_node=data.draw(st.integers(1, 2)))
    gone = data.draw(st.lists(st.sampled_from(job.points), min_size=1, max_size=5, unique_by=id))
    job.points = [p for p in job.points if not any(p is g for g in gone)]
    with tempfile.TemporaryDirectory() as folder:
        verdict = judge(job.write(Path(folder)))
    assert (verdict.verdict, verdict.cause) == ("FAIL", "unification.lost_points")
    assert verdict.ranks == sorted(
        {int(p.metric.removeprefix("loss/node").removeprefix("grad/node")) for p in gone}
    )
    first = gone[0]
    assert any(
        f"{p.metric} step" in verdict.explanation and str(p.step) in verdict.explanation for p in gone
    ), first


@given(st.data(), st.floats(allow_nan=False))
@slow
def test_any_wrong_value_is_found(data, value):
    """Property: if a value differs from the logged one, the verdict names both values."""
    job = bundles.healthy()
    at = data.draw(st.integers(0, len(job.points) - 1))
    old = job.points[at]
    if old.value == value:
        value += 1
    job.points[at] = old.model_copy(update={"value": value})
    with tempfile.TemporaryDirectory() as folder:
        verdict = judge(job.write(Path(folder)))
    assert (verdict.verdict, verdict.cause) == ("FAIL", "unification.wrong_value")
    assert f"{old.metric} = {old.value!r} at step {old.step}" in verdict.explanation
    assert repr(value) in verdict.explanation


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(0, 1), st.integers(0, 3)), max_size=20))
@slow
def test_what_a_rank_overwrites_itself_is_not_lost(logged):
    """Contract: a rank that logs a step again is judged by Pluto's rule: the highest time, then the last.

    If the run contains a value other than the one that was logged last, the verdict mentions this.
    """
    job = bundles.healthy()
    rows = [TruthRow(metric="again", step=s, value=v, time_ms=50 + t) for s, v, t in logged]
    job.retell(1, [*job.rows(1), *rows])
    job.refresh()
    job.points += [bundles.point(job, 1, row) for row in rows]
    with tempfile.TemporaryDirectory() as folder:
        verdict = judge(job.write(Path(folder)))
    last = {step: value for step, value, _ in logged}
    kept: dict[int, tuple[int, float]] = {}
    for step, value, time_ms in logged:
        if step not in kept or time_ms >= kept[step][0]:
            kept[step] = time_ms, value
    older = any(last[step] != value for step, (_, value) in kept.items())
    assert (verdict.verdict, verdict.cause) == (
        ("FAIL", "unification.overwritten") if older else ("PASS", None)
    )
