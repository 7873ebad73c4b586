"""The result of one check of a node, a GPU or a collective, and the combination of verdicts.

A check that could not run is UNKNOWN. It never counts as passed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypedDict

VERSION = 1
"""Version of the format of this package's reports."""
Verdict = Literal["PASS", "WARN", "FAIL", "UNKNOWN"]
_WORST_FIRST: tuple[Verdict, ...] = ("FAIL", "UNKNOWN", "WARN", "PASS")
TAGS = ("ENV", "COMPUTE", "TRAIN", "DDP", "RESULT")
"""The tags of log lines: `[COMPUTE] PASS …`."""


class Where(TypedDict, total=False):
    """The fields that identify the GPU of a check. A check of a whole node has none of them."""

    gpu: str
    index: int


@dataclass(frozen=True)
class Check:
    """The result of one check. `id` is FAMILY.NAME in lower case, for example `compute.gemm.bf16`."""

    id: str
    tag: str
    verdict: Verdict
    text: str
    """The observation in one sentence, with the measurement and its unit."""
    cause: str | None = None
    """A cause of causes.py. Set with FAIL and WARN."""
    gpu: str | None = None
    """UUID of the GPU."""
    index: int | None = None
    """Number of the GPU in its node."""
    ranks: tuple[int, ...] = ()
    """Ranks that the check accuses, or that it concerns."""
    measured: float | None = None
    unit: str = ""
    expected: float | None = None
    """The figure of healthy hardware."""
    limit: float | None = None
    relation: Literal[">=", "<=", "=="] = ">="
    """The check passes if `measured relation limit` is true."""
    limit_kind: str | None = None
    """peak, measured, limit or floor: the kind of the figure from which `limit` is computed (limits.py)."""
    limit_source: str | None = None
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the check as a dictionary for JSON."""
        return asdict(self)

    def line(self) -> str:
        """Return the check as one line for the pod's log."""
        where = f" GPU {self.index}" if self.index is not None else ""
        return f"[{self.tag}] {self.verdict}{where} {self.id}: {self.text}"


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst verdict: FAIL, then UNKNOWN, then WARN. Without any verdict, return UNKNOWN."""
    seen = set(verdicts)
    return next((verdict for verdict in _WORST_FIRST if verdict in seen), "UNKNOWN")
