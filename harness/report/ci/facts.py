"""The facts of a launch that are reported to CI, in JUnit properties, CTRF and the job summary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from harness.evidence.io.reader import Bundle
from harness.evidence.schema.bundle import Verdict, VerdictWord
from harness.judge.acceptance.bundle import of_bundle
from harness.report.html import acceptance, netcheck
from harness.report.html.attempts import restarted
from harness.report.html.page import REPORT

PREFIX = "harness."
_LINES = ("retries", "matrix", "acceptance")
"""Fields whose items are separated by line breaks. The items of `ranks` are separated by commas."""


class Launched(BaseModel):
    """A launch as reported to CI.

    `restarts` describes the ranks that ran more than once and why, or is empty. `retries` lists the
    operations that the harness retried, each as "what: reason", also for a PASS. `report` is empty if there
    is no report. `matrix` is the netcheck matrix of a launch that did not pass, and `acceptance` contains the
    acceptance results of the nodes. Both are in Markdown.
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
    """Return the facts of a launch from its verdict and bundle."""
    evidence = Bundle.open(bundle)
    manifest, report = evidence.manifest, bundle / REPORT
    fleet = of_bundle(evidence)
    seen = None if verdict.verdict == "PASS" else netcheck.matrix(evidence)
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
        matrix=[line for line in netcheck.lines(seen) if line] if seen else [],
    )


def properties(launch: Launched) -> Iterator[tuple[str, str]]:
    """Return names and values for the <properties> of a test. The verdict comes first."""
    for name, value in launch:
        text = value if isinstance(value, str) else ("\n" if name in _LINES else ",").join(map(str, value))
        yield f"{PREFIX}{name}", text


def from_properties(properties: Iterable[tuple[str, object]]) -> list[Launched]:
    """Return the launches in the properties of a test, in order. Other properties are ignored."""
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
