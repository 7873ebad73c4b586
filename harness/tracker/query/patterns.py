"""Regular expressions in linear time, because the `$regex` of a filter comes from a client.

Python's own engine backtracks, which takes years for some patterns. This engine keeps the set of all possible
positions in the pattern, and reads each character once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

MOST = 200
"""The most characters of a pattern."""
TEXT_MOST = 1000
"""The number of characters of a text that are searched."""
CLASSES: dict[str, Callable[[str], bool]] = {
    "d": str.isdecimal,
    "w": lambda one: one.isalnum() or one == "_",
    "s": str.isspace,
}
SPECIAL = frozenset("()[]{}|*+?")


@dataclass(frozen=True)
class _Piece:
    """A class of characters, and how often it may occur."""

    fits: Callable[[str], bool]
    least: int = 1
    many: bool = False


@dataclass(frozen=True)
class _Branch:
    pieces: tuple[_Piece, ...]
    from_start: bool
    to_end: bool

    def found(self, text: str) -> bool:
        places = self._reached({0})
        if self._ended(places, not text):
            return True
        for at, one in enumerate(text, 1):
            moved = set()
            for place in places:
                if place < len(self.pieces) and self.pieces[place].fits(one):
                    moved.add(place + 1)
                    if self.pieces[place].many:
                        moved.add(place)
            if not self.from_start:
                moved.add(0)
            places = self._reached(moved)
            if self._ended(places, at == len(text)):
                return True
        return False

    def _ended(self, places: set[int], at_end: bool) -> bool:
        return len(self.pieces) in places and (at_end or not self.to_end)

    def _reached(self, places: set[int]) -> set[int]:
        """Return the positions, and those after pieces that are optional."""
        reached = set(places)
        for place in places:
            at = place
            while at < len(self.pieces) and self.pieces[at].least == 0:
                at += 1
                reached.add(at)
        return reached


@dataclass(frozen=True)
class Pattern:
    """A pattern of characters, `.`, `\\d \\w \\s`, `[a-z]`, `* + ?` after one character, and `^ $ |`.

    Groups are not supported.
    """

    branches: tuple[_Branch, ...]

    def found(self, text: str) -> bool:
        """Return whether any part of the text matches."""
        return any(branch.found(text[:TEXT_MOST]) for branch in self.branches)


def read(pattern: str) -> Pattern:
    """Return the parsed pattern. Raises ValueError if it is invalid, too long or not supported."""
    if len(pattern) > MOST:
        raise ValueError(f"a pattern has at most {MOST} characters")
    branches: list[_Branch] = []
    pieces: list[_Piece] = []
    from_start = to_end = False
    at = 0
    while at < len(pattern):
        one = pattern[at]
        if to_end and one != "|":
            raise ValueError("$: expected at the end")
        if one == "|":
            branches.append(_Branch(tuple(pieces), from_start, to_end))
            pieces, from_start, to_end, at = [], False, False, at + 1
        elif one == "^" and not pieces and not from_start:
            from_start, at = True, at + 1
        elif one == "$":
            to_end, at = True, at + 1
        else:
            fits, at = _one(pattern, at)
            often = pattern[at : at + 1]
            if often in {"*", "+", "?"}:
                at += 1
            pieces.append(_Piece(fits, 0 if often in {"*", "?"} else 1, often in {"*", "+"}))
    branches.append(_Branch(tuple(pieces), from_start, to_end))
    return Pattern(tuple(branches))


def _one(pattern: str, at: int) -> tuple[Callable[[str], bool], int]:
    """Return the test of one character, and the position after it in the pattern."""
    one = pattern[at]
    if one == ".":
        return lambda _: True, at + 1
    if one == "\\":
        if at + 1 == len(pattern):
            raise ValueError("\\: expected a character after it")
        after = pattern[at + 1]
        if after.isalnum() and after not in CLASSES:
            raise ValueError(f"\\{after}: this tracker does not support it")
        return CLASSES.get(after, after.__eq__), at + 2
    if one == "[":
        return _set(pattern, at + 1)
    if one in SPECIAL or one == "^":
        raise ValueError(f"{one} at {at}: this tracker supports no groups and no counts; put \\ before it")
    return one.__eq__, at + 1


def _set(pattern: str, at: int) -> tuple[Callable[[str], bool], int]:
    end = pattern.find("]", at + 1)
    if end < 0:
        raise ValueError("[: expected a ] after it")
    inside = pattern[at:end]
    other = inside.startswith("^")
    inside = inside.removeprefix("^")
    if not inside or "\\" in inside or "[" in inside:
        raise ValueError("[…]: expected characters and ranges")
    ranges: list[tuple[str, str]] = []
    place = 0
    while place < len(inside):
        last = inside[place + 2] if inside[place + 1 : place + 2] == "-" and place + 2 < len(inside) else ""
        ranges.append((inside[place], last or inside[place]))
        place += 3 if last else 1
    return lambda seen: any(low <= seen <= high for low, high in ranges) != other, end + 1
