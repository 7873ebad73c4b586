"""The results of a matrix: the status of each cell, and the exit code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, Literal

from pydantic import BaseModel, computed_field

from harness.core.replacements import CONTROLLERS
from harness.versions.cell import Outcome, Result
from harness.versions.matrix_definition import Expectation

Status = Literal["passed", "failed", "expected failure", "unexpected pass", "flaky", "not run"]
STATUSES: Final[tuple[Status, ...]] = (
    "failed",
    "not run",
    "unexpected pass",
    "flaky",
    "expected failure",
    "passed",
)
"""All statuses of a cell, worst first."""
EXIT_CODES: Final[dict[Result, int]] = {"PASS": 2, "FAIL": 1, "UNKNOWN": 2, "not installable": 64}
"""Maps the result of a launch that did not pass to an exit code. A launch with the result PASS also counts as
not passed if its process exited with a code other than 0."""
WORST: Final = (1, 2, 64)
"""Exit codes, worst first: 1 (proven failure), 2 (nothing proven) and 64 (packages cannot be installed)."""


class CellResult(BaseModel):
    """The result of one cell in a matrix."""

    versions: dict[str, str]
    """Maps each package name to its version, or to the SPEC of a checkout."""
    options: list[str] = []
    """The options of `harness run` that launch this cell."""
    expected: Expectation | None = None
    outcomes: list[Outcome] = []
    """All launches of the cell, in launch order."""

    @property
    def name(self) -> str:
        return ", ".join(f"{package} {version}" for package, version in self.versions.items())

    @computed_field  # type: ignore[prop-decorator]
    @property
    def status(self) -> Status:
        """Return the status. A cell is flaky if some, but not all, of its launches ended as expected."""
        if not self.outcomes:
            return "not run"
        as_expected = [self.is_expected(outcome) for outcome in self.outcomes]
        if any(as_expected):
            return "flaky" if not all(as_expected) else "expected failure" if self.expected else "passed"
        return "unexpected pass" if all(outcome.passed for outcome in self.outcomes) else "failed"

    @computed_field  # type: ignore[prop-decorator]
    @property
    def exit_code(self) -> int:
        """Return the cell's contribution to the exit code: 0 unless the cell failed or was not launched."""
        if self.status == "not run":
            return 2
        if self.status != "failed":
            return 0
        return worst([EXIT_CODES[one.result] for one in self.outcomes if not one.passed])

    @property
    def shown(self) -> Outcome | None:
        """Return the launch to show for the cell: the last launch that did not pass, or else the last one."""
        not_passed = [outcome for outcome in self.outcomes if not outcome.passed]
        return not_passed[-1] if not_passed else self.outcomes[-1] if self.outcomes else None

    def is_expected(self, outcome: Outcome) -> bool:
        """Return whether a launch has the expected result and cause. Without a rule, PASS is expected."""
        if self.expected is None:
            return outcome.passed
        same_cause = self.expected.cause in (None, outcome.cause)
        return outcome.result == self.expected.result and same_cause

    def needs_launch(self, repeat: int) -> bool:
        """Return whether another launch is needed to determine the status.

        A cell is launched up to `repeat` times, until one launch ends as expected. A cell whose packages
        cannot be installed is not launched again.
        """
        if not self.outcomes:
            return True
        last = self.outcomes[-1]
        return (
            len(self.outcomes) < repeat
            and last.result != "not installable"
            and not any(self.is_expected(outcome) for outcome in self.outcomes)
        )


class AxisValue(BaseModel):
    """A version of a package in a matrix."""

    label: str
    requested: str
    version: str | None = None
    released: str | None = None
    """The date on which the version was uploaded to the index."""
    digest: str = ""
    problem: str = ""


class Document(BaseModel):
    """The results of a matrix, as written to matrix.json."""

    schema_version: int = 1
    folder: str
    job: str
    started_at: str
    seconds: float
    parallel: int
    repeat: int
    axes: dict[str, list[AxisValue]]
    """Maps each package to its versions in the matrix."""
    cells: list[CellResult]
    excluded: dict[str, str] = {}
    """Maps the name of each excluded cell to the reason."""
    notes: list[str] = []
    replace: dict[str, str] = {}
    """Maps each component that the matrix does not vary, but that was replaced in all cells, to its SPEC."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def counts(self) -> dict[str, int]:
        counts = Counter(cell.status for cell in self.cells)
        return {status: counts[status] for status in STATUSES if counts[status]}

    @computed_field  # type: ignore[prop-decorator]
    @property
    def exit_code(self) -> int:
        """Return the worst exit code among all cells."""
        return worst([cell.exit_code for cell in self.cells])

    @computed_field  # type: ignore[prop-decorator]
    @property
    def bisects(self) -> list[list[str]]:
        """Return commands, without duplicates, that search for the versions in which the failures began.

        A search needs a passed cell that differs from the failed cell only in the version of one package.
        Between two checkouts, there are no versions to search.
        """
        commands: dict[tuple[str, str, str, str], list[str]] = {}
        passed = [cell for cell in self.cells if cell.status == "passed"]
        for cell in self.cells:
            outcome = cell.shown
            if cell.status != "failed" or outcome is None or outcome.result == "not installable":
                continue
            for package in (name for name in self.axes if name not in CONTROLLERS):
                if (good := self._nearest(passed, cell, package)) is not None:
                    bad = self._published(package, cell)
                    question = (package, good, bad, f"{outcome.result} {outcome.cause}")
                    command = ["harness", "bisect", package, "--good", good, "--bad", bad, "--job", self.job]
                    commands.setdefault(question, command + _without(package, cell.options))
        return list(commands.values())

    def _nearest(self, passed: Sequence[CellResult], cell: CellResult, package: str) -> str | None:
        """Return the package's version in a passed cell that is otherwise identical, or None.

        If several cells qualify, return the version of the nearest cell in the order of the matrix.
        """
        if not self._published(package, cell):
            return None
        candidates = [
            other
            for other in passed
            if other.versions == cell.versions | {package: other.versions[package]}
            and self._published(package, other)
        ]
        places = {value.label: place for place, value in enumerate(self.axes[package])}
        own = places[cell.versions[package]]
        nearest = min(candidates, key=lambda other: abs(places[other.versions[package]] - own), default=None)
        return self._published(package, nearest) if nearest is not None else None

    def _published(self, package: str, cell: CellResult) -> str:
        """Return the version of a package in a cell, or "" for a checkout."""
        label = cell.versions[package]
        value = next(value for value in self.axes[package] if value.label == label)
        return "" if value.digest else value.version or ""

    @property
    def summary(self) -> str:
        """Return the number of cells with each status as text, such as "1 failed, 3 passed"."""
        return ", ".join(f"{count} {status}" for status, count in self.counts.items())

    @property
    def others(self) -> str:
        """Return a phrase that lists the components replaced in all cells, such as "with kueue v0.19.2", or
        ""."""
        components = ", ".join(f"{name} {spec}" for name, spec in self.replace.items())
        return f"with {components}" if components else ""


def worst(codes: Sequence[int]) -> int:
    """Return the worst exit code, or 0 if `codes` is empty or contains only 0."""
    return next((code for code in WORST if code in codes), 0)


def _without(package: str, options: Sequence[str]) -> list[str]:
    """Return options of `harness run` without the option that replaces this package."""
    pairs = zip(options[::2], options[1::2], strict=True)
    return [word for name, spec in pairs if not spec.startswith(f"{package}=") for word in (name, spec)]
