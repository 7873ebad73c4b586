"""Define the report that each rank sends to rank 0 as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .bandwidth import Measured
from .cpu_delay import Delay
from .finding import Finding
from .probe import Cell


@dataclass(frozen=True)
class Report:
    """One rank's report. `place` is its index in the list of peers. `row` has a cell for each probed peer."""

    place: int
    rank: int
    host: str
    instance: str
    addresses: tuple[str, ...]
    row: Mapping[int, Cell]
    findings: tuple[Finding, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    heard: Mapping[int, str] = field(default_factory=dict)
    """Maps each rank to the address from which it greeted this rank."""
    named: bool = True
    """Whether a run id is set. Without a run id, ranks of other jobs cannot be recognised."""
    master: Cell | None = None
    """The result of probing MASTER_ADDR, if it differs from the first peer's name."""
    port: int = 0
    """The port of this rank's greeting server, or 0 if it has none."""
    age: float = 0.0
    """Seconds since this rank started."""
    delay: Delay = field(default_factory=Delay)
    """The recent delays of this rank's process."""
    dns: float = 0.0
    """The duration of the DNS server's slowest recent answer in seconds, or 0 if there was none."""

    def with_rates(self, measured: Mapping[tuple[int, int], Measured]) -> Report:
        """Return the report with the measured bandwidth added to this rank's row."""
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
            "row": {str(place): cell.as_message() for place, cell in self.row.items()},
            "findings": [finding.as_dict() for finding in self.findings],
            "master": self.master and self.master.as_message(),
            "delay": self.delay.as_dict(),
        }

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Report:
        """Return a report from the result of `as_dict`, which may have passed through JSON.

        Raises KeyError or TypeError if the data is not a report.
        """
        parsed = {
            "row": {int(place): Cell(**cell) for place, cell in data["row"].items()},
            "findings": tuple(Finding.of(finding) for finding in data["findings"]),
            "addresses": tuple(data["addresses"]),
            "master": data["master"] and Cell(**data["master"]),
            "delay": Delay(**data["delay"]),
            "heard": {int(rank): address for rank, address in data["heard"].items()},
        }
        return cls(**{**data, **parsed})
