"""Write the result of `harness run --json` to the outputs of action.yml and to the summary page of the run.

    verdict.py ANSWER RUNS        ANSWER: the file with the printed JSON; RUNS: the runs folder

This script uses only the standard library, so that it runs even if the harness could not be installed.
Without a result, the verdict is UNKNOWN.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

NO_ANSWER = "the harness ended before there was a verdict; the log of the step before says why"


def answer(path: Path) -> dict[str, Any]:
    """Return the printed verdict, or an UNKNOWN verdict if the file has no JSON object."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        found = None
    return found if isinstance(found, dict) else {"verdict": "UNKNOWN", "explanation": NO_ANSWER}


def outputs(said: dict[str, Any], runs: Path) -> dict[str, str]:
    """Return the outputs by name. Paths are absolute, and empty if the file or folder does not exist.

    If the harness was killed before it printed the bundle's path, the newest bundle in the runs folder is
    used.
    """
    named = said.get("bundle")
    folder = Path(str(named)) if named else runs / "latest"
    bundle = folder.resolve() if folder.is_dir() else None
    report = bundle / "report.html" if bundle else None
    return {
        "verdict": str(said.get("verdict") or "UNKNOWN"),
        "cause": str(said.get("cause") or ""),
        "bundle": str(bundle or ""),
        "report": str(report) if report and report.is_file() else "",
    }


def page(said: dict[str, Any], seen: dict[str, str]) -> str:
    """Return the page as Markdown. The explanation is indented, so that logs are not rendered as markup."""
    lines = [f"### {seen['verdict']}" + (f": `{seen['cause']}`" if seen["cause"] else ""), ""]
    explanation = str(said.get("explanation") or "")
    lines += [f"    {line}" for line in explanation.splitlines()] + [""]
    following = [str(step) for step in said.get("next") or []]
    if following:
        lines += ["Next:", "", *(f"    {line}" for step in following for line in step.splitlines()), ""]
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> None:
    said = answer(Path(arguments[0]))
    seen = outputs(said, Path(arguments[1]))
    with Path(os.environ["GITHUB_OUTPUT"]).open("a") as file:
        file.writelines(f"{name}={' '.join(value.split())}\n" for name, value in seen.items())
    with Path(os.environ["GITHUB_STEP_SUMMARY"]).open("a") as file:
        file.write(page(said, seen))


if __name__ == "__main__":
    main(sys.argv[1:])
