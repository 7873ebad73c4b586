"""Define the results of checks on nodes, GPUs and collectives, and combine their verdicts.

A check that could not run has the verdict UNKNOWN, and never counts as passed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypedDict

VERSION = 1
"""The format version of this package's reports."""
Verdict = Literal["PASS", "WARN", "FAIL", "UNKNOWN"]
_WORST_FIRST: tuple[Verdict, ...] = ("FAIL", "UNKNOWN", "WARN", "PASS")
TAGS = ("ENV", "COMPUTE", "TRAIN", "DDP", "RESULT")
"""The tags at the start of log lines, as in `[COMPUTE] PASS …`."""


class Where(TypedDict, total=False):
    """The fields that identify a check's GPU. A check of a whole node has none of them."""

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
    """Identifier of the cause, such as `gpu.ecc` (causes.py). Always set if the verdict is FAIL or WARN."""
    gpu: str | None = None
    """The UUID of the GPU to which the check applies."""
    index: int | None = None
    """Index of the GPU on its node."""
    ranks: tuple[int, ...] = ()
    """The ranks that are to blame. If no rank is to blame, the ranks to which the check applies."""
    measured: float | None = None
    unit: str = ""
    expected: float | None = None
    """The expected value for healthy hardware."""
    limit: float | None = None
    relation: Literal[">=", "<=", "=="] = ">="
    """The check passes if this comparison between `measured` and `limit` is true."""
    limit_kind: str | None = None
    """How `limit` was determined: from a peak, measured, limit or floor value (limits.py)."""
    limit_source: str | None = None
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the check as a dictionary for JSON."""
        return asdict(self)

    def line(self) -> str:
        """Return the check as one line for the pod's log."""
        gpu = f" GPU {self.index}" if self.index is not None else ""
        return f"[{self.tag}] {self.verdict}{gpu} {self.id}: {self.text}"


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst verdict, in the order FAIL, UNKNOWN, WARN, PASS.

    Return UNKNOWN if there are no verdicts.
    """
    present = set(verdicts)
    return next((verdict for verdict in _WORST_FIRST if verdict in present), "UNKNOWN")
