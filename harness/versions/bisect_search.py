"""Find the first bad version in an ordered list, using launches whose results may be wrong.

All functions are pure. The next step depends only on the launches so far, so an interrupted search continues
from its ledger.

1. The newest and the oldest version are verified. If no version is known to be good, the search goes back
   from the newest version and doubles the distance until it reaches a good version.
2. Binary search: at most ⌊log₂ n⌋ + 1 launches for n versions between the two ends.
3. The last good and the first bad version are launched again until the probability that the answer is wrong
   is below a limit.

This probability is computed under the following model. Every version is equally likely to be the first bad
one, all later versions are bad too, and results are independent. A launch of a bad version shows the failure
with a probability from BAD_RATES, and a launch of a good version shows the same failure with a probability
from GOOD_RATES. The likelihood of the launches is averaged over these rates, so an intermittent failure leads
to more launches.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

Result = Literal["good", "bad", "skip", "other"]
Purpose = Literal["newest", "oldest", "search", "confirm"]
Ending = Literal["found", "unsure", "newest_good", "oldest_bad", "not_judged"]

BAD_RATES: Final[Mapping[float, float]] = {
    0.995: 0.76,
    **dict.fromkeys((0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95), 0.03),
}
"""Maps each rate at which a bad version's launches may show the failure to the rate's weight in the model.
With a probability of about 75 %, the failure occurs in almost every launch. Otherwise, it occurs in 25 to 95%
of the launches."""
GOOD_RATES: Final[Mapping[float, float]] = {0.001: 0.9, 0.02: 0.06, 0.1: 0.02, 0.3: 0.02}
"""Maps each rate at which a good version's launches may show the same failure to the rate's weight."""
END_LAUNCHES: Final = 3
"""Maximum number of launches of the version at either end of the list, if it does not have the expected
result."""
MAX_END_SKIPS: Final = 5
"""Maximum number of versions at the bad end that may be skipped before the search gives up."""
MAX_OTHER: Final = 2
"""How many times a version is launched if its failure differs from the failure being searched for."""


@dataclass(frozen=True)
class Launch:
    """A launch and its result. `position` is the version's position in the list, where 0 is the oldest."""

    position: int
    result: Result
    """"skip" means that the version cannot be launched. "other" means that the launch failed in a different
    way, which shows neither that the version is good nor that it is bad."""


@dataclass(frozen=True)
class Next:
    """The version that the search launches next."""

    position: int
    purpose: Purpose
    between: int
    """The number of versions that may still be the first bad version."""


@dataclass(frozen=True)
class End:
    """The outcome of a search that has ended."""

    ending: Ending
    """"found" if the first bad version is known, or known to be one of `suspects` because versions were
    skipped. "unsure" if more launches do not help. "newest_good" or "oldest_bad" if the version at an end
    does not have the expected result. "not_judged" if too few versions can be judged."""
    good: int | None = None
    """The position of the last good version."""
    bad: int | None = None
    """The position of the first version known to be bad."""
    suspects: tuple[int, ...] = ()
    """The positions of the possible first bad versions: `bad`, and the skipped versions before it."""
    error: float = 0.0
    """The probability that the answer is wrong, under the model described in this module."""


def step(
    count: int, launches: Sequence[Launch], *, good_known: bool = True, max_error: float = 0.01
) -> Next | End:
    """Return the next version to launch, or the end of the search.

    `count` is the number of versions. `good_known` is true if the oldest version is expected to be good.
    Otherwise, the search goes back from the newest version, and reaches the oldest version only if all others
    are bad.
    """
    history = _History(count, launches)
    if len(history.usable) < (2 if good_known else 1):
        return End("not_judged")
    if not history.judged_bad:
        newest = history.usable[-1]
        if count - 1 - newest >= MAX_END_SKIPS:
            return End("not_judged")
        if history.goods[newest] >= END_LAUNCHES or newest not in history.launchable:
            return End("newest_good", good=newest)
        return Next(newest, "newest", count)
    if not any(each < history.judged_bad[-1] for each in history.judged_good):
        return _without_good(history, good_known, max_error)
    return _narrowed(history, max_error)


def ahead(count: int, launches: Sequence[Launch], current: Next, *, good_known: bool = True) -> list[int]:
    """Return the positions that may be launched after `current`, excluding `current` itself."""
    results: tuple[Result, ...] = ("bad", "good")
    next_steps = (
        step(count, [*launches, Launch(current.position, result)], good_known=good_known)
        for result in results
    )
    positions = [each.position for each in next_steps if isinstance(each, Next)]
    return [each for each in dict.fromkeys(positions) if each != current.position]


def remaining(between: int) -> int:
    """Return how many launches a binary search needs if `between` versions may be the first bad one."""
    return math.ceil(math.log2(between)) if between > 1 else 0


class _History:
    """The launches of a search so far, grouped by the position of the version."""

    def __init__(self, count: int, launches: Iterable[Launch]) -> None:
        self.count = count
        self.launches = list(launches)
        self.goods: Counter[int] = Counter()
        self.bads: Counter[int] = Counter()
        skips: Counter[int] = Counter()
        other: Counter[int] = Counter()
        counters = {"good": self.goods, "bad": self.bads, "skip": skips, "other": other}
        for launch in self.launches:
            counters[launch.result][launch.position] += 1
        self.judged = sorted({*self.goods, *self.bads})
        self.judged_good, self.judged_bad = sorted(self.goods), sorted(self.bads)
        self._skipped = {each for each in (*skips, *other) if each not in self.judged}
        self.usable = [each for each in range(count) if each not in self._skipped]
        self.launchable = [each for each in self.usable if not skips[each] and other[each] < MAX_OTHER]
        self._retryable = [
            each for each in sorted(self._skipped) if not skips[each] and other[each] < MAX_OTHER
        ]

    def untested(self, low: int, high: int) -> list[int]:
        """Return the positions between `low` and `high` that have not been launched yet.

        If there are none, return the positions whose only launch had the result "other".
        """
        new = [each for each in self.usable if low < each < high and each not in self.judged]
        return new or [each for each in self._retryable if low < each < high]

    def skipped_below(self, position: int) -> int:
        """Return how many of the versions before a position cannot be judged."""
        return sum(each < position for each in self._skipped)

    def is_skipped(self, position: int) -> bool:
        """Return whether a version cannot be judged."""
        return position in self._skipped

    @property
    def max_launches(self) -> int:
        """Return a limit on the number of launches, which is reached only if the search does not converge."""
        return 40 + 8 * math.ceil(math.log2(self.count + 1))


def _without_good(history: _History, good_known: bool, max_error: float) -> Next | End:
    """Return the next step of a search that has not reached a good version yet.

    If `good_known` is true, the oldest version is launched next. If the oldest version cannot be launched,
    newer versions are tried, at distances from the oldest one that double each time. Otherwise, the search
    goes back from the newest version, at distances that double each time.
    """
    lowest, newest = history.judged_bad[0], history.judged_bad[-1]
    older = history.untested(-1, lowest)
    if not older or (good_known and history.bads[0]):
        error = 1 - _posterior(history).at_most(lowest)
        if error <= max_error or history.bads[lowest] >= END_LAUNCHES or lowest not in history.launchable:
            return End("oldest_bad", bad=lowest, suspects=tuple(range(lowest + 1)), error=error)
        return Next(lowest, "oldest", lowest + 1)
    if not good_known:
        target = newest - max(1, 2 * (newest - lowest))
        return Next(min(older, key=lambda each: (abs(each - target), each)), "oldest", lowest)
    if lowest < newest:
        return Next(_middle(history, older), "oldest", lowest)
    place = min(2 ** history.skipped_below(lowest), len(older)) - 1
    return Next(older[place], "oldest", lowest)


def _narrowed(history: _History, max_error: float) -> Next | End:
    """Continue a search in which at least one version was good and one was bad."""
    good, bad = history.judged_good[-1], history.judged_bad[0]
    consistent = good < bad
    posterior = _posterior(history)
    best = posterior.interval(good, bad) if consistent else posterior.best
    between = history.untested(best.low, best.high)
    if between and (consistent or best.mass >= 0.5) and best.low >= 0 and best.high < history.count:
        return Next(_middle(history, between), "search", best.high - best.low)
    error = 1 - best.mass
    if error <= max_error:
        return _answer(history, best, error)
    if not history.launchable or len(history.launches) >= history.max_launches:
        end = _answer(history, best, error)
        return End("unsure", end.good, end.bad, end.suspects, error)
    return Next(_doubtful(history, posterior, best), "confirm", best.high - best.low)


def _doubtful(history: _History, posterior: _Posterior, best: _Interval) -> int:
    """Return the version whose launch is expected to leave the least uncertainty (entropy) in the answer.

    The candidates are the last good and the first bad version. If results contradict each other, the version
    whose state is least certain is also a candidate.
    """
    options = [each for each in (best.low, best.high) if each in history.launchable]
    if not options or history.judged_good[-1] > history.judged_bad[0]:
        options.append(min(history.launchable, key=lambda each: (abs(posterior.at_most(each) - 0.5), each)))

    def expected(position: int) -> float:
        total = 0.0
        results: tuple[Result, ...] = ("good", "bad")
        for result in results:
            after = _posterior(_History(history.count, [*history.launches, Launch(position, result)]))
            total += math.exp(after.evidence - posterior.evidence) * after.entropy
        return total

    return min(dict.fromkeys(options), key=lambda each: round(expected(each), 9))


def _answer(history: _History, best: _Interval, error: float) -> End:
    if best.high >= history.count:
        return End("newest_good", good=best.low, error=error)
    suspects = tuple(range(best.low + 1, best.high + 1))
    if best.low < 0:
        return End("oldest_bad", bad=best.high, suspects=suspects, error=error)
    return End("found", best.low, best.high, suspects, error)


def _middle(history: _History, positions: Sequence[int]) -> int:
    """Return the middle of the longest run of adjacent positions. Without skipped versions, there is one run.

    Neighbors of a skipped version probably have to be skipped too, especially those between two skipped
    versions. Such neighbors therefore count less when the lengths of the runs are compared.
    """
    runs: list[list[int]] = []
    for each in positions:
        if runs and runs[-1][-1] == each - 1:
            runs[-1].append(each)
        else:
            runs.append([each])

    def weight(run: Sequence[int]) -> float:
        skipped_neighbours = history.is_skipped(run[0] - 1) + history.is_skipped(run[-1] + 1)
        return len(run) * (1.0, 0.5, 0.125)[skipped_neighbours]

    best = max(runs, key=weight)
    return best[len(best) // 2]


@dataclass(frozen=True)
class _Interval:
    """The positions from `low` + 1 to `high`, one of which may be the position of the first bad version.

    The launches do not show which position it is.
    """

    low: int
    high: int
    mass: float
    """The probability that the first bad version is at one of these positions."""


class _Posterior:
    """For each position, the probability that the first bad version is there, given the launches.

    The position `count` means that no version is bad.
    """

    def __init__(self, intervals: Sequence[_Interval], evidence: float) -> None:
        self._intervals = intervals
        self.evidence = evidence
        """The log-likelihood of all launches, up to a constant."""

    @property
    def best(self) -> _Interval:
        return max(self._intervals, key=lambda each: each.mass)

    @property
    def entropy(self) -> float:
        return -sum(
            each.mass * math.log(each.mass / (each.high - each.low))
            for each in self._intervals
            if each.mass > 0
        )

    def interval(self, low: int, high: int) -> _Interval:
        """Return the interval between two positions whose versions were launched."""
        return next(each for each in self._intervals if (each.low, each.high) == (low, high))

    def at_most(self, position: int) -> float:
        """Return the probability that the version at a position is bad."""
        total = 0.0
        for each in self._intervals:
            if each.high <= position:
                total += each.mass
            elif each.low < position:
                total += each.mass * (position - each.low) / (each.high - each.low)
        return total


def _posterior(history: _History) -> _Posterior:
    logs, edges = [], [-1, *history.judged, history.count]
    good_below = bad_below = 0
    good_above, bad_above = history.goods.total(), history.bads.total()
    for low, high in pairwise(edges):
        if low >= 0:
            good_below, bad_below = good_below + history.goods[low], bad_below + history.bads[low]
            good_above, bad_above = good_above - history.goods[low], bad_above - history.bads[low]
        likelihood = _mean(GOOD_RATES, bad_below, good_below) + _mean(BAD_RATES, bad_above, good_above)
        logs.append(likelihood + math.log(high - low))
    top = max(logs)
    weights = [math.exp(each - top) for each in logs]
    total = sum(weights)
    return _Posterior(
        [
            _Interval(low, high, weight / total)
            for low, high, weight in zip(edges[:-1], edges[1:], weights, strict=True)
        ],
        top + math.log(total),
    )


def _mean(rates: Mapping[float, float], bads: int, goods: int) -> float:
    """Return the log-likelihood of `bads` bad and `goods` good results.

    The likelihood is averaged over the rates with their weights.
    """
    terms = [
        math.log(weight) + bads * math.log(rate) + goods * math.log(1 - rate)
        for rate, weight in rates.items()
    ]
    top = max(terms)
    return top + math.log(sum(math.exp(term - top) for term in terms))
