"""The catalogue of causes, read from causes.toml.

Its order is the order in which things go wrong in a run.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic.dataclasses import dataclass

from harness.core.causes import CauseId


@dataclass(frozen=True)
class Cause:
    """Why a verdict is not a PASS. `result` is what a check with this cause says."""

    id: CauseId
    meaning: str
    evidence: str
    action: str
    provoked_by: str
    result: Literal["FAIL", "UNKNOWN"] = "FAIL"
    absence: bool = False
    """It says that something has not come."""

    @property
    def family(self) -> str:
        return self.id.partition(".")[0]


def _causes(catalogue: dict[str, Any]) -> dict[str, Cause]:
    """Read the catalogue. Raises ValueError when the catalogue, its families and CauseId do not agree."""
    causes = {id_: Cause(id=id_, **fields) for id_, fields in catalogue["causes"].items()}
    unwritten = set(get_args(CauseId)) - set(causes)
    homeless = [id_ for id_, cause in causes.items() if cause.family not in catalogue["families"]]
    if unwritten or homeless:
        raise ValueError(f"causes not in causes.toml: {sorted(unwritten)}; of no family: {homeless}")
    return causes


_CATALOGUE = tomllib.loads(Path(__file__).with_name("causes.toml").read_text(encoding="utf-8"))
FAMILIES: dict[str, str] = _CATALOGUE["families"]
CAUSES: dict[str, Cause] = _causes(_CATALOGUE)
