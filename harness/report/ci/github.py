"""GitHub Actions annotations and job summaries.

https://docs.github.com/en/actions/reference/workflow-commands-for-github-actions
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

SUMMARY_BYTES = 1024 * 1024
"""Maximum size of a step summary in bytes. GitHub completely rejects longer summaries."""
CUT = "\n\n*The summary was truncated, because it exceeds GitHub's limit.*\n"
Level = Literal["error", "warning", "notice"]


def active(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether this process is running in GitHub Actions."""
    return environment.get("GITHUB_ACTIONS") == "true"


def annotation(level: Level, message: str, **fields: str | int | None) -> str:
    """Return a line that creates an annotation.

    `fields` sets the title, file and line. Values that are None are omitted.
    """
    properties = ",".join(
        f"{name}={_property(str(value))}" for name, value in fields.items() if value is not None
    )
    return f"::{level}{' ' if properties else ''}{properties}::{_data(message)}"


def summary_file(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the file for this step's summary, or None outside GitHub Actions.

    Also returns None in a container that has the step's variables but not its files.
    """
    if not (name := environment.get("GITHUB_STEP_SUMMARY")):
        return None
    file = Path(name)
    return file if os.access(file if file.exists() else file.parent, os.W_OK) else None


def append(file: Path, markdown: str) -> None:
    """Append text to the summary. If the summary would be too long, the text is truncated at a line break."""
    room = SUMMARY_BYTES - (file.stat().st_size if file.is_file() else 0)
    data = markdown.encode()
    if len(data) > room:
        head = data[: max(0, room - len(CUT.encode()))].rpartition(b"\n")[0]
        data = head + CUT.encode() if head else b""
    with file.open("ab") as out:
        out.write(data)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
