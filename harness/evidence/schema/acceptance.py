"""The records of acceptance.jsonl: what the acceptance tests said in a pod (docs/acceptance.md).

The same models are the schema of `summary.json` and `ddp_tests_result.json` (docs/reference/acceptance.json).
"""

from __future__ import annotations

from typing import Literal

from harness.evidence.schema.record import Record

Verdict = Literal["PASS", "WARN", "FAIL", "UNKNOWN"]


class AcceptanceCheck(Record):
    """One thing that was proved in a pod, or was not (harness/workers/acceptance/check.py)."""

    id: str
    """FAMILY.NAME, as in compute.gemm.bf16."""
    tag: Literal["ENV", "COMPUTE", "TRAIN", "DDP", "RESULT"]
    verdict: Verdict
    text: str
    cause: str | None = None
    gpu: str | None = None
    """UUID of the GPU that it is about."""
    index: int | None = None
    ranks: list[int] = []
    """Ranks that it accuses, or is about."""
    measured: float | None = None
    unit: str = ""
    expected: float | None = None
    """What healthy hardware gives."""
    limit: float | None = None
    relation: Literal[">=", "<=", "=="] = ">="
    limit_kind: str | None = None
    limit_source: str | None = None
    seconds: float = 0.0


class AcceptanceGpu(Record):
    """One accelerator of a node."""

    index: int
    uuid: str
    name: str
    memory: int = 0
    """Bytes."""


class CollectiveRow(Record):
    """One size of one collective, as a row of nccl-tests. GB is 10⁹ bytes."""

    collective: str
    size: int
    """Bytes, as nccl-tests counts them for this collective."""
    dtype: str
    time: float
    """Seconds of one iteration: the median."""
    algbw: float
    """GB/s: size / time."""
    busbw: float
    """GB/s: algbw × the collective's factor."""
    wrong: int
    """Elements that were not what the ranks' data make it."""
    percentiles: dict[str, float] = {}
    """p50, p90, p99, max → seconds, over iterations, of the slowest rank."""
    by_rank: dict[int, float] = {}
    """Rank → median seconds that the rank itself needed."""


class PairRow(Record):
    """What two nodes gave with each other alone."""

    a: int
    b: int
    """Node ranks, a < b."""
    busbw: float | None = None
    """GB/s; None where the pair gave no figure."""
    verdict: Verdict
    text: str = ""
    round: int = 0


class AcceptanceReport(Record):
    """What one pod said at its end: of its node (`kind` node), or of all nodes together (`kind` ddp)."""

    version: int = 1
    kind: Literal["node", "ddp"]
    node: str
    """The Kubernetes node, or the host's name where nobody told."""
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
    """Of `kind` ddp: rank → its Kubernetes node."""
    collectives: list[CollectiveRow] = []
    pairs: list[PairRow] = []


class AcceptanceRecord(Record):
    """One line of acceptance.jsonl: a check as it was made, or the report at the end; and who printed it."""

    at: str
    pod: str
    check: AcceptanceCheck | None = None
    report: AcceptanceReport | None = None
