"""Judge measurements against the reference values for healthy hardware in limits.toml.

Each row in the file names its source. A row's key is (model, check, ranks, nodes, payload, algorithm). If no
row matches a measurement, the verdict is UNKNOWN, but the report still contains the measurement.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .check import Check, Verdict, Where
from .compat import toml

if TYPE_CHECKING:
    from typing import Unpack

FILE = Path(__file__).parent / "limits.toml"
SHARES = {"peak": 0.5, "measured": 0.75, "limit": 1.0, "floor": 1.0}
"""Maps each kind of reference value to the default of `Row.share`.

DCGM's authors use 0.75 of a measured value. HyperPod replaces hardware that does not reach 0.5 of the
vendor's peak. This fraction is so low because no real load reaches the peak.
"""
MAX_BYTES = 128 << 10
"""Maximum size of a limits file in bytes, enough for more than a thousand rows."""
MARGIN = 0.05
"""A passing measurement gets a WARN if it differs from its limit by less than this fraction of the limit, as
in Azure NHC."""
RELATIONS = (">=", "<=", "==")


@dataclass(frozen=True)
class Row:
    """A row in limits.toml.

    `value` is the value in the source. `limit` is the value that a measurement must reach.
    """

    model: str
    """Case-insensitive pattern for the GPU's name in PyTorch, such as `NVIDIA H100*HBM3`, or `cpu`."""
    check: str
    value: float
    unit: str
    kind: Literal["peak", "measured", "limit", "floor"]
    source: str
    ranks: int | None = None
    """The exact number of ranks to which the row applies. None means any number."""
    nodes: int | None = None
    payload: int = 0
    """Minimum payload, in bytes, to which the row applies."""
    algorithm: str | None = None
    relation: Literal[">=", "<=", "=="] = ">="
    share: float | None = None
    """The fraction of `value` that a measurement must reach. None means the default in SHARES for the row's
    kind."""

    def __post_init__(self) -> None:
        """Raise ValueError if a field of the row is invalid."""
        if self.kind not in SHARES:
            raise ValueError(f"kind must be one of {', '.join(SHARES)}; found {self.kind!r}")
        if self.relation not in RELATIONS:
            raise ValueError(f"relation must be one of {' '.join(RELATIONS)}; found {self.relation!r}")
        if not self.source.strip():
            raise ValueError("source is empty: name the source of the figure, so that readers can look it up")
        if not math.isfinite(self.value) or self.value < 0:
            raise ValueError(f"value must be finite and at least 0; found {self.value!r}")
        if not 0 < (1.0 if self.share is None else self.share) <= 1:
            raise ValueError(f"share must be above 0 and at most 1; found {self.share!r}")

    @property
    def key(self) -> tuple[object, ...]:
        """Return the row's key. No two rows in a file may have the same key."""
        return (self.model.lower(), self.check, self.ranks, self.nodes, self.payload, self.algorithm)

    @property
    def limit(self) -> float:
        """Return the value that a measurement must reach, or must not exceed if the relation is `<=`."""
        share = SHARES[self.kind] if self.share is None else self.share
        return self.value / share if self.relation == "<=" else self.value * share

    @property
    def expected(self) -> float | None:
        """Return the reference value for healthy hardware, or None if the row's kind is limit or floor."""
        return self.value if self.kind in ("peak", "measured") else None

    def fits(
        self, model: str, check: str, ranks: int, nodes: int, payload: int, algorithm: str | None
    ) -> bool:
        """Return whether the row applies to this measurement."""
        return (
            self.check == check
            and fnmatchcase(model.lower(), self.model.lower())
            and self.ranks in (None, ranks)
            and self.nodes in (None, nodes)
            and self.payload <= payload
            and self.algorithm in (None, algorithm)
        )

    def specific(self) -> tuple[int, bool, bool, bool, int]:
        """Return a sort key that is greater for more specific rows.

        If several rows match, the most specific one is used.
        """
        letters = sum(letter not in "*?[]" for letter in self.model)
        conditions = (self.ranks is not None, self.nodes is not None, self.algorithm is not None)
        return (letters, *conditions, self.payload)


class Limits:
    """The rows from limits.toml and the user's own file."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = {row.key: row for row in rows}

    @classmethod
    def load(cls, extra: Path | str | None = None) -> Limits:
        """Return the rows from limits.toml and from the file `extra`.

        A row in `extra` replaces a row with the same key. Raises OSError or ValueError if a file cannot be
        used. The message identifies the invalid row.
        """
        rows = _read(FILE)
        return cls([*rows, *(_read(Path(extra)) if extra is not None else ())])

    def row(
        self,
        *,
        model: str,
        check: str,
        ranks: int = 1,
        nodes: int = 1,
        payload: int = 0,
        algorithm: str | None = None,
    ) -> Row | None:
        """Return the most specific row that applies to the measurement, or None."""
        matches = [
            row for row in self.rows.values() if row.fits(model, check, ranks, nodes, payload, algorithm)
        ]
        return max(matches, key=Row.specific, default=None)


def judged(
    id: str,
    tag: str,
    measured: float | None,
    unit: str,
    row: Row | None,
    cause: str,
    text: str,
    **location: Unpack[Where],
) -> Check:
    """Compare a measurement with a row's limit, and return the check. `location` identifies the GPU.

    The verdict is UNKNOWN if there is no measurement or no row, or if their units differ. It is WARN if the
    measurement passes, but is within MARGIN of the limit.
    """
    if measured is None or not math.isfinite(measured):
        return Check(
            id=id, tag=tag, verdict="UNKNOWN", text=f"{text}; there is no measurement", unit=unit, **location
        )
    measurement: dict[str, Any] = {"measured": measured, "unit": unit, **location}
    if row is None:
        return Check(
            id=id, tag=tag, verdict="UNKNOWN", text=f"{text}; no limit is known for this check", **measurement
        )
    if row.unit != unit:
        words = f"{text}; the limit's unit is {row.unit or 'none'}, but the measurement's is {unit or 'none'}"
        return Check(id=id, tag=tag, verdict="UNKNOWN", text=words, **measurement)
    verdict = _verdict(measured, row.relation, row.limit)
    return Check(
        id=id,
        tag=tag,
        verdict=verdict,
        text=f"{text}; limit {row.relation} {row.limit:.4g} {unit}".rstrip() + f" ({_origin(row)})",
        cause=None if verdict == "PASS" else cause,
        expected=row.expected,
        limit=row.limit,
        relation=row.relation,
        limit_kind=row.kind,
        limit_source=row.source,
        **measurement,
    )


def _verdict(measured: float, relation: str, limit: float) -> Verdict:
    if relation == "==":
        return "PASS" if measured == limit else "FAIL"
    if relation == "<=":
        if measured > limit:
            return "FAIL"
        return "WARN" if measured > limit * (1 - MARGIN) else "PASS"
    if measured < limit:
        return "FAIL"
    return "WARN" if measured < limit * (1 + MARGIN) else "PASS"


def _origin(row: Row) -> str:
    share = SHARES[row.kind] if row.share is None else row.share
    return row.kind if share == 1 else f"{share:g} of {row.value:g}, {row.kind}"


def _read(path: Path) -> list[Row]:
    """Return the rows in a file. Raises OSError if it cannot be read, and ValueError if it is invalid."""
    if path.exists() and not path.is_file():  # Reading a pipe or a device might block forever.
        raise ValueError(f"{path.name} is not a regular file")
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"{path.name} is larger than {MAX_BYTES} bytes")
    try:
        document = toml(data.decode())
    except ValueError as error:  # UnicodeDecodeError and TOMLDecodeError are ValueErrors.
        raise ValueError(f"{path.name} is not valid TOML: {error}") from error
    tables = document.get("row")
    if not isinstance(tables, list) or set(document) != {"row"}:
        raise ValueError(f"{path.name} must contain at least one [[row]] table, and nothing else")
    rows = []
    for number, table in enumerate(tables, 1):
        try:
            rows.append(_row(table))
        except (TypeError, ValueError, AttributeError) as error:
            raise ValueError(
                f"{path.name}, row {number} ({table.get('check', 'no check')}): {error}"
            ) from error
    keys = [row.key for row in rows]
    duplicate = next((key for at, key in enumerate(keys) if key in keys[:at]), None)
    if duplicate:
        raise ValueError(f"{path.name} has two rows for {duplicate}")
    return rows


_TYPES: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("model", "check", "unit", "kind", "source", "algorithm", "relation"), (str,)),
    **dict.fromkeys(("ranks", "nodes", "payload"), (int,)),
    **dict.fromkeys(("value", "share"), (int, float)),
}


def _row(table: Mapping[str, Any]) -> Row:
    names = {field.name for field in fields(Row)}
    if not set(table) <= names:
        raise ValueError(
            f"unknown keys {sorted(set(table) - names)}; the allowed keys are {', '.join(sorted(names))}"
        )
    for name, value in table.items():
        if not isinstance(value, _TYPES[name]) or isinstance(value, bool):
            expected = (
                "a string" if _TYPES[name] == (str,) else " or ".join(one.__name__ for one in _TYPES[name])
            )
            raise ValueError(f"{name} must be {expected}; found {value!r}")
    return Row(**table)
