"""Every `harness` command and option that a text of the program recommends exists, and is parsed."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import typer.main

from harness.cli.main import app
from harness.settings import Settings

ROOT = Path(__file__).parents[3]
FOLDERS = ("harness", "fixtures")
COMMAND = re.compile(r"`((?:harness|kubectl torchrun) [^`]*)`")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z_-]+")
VARIABLE = re.compile(r"\b(HARNESS_[A-Z_]+)\b")
TARGET = re.compile(r"`(?:[A-Z_]+=\w+ )?make ([a-z-]+)`")
PLUGIN = "fixtures/"
TORCHRUN = {"--nproc_per_node"}
INCOMPLETE = {"MissingParameter", "BadOptionUsage", "Exit"}
"""Errors for --help, and for a text that names an option without its value or the command's arguments."""


@cache
def syntax_tree(path: Path) -> ast.AST:
    return ast.parse(path.read_text())


@cache
def command_line() -> Any:
    return typer.main.get_command(app)


def strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the strings in a syntax tree with their lines. An inserted value becomes a placeholder."""
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (p.value if isinstance(p, ast.Constant) else "VALUE" for p in node.values)
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.lineno, node.value


@cache
def every_text() -> list[tuple[str, str]]:
    """Return (file:line, text) for all strings of the program, and for the tables of causes and checks."""
    found = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            where = path.relative_to(ROOT)
            if not str(where).startswith("harness/fixtures"):  # a link to fixtures/
                found += [(f"{where}:{line}", text) for line, text in strings(syntax_tree(path))]
    for name in ("causes", "checks"):
        document = tomllib.loads((ROOT / f"harness/judge/{name}.toml").read_text())
        found += [(f"{name}.toml", text) for text in _leaves(document)]
    return found


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for each in value.values():
            yield from _leaves(each)
    elif isinstance(value, str):
        yield value


@cache
def commands() -> list[tuple[str, str]]:
    """Return (file:line, command) for commands in backticks, and for messages that are a command."""
    found = {
        match[1]: where
        for where, text in every_text()
        for match in COMMAND.finditer(re.sub(r"\s+", " ", text))
    }
    for where, text in messages():
        if text.startswith("harness "):
            found[re.split(r"[,;:] | and then ", text)[0].strip()] = where
    return [(where, command) for command, where in sorted(found.items())]


def words_of(command: str) -> list[str]:
    """Return the words of a command, with a number for each placeholder, and without an ellipsis."""
    text = re.sub(r"[\[\]]", "", command.removeprefix("kubectl ").removeprefix("harness "))
    words = [word for word in shlex.split(text) if word not in {"…", "..."}]
    return ["1" if re.fullmatch(r"[A-Z_]+|.*VALUE.*|\{\w+\}", word) else word for word in words]


def parse(words: list[str]) -> None:
    """Parse words with the parser of the command line, without running the command."""
    command = command_line()
    while hasattr(command, "commands"):
        if not words or words[0].startswith("--"):
            break
        if words[0] == "1":
            return  # a placeholder for every command
        assert words[0] in command.commands, f"no command {words[0]!r}"
        command, words = command.commands[words[0]], words[1:]
        if hasattr(command, "commands") and not words:
            return
    if not words:
        return  # the text names a command
    known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    assert {word.partition("=")[0] for word in words if word.startswith("--") and word != "--"} <= known
    try:
        command.make_context(command.name, words, parent=None)
    except Exception as error:
        if type(error).__name__ not in INCOMPLETE:
            raise


def test_a_recommended_command_is_parsed() -> None:
    wrong = {}
    for where, command in commands():
        try:
            parse(words_of(command))
        except Exception as error:
            wrong[f"{where}: {command}"] = str(error) or type(error).__name__
    assert wrong == {}


def test_commands_are_found() -> None:
    """The search above finds messages of every kind."""
    found = [command for _, command in commands()]
    assert len(found) > 40
    assert any("doctor --fix" in command for command in found)
    assert any(command.startswith("kubectl torchrun") for command in found)


@cache
def options() -> frozenset[str]:
    """Return all options of all commands."""
    found: set[str] = {"--help"}
    left: list[Any] = [command_line()]
    while left:
        command = left.pop()
        left += getattr(command, "commands", {}).values()
        for parameter in command.params:
            found.update(parameter.opts, parameter.secondary_opts)
    return frozenset(option for option in found if option.startswith("--"))


@cache
def messages() -> list[tuple[str, str]]:
    """Return (file:line, text) for the arguments of errors, and for every text of doctor."""
    found = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            where = str(path.relative_to(ROOT))
            if where.startswith(("harness/fixtures", "harness/workers")):
                continue
            tree = syntax_tree(path)
            if where.startswith("harness/provision/doctor"):
                found += [(f"{where}:{line}", text) for line, text in strings(tree) if " " in text]
            for node in ast.walk(tree):
                if not isinstance(node, ast.Call):
                    continue
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                if not re.fullmatch(r"\w*Error|Check|Requirement|Problem", name):
                    continue
                # A text without a space is a word of a command, not a message.
                found += [(f"{where}:{line}", text) for line, text in strings(node) if " " in text]
    return found


def test_an_option_in_a_message_exists() -> None:
    """An option of another program stands in a command of that program, in backticks.

    The options of pytest's plugin are named by the plugin alone. Trainers and torchrun have their own.
    """
    plugin = set(OPTION.findall((ROOT / "fixtures/plugin.py").read_text()))
    trainers = {
        option
        for path in (ROOT / "harness/workers").rglob("*.py")
        for option in OPTION.findall(path.read_text())
    }
    unknown = {
        f"{where}: {option}"
        for where, text in messages()
        for option in OPTION.findall(re.sub(r"`(?!harness)[^`]*`", "", text))
        if option not in options() | trainers | TORCHRUN
        and not (where.startswith(PLUGIN) and option in plugin)
    }
    assert unknown == set()


def test_a_variable_in_a_message_is_a_setting() -> None:
    known = {f"HARNESS_{name.upper()}" for name in Settings.model_fields}
    named = {(variable, where) for where, text in messages() for variable in VARIABLE.findall(text)}
    assert {(variable, where) for variable, where in named if variable not in known} == set()
    assert named


def test_a_make_target_in_a_text_exists() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {target for _, text in every_text() for target in TARGET.findall(text)}
    assert named - targets == set()
