"""Define the conclusion of a search: the bad nodes, bad links, broken boundaries and unknown nodes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from .tested import Group


@dataclass(frozen=True)
class Accused:
    """A node that is reported as bad, because it fails together with known-good nodes (its witnesses)."""

    node: int
    witnesses: Group
    """The good nodes together with which this node failed."""
    reason: str


@dataclass(frozen=True)
class Link:
    """Two nodes that fail together and pass with other nodes, so the link between them is bad."""

    a: int
    b: int
    reason: str


@dataclass(frozen=True)
class Boundary:
    """Two sets of nodes that are each good, but fail together, so the connection between them is bad."""

    one: Group
    other: Group
    reason: str


@dataclass(frozen=True)
class Unknown:
    """Nodes about which the search reached no verdict, and the reason."""

    nodes: Group
    reason: str


@dataclass(frozen=True)
class Conclusion:
    """The result of a search. All nodes that are not mentioned have passed."""

    accused: tuple[Accused, ...] = ()
    links: tuple[Link, ...] = ()
    boundaries: tuple[Boundary, ...] = ()
    unknown: tuple[Unknown, ...] = ()
    tests: int = 0
    rounds: int = 0

    @property
    def healthy(self) -> bool:
        """Return whether all nodes passed, and no link or boundary is bad."""
        return not (self.accused or self.links or self.boundaries or self.unknown)

    def explains(self, group: Group) -> bool:
        """Return whether this conclusion implies that a group of nodes fails."""
        nodes = set(group)
        return (
            any(accused.node in nodes for accused in self.accused)
            or any({link.a, link.b} <= nodes for link in self.links)
            or any(nodes & {*edge.one} and nodes & {*edge.other} for edge in self.boundaries)
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the conclusion as a dictionary for JSON."""
        return asdict(self)
