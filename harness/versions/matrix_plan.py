"""Compute the cells of a matrix: all combinations of versions, except excluded and duplicate ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from harness.context import RunContext
from harness.core.errors import UsageError
from harness.core.replacements import parse
from harness.versions.candidates import LOCKED, Candidate, candidates, locked
from harness.versions.cell import Cell
from harness.versions.matrix_definition import MAX_CELLS, Definition, Expectation, Rule


@dataclass(frozen=True)
class Value:
    """A version of a package in the matrix, or a SPEC that matches no version."""

    package: str
    requested: str
    """The SPEC as written by the user."""
    candidate: Candidate | None = None
    problem: str = ""
    """Why the SPEC matches no version. The string is empty if there is a candidate."""

    @property
    def label(self) -> str:
        return self.candidate.label if self.candidate else self.requested

    @property
    def identity(self) -> str:
        return self.candidate.identity if self.candidate else f"{self.package} {self.requested}"


@dataclass(frozen=True)
class Axis:
    """A package and its versions, in the order of the SPECs. A range's versions are sorted oldest first."""

    package: str
    values: tuple[Value, ...]


@dataclass(frozen=True)
class PlannedCell:
    """A cell of the matrix. `values` contains one version per package."""

    values: tuple[Value, ...]
    expected: Expectation | None = None

    @property
    def labels(self) -> dict[str, str]:
        return {value.package: value.label for value in self.values}

    @property
    def problem(self) -> str:
        """Return the reason why the cell cannot be launched, or ""."""
        return "; ".join(value.problem for value in self.values if value.problem)

    @property
    def cell(self) -> Cell:
        """Return the cell for a launch. The cell must not have a problem."""
        return Cell(tuple(value.candidate for value in self.values if value.candidate is not None))


@dataclass(frozen=True)
class Plan:
    """The cells of a matrix, in launch order."""

    axes: tuple[Axis, ...]
    cells: tuple[PlannedCell, ...]
    excluded: tuple[tuple[PlannedCell, str], ...] = ()
    """Pairs of an excluded cell and the reason for its exclusion."""
    notes: tuple[str, ...] = field(default=())
    """Notes about rules that do not match any cell."""


def axes(definition: Definition, context: RunContext) -> tuple[Axis, ...]:
    """Return the versions of each package. Paths and Git references are built.

    Raises UsageError if none of a package's SPECs matches a version.
    """
    return tuple(
        _axis(package, specs, definition.newest, context) for package, specs in definition.vary.items()
    )


def _axis(package: str, specs: Sequence[str], newest: int | None, context: RunContext) -> Axis:
    values: dict[str, Value] = {}
    for spec in specs:
        try:
            row = [Value(package, spec, one) for one in candidates(package, spec, context, newest)]
        except UsageError as error:
            context.progress(f"{package} {spec}: {error.message}")
            row = [Value(package, spec, problem=error.message)]
        for value in row:
            values.setdefault(value.identity, value)
    if not any(value.candidate for value in values.values()):
        problems = "; ".join(dict.fromkeys(value.problem for value in values.values()))
        raise UsageError(f"no version of {package} can be used in the matrix: {problems}")
    return Axis(package, tuple(values.values()))


def plan(definition: Definition, axes: tuple[Axis, ...]) -> Plan:
    """Return the cells of the matrix. Raises UsageError if there are none, or too many."""
    rules = [*definition.exclude, *definition.expect]
    used: set[int] = set()
    cells, excluded_cells = [], []
    for values in _distinct(_each(axes) if definition.each else product(*(axis.values for axis in axes))):
        matching = [number for number, rule in enumerate(rules) if matches(rule, values)]
        used.update(matching)
        exclusion = next((rules[n] for n in matching if n < len(definition.exclude)), None)
        expected = next((rule for n in matching if isinstance(rule := rules[n], Expectation)), None)
        if exclusion is not None:
            excluded_cells.append((PlannedCell(values), exclusion.reason or f"excluded: {exclusion.text}"))
            continue
        cells.append(PlannedCell(values, expected))
        if len(cells) > MAX_CELLS:
            raise UsageError(
                f"the matrix has more than {MAX_CELLS} cells",
                hint="use --newest N to limit the number of versions",
            )
    if not cells:
        raise UsageError("the matrix has no cells, because `exclude` matches all of them")
    notes = [f"no cell matches the rule {rule.text}" for n, rule in enumerate(rules) if n not in used]
    return Plan(axes, tuple(cells), tuple(excluded_cells), tuple(notes))


def matches(rule: Rule, values: Iterable[Value]) -> bool:
    """Return whether a cell has a matching version of every package in the rule."""
    by_package = {value.package: value for value in values}
    return all(_matches(spec, by_package.get(package)) for package, spec in rule.where.items())


def _matches(spec: str, value: Value | None) -> bool:
    if value is None or spec in (value.requested, value.label):
        return value is not None
    one = value.candidate
    if one is None or spec in (LOCKED, "latest"):
        return one is not None and spec == LOCKED and not one.spec
    try:
        requested = parse(value.package, spec)
        if requested.kind != "versions":
            return bool(one.digest) and parse(value.package, value.requested).spec == requested.spec
    except UsageError:
        return False
    # In versions of `packaging` before 26.1, >1.dev1 does not contain 1.dev2+local.
    version = one.version if "+" in requested.versions else Version(one.version).public
    # A checkout with version 1.0 is not the published version 1.0.
    return not one.digest and version in SpecifierSet(requested.versions, prereleases=True)


def _each(axes: Sequence[Axis]) -> Iterator[tuple[Value, ...]]:
    """Yield cells that replace one package, while the other packages keep their locked versions."""
    base = {axis.package: _locked(axis.package) for axis in axes}
    for axis in axes:
        for value in axis.values:
            combination: Mapping[str, Value] = {**base, axis.package: value}
            yield tuple(combination.values())


def _locked(package: str) -> Value:
    try:
        return Value(package, LOCKED, locked(package))
    except UsageError:
        return Value(package, LOCKED, Candidate(package, "", "none", "not installed"))


def _distinct(cells: Iterable[tuple[Value, ...]]) -> Iterator[tuple[Value, ...]]:
    identities: set[tuple[str, ...]] = set()
    for values in cells:
        identity = tuple(value.identity for value in values)
        if identity not in identities:
            identities.add(identity)
            yield values
