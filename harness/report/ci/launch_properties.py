"""Describe a launch for CI: in JUnit properties, in CTRF and in the job summary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from harness.evidence.io.reader import Bundle
from harness.evidence.schema.bundle import Verdict, VerdictWord
from harness.judge.acceptance.expected_nodes import of_bundle
from harness.report.html import acceptance, netcheck
from harness.report.html.attempts import restarted
from harness.report.html.page import REPORT

PREFIX = "harness."
_LINES = ("retries", "matrix", "acceptance")
"""Names of the fields whose items are separated by line breaks. In `ranks`, items are separated by commas."""


class Launched(BaseModel):
    """A launch as reported to CI.

    `restarts` describes which ranks ran more than once and why, or is empty. `retries` lists operations that
    the harness retried, in the form "what: reason", even for a PASS. `report` is empty if there is no report.
    `matrix` is the netcheck matrix for a launch that did not pass, and `acceptance` contains the nodes'
    acceptance results. Both are in Markdown.
    """

    model_config = ConfigDict(frozen=True)

    verdict: VerdictWord
    cause: str = ""
    ranks: list[int] = []
    explanation: str = ""
    bundle: str = ""
    report: str = ""
    restarts: str = ""
    retries: list[str] = []
    matrix: list[str] = []
    acceptance: list[str] = []


def launched(verdict: Verdict, bundle: Path) -> Launched:
    """Return the description of a launch, from its verdict and bundle."""
    evidence = Bundle.open(bundle)
    manifest, report = evidence.manifest, bundle / REPORT
    fleet = of_bundle(evidence)
    matrix = None if verdict.verdict == "PASS" else netcheck.matrix(evidence)
    return Launched(
        verdict=verdict.verdict,
        cause=verdict.cause or "",
        ranks=verdict.ranks,
        explanation=verdict.explanation,
        bundle=str(bundle),
        report=str(report) if report.is_file() else "",
        restarts=restarted(verdict),
        retries=[f"{retry.what}: {retry.reason}" for retry in manifest.retries] if manifest else [],
        acceptance=[line for line in acceptance.lines(fleet) if line] if fleet else [],
        matrix=[line for line in netcheck.lines(matrix) if line] if matrix else [],
    )


def properties(launch: Launched) -> Iterator[tuple[str, str]]:
    """Yield (name, value) pairs for a test's <properties>, starting with the verdict."""
    for name, value in launch:
        text = value if isinstance(value, str) else ("\n" if name in _LINES else ",").join(map(str, value))
        yield f"{PREFIX}{name}", text


def from_properties(properties: Iterable[tuple[str, object]]) -> list[Launched]:
    """Return the launches in a test's properties, in order. Other properties are ignored."""
    launches: list[dict[str, object]] = []
    for name, value in properties:
        field = name.removeprefix(PREFIX)
        if not name.startswith(PREFIX) or field not in Launched.model_fields:
            continue
        if field == "verdict":
            launches.append({})
        if launches:
            launches[-1][field] = _value(field, str(value))
    return [Launched.model_validate(fields) for fields in launches]


def _value(field: str, text: str) -> object:
    if field == "ranks":
        return [int(rank) for rank in text.split(",") if rank]
    return text.splitlines() if field in _LINES else text
