"""The records of netcheck.jsonl: what netcheck said in a pod (docs/networking.md)."""

from __future__ import annotations

from typing import Literal

from harness.evidence.schema.record import Record

Word = Literal["ok", "failed", "unknown"]


class NetcheckCell(Record):
    """What one rank saw of another."""

    outcome: str
    """ok, pending, or a cause."""
    host: str
    text: str = ""
    address: str = ""
    rtt: float = 0.0
    """Seconds of a greeting and its answer."""
    rate: float = 0.0
    """Bytes per second of the 256 KiB that fill the packets."""
    bandwidth: float = 0.0
    """Bytes per second of one TCP stream; 0 unless it was measured (--bandwidth)."""
    p50: float = 0.0
    """Median of its round trips, in seconds."""
    p99: float = 0.0
    """99th percentile of its round trips, in seconds."""


class NetcheckStep(Record):
    """What one step proved, or could not."""

    step: str
    status: Word
    text: str
    cause: str | None = None
    ranks: list[int] = []
    """Node ranks that the cause accuses."""
    pattern: str = ""
    """Where in the matrix of all pairs: pair, ingress, egress, boundary, …"""
    seconds: float = 0.0


class NetcheckDiagnosis(Record):
    """A diagnosis. Its ranks are node ranks: the indexes of pods."""

    verdict: Word
    cause: str | None = None
    ranks: list[int] = []
    """Those that the cause accuses."""
    missing: list[int] = []
    """Those that spoke to nobody."""
    findings: list[NetcheckStep]
    rows: dict[int, dict[int, NetcheckCell]] = {}
    """Sender → receiver → what it saw. A sender that was not heard has no row."""
    nodes: int
    rank: int
    """The one that concluded: 0, or the one whose row alone it is."""
    whole: bool
    """It is about all pairs. False: rank 0 gave no verdict, and this is one rank's row."""
    seconds: float


class NetcheckRecord(Record):
    """One line of netcheck.jsonl: a diagnosis, and the pod that printed it."""

    at: str
    pod: str
    diagnosis: NetcheckDiagnosis
