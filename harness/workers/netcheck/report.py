"""What one rank saw, as data and as JSON: the ranks send it to rank 0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .bandwidth import Measured
from .finding import Finding
from .probe import Cell


@dataclass(frozen=True)
class Report:
    """What one rank saw. `place` is its index among the peers; `row` has a cell for each place it tried."""

    place: int
    rank: int
    host: str
    instance: str
    addresses: tuple[str, ...]
    row: Mapping[int, Cell]
    findings: tuple[Finding, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    heard: Mapping[int, str] = field(default_factory=dict)
    """From which address each other rank spoke to this one."""
    named: bool = True
    """Whether it knows the id of its run, so that who answers is known."""
    master: Cell | None = None
    """What it saw at MASTER_ADDR, where that is another name than the first peer's."""

    def with_rates(self, measured: Mapping[tuple[int, int], Measured]) -> Report:
        """Return the report with what its pairs carry, where it was measured."""
        row = {
            place: replace(cell, bandwidth=each.rate, p50=each.p50, p99=each.p99)
            if (each := measured.get((self.place, place)))
            else cell
            for place, cell in self.row.items()
        }
        return replace(self, row=row)

    def as_dict(self) -> dict[str, Any]:
        return {
            **vars(self),
            "row": {str(place): cell.as_dict() for place, cell in self.row.items()},
            "findings": [finding.as_dict() for finding in self.findings],
            "master": self.master and self.master.as_dict(),
        }

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Report:
        """Return it from `as_dict`, by way of JSON. Raises KeyError, TypeError when it is none."""
        parsed = {
            "row": {int(place): Cell(**cell) for place, cell in data["row"].items()},
            "findings": tuple(Finding.of(finding) for finding in data["findings"]),
            "addresses": tuple(data["addresses"]),
            "master": data["master"] and Cell(**data["master"]),
            "heard": {int(rank): address for rank, address in data["heard"].items()},
        }
        return cls(**{**data, **parsed})
