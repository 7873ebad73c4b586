"""Run a search for bad nodes with trials on real nodes, and convert the conclusion to checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import round_robin
from .check import Check, Verdict
from .coordinator import Coordinator
from .group_outcomes import Group, Outcome
from .group_verdict import FIGURES, Result, judge, reference
from .search import ALL_PAIRS, Conclusion, search


class Screening:
    """Tests the groups of nodes that a search requests, and judges the results."""

    def __init__(self, coordinator: Coordinator, limit: float | None, share: float) -> None:
        self._coordinator, self._limit, self._share = coordinator, limit, share
        self._early_results: dict[Group, Result] = {}
        """Results of pairs that the search has not requested yet."""
        self._good: set[int] = set()
        self.judged: dict[Group, tuple[Outcome, str]] = {}
        self.pairs: dict[Group, Result] = {}

    def run(self, nodes: Sequence[int], repeats: int, max_bad: int | None) -> Conclusion:
        """Search for bad nodes, and return the conclusion.

        With up to 16 nodes, all pairs are tested first, so that there are enough results for a median.
        """
        if len(nodes) <= ALL_PAIRS:
            for places in round_robin.rounds(len(nodes)):
                for result in self._coordinator.measure([(nodes[a], nodes[b]) for a, b in places]):
                    self._early_results[result.group] = self.pairs[result.group] = result
        searching = search(nodes, bound=max_bad, repeats=repeats)
        try:
            groups = next(searching)
            while True:
                groups = searching.send(self._answer(groups))
        except StopIteration as end:
            conclusion: Conclusion = end.value
        return conclusion

    def outcome(self, result: Result) -> tuple[Outcome, str]:
        """Judge a result by the limit, and by the median of all groups of the same size tested so far."""
        usual = reference(self._coordinator.results, len(result.group))
        return judge(result, usual, limit=self._limit, share=self._share)

    def _answer(self, groups: list[Group]) -> list[Outcome]:
        results = {group: self._early_results.pop(group) for group in groups if group in self._early_results}
        untested = [group for group in groups if group not in results]
        if untested:
            measured = self._coordinator.measure([*untested, *self._controls(untested)])
            results |= {result.group: result for result in measured if result.group in untested}
        outcomes: list[Outcome] = []
        for group in groups:
            outcome, reason = self.judged[group] = self.outcome(results[group])
            if outcome == "good":
                self._good |= {*group}
            print(f"[DDP] {outcome} {named(group)}: {reason}", flush=True)
            outcomes.append(outcome)
        return outcomes

    def _controls(self, untested: Sequence[Group]) -> list[Group]:
        """Return groups of good nodes that would otherwise be idle in this round.

        Their results are needed for the median with which the other groups are compared.
        """
        idle = sorted(self._good - {node for group in untested for node in group})
        controls: list[Group] = []
        for size in sorted({len(group) for group in untested}):
            missing = FIGURES - len({r.group for r in self._coordinator.results if len(r.group) == size})
            missing -= sum(len(group) == size for group in untested)
            while missing > 0 and len(idle) >= size:
                controls.append(tuple(idle[:size]))
                idle, missing = idle[size:], missing - 1
        return controls


def checks(
    conclusion: Conclusion, screening: Screening, nodes: Sequence[int], coordinator: Coordinator
) -> list[Check]:
    """Return the conclusion of a search as checks for the report."""
    names = coordinator.names
    results: list[Check] = []

    def say(name: str, verdict: Verdict, text: str, cause: str | None, ranks: Sequence[int]) -> None:
        results.append(
            Check(id=f"screen.{name}", tag="DDP", verdict=verdict, text=text, cause=cause, ranks=tuple(ranks))
        )

    for one in conclusion.accused:
        reasons = [
            screening.judged.get(tuple(sorted((one.node, other))), ("", ""))[1] for other in one.witnesses
        ]
        evidence = "; ".join(dict.fromkeys(filter(None, reasons)))
        say("node", "FAIL", f"{names[one.node]} {one.reason} ({evidence})", "node.bad", [one.node])
    for link in conclusion.links:
        between = f"{names[link.a]} and {names[link.b]}"
        say("link", "FAIL", f"the link between {between} {link.reason}", "link.bad", [link.a, link.b])
    for edge in conclusion.boundaries:
        text = f"{named(edge.one)} and {named(edge.other)} pass separately, but fail together: {edge.reason}"
        say("boundary", "FAIL", text, "link.boundary", edge.other)
    for open_ in conclusion.unknown:
        say("unknown", "UNKNOWN", f"{named(open_.nodes)}: {open_.reason}", None, open_.nodes)
    if conclusion.healthy:
        text = f"{len(nodes)} nodes pass, in groups and all together"
        say("search", "PASS", f"{text}: {conclusion.tests} tests in {conclusion.rounds} rounds", None, ())
    return results


def bandwidth(coordinator: Coordinator, limit: float | None, share: float) -> Check:
    """Return the bandwidth check.

    It is UNKNOWN without results, or without a limit or a median to compare with.
    """
    figures = [result for result in coordinator.results if result.busbw is not None]
    text = "no group gave a result"
    if figures:
        slowest = min(figures, key=lambda result: result.busbw or 0.0)
        text = (
            f"the slowest of {len(figures)} groups, {named(slowest.group)}, reached {slowest.busbw:.3f} GB/s"
        )
    compared = limit is not None or any(reference(figures, len(result.group)) for result in figures)
    if compared and limit is None:
        text += f"; a group is slow below {share:.2f} of the median for its size"
    elif figures and not compared:
        text += (
            f"; there is no limit (--limit), and there are fewer than {FIGURES} "
            "groups of the same size to compare"
        )
    return Check(
        id="screen.bandwidth",
        tag="DDP",
        verdict="PASS" if figures and compared else "UNKNOWN",
        text=text,
        measured=min((result.busbw or 0.0 for result in figures), default=None),
        unit="GB/s",
        limit=limit,
        limit_kind=None if limit is None else "limit",
        limit_source=None if limit is None else "--limit",
    )


def rows(screening: Screening) -> list[dict[str, Any]]:
    """Return the tested pairs as dictionaries with the fields of PairRow."""
    verdicts: dict[Outcome, Verdict] = {"good": "PASS", "bad": "FAIL", "unknown": "UNKNOWN"}
    results = []
    for (a, b), result in sorted(screening.pairs.items()):
        outcome, reason = screening.outcome(result)
        results.append(
            {
                "a": a,
                "b": b,
                "busbw": result.busbw,
                "verdict": verdicts[outcome],
                "text": reason,
                "round": result.number,
            }
        )
    return results


def named(nodes: Sequence[int]) -> str:
    """Return node numbers as text. Consecutive numbers are combined, as in "nodes 0–3, 5"."""
    runs: list[list[int]] = []
    for node in sorted(nodes):
        if runs and node == runs[-1][-1] + 1:
            runs[-1].append(node)
        else:
            runs.append([node])
    parts = [str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs]
    return ("node " if len(nodes) == 1 else "nodes ") + ", ".join(parts)
