"""Define the result of a machine check, and format lists of results."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

GIB = 1024**3

Version = tuple[int, ...]


@dataclass(frozen=True)
class Check:
    """The result of a machine check. A failure is only a warning if the check is not `required`.

    `fix` describes what to do if the check failed.
    """

    name: str
    ok: bool
    seen: str
    expected: str
    fix: str = ""
    required: bool = True

    @property
    def failed(self) -> bool:
        return self.required and not self.ok


def version_of(text: str) -> Version | None:
    """Return the first dotted number in a tool's output: `kind v0.33.0 go1.27.2` → (0, 33, 0)."""
    match = re.search(r"\d+(?:\.\d+)+", text)
    return tuple(int(part) for part in match.group().split(".")) if match else None


def at_least(version: Version | None, minimum: Version) -> bool:
    """Return whether a version is at least `minimum`.

    Parts that `minimum` does not have are not compared. A missing part counts as 0, and an unknown version
    (None) counts as too old.
    """
    if version is None:
        return False
    padded_version = version + (0,) * (len(minimum) - len(version))
    return padded_version[: len(minimum)] >= minimum


def exit_code(checks: Iterable[Check]) -> int:
    return 2 if any(check.failed for check in checks) else 0


def as_json(checks: Sequence[Check]) -> dict[str, Any]:
    """Return the results as JSON: {"ok": bool, "checks": [{name, ok, seen, expected, fix, required}]}."""
    return {"ok": exit_code(checks) == 0, "checks": [asdict(check) for check in checks]}


def render(checks: Sequence[Check]) -> RenderableType:
    """Return a table of all checks, followed by the fixes for failed checks, required checks first."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("", "check", "seen", "expected"):
        table.add_column(title, overflow="fold")
    for check in checks:
        mark = "[green]ok[/]" if check.ok else "[bold red]no[/]" if check.required else "[yellow]--[/]"
        table.add_row(mark, escape(check.name), escape(check.seen), escape(check.expected))
    fixable = sorted((c for c in checks if not c.ok and c.fix), key=lambda c: not c.required)
    lines = [Text.from_markup(f"[bold]{escape(c.name)}[/] → {escape(c.fix)}") for c in fixable]
    failed = sum(check.failed for check in checks)
    last = (
        Text(f"{failed} of {len(checks)} checks failed", "bold red")
        if failed
        else Text("ready", "bold green")
    )
    return Group(table, "", *lines, last)
