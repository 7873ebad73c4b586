"""The records in netcheck.jsonl: the diagnoses printed by netcheck in the pods (docs/networking.md)."""

from __future__ import annotations

from typing import Literal

from harness.evidence.schema.record import Record

Word = Literal["ok", "failed", "unknown"]


class NetcheckCell(Record):
    """The result of one rank's probe of another rank."""

    outcome: str
    """The result: "ok", "pending" or a cause."""
    withheld: str = ""
    """The cause of a failure that is not proved, if `outcome` is "pending", otherwise ""."""
    host: str
    text: str = ""
    address: str = ""
    sender: str = ""
    """The address of the machine whose ICMP message ended the connection, or "" if there was no such
    message."""
    rtt: float = 0.0
    """The round-trip time of a greeting message and the response to it, in seconds."""
    rate: float = 0.0
    """The throughput in bytes per second of a transfer of 256 KiB in full-size packets."""
    bandwidth: float = 0.0
    """The throughput of one TCP stream in bytes per second, or 0 if the bandwidth was not measured
    (--bandwidth)."""
    p50: float = 0.0
    """The median round-trip time during the bandwidth measurement, in seconds."""
    p99: float = 0.0
    """The 99th percentile of round-trip times during the bandwidth measurement, in seconds."""


class NetcheckStep(Record):
    """The result of one step of a netcheck diagnosis."""

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
    """Node ranks that did not contact any other rank."""
    findings: list[NetcheckStep]
    rows: dict[int, dict[int, NetcheckCell]] = {}
    """Each sender's results, keyed by sender and then by receiver. Senders whose results did not arrive are
    absent."""
    nodes: int
    rank: int
    """The node rank that made the diagnosis. It is 0 if `whole` is true."""
    whole: bool
    """Whether the diagnosis covers all pairs of ranks. If false, rank 0 did not provide a verdict, and `rows`
    contains only the results of the node rank in `rank`."""
    seconds: float


class NetcheckRecord(Record):
    """One line of netcheck.jsonl: a diagnosis and the pod that printed it."""

    at: str
    pod: str
    diagnosis: NetcheckDiagnosis
