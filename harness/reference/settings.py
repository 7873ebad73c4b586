"""Document the environment variable, pyproject.toml key and default of every setting."""

from __future__ import annotations

import types
import typing
from typing import Any

from pydantic import AliasChoices
from pydantic.fields import FieldInfo

from harness.reference.note import WRITTEN
from harness.report.markdown import code, table
from harness.settings import Settings

HEAD = f"""# Settings

{WRITTEN}

Options of a [command](cli.md) or of pytest override environment variables, which override the table
`[tool.harness]` in the current folder's `pyproject.toml`. If a value is invalid, the program exits with code
64. An empty environment variable counts as unset, and a leading `~` in a path is replaced with the home
folder.

```toml
[tool.harness]
workers = 1
scripts = "worker"
```
"""
FOOT = """`HARNESS_JOB` is not a setting. It names the job file for the pytest plugin's fixture `job`. The
default is `jobs/multinode.yaml`.
"""


def markdown() -> str:
    """Return the text of docs/reference/settings.md."""
    rows = [
        (
            code(name),
            ", ".join(map(code, variables(name, field))),
            _type(field),
            _default(field),
            _description(field),
        )
        for name, field in Settings.model_fields.items()
    ]
    lines = table(["key", "variable", "type", "default", "meaning"], rows)
    return "\n".join([HEAD, *lines, FOOT])


def variables(name: str, field: FieldInfo) -> list[str]:
    """Return the environment variables for a setting. If several are set, the first one is used."""
    alias = field.validation_alias
    if isinstance(alias, AliasChoices):
        return [str(choice) for choice in alias.choices]
    return [f"HARNESS_{name.upper()}"]


def _type(field: FieldInfo) -> str:
    kinds = [kind for kind in _alternatives(field.annotation) if kind is not types.NoneType]
    return " or ".join("secret" if kind.__name__ == "SecretStr" else kind.__name__.lower() for kind in kinds)


def _alternatives(annotation: Any) -> list[Any]:
    if typing.get_origin(annotation) is typing.Literal:
        return [str]
    kinds = typing.get_args(annotation) or (annotation,)
    return [str if typing.get_origin(kind) is typing.Literal else kind for kind in kinds]


def _default(field: FieldInfo) -> str:
    if field.default_factory is not None or field.default is None:
        return ""
    default = field.default
    return code(str(default).lower() if isinstance(default, bool) else str(default))


def _description(field: FieldInfo) -> str:
    text = field.description or ""
    if typing.get_origin(field.annotation) is not typing.Literal:
        return text
    return f"{text} ({', '.join(map(code, typing.get_args(field.annotation)))})"
