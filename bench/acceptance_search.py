"""How many tests the search for bad nodes takes, against all pairs: `python -m bench.acceptance_search`.

The clusters are simulated: what is counted are tests and rounds, no seconds. Each row is the mean over seeds.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from statistics import mean

from harness.workers.acceptance.conclusion import Conclusion

from harness.workers.acceptance.group_outcomes import Group, Outcome
from harness.workers.acceptance.search import search

CASES = [(64, 0), (64, 1), (64, 3), (232, 0), (232, 1), (232, 5), (1000, 0), (1000, 10)]
"""Nodes, and how many of them are bad."""
SEEDS = 50


def run(searching: Generator[list[Group], Sequence[Outcome], Conclusion], bad: set[int]) -> Conclusion:
    """Answer a search as nodes would of which `bad` are bad."""
    try:
        groups = next(searching)
        while True:
            groups = searching.send(["bad" if bad & {*group} else "good" for group in groups])
    except StopIteration as end:
        conclusion: Conclusion = end.value
    return conclusion


def main() -> None:
    """Print a table."""
    print("nodes  bad  tests  rounds  all pairs / tests")
    for count, most in CASES:
        concluded = []
        for seed in range(SEEDS):
            bad = set(random.Random(seed).sample(range(count), most))
            concluded.append(run(search(range(count)), bad))
            if {one.node for one in concluded[-1].accused} != bad:
                raise SystemExit(f"{count} nodes, seed {seed}: {sorted(bad)} were bad, found {concluded[-1]}")
        tests, rounds = (
            mean(one.tests for one in concluded),
            mean(one.rounds for one in concluded),
        )
        print(f"{count:5} {most:4} {tests:6.1f} {rounds:7.1f} {count * (count - 1) / 2 / tests:18.0f}")


if __name__ == "__main__":
    main()
