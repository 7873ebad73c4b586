"""What a search for bad nodes concludes: nodes, links, boundaries, and what remains unknown."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from .tested import Group


@dataclass(frozen=True)
class Accused:
    """A node that fails with known-good witnesses."""

    node: int
    witnesses: Group
    """Good nodes that it failed with, each time as a pair."""
    reason: str


@dataclass(frozen=True)
class Link:
    """Two nodes that fail with each other and pass with others: the link, not the node."""

    a: int
    b: int
    reason: str


@dataclass(frozen=True)
class Boundary:
    """Two sets of nodes, each good in itself, that fail together: what is between them, not a node."""

    one: Group
    other: Group
    reason: str


@dataclass(frozen=True)
class Unknown:
    """Nodes of which nothing was proved, and why."""

    nodes: Group
    reason: str


@dataclass(frozen=True)
class Conclusion:
    """The end of a search. Nodes that stand nowhere in it passed."""

    accused: tuple[Accused, ...] = ()
    links: tuple[Link, ...] = ()
    boundaries: tuple[Boundary, ...] = ()
    unknown: tuple[Unknown, ...] = ()
    tests: int = 0
    rounds: int = 0

    @property
    def healthy(self) -> bool:
        """Whether every node passed, together with all others."""
        return not (self.accused or self.links or self.boundaries or self.unknown)

    def explains(self, group: Group) -> bool:
        """Whether that group had to fail, if this conclusion is right."""
        nodes = set(group)
        return (
            any(accused.node in nodes for accused in self.accused)
            or any({link.a, link.b} <= nodes for link in self.links)
            or any(nodes & {*edge.one} and nodes & {*edge.other} for edge in self.boundaries)
        )

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)
