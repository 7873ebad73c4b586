"""The search for the first bad version: any position, any skips, noisy results, and what it may not claim."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.versions.bisect_search import End, Launch, Next, Result, ahead, step

Judge = Callable[[int], Result]


def searched(
    count: int, judge: Judge, *, good_known: bool = True, max_error: float = 0.01
) -> tuple[End, list[Launch], list[Next]]:
    """Return the end of a search, its launches, and the steps that led to them."""
    launches: list[Launch] = []
    steps: list[Next] = []
    while isinstance(found := step(count, launches, good_known=good_known, max_error=max_error), Next):
        assert 0 <= found.position < count
        steps.append(found)
        launches.append(Launch(found.position, judge(found.position)))
        assert len(launches) < 500
    return found, launches, steps


def exact(first_bad: int, skipped: Collection[int] = (), result: Result = "skip") -> Judge:
    """Return a judge whose results are always right, except that some versions cannot be judged."""

    def judge(position: int) -> Result:
        return result if position in skipped else "bad" if position >= first_bad else "good"

    return judge


@given(st.data())
def test_every_position_is_found_in_launches_of_binary_search(data: st.DataObject) -> None:
    """Contract: each end takes one launch, n versions between them ⌊log₂ n⌋ + 1, and the rest confirms."""
    count = data.draw(st.integers(2, 300))
    first_bad = data.draw(st.integers(1, count - 1))
    end, _, steps = searched(count, exact(first_bad))
    assert (end.ending, end.good, end.bad) == ("found", first_bad - 1, first_bad)
    assert end.suspects == (first_bad,)
    assert end.error <= 0.01
    assert [each.purpose for each in steps[:2]] == ["newest", "oldest"]
    between = count - 2
    needed = sum(each.purpose == "search" for each in steps)
    assert needed <= (math.floor(math.log2(between)) + 1 if between else 0)
    confirming = [each for each in steps if each.purpose == "confirm"]
    assert {each.position for each in confirming} <= {first_bad - 1, first_bad}
    assert len(confirming) <= 12


@given(st.data())
def test_version_is_never_wrongly_blamed_when_some_are_skipped(data: st.DataObject) -> None:
    """Contract: the suspects contain the first bad version, and all but the last of them were skipped."""
    count = data.draw(st.integers(2, 60))
    first_bad = data.draw(st.integers(1, count - 1))
    skipped = data.draw(st.sets(st.integers(0, count - 1)))
    result: Result = data.draw(st.sampled_from(("skip", "other")))
    end, launches, _ = searched(count, exact(first_bad, skipped, result))
    known = {each.position: each.result for each in launches if each.result in ("good", "bad")}
    if end.ending == "found":
        assert end.bad is not None
        assert end.good is not None
        assert known[end.good] == "good"
        assert known[end.bad] == "bad"
        assert first_bad in end.suspects
        assert set(end.suspects[:-1]) <= skipped
        assert end.suspects == tuple(range(end.good + 1, end.bad + 1))
    elif end.ending == "oldest_bad":
        assert first_bad in end.suspects
        assert set(range(first_bad)) <= skipped
    elif end.ending == "newest_good":
        assert set(range(first_bad, count)) <= skipped
    else:
        assert end.ending == "not_judged"
        assert len(set(range(count)) - skipped) < 2


@given(st.data())
def test_without_good_version_search_goes_back_in_growing_steps(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 300))
    first_bad = data.draw(st.integers(0, count - 1))
    end, launches, _ = searched(count, exact(first_bad), good_known=False)
    assert end.bad == first_bad
    assert end.ending == ("found" if first_bad else "oldest_bad")
    distance = count - first_bad
    assert len(launches) <= 2 * math.log2(distance + 1) + 16


@given(st.data())
def test_search_that_continues_from_its_ledger_is_same(data: st.DataObject) -> None:
    """Contract: the next version depends on the launches alone, and is among those that were announced."""
    count = data.draw(st.integers(2, 60))
    judge = exact(
        data.draw(st.integers(1, count - 1)), data.draw(st.sets(st.integers(0, count - 1), max_size=9))
    )
    end, launches, steps = searched(count, judge)
    for number, taken in enumerate(steps):
        assert step(count, launches[:number]) == taken
        announced = {taken.position, *ahead(count, launches[:number], taken)}
        if launches[number].result in ("good", "bad") and number + 1 < len(steps):
            assert steps[number + 1].position in announced
    assert step(count, launches) == end


@pytest.mark.parametrize(
    ("rate", "flake", "limit"), [(0.9, 0.0, 1), (0.6, 0.0, 3), (1.0, 0.01, 1), (0.7, 0.01, 3)]
)
def test_noisy_results_need_more_launches_and_rarely_mislead(rate: float, flake: float, limit: int) -> None:
    """Contract: of 60 searches for a failure that shows at a rate, few end wrongly."""
    drawn = random.Random(f"{rate} {flake}")
    wrong = unsure = total = 0
    for _ in range(60):
        count = drawn.randint(3, 60)
        first_bad = drawn.randint(1, count - 1)

        def judge(position: int, first_bad: int = first_bad) -> Result:
            return "bad" if drawn.random() < (rate if position >= first_bad else flake) else "good"

        end, launches, _ = searched(count, judge)
        wrong += end.ending == "found" and end.bad != first_bad
        wrong += end.ending == "oldest_bad"
        unsure += end.ending in ("unsure", "newest_good")
        total += len(launches)
    assert wrong <= limit
    assert unsure <= 9
    assert total / 60 < 30


def test_an_end_that_contradicts_the_question_ends_the_search() -> None:
    newest_good, launches, _ = searched(9, lambda _: "good")
    assert (newest_good.ending, newest_good.good, len(launches)) == ("newest_good", 8, 3)
    oldest_bad, launches, _ = searched(9, lambda _: "bad")
    assert (oldest_bad.ending, oldest_bad.bad) == ("oldest_bad", 0)
    assert len(launches) <= 4


def test_intermittent_failure_of_newest_version_is_searched() -> None:
    """Contract: a first launch of the newest version that passes does not end the search."""
    results = iter(["good", "bad"])
    end, _, _ = searched(3, lambda each: next(results, "bad" if each == 2 else "good"))
    assert (end.ending, end.good, end.bad) == ("found", 1, 2)


def test_one_wrong_result_is_found_out_by_the_confirmation() -> None:
    """Contract: a good version in the middle that fails once by chance is not blamed."""
    count = [0]

    def judge(position: int) -> Result:
        if position == 8:
            count[0] += 1
            return "bad" if count[0] == 1 else "good"
        return "bad" if position >= 13 else "good"

    end, _, steps = searched(17, judge)
    assert (end.ending, end.good, end.bad) == ("found", 12, 13)
    assert "confirm" in {each.purpose for each in steps}


def test_unlaunchable_versions_cost_few_attempts() -> None:
    """Contract: a hundred broken versions in a row are not tried one after the other."""
    end, launches, _ = searched(200, exact(150, range(40, 140)))
    assert (end.ending, end.good, end.bad) == ("found", 149, 150)
    assert sum(each.result == "skip" for each in launches) <= 8
    end, launches, _ = searched(200, exact(150, range(100)))
    assert (end.ending, end.bad) == ("found", 150)
    assert sum(each.result == "skip" for each in launches) <= 8


def test_version_with_another_failure_is_launched_again() -> None:
    """Contract: an unrelated failure that happens once does not leave a range of suspects."""
    seen: set[int] = set()

    def judge(position: int) -> Result:
        if position == 4 and 4 not in seen:
            seen.add(position)
            return "other"
        return exact(4)(position)

    end, _, _ = searched(9, judge)
    assert end.suspects == (4,)


@pytest.mark.parametrize(
    ("skipped", "first_bad", "ending", "suspects"),
    [
        pytest.param({0}, 5, "found", (5,), id="no nightly at the start: cargo-bisect-rustc 350"),
        pytest.param({8}, 5, "found", (5,), id="no nightly at the end: cargo-bisect-rustc 350"),
        pytest.param({4}, 5, "found", (4, 5), id="no nightly before the bad one: cargo-bisect-rustc 320"),
        pytest.param({3, 4, 5}, 5, "found", (3, 4, 5, 6), id="several pushes left: mozregression 440"),
        pytest.param(set(range(1, 8)), 8, "found", tuple(range(1, 9)), id="only skipped ones: git bisect"),
        pytest.param(set(range(8)), 8, "not_judged", (), id="only the bad end can be judged"),
    ],
)
def test_reported_cases_with_missing_versions(
    skipped: set[int], first_bad: int, ending: str, suspects: tuple[int, ...]
) -> None:
    """Contract: a missing version at an end moves the end, and elsewhere it stays a suspect."""
    end, _, _ = searched(9, exact(first_bad, skipped))
    assert (end.ending, end.suspects) == (ending, suspects)


def test_a_lost_connection_is_not_the_failure() -> None:
    """A version that fails once in another way is not bad (syzkaller issue 4888)."""
    flaky = {2: ["other"], 4: ["other"]}

    def judge(position: int) -> Result:
        return "other" if flaky.get(position) and flaky[position].pop() else exact(7)(position)

    end, _, _ = searched(9, judge)
    assert (end.ending, end.suspects) == ("found", (7,))


def test_failure_that_was_fixed_meanwhile_leaves_nothing_to_search() -> None:
    """Both ends pass, and only versions between them fail (rust issue 117951)."""
    end, _, _ = searched(9, lambda position: "bad" if 3 <= position < 6 else "good")
    assert end.ending == "newest_good"


def test_good_version_that_fails_twice_is_detected() -> None:
    """One repetition is not enough to exclude a flake (prosper pull request 2040)."""
    fails = [True, True]

    def judge(position: int) -> Result:
        if position == 8 and fails:
            fails.pop()
            return "bad"
        return exact(13)(position)

    end, _, _ = searched(17, judge)
    assert (end.ending, end.suspects) == ("found", (13,))
