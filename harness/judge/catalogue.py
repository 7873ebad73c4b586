"""The catalogue of causes, from causes.toml, and the registry of checks, from checks.toml.

Causes are in the order in which things go wrong in a run, checks in the order in which the engine makes them.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic.dataclasses import dataclass

from harness.core.causes import CauseId
from harness.core.checks import CheckId


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


_CAUSES_FILE = tomllib.loads(Path(__file__).with_name("causes.toml").read_text(encoding="utf-8"))
FAMILIES: dict[str, str] = _CAUSES_FILE["families"]
CAUSES: dict[str, Cause] = _causes(_CAUSES_FILE)


Need = Literal[
    "bundle", "manifest", "launch", "job", "admission", "rank", "tracker", "shared-run", "truth", "rows"
]
"""What a check needs, in the order in which a run comes to have it. Each includes the needs before it."""
NEEDS: tuple[Need, ...] = get_args(Need)
PHASES = ("provision", "start", "running", "end", "tracker", "unification")
"""Where in a run a cause lies. Of several causes, the earliest phase explains the others."""
PROVISION, START, RUNNING, END, TRACKER, UNIFICATION = map(float, range(len(PHASES)))


@dataclass(frozen=True)
class Requirement:
    """What `id` means, and what is said of a check that lacks it. Without `missing`, it is not listed."""

    id: Need
    means: str
    missing: str = ""


@dataclass(frozen=True)
class Entry:
    """A check: what it proves, the phase of its causes, and what it needs."""

    id: CheckId
    proves: str
    phase: Literal["provision", "start", "running", "end", "tracker", "unification"]
    needs: Need
    """Without it, the check is not made."""
    passes_with: Need | None = None
    """Without it, the check can fail and cannot pass."""
    applies: Literal[
        "always", "tracked", "processes", "netcheck", "acceptance", "training", "upload", "torchrun", "keys"
    ] = "always"
    """To which launches: all, those whose ranks log with Pluto, those whose processes were recorded, those in
    whose pods netcheck or acceptance tests run, those of a trainer, those with --upload, those of a
    TorchrunJob, those whose recorder accounts for keys.

    For other launches the check is not listed.
    """

    @property
    def at(self) -> float:
        return float(PHASES.index(self.phase))


def up_to(need: Need) -> tuple[Need, ...]:
    """Return this need and those before it, in order."""
    return NEEDS[: NEEDS.index(need) + 1]


def _agreed(kind: str, written: Any, typed: tuple[str, ...]) -> None:
    if tuple(written) != typed:
        odd = sorted(set(written) ^ set(typed)) or "the order"
        raise ValueError(f"checks.toml does not have the {kind} of the code: {odd}")


_CATALOGUE = tomllib.loads(Path(__file__).with_name("checks.toml").read_text(encoding="utf-8"))
_agreed("checks", _CATALOGUE["checks"], get_args(CheckId))
_agreed("needs", _CATALOGUE["needs"], NEEDS)
REQUIREMENTS: dict[Need, Requirement] = {id_: Requirement(id_, **w) for id_, w in _CATALOGUE["needs"].items()}
REGISTRY: dict[CheckId, Entry] = {id_: Entry(id_, **w) for id_, w in _CATALOGUE["checks"].items()}
