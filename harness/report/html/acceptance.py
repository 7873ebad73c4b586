"""Render acceptance results for the report page, Markdown, CI tests and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from harness.evidence.io.reader import Bundle
from harness.evidence.schema.bundle import Check, Verdict
from harness.judge.acceptance.expected_nodes import FILE, of_bundle
from harness.judge.acceptance.fleet import Fleet
from harness.judge.acceptance.results import ORDER, Cell, NodeResult
from harness.report import markdown
from harness.report.html.pairs import PairPicture, picture

FLEET = "fleet.json"
MARKS = {"PASS": "✓", "WARN": "!", "UNKNOWN": "?", "FAIL": "✗"}
MOST = 20
"""Maximum number of nodes shown in the terminal and in Markdown. The page shows all nodes."""


@dataclass(frozen=True)
class Entry:
    """A cell in a node's table. `text` is a measured value or a symbol, and `title` contains details."""

    text: str
    verdict: str
    title: str


@dataclass(frozen=True)
class Row:
    """One check on a node.

    `places` has one entry for the node, followed by one for each GPU. An entry is None if the check did not
    run there.
    """

    id: str
    places: list[Entry | None]
    limit: str
    source: str
    median: str


@dataclass(frozen=True)
class Node:
    """A node on the page. `problems` contains the cells that did not pass."""

    result: NodeResult
    rows: list[Row]
    columns: list[int]
    problems: list[Cell]


@dataclass(frozen=True)
class Spread:
    """One check's results across the whole fleet.

    `count` is the number of passes. `worst` is the worst measurement, from the node and GPU in `where`.
    """

    id: str
    verdict: str
    limit: str
    source: str
    median: str
    worst: str
    where: str
    count: str


@dataclass(frozen=True)
class View:
    """The report page's section on the acceptance results of a fleet, which is all tested nodes."""

    fleet: Fleet
    nodes: list[Node]
    """The nodes that did not pass."""
    passed: list[Node]
    opened: str
    """The name of the first failed node, whose section on the page is expanded."""
    spreads: list[Spread]
    pairs: PairPicture | None


def view(bundle: Bundle) -> View | None:
    """Return the report page's section on a bundle's acceptance tests, or None if it contains none."""
    fleet = of_bundle(bundle)
    return None if fleet is None else of_fleet(fleet)


def of_fleet(fleet: Fleet) -> View:
    """Return the report page's section on the acceptance results of a fleet."""
    not_passed = [_node(node) for node in fleet.nodes if node.verdict != "PASS"]
    passed = [_node(node) for node in fleet.nodes if node.verdict == "PASS"]
    failed = [node.result.node for node in sorted(not_passed, key=lambda n: ORDER.index(n.result.verdict))]
    return View(fleet, not_passed, passed, failed[0] if failed else "", list(_spreads(fleet)), picture(fleet))


def _node(node: NodeResult) -> Node:
    columns = [gpu.index for gpu in node.gpus]
    by_id: dict[str, dict[int | None, Cell]] = {}
    for cell in node.cells:  # Show only the first cell of each check and GPU, which is the worst.
        by_id.setdefault(cell.id, {}).setdefault(cell.gpu, cell)
    rows = [
        Row(
            id_,
            [_entry(cells.get(place)) for place in (None, *columns)],
            *_limit(cells.values()),
            _figure(next((c.median for c in cells.values() if c.median is not None), None), _unit(cells)),
        )
        for id_, cells in by_id.items()
    ]
    not_passed = [cell for cell in node.cells if cell.verdict != "PASS"]
    return Node(node, rows, columns, not_passed)


def _entry(cell: Cell | None) -> Entry | None:
    if cell is None:
        return None
    text = MARKS[cell.verdict] if cell.measured is None else f"{cell.measured:.4g}"
    return Entry(text, cell.verdict, "" if cell.verdict == "PASS" else cell.text)


def _unit(cells: dict[int | None, Cell]) -> str:
    return next((cell.unit for cell in cells.values() if cell.unit), "")


def _limit(cells: Iterable[Cell]) -> tuple[str, str]:
    """Return a check's limit as text, and the source of the limit."""
    cell = next((cell for cell in cells if cell.limit is not None), None)
    if cell is None or cell.limit is None:
        return "", ""
    sign = {">=": "≥", "<=": "≤", "==": "="}[cell.relation]
    return f"{sign} {_figure(cell.limit, cell.unit)}", cell.source or ""


def _figure(value: float | None, unit: str) -> str:
    return "" if value is None else f"{value:.4g} {unit}".rstrip()


def _spreads(fleet: Fleet) -> Iterator[Spread]:
    """Yield each check's results across the whole fleet, worst first."""
    places: dict[str, list[tuple[NodeResult, Cell]]] = {}
    for node in fleet.nodes:
        for cell in node.cells:
            places.setdefault(cell.id, []).append((node, cell))
    ordered = sorted(
        places.items(), key=lambda entry: (min(ORDER.index(cell.verdict) for _, cell in entry[1]), entry[0])
    )
    for id_, all_ in ordered:
        cells = [cell for _, cell in all_]
        limit, source = _limit(cells)
        verdict = min((cell.verdict for cell in cells), key=ORDER.index)
        node, cell = _worst_place(all_)
        passed = sum(one.verdict == "PASS" for one in cells)
        yield Spread(
            id=id_,
            verdict=verdict,
            limit=limit,
            source=source,
            median=_figure(next((c.median for c in cells if c.median is not None), None), cell.unit),
            worst=_figure(cell.measured, cell.unit),
            where=f"{node.node} GPU {cell.gpu}" if cell.gpu is not None else node.node,
            count=f"{passed} of {len(cells)}",
        )


def _worst_place(places: Sequence[tuple[NodeResult, Cell]]) -> tuple[NodeResult, Cell]:
    """Return the node and cell with a check's worst verdict. Ties are broken by the worst measurement."""

    def order(place: tuple[NodeResult, Cell]) -> tuple[int, float]:
        cell = place[1]
        figure = cell.measured if cell.measured is not None else float("inf")
        return ORDER.index(cell.verdict), -figure if cell.relation == "<=" else figure

    return min(places, key=order)


def first(node: NodeResult) -> str:
    """Describe the first failed check on a node. Returns "" if all checks passed."""
    cell = node.first
    return "" if cell is None else f"{cell.name}: {cell.text}"


def lines(fleet: Fleet) -> list[str]:
    """Return the results as lines of Markdown: the verdict, and the nodes and checks that did not pass."""
    not_passed = [node for node in fleet.nodes if node.verdict != "PASS"]
    rows = [
        [
            MARKS[node.verdict],
            markdown.text(node.node),
            node.verdict,
            markdown.code(node.first.cause or "") if node.first else "",
            markdown.text(first(node)),
        ]
        for node in not_passed[:MOST]
    ]
    output = [f"**Acceptance: {fleet.verdict}** ({fleet.text})", ""]
    output += markdown.table(["", "node", "verdict", "cause", "what failed first"], rows)
    output += [f"The report lists {len(not_passed) - MOST} more nodes.", ""] if len(not_passed) > MOST else []
    failed_checks = [cell for cell in fleet.checks if cell.verdict != "PASS"]
    return output + [
        f"- {cell.verdict} {markdown.code(cell.id)}: {markdown.text(cell.text)}" for cell in failed_checks
    ]


def tests(bundle: Bundle) -> list[tuple[Check, str, float]]:
    """Return (check, verdict, duration in seconds) for each check on each node and on the whole fleet.

    A WARN counts as passed, with WARN in the check's text. An UNKNOWN check does not pass. A check that
    covers several GPUs becomes several tests.
    """
    fleet = of_bundle(bundle)
    if fleet is None:
        return []
    cases = [(_check("acceptance", cell, ""), cell.verdict, cell.seconds) for cell in fleet.checks]
    for node in fleet.nodes:
        evidence = f"{FILE}:{node.line}" if node.line else ""
        cases += [
            (_check(f"acceptance / {node.node}", cell, evidence), cell.verdict, cell.seconds)
            for cell in node.cells
        ]
    return list(_with_unique_names(cases))


def _check(prefix: str, cell: Cell, evidence: str) -> Check:
    text = f"WARN: {cell.text}" if cell.verdict == "WARN" else cell.text
    return Check(
        name=f"{prefix} / {cell.name}",
        result="PASS" if cell.verdict == "WARN" else cell.verdict,
        cause=cell.cause,
        ranks=list(cell.ranks),
        explanation=text,
        evidence=[evidence] if evidence else [],
    )


def _with_unique_names(cases: Iterable[tuple[Check, str, float]]) -> Iterator[tuple[Check, str, float]]:
    """Yield the tests with unique names. A number is appended to each name that has occurred before."""
    counts: dict[str, int] = {}
    for check, verdict, seconds in cases:
        number = counts[check.name] = counts.get(check.name, 0) + 1
        unique = check if number == 1 else check.model_copy(update={"name": f"{check.name} #{number}"})
        yield unique, verdict, seconds


def as_json(bundle: Bundle, verdict: Verdict) -> str:
    """Return the text of fleet.json, which is null if there are no acceptance tests."""
    del verdict
    fleet = of_bundle(bundle)
    return json.dumps(None if fleet is None else fleet.as_dict()) + "\n"
