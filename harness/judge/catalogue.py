"""Load the catalogue of causes from causes.toml and the registry of checks from checks.toml.

Causes are listed in the order in which they can occur during a run. Checks are listed in execution order.
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
    """A reason for a verdict other than PASS.

    A check that does not pass because of this cause has the result `result`.
    """

    id: CauseId
    meaning: str
    evidence: str
    action: str
    provoked_by: str
    result: Literal["FAIL", "UNKNOWN"] = "FAIL"
    absence: bool = False
    """Whether the cause is the absence of an event or an object."""

    @property
    def family(self) -> str:
        return self.id.partition(".")[0]


def _causes(catalogue: dict[str, Any]) -> dict[str, Cause]:
    """Return the catalogue's causes. Raises ValueError if an id or a family is missing."""
    causes = {id_: Cause(id=id_, **fields) for id_, fields in catalogue["causes"].items()}
    missing = set(get_args(CauseId)) - set(causes)
    without_family = [id_ for id_, cause in causes.items() if cause.family not in catalogue["families"]]
    if missing or without_family:
        raise ValueError(f"Not in causes.toml: {sorted(missing)}; without a family: {without_family}")
    return causes


_CAUSES_FILE = tomllib.loads(Path(__file__).with_name("causes.toml").read_text(encoding="utf-8"))
FAMILIES: dict[str, str] = _CAUSES_FILE["families"]
CAUSES: dict[str, Cause] = _causes(_CAUSES_FILE)


Need = Literal[
    "bundle", "manifest", "launch", "job", "admission", "rank", "tracker", "shared-run", "truth", "rows"
]
"""The kinds of evidence that a check can need, in the order in which a launch produces them. Each need
includes all earlier needs."""
NEEDS: tuple[Need, ...] = get_args(Need)
PHASES = ("provision", "start", "running", "end", "tracker", "unification")
"""The phases of a run, in order. A cause in an earlier phase explains causes in later phases."""
PROVISION, START, RUNNING, END, TRACKER, UNIFICATION = map(float, range(len(PHASES)))


@dataclass(frozen=True)
class Requirement:
    """Evidence that checks can require.

    `missing` explains why a check without this evidence is UNKNOWN. If `missing` is empty, the verdict omits
    the check instead.
    """

    id: Need
    means: str
    missing: str = ""


Applies = Literal[
    "always",
    "tracked",
    "frames",
    "ranks",
    "attached",
    "processes",
    "netcheck",
    "acceptance",
    "training",
    "upload",
    "torchrun",
    "keys",
    "gpus",
]


@dataclass(frozen=True)
class Entry:
    """A check: the statement that it proves, the phase of its causes, and the evidence that it needs."""

    id: CheckId
    proves: str
    phase: Literal["provision", "start", "running", "end", "tracker", "unification"]
    needs: Need
    """The check runs only if this need is met."""
    passes_with: Need | None = None
    """The check can pass only if this need is met, but it can fail without it."""
    objects: tuple[str, ...] = ()
    """The kinds of objects that the check requires. Each kind is also the name of its evidence file."""
    applies: Applies = "always"
    """The launches to which the check applies. Verdicts on other launches do not list the check. `tracked`
    means launches whose ranks' points were recorded, and `frames` means those of them whose recorders wrote
    every point rather than only digests. `ranks` means launches whose pods run the ranks of one job, and
    `attached` means jobs that the harness did not launch. `processes`, `netcheck` and `upload` mean launches
    with recorded processes, with netcheck pods and with --upload. `torchrun` means TorchrunJobs, and `keys`
    means launches whose recorder counts the values for each key. `gpus` means launches in which a rank's
    container requests GPUs."""

    @property
    def at(self) -> float:
        return float(PHASES.index(self.phase))


def up_to(need: Need) -> tuple[Need, ...]:
    """Return `need` and the needs before it, in order."""
    return NEEDS[: NEEDS.index(need) + 1]


def _agreed(kind: str, entries: Any, typed: tuple[str, ...]) -> None:
    if tuple(entries) != typed:
        difference = sorted(set(entries) ^ set(typed)) or "the order"
        raise ValueError(f"The {kind} in checks.toml differ from those in the code: {difference}")


_CATALOGUE = tomllib.loads(Path(__file__).with_name("checks.toml").read_text(encoding="utf-8"))
_agreed("checks", _CATALOGUE["checks"], get_args(CheckId))
_agreed("needs", _CATALOGUE["needs"], NEEDS)
REQUIREMENTS: dict[Need, Requirement] = {id_: Requirement(id_, **w) for id_, w in _CATALOGUE["needs"].items()}
REGISTRY: dict[CheckId, Entry] = {id_: Entry(id_, **w) for id_, w in _CATALOGUE["checks"].items()}
