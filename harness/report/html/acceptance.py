"""The acceptance of a cluster for people and for CI: the page's section, Markdown, tests, JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from harness.evidence.io.reader import Bundle
from harness.evidence.schema.bundle import Check, Verdict
from harness.judge.acceptance.bundle import FILE, of_bundle
from harness.judge.acceptance.cells import ORDER, Cell, NodeResult
from harness.judge.acceptance.fleet import Fleet
from harness.report import markdown
from harness.report.html.pairs import PairPicture, picture

FLEET = "fleet.json"
MARKS = {"PASS": "✓", "WARN": "!", "UNKNOWN": "?", "FAIL": "✗"}
MOST = 20
"""Most nodes in the terminal and in Markdown. The page has all of them."""


@dataclass(frozen=True)
class Entry:
    """One place of a node's table: a figure or a mark. `title` tells what is not seen in it."""

    text: str
    verdict: str
    title: str


@dataclass(frozen=True)
class Row:
    """One check of a node: for the node, then for each of its GPUs. A place without a check is None."""

    id: str
    places: list[Entry | None]
    limit: str
    source: str
    median: str


@dataclass(frozen=True)
class Node:
    """One node of the page. `tells`: its cells that did not pass."""

    result: NodeResult
    rows: list[Row]
    columns: list[int]
    tells: list[Cell]


@dataclass(frozen=True)
class Spread:
    """One check over the whole fleet: how many places, and the worst figure with its place."""

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
    """All that the page shows of a fleet."""

    fleet: Fleet
    nodes: list[Node]
    """Those that did not pass."""
    passed: list[Node]
    opened: str
    """The node to show unfolded: the first that failed."""
    spreads: list[Spread]
    pairs: PairPicture | None


def view(bundle: Bundle) -> View | None:
    """Return what the page shows, or None where no acceptance tests were recorded."""
    found = of_bundle(bundle)
    return None if found is None else of_fleet(found)


def of_fleet(found: Fleet) -> View:
    """Return what the page shows of a fleet."""
    bad = [_node(node) for node in found.nodes if node.verdict != "PASS"]
    passed = [_node(node) for node in found.nodes if node.verdict == "PASS"]
    failed = [node.result.node for node in sorted(bad, key=lambda n: ORDER.index(n.result.verdict))]
    return View(found, bad, passed, failed[0] if failed else "", list(_spreads(found)), picture(found))


def _node(node: NodeResult) -> Node:
    columns = [gpu.index for gpu in node.gpus]
    by_id: dict[str, dict[int | None, Cell]] = {}
    for cell in node.cells:  # worst first: of two about the same place the worse one is shown
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
    tells = [cell for cell in node.cells if cell.verdict != "PASS"]
    return Node(node, rows, columns, tells)


def _entry(cell: Cell | None) -> Entry | None:
    if cell is None:
        return None
    shown = MARKS[cell.verdict] if cell.measured is None else f"{cell.measured:.4g}"
    return Entry(shown, cell.verdict, "" if cell.verdict == "PASS" else cell.text)


def _unit(cells: dict[int | None, Cell]) -> str:
    return next((cell.unit for cell in cells.values() if cell.unit), "")


def _limit(cells: Iterable[Cell]) -> tuple[str, str]:
    """Return the limit of a check as text, and where it comes from."""
    cell = next((cell for cell in cells if cell.limit is not None), None)
    if cell is None or cell.limit is None:
        return "", ""
    sign = {">=": "≥", "<=": "≤", "==": "="}[cell.relation]
    return f"{sign} {_figure(cell.limit, cell.unit)}", cell.source or ""


def _figure(value: float | None, unit: str) -> str:
    return "" if value is None else f"{value:.4g} {unit}".rstrip()


def _spreads(found: Fleet) -> Iterator[Spread]:
    """Return each check over the fleet, the worst first."""
    places: dict[str, list[tuple[NodeResult, Cell]]] = {}
    for node in found.nodes:
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
    """Return the worst place of a check: the worst verdict, then the worst figure."""

    def order(place: tuple[NodeResult, Cell]) -> tuple[int, float]:
        cell = place[1]
        figure = cell.measured if cell.measured is not None else float("inf")
        return ORDER.index(cell.verdict), -figure if cell.relation == "<=" else figure

    return min(places, key=order)


def first(node: NodeResult) -> str:
    """Return what failed first on a node, in one line."""
    cell = node.first
    return "" if cell is None else f"{cell.name}: {cell.text}"


def lines(found: Fleet) -> list[str]:
    """Return the nodes as Markdown: those that did not pass, and how many did."""
    bad = [node for node in found.nodes if node.verdict != "PASS"]
    rows = [
        [
            MARKS[node.verdict],
            markdown.text(node.node),
            node.verdict,
            markdown.code(node.first.cause or "") if node.first else "",
            markdown.text(first(node)),
        ]
        for node in bad[:MOST]
    ]
    told = [f"**Acceptance: {found.verdict}** ({found.text})", ""]
    told += markdown.table(["", "node", "verdict", "cause", "what failed first"], rows)
    told += [f"{len(bad) - MOST} more nodes are in the report.", ""] if len(bad) > MOST else []
    wrong = [cell for cell in found.checks if cell.verdict != "PASS"]
    return told + [f"- {cell.verdict} {markdown.code(cell.id)}: {markdown.text(cell.text)}" for cell in wrong]


def tests(bundle: Bundle) -> list[tuple[Check, str, float]]:
    """Return each check of each node and of all nodes as a test: what it says, its own verdict, its seconds.

    A WARN passed, and its text says so. UNKNOWN is no pass. What several GPUs of a node say is several tests.
    """
    found = of_bundle(bundle)
    if found is None:
        return []
    made = [(_check("acceptance", cell, ""), cell.verdict, cell.seconds) for cell in found.checks]
    for node in found.nodes:
        evidence = f"{FILE}:{node.line}" if node.line else ""
        made += [
            (_check(f"acceptance / {node.node}", cell, evidence), cell.verdict, cell.seconds)
            for cell in node.cells
        ]
    return list(_apart(made))


def _check(where: str, cell: Cell, evidence: str) -> Check:
    text = f"WARN: {cell.text}" if cell.verdict == "WARN" else cell.text
    return Check(
        name=f"{where} / {cell.name}",
        result="PASS" if cell.verdict == "WARN" else cell.verdict,
        cause=cell.cause,
        ranks=list(cell.ranks),
        explanation=text,
        evidence=[evidence] if evidence else [],
    )


def _apart(made: Iterable[tuple[Check, str, float]]) -> Iterator[tuple[Check, str, float]]:
    """Number tests of one name: a test must be found again by its name."""
    seen: dict[str, int] = {}
    for check, verdict, took in made:
        number = seen[check.name] = seen.get(check.name, 0) + 1
        named = check if number == 1 else check.model_copy(update={"name": f"{check.name} #{number}"})
        yield named, verdict, took


def as_json(bundle: Bundle, verdict: Verdict) -> str:
    """Return the text of fleet.json: null where no acceptance tests were recorded."""
    del verdict
    found = of_bundle(bundle)
    return json.dumps(None if found is None else found.as_dict()) + "\n"
