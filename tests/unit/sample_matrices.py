"""Outcomes and documents of matrices, for tests."""

from __future__ import annotations

from pathlib import Path

from harness.versions.cell import Outcome, Result
from harness.versions.matrix_definition import Expectation
from harness.versions.matrix_results import AxisValue, CellResult, Document


def outcome(
    result: Result = "PASS", cause: str | None = None, attempt: int = 1, **changes: object
) -> Outcome:
    codes = {"PASS": 0, "FAIL": 1, "UNKNOWN": 2, "not installable": 64}
    found = Outcome(
        key="k",
        cell={},
        attempt=attempt,
        result=result,
        exit_code=codes[result],
        cause=cause,
        explanation="" if result == "PASS" else f"because of {result}",
        started_at="2026-11-28T21:00:00Z",
        seconds=25.4,
    )
    return found.model_copy(update=changes)


def cell(
    *outcomes: Outcome, versions: dict[str, str] | None = None, expected: str | None = None
) -> CellResult:
    """Return a cell. `expected` is the expected result, or result and cause with a space between them."""
    rule = None
    if expected is not None:
        result, _, cause = expected.partition(" ")
        fields = {"where": {"client": "1.0"}, "result": result, "cause": cause or None}
        rule = Expectation.model_validate(fields)
    return CellResult(
        versions=versions or {"client": "1.0"},
        options=["--replace", "client=1.0"],
        expected=rule,
        outcomes=list(outcomes),
    )


def document(folder: Path, *cells: CellResult) -> Document:
    labels: dict[str, dict[str, None]] = {}
    for each in cells:
        for package, label in each.versions.items():
            labels.setdefault(package, {})[label] = None
    return Document(
        folder=str(folder),
        job="jobs/<multinode>.yaml",
        started_at="2026-11-28T21:00:00Z",
        seconds=60,
        parallel=2,
        repeat=3,
        axes={
            package: [
                AxisValue(label=label, requested=label, version=label, released="2026-11-01")
                for label in all_
            ]
            for package, all_ in labels.items()
        },
        cells=list(cells),
        excluded={"client 0.9": "too old | really"},
        notes=["no cell matches the rule client 7"],
    )
