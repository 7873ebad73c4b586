"""Draw a picture that shows which pairs of nodes are slow or broken, with one square per pair."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from harness.judge.acceptance.fleet import Fleet, Pair
from harness.judge.acceptance.results import ORDER, natural

SIDE, GAP, MARGIN = 12, 2, 4
"""The side length of a square, the gap between squares, and the margin of the picture, all in pixels."""
SHADES = 4
"""The number of shades of green. Faster pairs are darker. More shades would be indistinguishable."""


@dataclass(frozen=True)
class Square:
    """The square for a pair that did not pass. `title` is its tooltip."""

    x: int
    y: int
    verdict: str
    title: str


@dataclass(frozen=True)
class PairPicture:
    """One square per pair of nodes. Pairs that passed share one path per shade to keep the file small."""

    nodes: list[str]
    size: int
    shades: dict[int, str]
    """Maps each shade to its SVG path. Shade 0 is for the slowest pairs."""
    squares: list[Square]
    worst: list[Pair]
    """The pairs that did not pass, slowest first."""
    median: float | None
    tested: int


def picture(fleet: Fleet) -> PairPicture | None:
    """Return the picture, or None if no pairs were tested."""
    if not fleet.pairs:
        return None
    nodes = sorted({name for pair in fleet.pairs for name in (pair.a, pair.b)}, key=natural)
    positions = {name: number for number, name in enumerate(nodes)}
    rates = [pair.busbw for pair in fleet.pairs if pair.busbw is not None]
    passed = [pair.busbw for pair in fleet.pairs if pair.busbw is not None and pair.verdict == "PASS"]
    shades: dict[int, list[str]] = {}
    squares: list[Square] = []
    for pair in fleet.pairs:
        for one, other in ((positions[pair.a], positions[pair.b]), (positions[pair.b], positions[pair.a])):
            x, y = (MARGIN + number * (SIDE + GAP) for number in (other, one))
            if pair.verdict == "PASS":
                shades.setdefault(_shade(pair.busbw, passed), []).append(f"M{x} {y}h{SIDE}v{SIDE}h-{SIDE}z")
            else:
                squares.append(Square(x, y, pair.verdict, describe(pair)))
    return PairPicture(
        nodes=nodes,
        size=2 * MARGIN + len(nodes) * (SIDE + GAP) - GAP,
        shades={shade: "".join(paths) for shade, paths in sorted(shades.items())},
        squares=squares,
        worst=_worst(fleet.pairs),
        median=median(rates) if rates else None,
        tested=len(fleet.pairs),
    )


def _shade(rate: float | None, rates: Sequence[float]) -> int:
    """Return the shade for a rate. The slowest and the fastest pair that passed define the range."""
    low, high = min(rates, default=0.0), max(rates, default=0.0)
    if rate is None or high <= low:
        return SHADES - 1
    return min(SHADES - 1, int((rate - low) / (high - low) * SHADES))


def _worst(pairs: Iterable[Pair]) -> list[Pair]:
    not_passed = [pair for pair in pairs if pair.verdict != "PASS"]
    return sorted(not_passed, key=lambda pair: (ORDER.index(pair.verdict), pair.busbw or 0.0, pair.a, pair.b))


def describe(pair: Pair) -> str:
    """Return a one-line description of a pair."""
    rate = "no figure" if pair.busbw is None else f"{pair.busbw:.4g} GB/s"
    return f"{pair.a} ↔ {pair.b}: {rate}" + (f": {pair.text}" if pair.text else "")
