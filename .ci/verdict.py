"""Write the answer of `harness run --json` as outputs of action.yml and on the run's page.

    verdict.py ANSWER RUNS        ANSWER: what was printed, or nothing; RUNS: the runs folder

Use the standard library alone: this also runs where the harness could not be installed. Without an answer
the verdict is UNKNOWN.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

NO_ANSWER = "the harness ended before there was a verdict; the log of the step before says why"


def answer(path: Path) -> dict[str, Any]:
    """Return the verdict as printed, or an UNKNOWN for anything else."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        found = None
    return found if isinstance(found, dict) else {"verdict": "UNKNOWN", "explanation": NO_ANSWER}


def outputs(said: dict[str, Any], runs: Path) -> dict[str, str]:
    """Return the outputs by name. Paths are absolute, and empty for what is not there.

    A harness that was killed has not said where its bundle is; then it is the newest of the runs folder.
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
    """Return Markdown. The explanation is indented, so that text out of logs is not read as markup."""
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
