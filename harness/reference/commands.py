"""Describe every command with its arguments and options, as typer and argparse know them."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Iterator
from typing import Any

import typer

from harness.cli.main import app
from harness.reference.note import WRITTEN
from harness.report.markdown import code, table
from harness.tracker.__main__ import parser

HEAD = f"""# The `harness` command

{WRITTEN} `harness COMMAND --help` says the same.

Exit codes: 0 PASS, or done; 1 FAIL; 2 UNKNOWN, or the harness could not do its work; 64 bad usage. `--json`
prints one JSON document on stdout and nothing else there; progress goes to stderr. An option that is not
given is as the [settings](settings.md) say; their defaults stand in parentheses.
"""


def commands() -> dict[str, Any]:
    """Return each command by what is typed for it, e.g. "images build"."""
    return dict(_below(typer.main.get_command(app), ""))


def options(name: str) -> set[str]:
    """Return the options of a command, `--help` included."""
    if name == "tracker serve":
        return {option for action in parser()._actions for option in action.option_strings}
    return {"--help", *(opt for p in commands()[name].params for opt in [*p.opts, *p.secondary_opts])}


def markdown() -> str:
    """Return docs/reference/cli.md."""
    parts = [HEAD]
    for name, command in commands().items():
        rows = _tracker() if name == "tracker serve" else [_row(param) for param in command.params]
        arguments = [param.name.upper() for param in command.params if param.param_type_name == "argument"]
        parts += [f"## harness {' '.join([name, *arguments])}", inspect.cleandoc(command.help or ""), ""]
        parts += table(["", "meaning", "default"], rows)
    return "\n".join(parts).rstrip() + "\n"


def _below(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    for word, inner in getattr(command, "commands", {}).items():
        yield from _below(inner, f"{name} {word}".strip())
    if not hasattr(command, "commands"):
        yield name, command


def _row(param: Any) -> tuple[str, str, str]:
    names = param.name.upper() if param.param_type_name == "argument" else ", ".join(param.opts)
    shown = param.default not in (None, False, ()) and not callable(param.default)
    return code(names), param.help or "", code(str(param.default)) if shown else ""


def _tracker() -> list[tuple[str, str, str]]:
    """Return the tracker's options from its own parser. The same program runs in the tracker's image,
    without typer.
    """
    rows = []
    for action in parser()._actions:
        if not isinstance(action, argparse._HelpAction):
            text = (action.help or "").replace(" (%(default)s)", "")
            default = code(str(action.default)) if action.default else ""
            rows.append((code(", ".join(action.option_strings)), text, default))
    return rows
