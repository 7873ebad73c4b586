"""The records in acceptance.jsonl: the results of the acceptance tests in each pod (docs/acceptance.md).

The same models are the schema of `summary.json` and `ddp_tests_result.json` (docs/reference/acceptance.json).
"""

from __future__ import annotations

from typing import Literal

from harness.evidence.schema.record import Record

Verdict = Literal["PASS", "WARN", "FAIL", "UNKNOWN"]


class AcceptanceCheck(Record):
    """The result of one acceptance test in a pod (harness/workers/acceptance/check.py)."""

    id: str
    """The test's id in the form FAMILY.NAME, for example compute.gemm.bf16."""
    tag: Literal["ENV", "COMPUTE", "TRAIN", "DDP", "RESULT"]
    verdict: Verdict
    text: str
    cause: str | None = None
    gpu: str | None = None
    """The UUID of the tested GPU, or None if the test does not cover a single GPU."""
    index: int | None = None
    ranks: list[int] = []
    """The ranks that the test found to be faulty, or to which its result applies."""
    measured: float | None = None
    unit: str = ""
    expected: float | None = None
    """The value expected from healthy hardware."""
    limit: float | None = None
    relation: Literal[">=", "<=", "=="] = ">="
    limit_kind: str | None = None
    limit_source: str | None = None
    seconds: float = 0.0


class AcceptanceGpu(Record):
    """One accelerator of a node, such as a GPU."""

    index: int
    uuid: str
    name: str
    memory: int = 0
    """The accelerator's memory in bytes."""


class CollectiveRow(Record):
    """The measurement of one collective at one message size, like a row of nccl-tests output.

    1 GB is 10⁹ bytes.
    """

    collective: str
    size: int
    """Message size in bytes, as defined by nccl-tests for this collective."""
    dtype: str
    time: float
    """Median time of one iteration, in seconds."""
    algbw: float
    """Algorithm bandwidth in GB/s: size / time."""
    busbw: float
    """Bus bandwidth in GB/s: algbw × the collective's factor."""
    wrong: int
    """The number of elements with wrong results."""
    percentiles: dict[str, float] = {}
    """The p50, p90, p99 and max of the slowest rank's time per iteration, in seconds."""
    by_rank: dict[int, float] = {}
    """The median of each rank's own time per iteration, in seconds, keyed by rank."""


class PairRow(Record):
    """The bandwidth measured between two nodes while no other node took part."""

    a: int
    b: int
    """The node ranks of the two nodes, with a < b."""
    busbw: float | None = None
    """Bus bandwidth in GB/s. None if the pair was not measured."""
    verdict: Verdict
    text: str = ""
    round: int = 0


class AcceptanceReport(Record):
    """A pod's final report, on its own node (`kind` is "node") or on all nodes (`kind` is "ddp")."""

    version: int = 1
    kind: Literal["node", "ddp"]
    node: str
    """The Kubernetes node's name, or the hostname if that is not known."""
    pod: str
    device: Literal["cpu", "cuda"]
    mode: Literal["quick", "full"]
    started: str
    seconds: float
    versions: dict[str, str] = {}
    gpus: list[AcceptanceGpu] = []
    checks: list[AcceptanceCheck]
    verdict: Verdict
    nodes: int = 1
    ranks: int = 1
    hosts: dict[int, str] = {}
    """The Kubernetes node of each rank. Empty unless `kind` is "ddp"."""
    collectives: list[CollectiveRow] = []
    pairs: list[PairRow] = []


class AcceptanceRecord(Record):
    """One line of acceptance.jsonl: a test result or the final report, and the pod that printed it."""

    at: str
    pod: str
    check: AcceptanceCheck | None = None
    report: AcceptanceReport | None = None
