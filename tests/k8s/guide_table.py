"""The commands and promises of published guides, and what each of them does with the harness.

    python tests/k8s/guide_table.py >docs/guides.md

Each guide is a TOML file in guides/. test_guide_commands.py types the commands of its rows in order, in one
shell, with a kubeconfig that `kubectl` and `harness` use. A row quotes a command of the guide, unchanged.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, model_validator

FOLDER = Path(__file__).parent / "guides"
ROOT = FOLDER.parents[2]
_PREAMBLE = """# Guides and what their commands do here

This page lists the commands and promises in published guides for multinode jobs, and what each of them does
with the harness. `pytest tests/k8s/test_guide_commands.py` runs the command of each row, except for rows
whose last column names another test. A row in *italics* is a promise in the guide, and the test runs a
command that shows it.
"""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Replaced(_Table):
    """A part of the guide's commands that the test replaces."""

    written: str
    here: str
    why: str


class Row(_Table):
    """One command or promise of a guide."""

    section: str
    written: str = ""
    """The command, as in the guide."""
    promise: str = ""
    """A promise for which the guide has no command."""
    typed: str = ""
    """The command that the test types instead of `written`, before the parts in `replaced` are replaced."""
    does: str
    """What the command does with the harness, for docs/guides.md."""
    before: list[str] = Field(default_factory=list)
    """Commands that the test types first, such as `kubectl wait`."""
    expect: str = ""
    """A regex that the command's output must match."""
    code: int = 0
    follows: bool = False
    """Whether the command runs until it is stopped. The test stops it once its output matches `expect`."""
    seconds: float = 60
    test: str = ""
    """The test that covers the row, if test_guide_commands.py does not."""

    @model_validator(mode="after")
    def _one_of_both(self) -> Row:
        if bool(self.written) == bool(self.promise):
            raise ValueError("a row has either the guide's command (written) or its promise")
        if not (self.written or self.typed or self.test):
            raise ValueError("a promise needs the command that shows it (typed) or another test")
        if self.test and not (ROOT / self.test).exists():
            raise ValueError(f"{self.test}: a test of this repository is expected")
        return self

    @property
    def command(self) -> str:
        """Return the command to type, before parts are replaced. Return "" if another test covers the row."""
        return "" if self.test else self.typed or self.written


class Guide(_Table):
    """A published guide."""

    title: str
    replaced: list[Replaced] = Field(default_factory=list)
    rows: list[Row]

    def typed(self, row: Row) -> str:
        """Return the command of a row, with the parts in `replaced` replaced."""
        text = row.command
        for part in self.replaced:
            text = text.replace(part.written, part.here)
        return text


def read(name: str) -> Guide:
    """Read guides/<name>.toml. Raises ValidationError on an unknown field or a row without a test."""
    return Guide.model_validate(tomllib.loads((FOLDER / f"{name}.toml").read_text()))


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def typed() -> list[str]:
    """Return the guides with commands that test_guide_commands.py types."""
    return [name for name in names() if any(row.command for row in read(name).rows)]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _code(text: str) -> str:
    """Return a command as code in a table cell, with a line break after each of its lines."""
    return "<br>".join(f"`{_cell(line)}`" for line in text.strip().splitlines())


def markdown() -> str:
    """Return docs/guides.md."""
    lines = [_PREAMBLE.rstrip()]
    for guide in map(read, names()):
        lines += ["", f"## {guide.title}"]
        if guide.replaced:
            lines += ["", "| in the guide | typed here | because |", "|---|---|---|"]
            lines += [
                f"| {_code(part.written)} | {_code(part.here)} | {_cell(part.why)} |"
                for part in guide.replaced
            ]
        lines += ["", "| section | command or promise | what it does here | test |", "|---|---|---|---|"]
        for row in guide.rows:
            cell = _code(row.written) if row.written else f"*{_cell(row.promise)}*"
            if row.typed and row.written:
                cell += f"<br>type {_code(row.typed)}"
            test = row.test or "test_guide_commands.py"
            lines.append(f"| {_cell(row.section)} | {cell} | {_cell(row.does)} | `{test}` |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
