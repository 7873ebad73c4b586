"""The records of netcheck.jsonl: the diagnosis that netcheck printed in a pod (docs/networking.md)."""

from __future__ import annotations

from typing import Literal

from harness.evidence.schema.record import Record

Word = Literal["ok", "failed", "unknown"]


class NetcheckCell(Record):
    """The result of a probe that one rank made of another rank."""

    outcome: str
    """The result: "ok", "pending" or a cause."""
    host: str
    text: str = ""
    address: str = ""
    sender: str = ""
    """The address of the machine whose ICMP message ended the connection, or ""."""
    rtt: float = 0.0
    """Round-trip time of a greeting and its response, in seconds."""
    rate: float = 0.0
    """Bytes per second during the transfer of 256 KiB in full-size packets."""
    bandwidth: float = 0.0
    """Bytes per second of one TCP stream. 0 unless the bandwidth was measured (--bandwidth)."""
    p50: float = 0.0
    """Median round-trip time of the bandwidth measurement, in seconds."""
    p99: float = 0.0
    """99th percentile of the round-trip times of the bandwidth measurement, in seconds."""


class NetcheckStep(Record):
    """The result of one step of the diagnosis."""

    step: str
    status: Word
    text: str
    cause: str | None = None
    ranks: list[int] = []
    """Node ranks to which the cause applies."""
    pattern: str = ""
    """The pattern of the failed pairs in the matrix of all pairs: pair, ingress, egress, boundary, …"""
    seconds: float = 0.0


class NetcheckDiagnosis(Record):
    """A diagnosis by netcheck. All ranks in it are node ranks, that is, pod indexes."""

    verdict: Word
    cause: str | None = None
    ranks: list[int] = []
    """Node ranks to which the cause applies."""
    missing: list[int] = []
    """Node ranks that contacted no other rank."""
    findings: list[NetcheckStep]
    rows: dict[int, dict[int, NetcheckCell]] = {}
    """Sender → receiver → the sender's result. A sender whose results did not arrive is absent."""
    nodes: int
    rank: int
    """The node rank that made the diagnosis: 0 if `whole` is true, else the rank that probed the others."""
    whole: bool
    """Whether the diagnosis covers all pairs. If not, rank 0 gave no verdict, and `rows` contains the results
    of one rank."""
    seconds: float


class NetcheckRecord(Record):
    """One line of netcheck.jsonl: a diagnosis and the pod that printed it."""

    at: str
    pod: str
    diagnosis: NetcheckDiagnosis
