"""Define the result of a diagnosis on one rank, and convert it to and from JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .finding import OUTSIDE, Finding
from .probe import Cell


@dataclass(frozen=True)
class Diagnosis:
    """The result on one rank. It covers all pairs if `whole` is true, otherwise only this rank's probes.

    `rows` maps each rank that reported to its row of the matrix, with a cell for each probed rank.
    """

    verdict: str
    cause: str | None
    ranks: tuple[int, ...]
    missing: tuple[int, ...]
    findings: tuple[Finding, ...]
    rows: Mapping[int, Mapping[int, Cell]]
    nodes: int
    rank: int
    whole: bool
    seconds: float

    @property
    def recommendations(self) -> list[str]:
        """The causes with their advice, and the reasons for unknown results.

        The list is empty if and only if the verdict is ok.
        """
        if self.verdict == "ok":
            return []
        causes = [f"{f.cause}: {f.advice}" for f in self.findings if f.status == "failed"]
        # Steps that were not requested need no advice. If bandwidth was requested, its finding has ranks.
        asked = [f for f in self.findings if f.step not in OUTSIDE or (f.step == "bandwidth" and f.ranks)]
        unknown = [f for f in asked if f.status == "unknown"]
        doubts = [f"{f.step}: {f.text}" for f in unknown if f.step == "variables" or not causes]
        return list(dict.fromkeys([*causes, *doubts])) or ["Start netcheck in every pod at the same time."]

    def as_message(self) -> dict[str, Any]:
        """Return the diagnosis in the format that `of` accepts.

        Default values in cells are omitted to save space, because a matrix has many cells.
        """
        rows = {s: {r: cell.as_message() for r, cell in row.items()} for s, row in self.rows.items()}
        return {**self._as_dict(), "rows": rows}

    def as_dict(self) -> dict[str, Any]:
        """Return the diagnosis as JSON-compatible data."""
        rows = {str(s): {str(r): cell.as_dict() for r, cell in row.items()} for s, row in self.rows.items()}
        return {**self._as_dict(), "rows": rows}

    def _as_dict(self) -> dict[str, Any]:
        """Return the diagnosis as JSON-compatible data, without `rows`."""
        return {
            **vars(self),
            "ranks": list(self.ranks),
            "missing": list(self.missing),
            "findings": [finding.as_dict() for finding in self.findings],
            "recommendations": self.recommendations,
        }

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Diagnosis:
        """Return a diagnosis from the result of `as_dict` or `as_message`, even after a JSON round trip."""
        rows = {int(s): {int(r): Cell(**cell) for r, cell in row.items()} for s, row in data["rows"].items()}
        fields = {name: data[name] for name in cls.__dataclass_fields__}
        tuples = {name: tuple(data[name]) for name in ("ranks", "missing")}
        return cls(**{**fields, **tuples, "findings": tuple(map(Finding.of, data["findings"])), "rows": rows})
