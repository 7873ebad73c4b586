"""GitHub Actions: lines that become annotations, and the summary of a job.

https://docs.github.com/en/actions/reference/workflow-commands-for-github-actions
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

SUMMARY_BYTES = 1024 * 1024
"""Of one step; a longer one is refused as a whole."""
CUT = "\n\n*The rest did not fit into a job's summary.*\n"
Level = Literal["error", "warning", "notice"]


def active(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a runner of GitHub's reads this process's output."""
    return environment.get("GITHUB_ACTIONS") == "true"


def annotation(level: Level, message: str, **where: str | int | None) -> str:
    """One line, `where` being title, file, line: those that are None are left out."""
    given = ",".join(f"{name}={_property(str(value))}" for name, value in where.items() if value is not None)
    return f"::{level}{' ' if given else ''}{given}::{_data(message)}"


def summary_file(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Where this step's summary is to be appended, if anywhere."""
    name = environment.get("GITHUB_STEP_SUMMARY")
    return Path(name) if name else None


def append(file: Path, markdown: str) -> None:
    """Add to a summary as much as fits into it, to a whole line."""
    room = SUMMARY_BYTES - (file.stat().st_size if file.is_file() else 0)
    data = markdown.encode()
    if len(data) > room:
        kept = data[: max(0, room - len(CUT.encode()))].rpartition(b"\n")[0]
        data = kept + CUT.encode() if kept else b""
    with file.open("ab") as out:
        out.write(data)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
