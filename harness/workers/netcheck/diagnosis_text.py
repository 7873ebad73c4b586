"""Format a diagnosis as text: the missing ranks, the cause, the matrix, the steps, and the advice."""

from __future__ import annotations

from collections.abc import Iterator

from .diagnosis import Diagnosis
from .finding import STEPS, Finding, listed

MOST = 32
"""Maximum number of ranks for which the matrix is shown."""
_MARKS = {"ok": "✓", "failed": "✗", "unknown": "?"}
_CELLS = {
    "ok": "ok",
    "pending": "…",
    "tcp.filtered": "silent",
    "tcp.refused": "refused",
    "tcp.no_route": "noroute",
    "tcp.rejected": "reject",
    "mtu.black_hole": "mtu",
}


def text(result: Diagnosis, color: bool = False) -> str:
    """Return the diagnosis as text. If `color` is true, the most important lines are bold."""
    return "\n".join(_lines(result, color))


def _lines(result: Diagnosis, color: bool) -> Iterator[str]:
    if result.missing:
        yield _bold(f"MISSING: {listed(result.missing)} of {result.nodes}", color)
    scope = (
        f"{result.nodes} ranks"
        if result.whole
        else f"only rank {result.rank}, which got no verdict from rank 0"
    )
    accused = f" on {listed(result.ranks)}" if result.ranks else ""
    cause = f": {result.cause}{accused}" if result.cause else ""
    yield _bold(f"netcheck: {result.verdict.upper()}{cause}  ({scope}, {result.seconds:.1f} s)", color)
    if 1 < result.nodes <= MOST and result.rows:
        yield ""
        yield from _matrix(result)
    if 1 < result.nodes <= MOST and any(c.bandwidth for row in result.rows.values() for c in row.values()):
        yield ""
        yield from _rates(result)
    yield ""
    for step in STEPS:
        for finding in (f for f in result.findings if f.step == step):
            yield f"{_MARKS[finding.status]} {step:<12} {_text(finding)}"
    if result.recommendations:
        yield ""
        yield "What to do"
        for number, advice in enumerate(result.recommendations, 1):
            yield f"{number}. {advice}"


def _text(finding: Finding) -> str:
    ranks = f" [{listed(finding.ranks)}]" if finding.ranks else ""
    return f"{finding.cause}{ranks}: {finding.text}" if finding.cause else finding.text + ranks


def _matrix(result: Diagnosis) -> Iterator[str]:
    width = 8
    yield "from \\ to " + "".join(f"{rank:>{width}}" for rank in range(result.nodes))
    for sender in range(result.nodes):
        row = result.rows.get(sender)
        cells = ["-" if r == sender else _cell(row, r) for r in range(result.nodes)] if row else []
        yield f"{sender:>9} " + ("".join(f"{cell:>{width}}" for cell in cells) or "  not heard")


def _rates(result: Diagnosis) -> Iterator[str]:
    """Yield a table of each pair's bandwidth, with the median and p99 round-trip times below it."""
    width = 12
    yield "MB/s, ms    " + "".join(f"{rank:>{width}}" for rank in range(result.nodes))
    for sender in range(result.nodes):
        cells = [result.rows.get(sender, {}).get(receiver) for receiver in range(result.nodes)]
        measured = [cell if cell and cell.bandwidth else None for cell in cells]
        rates = [f"{cell.bandwidth / 1e6:.1f}" if cell else "-" for cell in measured]
        trips = [f"{cell.p50 * 1e3:.2f}/{cell.p99 * 1e3:.2f}" if cell else "" for cell in measured]
        yield f"{sender:>9}   " + "".join(f"{one:>{width}}" for one in rates)
        yield f"{'':>9}   " + "".join(f"{one:>{width}}" for one in trips)


def _cell(row: object, receiver: int) -> str:
    cell = row.get(receiver)  # type: ignore[attr-defined]
    if cell is None:
        return "?"
    return word(cell.outcome)


def word(outcome: str) -> str:
    """Return the short word for an outcome, as shown in the matrix."""
    return _CELLS.get(outcome, outcome.partition(".")[0])


def _bold(line: str, color: bool) -> str:
    return f"\033[1m{line}\033[0m" if color else line
