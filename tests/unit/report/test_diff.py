"""The difference of two bundles: both sides are treated alike, and a bundle does not differ from itself."""

from __future__ import annotations

import dataclasses
import io
import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import bundles
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from harness.evidence import Bundle
from harness.evidence.schema.bundle import SentCode, Verdict
from harness.evidence.schema.ground_truth import TruthBlock, TruthCode, TruthRow
from harness.faults.recorded_bundles import extract
from harness.report.diff.compare import NOISE_RATIO, NOISE_SECONDS, SHOWN, TICK, Diff, compare
from harness.report.diff.facts import WHOLE, Facts, Series, facts
from harness.report.diff.text import MOST, render

WORDS = st.sampled_from(["a", "b", "c", "PASS", "FAIL rank.killed"])
TEXTS = st.dictionaries(WORDS, WORDS, max_size=4)
SERIES = st.builds(
    Series,
    values=st.dictionaries(st.integers(0, 5), st.floats(width=16) | st.just(7.0), max_size=5),
    digests=st.dictionaries(st.sampled_from([(6, 7), (8, 9)]), WORDS),
    logged=st.integers(5, 9),
    missing=st.lists(st.integers(0, 5), unique=True, max_size=3).map(tuple),
    missing_in_blocks=st.integers(0, 2),
)
FACTS = st.builds(
    Facts,
    bundle=st.just("runs/x"),
    verdict=st.builds(
        Verdict,
        verdict=st.sampled_from(["PASS", "FAIL", "UNKNOWN"]),
        cause=st.none() | WORDS,
        ranks=st.lists(st.integers(0, 3), max_size=2),
        explanation=st.just(""),
    ),
    checks=TEXTS,
    causes=TEXTS,
    versions=TEXTS,
    job=TEXTS,
    stages=st.dictionaries(st.sampled_from([WHOLE, "cluster", "launch", "observe"]), st.floats(0, 100)),
    series=st.dictionaries(st.tuples(st.integers(0, 2), st.sampled_from(["loss", "x"])), SERIES, max_size=4),
    mark=st.none() | st.just(7.0),
    events=st.dictionaries(
        st.tuples(st.sampled_from(["Normal", "Warning"]), WORDS, WORDS), st.integers(1, 3)
    ),
)


def nothing(found: Diff) -> bool:
    """Every list of differences is empty, and no time is marked."""
    lists = (
        *(found.verdict, found.checks, found.causes, found.versions),
        *(found.points, found.values, found.job, found.events),
    )
    marked = any(timing.marked for timing in found.timings)
    return not (any(lists) or marked or found.values_differ or found.matters)


def exchanged(document: Any, swap: bool = True) -> Any:
    """Return the JSON with A and B exchanged, without ratios, which are inverted."""
    if isinstance(document, dict):
        other = {"a": "b", "b": "a"} if swap else {}
        return {other.get(k, k): exchanged(v, swap) for k, v in document.items() if k != "ratio"}
    return [exchanged(each, swap) for each in document] if isinstance(document, list) else document


@given(FACTS)
def test_nothing_differs_from_itself(side: Facts) -> None:
    assert nothing(compare(side, side))


@given(FACTS, FACTS)
def test_the_sides_are_alike(a: Facts, b: Facts) -> None:
    """Contract: exchanging the sides exchanges A and B and inverts the ratios."""
    there, back = compare(a, b), compare(b, a)
    assert exchanged(there.model_dump(mode="json")) == exchanged(back.model_dump(mode="json"), False)
    for one, other in zip(there.timings, back.timings, strict=True):
        assert (one.a, one.b) == (other.b, other.a)
        if one.a and one.a >= TICK and one.b is not None:
            assert one.ratio == pytest.approx(one.b / one.a, abs=1e-3)
        else:
            assert one.ratio is None


@given(FACTS, FACTS)
def test_what_is_told_differs_and_what_differs_is_told(a: Facts, b: Facts) -> None:
    found = compare(a, b)
    for changes, left, right in (
        (found.checks, a.checks, b.checks),
        (found.versions, a.versions, b.versions),
        (found.job, a.job, b.job),
    ):
        assert {c.what for c in changes} == {k for k in left | right if left.get(k) != right.get(k)}
    assert {(e.type, e.reason, e.object) for e in found.events} == set(a.events) ^ set(b.events)
    assert all((e.a == 0) != (e.b == 0) for e in found.events)
    stages = [timing.stage for timing in found.timings]
    assert sorted(stages) == sorted(a.stages | b.stages)
    assert WHOLE not in stages[1:]
    assert len(found.values) <= min(SHOWN, found.values_differ)


@given(FACTS, FACTS)
def test_other_names_times_and_events_do_not_matter(a: Facts, b: Facts) -> None:
    other = dataclasses.replace(a, job=b.job, stages=b.stages, events=b.events, bundle="runs/y")
    assert not compare(a, other).matters


@given(FACTS, FACTS)
def test_it_can_be_printed_and_is_json(a: Facts, b: Facts) -> None:
    found = compare(a, b)
    assert text(found).splitlines()[0].endswith("differ" if found.matters else "nothing that matters differs")
    assert Diff.model_validate_json(found.model_dump_json()).matters == found.matters
    json.dumps(found.model_dump(mode="json"), allow_nan=False)


def text(found: Diff) -> str:
    console = Console(file=io.StringIO(), width=200)
    render(found, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def side(**changes: Any) -> Facts:
    return dataclasses.replace(Facts("runs/x", Verdict(verdict="PASS", explanation="")), **changes)


@pytest.mark.parametrize(
    ("a", "b", "marked"),
    [
        (10, 10 + NOISE_SECONDS, False),
        (10, 10 * NOISE_RATIO, False),
        (10, 12.6, True),
        (12.6, 10, True),
        (0.1, 0.9, False),
        (100, 120, False),
        (None, 0.9, False),
        (None, 1.1, True),
    ],
)
def test_times_are_marked_past_the_noise(a: float | None, b: float | None, marked: bool) -> None:
    """Contract: a mark needs both, the seconds and the ratio. A missing stage took no time."""
    left, right = ({"launch": s} if s is not None else {} for s in (a, b))
    [timing] = compare(side(stages=left), side(stages=right)).timings
    assert timing.marked == marked
    assert ("●  launch" in text(compare(side(stages=left), side(stages=right)))) == marked


def test_the_nonce_of_each_launch_is_no_difference() -> None:
    """Contract: each side's own nonce is no difference. A foreign nonce is shown."""
    a, b = (side(mark=mark, series={(0, "nonce"): Series({0: mark}, logged=1)}) for mark in (7.0, 8.0))
    assert nothing(compare(a, b))
    strange = dataclasses.replace(b, series={(0, "nonce"): Series({0: 9.0}, logged=1)})
    assert [(v.a, v.b) for v in compare(a, strange).values] == [(7.0, 9.0)]


def test_values_are_compared_to_the_last_bit_and_counted() -> None:
    rows = {step: math.nan if step == 3 else 0.1 for step in range(100)}
    nearly = {**rows, **dict.fromkeys(range(20, 90), math.nextafter(0.1, 1))}
    a, b = (side(series={(1, "loss"): Series(values, logged=100)}) for values in (rows, nearly))
    found = compare(a, b)
    assert (found.values_differ, len(found.values), found.matters) == (70, SHOWN, True)
    assert found.values[0].step == 20
    assert "the first 10 of 70" in text(found)
    assert not compare(a, b, any_values=True).matters


def test_a_long_table_is_cut_and_says_so() -> None:
    checks = {f"check-{n}": "PASS" for n in range(MOST + 5)}
    assert "and 5 more (use --json to see them)" in text(compare(side(checks=checks), side()))


# of bundles ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recorded")


@cache
def recorded(name: str, folder: Path) -> Facts:
    path = extract(Path(f"tests/recorded/{name}.tar.xz"), folder / name)
    return facts(Bundle.open(path), name)


NAMES = ["client-wrong-value", "client-drop-point", "rank-killed", "tracker-slow", "harness-sigkill-observe"]
NAMES += ["docker-not-installed", "rank-silent"]


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_launch_does_not_differ_from_itself(name: str, folder: Path) -> None:
    assert nothing(compare(recorded(name, folder), recorded(name, folder)))


def test_two_passed_launches_have_no_relevant_difference(folder: Path) -> None:
    """Contract: two passed launches of the same job differ only in nonces, names and times."""
    found = compare(recorded("tracker-drops-after-commit", folder), recorded("tracker-outage", folder))
    assert not found.matters
    assert [c.what for c in found.job] == ["run id"]
    assert {"whole run", "observe"} <= {timing.stage for timing in found.timings}


def test_a_lost_point_against_a_wrong_value(folder: Path) -> None:
    """Contract: the difference of two launches of one job shows only what the clients did to them."""
    found = compare(recorded("client-drop-point", folder), recorded("client-wrong-value", folder))
    assert [(c.what, c.a, c.b) for c in found.verdict] == [
        ("cause", "unification.lost_points", "unification.wrong_value")
    ]
    assert [(c.what, c.a, c.b) for c in found.checks] == [
        ("no-lost-points", "FAIL unification.lost_points", "PASS"),
        ("values", "PASS", "FAIL unification.wrong_value"),
    ]
    [points] = found.points
    assert (points.rank, points.metric) == (1, "loss/node1")
    assert points.a is not None
    assert points.b is not None
    assert (points.a.logged, points.a.kept, points.a.missing, points.a.only) == (20, 19, "7", "")
    assert (points.b.logged, points.b.kept, points.b.missing) == (20, 20, "")
    assert (found.versions, found.values_differ) == ([], 0)
    assert [c.what for c in found.job] == ["run id"]


def test_a_rank_that_was_killed_logged_less(folder: Path) -> None:
    found = compare(recorded("client-wrong-value", folder), recorded("rank-killed", folder))
    [loss] = [each for each in found.points if (each.rank, each.metric) == (1, "loss/node1")]
    assert loss.a is not None
    assert loss.a.only == "4–19"
    assert [(e.reason, e.a, e.b) for e in found.events if e.type == "Warning"] == [
        ("BackoffLimitExceeded", 0, 1),
        ("FailedJobs", 0, 1),
    ]
    assert "cause  unification.wrong_value  rank.killed" in text(found)


def of(job: bundles.Job, path: Path) -> Facts:
    return facts(job.write(path), path.name)


def test_versions_and_job(tmp_path: Path) -> None:
    a, b = bundles.healthy(), bundles.healthy(nodes=3)
    a.manifest = a.manifest.model_copy(update={"versions": {"kueue": "v0.19.1", "worker": "w:1"}, "job": "j"})
    b.manifest = b.manifest.model_copy(update={"versions": {"kueue": "v0.19.2", "worker": "w:1"}, "job": "j"})
    found = compare(of(a, tmp_path / "a"), of(b, tmp_path / "b"))
    assert [(c.what, c.a, c.b) for c in found.versions] == [("kueue", "v0.19.1", "v0.19.2")]
    assert {c.what: (c.a, c.b) for c in found.job} == {
        "nodes": ("2", "3"),
        "ranks": ("2", "3"),
        "nodes used": ("2", "3"),
    }
    assert [(p.rank, p.a) for p in found.points] == [(2, None), (2, None)]


def test_blocks_known_by_digest(tmp_path: Path) -> None:
    """Contract: rows past the row limit count as logged and as kept. Another digest is another value."""

    def written(name: str, digest: str, recorded: int) -> Facts:
        job = bundles.healthy()
        block = TruthBlock(metric="loss/node0", first=6, last=9, count=4, sha256=digest * 64)
        job.retell(0, job.rows(0), [block])
        more = [TruthRow(metric="loss/node0", step=6 + n, value=1, time_ms=n) for n in range(recorded)]
        job.points += [bundles.point(job, 0, row) for row in more]
        return of(job, tmp_path / name)

    a, b = written("a", "0", 4), written("b", "1", 3)
    found = compare(a, b)
    [points] = found.points
    assert points.a is not None
    assert points.b is not None
    assert (points.a.logged, points.a.kept, points.b.kept) == (10, 10, 9)
    assert points.b.missing == "1 of the rows recorded only as a digest"
    assert (found.values_differ, found.values) == (1, [])


def test_a_different_value_is_reported_with_both_values(tmp_path: Path) -> None:
    a, b = bundles.healthy(), bundles.healthy()
    rows = [
        row.model_copy(update={"value": 5.0}) if (row.metric, row.step) == ("loss/node1", 4) else row
        for row in b.rows(1)
    ]
    b.retell(1, rows)
    b.refresh()
    found = compare(of(a, tmp_path / "a"), of(b, tmp_path / "b"))
    assert [(v.rank, v.metric, v.step, v.a, v.b) for v in found.values] == [(1, "loss/node1", 4, 1.2, 5.0)]


def test_damage_is_compared_too(tmp_path: Path) -> None:
    """Contract: a bundle without a manifest, or with half of one, can be compared."""
    whole = of(bundles.healthy(), tmp_path / "a")
    for damage in ("", '{"nonce": '):
        path = tmp_path / f"b{len(damage)}"
        bundles.healthy().write(path)
        (path / "manifest.json").write_text(damage)
        found = compare(whole, facts(Bundle.open(path), "b"))
        assert ("cause", None, "run.no_manifest") in [(c.what, c.a, c.b) for c in found.verdict]
        assert found.matters


def test_the_code_that_was_sent_is_a_fact(tmp_path: Path):
    """Contract: two launches of different scripts, torch or client differ by name, file by file."""
    job = bundles.healthy()
    sent = SentCode(files={"/workspace/multinode.py": "ab" * 32})
    job.manifest = job.manifest.model_copy(update={"code": sent})
    code = [("stack", "torch", "2.9.1"), ("stack", "pluto_files", "cd" * 32), ("file", "/workspace/a.py", "")]
    job.truth[0].insert(0, TruthCode(facts=code))
    found = facts(job.write(tmp_path), "a").job
    assert found["/workspace/multinode.py"] == "ab" * 6
    assert (found["torch"], found["pluto_files"]) == ("2.9.1", "cd" * 6)
    assert "/workspace/a.py" not in found
