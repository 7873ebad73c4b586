"""Decide which bundles stay: all of launches that did not pass, and as many PASSes as the user says."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from harness.core.errors import UsageError
from harness.evidence import folder
from harness.evidence.folder import LATEST, Past
from harness.settings import KEEP_RUNS

_T = TypeVar("_T")


class Keep(BaseModel):
    """How many of the newest bundles that passed stay."""

    last: int | None
    """None keeps all."""

    @classmethod
    def parse(cls, text: str) -> Keep:
        """Parse `all`, `failed` (keep no bundle that passed) or `last:N`. Raises UsageError."""
        if not re.fullmatch(KEEP_RUNS, text, re.ASCII):
            raise UsageError(f"all, failed or last:N is expected for the bundles to keep, seen {text!r}")
        if text == "all":
            return cls(last=None)
        return cls(last=int(text.partition(":")[2] or 0))

    def surplus(self, passed: Sequence[_T]) -> list[_T]:
        """Return the bundles to remove. `passed` are those that passed, oldest first."""
        return [] if self.last is None else list(passed[: max(0, len(passed) - self.last)])


@dataclass(frozen=True)
class Removed:
    bundle: Path
    bytes: int


def prune(runs_dir: Path, keep: Keep, spare: Collection[Path] = ()) -> list[Removed]:
    """Remove what is not to be kept. The bundle that `latest` names and `spare` stay.

    Only a bundle that the harness made, judged PASS and no longer written is removed. Bundles that were
    renamed, damaged or cut off, and links, stay. Raises HarnessError where the system does not allow it.
    """
    if keep.last is None:
        return []
    folder.sweep(runs_dir)
    spared = {path.resolve() for path in (*spare, runs_dir / LATEST)}
    passed = [one.path for one in folder.past(runs_dir) if _passed(one)]
    return [
        Removed(bundle, folder.remove(bundle))
        for bundle in keep.surplus(passed)
        if bundle.resolve() not in spared
    ]


def _passed(one: Past) -> bool:
    ended = one.manifest is not None and one.manifest.ended_at is not None
    passed = one.verdict is not None and one.verdict.verdict == "PASS"
    return one.own and ended and passed and not one.held
