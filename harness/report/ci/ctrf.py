"""Define models for test results in the CTRF format (ctrf.io), with the fields that the harness writes.

The fields follow specification 1.0.0, which provides `extra` for other data. Unknown fields are rejected, as
in the CTRF JSON schema.
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
"""A time in milliseconds since the epoch, or a duration in milliseconds."""


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
    """An attempt to run a test that was followed by a retry."""

    attempt: int = Field(ge=1)
    status: Status
    duration: Milliseconds = Field(ge=0)
    start: Milliseconds
    stop: Milliseconds
    message: str | None = None
    trace: str | None = None
    extra: dict[str, Any] | None = None


class Test(_Part):
    """A test. `flaky` means that it passed after a failed attempt. `retries` is the number of retries."""

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
        """Return the document as JSON, without unset values."""
        return self.model_dump_json(by_alias=True, exclude_none=True, indent=2) + "\n"


def document(
    tests: Sequence[Test],
    tool: Tool,
    start: Milliseconds,
    stop: Milliseconds,
    timestamp: str,
    extra: dict[str, Any] | None = None,
) -> Document:
    """Return a document with the tests and their counts.

    `timestamp` is the current time in RFC 3339 format. `extra` is included in the summary.
    """
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
