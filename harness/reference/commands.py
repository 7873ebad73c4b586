"""Document every command with its arguments and options, from typer and argparse."""

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

{WRITTEN} `harness COMMAND --help` prints the same text.

Exit codes: 0 for PASS or success; 1 for FAIL; 2 for UNKNOWN or an error of the harness; 64 for bad usage.
With `--json`, stdout contains only one JSON document. Progress goes to stderr. An option that is not given
has the value of its [setting](settings.md). The setting's default is shown in parentheses.
"""


def commands() -> dict[str, Any]:
    """Return all commands by name, such as "images build"."""
    return dict(_subcommands(typer.main.get_command(app), ""))


def options(name: str) -> set[str]:
    """Return a command's options, including `--help`."""
    if name == "tracker serve":
        return {option for action in parser()._actions for option in action.option_strings}
    return {"--help", *(opt for p in commands()[name].params for opt in [*p.opts, *p.secondary_opts])}


def markdown() -> str:
    """Return the text of docs/reference/cli.md."""
    parts = [HEAD]
    for name, command in commands().items():
        rows = _tracker() if name == "tracker serve" else [_row(param) for param in command.params]
        arguments = [_argument(param) for param in command.params if param.param_type_name == "argument"]
        parts += [f"## harness {' '.join([name, *arguments])}", inspect.cleandoc(command.help or ""), ""]
        parts += table(["", "meaning", "default"], rows)
    return "\n".join(parts).rstrip() + "\n"


def _subcommands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    for word, inner in getattr(command, "commands", {}).items():
        yield from _subcommands(inner, f"{name} {word}".strip())
    if not hasattr(command, "commands"):
        yield name, command


def _argument(param: Any) -> str:
    """Return the name of an argument, as in its help if that is a single word."""
    metavar = param.metavar or ""
    return metavar if metavar.isalpha() else param.name.upper()


def _row(param: Any) -> tuple[str, str, str]:
    names = _argument(param) if param.param_type_name == "argument" else ", ".join(param.opts)
    has_default = param.default not in (None, False, ()) and not callable(param.default)
    return code(names), param.help or "", code(str(param.default)) if has_default else ""


def _tracker() -> list[tuple[str, str, str]]:
    """Return the options of `harness tracker serve` from the tracker's own argparse parser.

    The tracker does not use typer, so that its image does not need typer.
    """
    rows = []
    for action in parser()._actions:
        if not isinstance(action, argparse._HelpAction):
            text = (action.help or "").replace(" (default: %(default)s)", "")
            default = code(str(action.default)) if action.default else ""
            rows.append((code(", ".join(action.option_strings)), text, default))
    return rows
