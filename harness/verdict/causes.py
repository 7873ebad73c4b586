"""The closed list of causes. `python -m harness.verdict.causes > docs/causes.md` writes the document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.verdict.catalogue import CATALOGUE

FAMILIES = {
    "docker": "Docker, under the cluster",
    "cluster": "The cluster and its nodes",
    "controllers": "JobSet and Kueue",
    "image": "Images",
    "queue": "Queues",
    "admission": "Admission by Kueue",
    "launch": "The launcher",
    "scheduling": "Scheduling of pods",
    "rendezvous": "Rendezvous of the ranks",
    "rank": "A rank's own end",
    "run": "The run as a whole, and its evidence",
    "tracker": "The tracker",
    "unification": "One run with every point",
}


@dataclass(frozen=True)
class Cause:
    """Why a verdict is not a PASS. `result` is what a check with this cause says."""

    id: str
    meaning: str
    evidence: str
    action: str
    provoked_by: str
    result: Literal["FAIL", "UNKNOWN"]

    @property
    def family(self) -> str:
        return self.id.partition(".")[0]


def _parse(catalogue: str) -> dict[str, Cause]:
    causes: dict[str, Cause] = {}
    for line in catalogue.strip().splitlines():
        id_, meaning, evidence, action, provoked_by = (cell.strip() for cell in line.split(" | "))
        unknown = id_.startswith("?")
        cause = Cause(
            id_.removeprefix("?"), meaning, evidence, action, provoked_by, "UNKNOWN" if unknown else "FAIL"
        )
        if cause.family not in FAMILIES or cause.id in causes:
            raise ValueError(f"a cause of no family, or twice: {cause.id}")
        causes[cause.id] = cause
    return causes


CAUSES: dict[str, Cause] = _parse(CATALOGUE)


def markdown() -> str:
    """docs/causes.md."""
    parts = [
        "# Causes",
        "",
        "Every verdict that is not a PASS names one of these. The list is closed: a check names no other.",
        "Written by `python -m harness.verdict.causes > docs/causes.md`; a test holds the two together.",
        "",
        "A cause makes the verdict FAIL; where UNKNOWN is written, something could not be known.",
        "",
    ]
    for family, title in FAMILIES.items():
        parts += [f"## {family}.* – {title}", ""]
        for cause in CAUSES.values():
            if cause.family == family:
                parts += [
                    f"### {cause.id}" + (" (UNKNOWN)" if cause.result == "UNKNOWN" else ""),
                    cause.meaning,
                    "",
                    f"- Evidence: {cause.evidence}",
                    f"- What to do: {cause.action}",
                    f"- Provoked by: {cause.provoked_by}",
                    "",
                ]
    return "\n".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
