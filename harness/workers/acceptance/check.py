"""One check of a node, a GPU or a collective, as data, and how verdicts are put together.

A check that could not be made is UNKNOWN. It never counts as passed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypedDict

VERSION = 1
"""Version of every report of this package."""
Verdict = Literal["PASS", "WARN", "FAIL", "UNKNOWN"]
_WORST_FIRST: tuple[Verdict, ...] = ("FAIL", "UNKNOWN", "WARN", "PASS")
TAGS = ("ENV", "COMPUTE", "TRAIN", "DDP", "RESULT")
"""The tags of log lines: `[COMPUTE] PASS …`."""


class Where(TypedDict, total=False):
    """The fields of a check that say which GPU it is about. A check of a whole node has none of them."""

    gpu: str
    index: int


@dataclass(frozen=True)
class Check:
    """One thing that was proved, or was not. `id` is FAMILY.NAME in lower case, as in `compute.gemm.bf16`."""

    id: str
    tag: str
    verdict: Verdict
    text: str
    """What was seen, in one sentence, with the figure and its unit."""
    cause: str | None = None
    """What is wrong, of causes.py. Given with FAIL and with WARN."""
    gpu: str | None = None
    """UUID of the GPU that it is about."""
    index: int | None = None
    """The GPU's number in its node."""
    ranks: tuple[int, ...] = ()
    """Ranks that it accuses, or is about."""
    measured: float | None = None
    unit: str = ""
    expected: float | None = None
    """What healthy hardware gives."""
    limit: float | None = None
    relation: Literal[">=", "<=", "=="] = ">="
    """`measured relation limit` holds where it passes."""
    limit_kind: str | None = None
    """peak, measured, limit or floor: what kind of figure `limit` was made from (limits.py)."""
    limit_source: str | None = None
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)

    def line(self) -> str:
        """Return it as a line of the pod's log."""
        where = f" GPU {self.index}" if self.index is not None else ""
        return f"[{self.tag}] {self.verdict}{where} {self.id}: {self.text}"


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst of them: FAIL, then UNKNOWN, then WARN. No verdict at all is UNKNOWN."""
    seen = set(verdicts)
    return next((verdict for verdict in _WORST_FIRST if verdict in seen), "UNKNOWN")
