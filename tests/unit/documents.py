"""Read the documents: their fenced blocks, the commands in these, paths and links."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("examples/**/*.md"))]
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*=.*")


@dataclass(frozen=True)
class Said:
    """A piece of text in a document, and where it is."""

    document: Path
    text: str

    def __str__(self) -> str:
        return f"{self.document.relative_to(ROOT)}: {self.text}"


@dataclass(frozen=True)
class Command:
    """One program with its arguments, without the variables before it."""

    said: Said
    program: str
    arguments: tuple[str, ...]

    def __str__(self) -> str:
        return str(self.said)


def blocks(language: str) -> Iterator[Said]:
    for document in DOCUMENTS:
        for _, name, text in _FENCE.findall(document.read_text()):
            if name == language:
                yield Said(document, textwrap.dedent(text))


def commands() -> list[Command]:
    """Return the commands of every bash block, and those after `$ ` in others. A line may hold several."""
    whole = [Said(span.document, span.text.replace("\\\n", " ")) for span in blocks("bash")]
    lines = [Said(span.document, line) for span in whole for line in span.text.splitlines()]
    for language in ("", "console"):
        for span in blocks(language):
            lines += [
                Said(span.document, line[2:]) for line in span.text.splitlines() if line.startswith("$ ")
            ]
    return [command for span in lines for command in _commands(span)]


def _commands(span: Said) -> Iterator[Command]:
    lexer = shlex.shlex(span.text, posix=True, punctuation_chars=";&|")
    lexer.whitespace_split, lexer.commenters = True, "#"
    words: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) <= set(";&|"):
            if words := list(dropwhile(_VARIABLE.fullmatch, words)):
                yield Command(span, words[0], tuple(words[1:]))
            words = []
        else:
            words.append(word)


def links() -> Iterator[Said]:
    for document in DOCUMENTS:
        text = _FENCE.sub("", document.read_text())
        yield from (Said(document, target) for target in _LINK.findall(text) if "://" not in target)


def code() -> Iterator[Said]:
    """Return everything between backticks outside of blocks."""
    for document in DOCUMENTS:
        text = _FENCE.sub("", document.read_text())
        yield from (Said(document, span) for span in _CODE.findall(text))


def anchors(document: Path) -> set[str]:
    """Return GitHub's names of the headings."""
    heads = re.findall(r"^#+ (.*)$", _FENCE.sub("", document.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
