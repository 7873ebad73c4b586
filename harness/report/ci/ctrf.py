"""CTRF (ctrf.io): one document for a session of tests, as far as the harness writes it.

The fields and their meaning are those of the specification 1.0.0. `extra` is the place that it has for other
data. Unknown fields are refused, as the JSON schema of CTRF refuses them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

SPECIFICATION = "1.0.0"
Status = Literal["passed", "failed", "skipped", "pending", "other"]
STATUSES: tuple[Status, ...] = ("passed", "failed", "skipped", "pending", "other")
Milliseconds = int
"""Milliseconds, since the epoch or of a duration."""


class _Part(BaseModel):
    model_config = ConfigDict(
        extra="forbid", strict=True, alias_generator=to_camel, validate_by_name=True, validate_by_alias=True
    )


class Tool(_Part):
    name: str = Field(min_length=1)
    version: str | None = None


class Attachment(_Part):
    name: str
    content_type: str
    path: str


class Attempt(_Part):
    """An attempt before the last one: the test was run again after it."""

    attempt: int = Field(ge=1)
    status: Status
    duration: Milliseconds = Field(ge=0)
    start: Milliseconds
    stop: Milliseconds
    message: str | None = None
    trace: str | None = None
    extra: dict[str, Any] | None = None


class Test(_Part):
    """One test. `flaky`: it passed after an attempt that failed. `retries`: how often it was run again."""

    __test__ = False

    name: str = Field(min_length=1)
    status: Status
    duration: Milliseconds = Field(ge=0)
    start: Milliseconds
    stop: Milliseconds
    suite: list[str] | None = Field(default=None, min_length=1)
    message: str | None = None
    trace: str | None = None
    line: int | None = None
    raw_status: str | None = None
    tags: list[str] | None = None
    file_path: str | None = None
    retries: int = Field(default=0, ge=0)
    retry_attempts: list[Attempt] | None = Field(default=None, min_length=1)
    flaky: bool = False
    attachments: list[Attachment] | None = None
    extra: dict[str, Any] | None = None


class Summary(_Part):
    tests: int
    passed: int
    failed: int
    skipped: int
    pending: int
    other: int
    flaky: int
    start: Milliseconds
    stop: Milliseconds
    duration: Milliseconds
    extra: dict[str, Any] | None = None


class Results(_Part):
    tool: Tool
    summary: Summary
    tests: list[Test]


class Document(_Part):
    report_format: Literal["CTRF"] = "CTRF"
    spec_version: str = SPECIFICATION
    report_id: str
    timestamp: str
    generated_by: str
    results: Results

    def text(self) -> str:
        """Return it as JSON. Unknown values are left out."""
        return self.model_dump_json(by_alias=True, exclude_none=True, indent=2) + "\n"


def document(
    tests: Sequence[Test],
    tool: Tool,
    start: Milliseconds,
    stop: Milliseconds,
    timestamp: str,
    extra: dict[str, Any] | None = None,
) -> Document:
    """Count the tests into a document. `timestamp` is now, as RFC 3339; `extra` belongs to the summary."""
    counts = {status: sum(test.status == status for test in tests) for status in STATUSES}
    summary = Summary(
        tests=len(tests),
        flaky=sum(test.flaky for test in tests),
        start=start,
        stop=stop,
        duration=stop - start,
        extra=extra,
        **counts,
    )
    results = Results(tool=tool, summary=summary, tests=list(tests))
    return Document(
        report_id=str(uuid4()), timestamp=timestamp, generated_by="pluto-e2e-harness", results=results
    )
