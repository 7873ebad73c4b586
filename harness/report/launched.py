"""What a CI system is told of one launch: the same words as JUnit properties, in CTRF and in a summary."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from harness.evidence.reader import Bundle
from harness.evidence.schema import Verdict, VerdictWord
from harness.report.page import REPORT

PREFIX = "harness."


class Launched(BaseModel):
    """`retries`: what the harness had to try again, "what: reason" each. A PASS with some of them is one that
    came at the second attempt of something, and that is told with it. `report` is "" when there is none."""

    model_config = ConfigDict(frozen=True)

    verdict: VerdictWord
    cause: str = ""
    ranks: list[int] = []
    explanation: str = ""
    bundle: str = ""
    report: str = ""
    retries: list[str] = []


def launched(verdict: Verdict, bundle: Path) -> Launched:
    """Of a bundle and its verdict."""
    manifest = Bundle.open(bundle).manifest
    report = bundle / REPORT
    return Launched(
        verdict=verdict.verdict,
        cause=verdict.cause or "",
        ranks=verdict.ranks,
        explanation=verdict.explanation,
        bundle=str(bundle),
        report=str(report) if report.is_file() else "",
        retries=[f"{retry.what}: {retry.reason}" for retry in manifest.retries] if manifest else [],
    )


def properties(launch: Launched) -> Iterator[tuple[str, str]]:
    """Names and values for a test's <properties>; the verdict is the first of each launch."""
    for name, value in launch:
        text = value if isinstance(value, str) else ("\n" if name == "retries" else ",").join(map(str, value))
        yield f"{PREFIX}{name}", text


def from_properties(found: Iterable[tuple[str, object]]) -> list[Launched]:
    """The launches of one test, in order; other properties are passed over."""
    launches: list[dict[str, object]] = []
    for name, value in found:
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
    return text.splitlines() if field == "retries" else text
