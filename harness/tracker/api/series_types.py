"""Types of responses that contain metrics, used to generate the OpenAPI document (openapi.py)."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from harness.tracker.api.body_types import Status


class MetricNames(Struct):
    projectName: str
    metricNames: list[str]


class Shown(Struct):
    logName: str
    logGroup: str
    value: float
    valueFlag: Literal["", "NaN", "Inf", "-Inf"]
    time: str
    step: int


class Metrics(Struct):
    metrics: list[Shown]


class RawMetrics(Metrics):
    truncated: bool


class At(Struct):
    step: int
    value: float


class Statistics(Struct):
    logName: str
    logGroup: str
    count: int
    min: float
    max: float
    mean: float
    stddev: float
    last: At
    first: At


class RunStatistics(Struct):
    runId: int
    runName: str
    projectName: str
    url: str
    metrics: list[Statistics]


class Compared(Struct):
    runId: int
    runName: str
    url: str
    status: Status
    config: Any
    stats: Statistics | None


class Comparison(Struct):
    projectName: str
    logName: str
    comparisonUrl: str
    runs: list[Compared]


class Place(Struct):
    rank: int
    runId: int
    runName: str
    status: Status
    url: str
    value: float
    createdAt: str


class Leaderboard(Struct):
    projectName: str
    logName: str
    aggregation: str
    direction: str
    runs: list[Place]
    total: int
